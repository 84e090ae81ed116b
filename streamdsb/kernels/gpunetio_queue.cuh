// Queue kind `gpunetio`: Ethernet queues of a ConnectX that the GPU drives itself, through DOCA GPUNetIO (3.2 and
// later, header-only). The card writes received frames into a cyclic ring in GPU memory and sends from a staging
// area there. Lossy: the ring is overwritten whether or not its frames were read.
//
// -DSTREAMDSB_GPUNETIO says whose functions drive the queues: 1 for DOCA's, 2 for those of the software card.
#pragma once
#include "queue.cuh"
#ifdef STREAMDSB_GPUNETIO
#if STREAMDSB_GPUNETIO == 2
#include "gpunetio_software.cuh"
#else
#include <doca_gpunetio_dev_eth_rxq.cuh>
#include <doca_gpunetio_dev_eth_txq.cuh>
#endif

constexpr u64 RECEIVE_WAIT_NS = 2000;  // so that the receive warp soon sees a stop
constexpr u32 RECEIVE_MOST = WARP;     // returns as soon as one frame is there
constexpr u32 RECEIVE_CALLS = 4;       // at most, while all bring that many: what follows takes no longer for more

// GPUs before Hopper do not by themselves see a frame before its completion.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr auto MEMORY_CONSISTENCY = DOCA_GPUNETIO_ETH_MCST_AUTO;
#else
constexpr auto MEMORY_CONSISTENCY = DOCA_GPUNETIO_ETH_MCST_DISABLED;
#endif

enum GpunetioFault : u64 { NO_FAULT, SEND_FAULT, RECEIVE_FAULT, DESCRIPTOR_FAULT };

struct SendState {  // device memory, zero at the start
    u64 turn;    // the burst that is posted next
    u64 due;     // when it may be posted at a pace: picoseconds of the global timer, times of earlier bursts made up
    u64 failed;  // the card has reported an error: nothing is posted any more
};

template <typename T>
__device__ u64 volatile_of(const T& word) {
    return *const_cast<const volatile T*>(&word);
}

struct GpunetioQueue {
    static constexpr bool LOSSY = true;

    u64* fault;  // host-mapped: a GpunetioFault
    doca_gpu_eth_rxq* receive_queue;
    u8* frames;  // ring of `slots` slots of 4096 bytes
    u64 slots;
    doca_gpu_eth_txq* send_queue;  // new: nothing was posted on it before this kernel; at least places * 64 descriptors
    u8* staging;      // places * 64 frames
    u64 places;
    SendState* state;
    u64 key;          // of the staging area, in network byte order
    u64 addresses;    // bytes 0 to 7 of a frame: destination and source
    u64 source;       // bytes 8 to 11
    u64 frame_ps;     // pace: picoseconds a frame, 0 for none

    __device__ u32 receive(Arrival& mine) {
        __shared__ uint64_t first;
        __shared__ uint32_t received;
        if (!receive_queue) {  // failed before
            __nanosleep(RECEIVE_WAIT_NS);
            return 0;
        }
        u64 begin = 0;
        u32 total = 0, count = RECEIVE_MOST;
        for (u32 call = 0; call < RECEIVE_CALLS && count == RECEIVE_MOST; call++) {
            doca_error_t status = doca_gpu_dev_eth_rxq_recv<DOCA_GPUNETIO_ETH_EXEC_SCOPE_WARP, MEMORY_CONSISTENCY>(
                receive_queue, RECEIVE_MOST, call ? 0 : RECEIVE_WAIT_NS, &first, &received, nullptr);
            if (__any_sync(ALL_LANES, status != DOCA_SUCCESS)) {
                receive_queue = nullptr;
                if (threadIdx.x % WARP == 0) store_release_system(fault, RECEIVE_FAULT);
                break;
            }
            __syncwarp();
            if (!call) begin = first;
            count = received;
            total += count;
            __syncwarp();  // read before the next call writes them
        }
        if (!total) return 0;
        __threadfence_system();  // the card polls without acquiring
        return arrivals(begin, total, mine);
    }

    __device__ const u8* frame(u64 slot) const { return frames + slot * FRAME_BYTES; }

    __device__ void release(u64, u64) const {}

    __device__ bool acquire(u64 burst, const u64* stop) const {
        __shared__ bool granted;
        if (threadIdx.x == 0) {
            stop_word() = stop;
            poll(volatile_of(send_queue->cqe_ci));  // also when there is room, so that an error soon shows
            granted = going();
            while (granted && burst >= places && !complete(burst - places)) {
                __nanosleep(100);
                poll(burst - places);
                granted = going();
            }
        }
        __syncthreads();
        return granted;
    }

    __device__ u8* compose(u64 burst) const { return staging + burst % places * BURST_FRAMES * FRAME_BYTES; }

    // In the order of bursts, so that the completion of a burst has the burst's number.
    __device__ void submit(u64 burst, u32 count) const {
        __shared__ bool posting;
        __shared__ u64 descriptor;
        __syncthreads();
        if (threadIdx.x < count) address(compose(burst) + threadIdx.x * FRAME_BYTES);
        __threadfence();  // what this thread composed, before the doorbell of another
        if (threadIdx.x == 0) {
            posting = wait_for_turn(burst, count);
            descriptor = volatile_of(send_queue->wqe_pi);
        }
        __syncthreads();
        if (!posting) return;
        if (threadIdx.x < count) describe(burst, count, descriptor + threadIdx.x);
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            doca_gpu_dev_eth_txq_submit<DOCA_GPUNETIO_ETH_RESOURCE_SHARING_MODE_GPU>(send_queue, descriptor + count);
            store_release(&state->turn, burst + 1);
        }
    }

    __device__ bool complete(u64 burst) const { return volatile_of(send_queue->cqe_ci) > burst; }

  private:
    // `total` frames from slot `begin` on, which go on at slot 0 behind the last: the k-th part for lane k.
    __device__ u32 arrivals(u64 begin, u32 total, Arrival& mine) const {
        u32 left = slots - begin < total ? u32(slots - begin) : total, rest = total - left;
        u32 before = (left + BURST_FRAMES - 1) / BURST_FRAMES, lane = threadIdx.x % WARP;
        bool behind = lane < before;
        u32 skip = (behind ? lane : lane - before) * BURST_FRAMES, in = behind ? left : rest;
        u32 count = skip < in ? (in - skip < BURST_FRAMES ? in - skip : BURST_FRAMES) : 0;
        mine = Arrival{(behind ? begin : 0) + skip, 0, count};
        return before + (rest + BURST_FRAMES - 1) / BURST_FRAMES;
    }

    // Of the block: where it reads that it is to stop, kept for the waits of submit.
    __device__ static const u64*& stop_word() {
        __shared__ const u64* word;
        return word;
    }

    __device__ bool going() const { return !load_relaxed(stop_word()) && !load_relaxed(&state->failed); }

    __device__ void fail(GpunetioFault reason) const {
        store_release_system(fault, reason);
        store_release(&state->failed, 1);
    }

    __device__ void poll(u64 burst) const {
        doca_error_t status = doca_gpu_dev_eth_txq_poll_completion_at<DOCA_GPUNETIO_ETH_RESOURCE_SHARING_MODE_GPU>(
            send_queue, burst, DOCA_GPUNETIO_ETH_WAIT_FLAG_NB);
        if (status != DOCA_SUCCESS) fail(SEND_FAULT);
    }

    __device__ void address(u8* frame) const {
        *reinterpret_cast<u64*>(frame) = addresses;
        *reinterpret_cast<u32*>(frame + 8) = u32(source);
    }

    __device__ void describe(u64 burst, u32 count, u64 index) const {
        bool last = threadIdx.x == count - 1;
        u64 from = reinterpret_cast<u64>(compose(burst) + threadIdx.x * FRAME_BYTES);
        auto* descriptor = doca_gpu_dev_eth_txq_get_wqe_ptr(send_queue, u16(index));
        doca_error_t status = doca_gpu_dev_eth_txq_wqe_prepare_send(
            send_queue, descriptor, u16(index), from, u32(key), FRAME_BYTES,
            last ? DOCA_GPUNETIO_ETH_SEND_FLAG_NOTIFY : DOCA_GPUNETIO_ETH_SEND_FLAG_NONE);
        if (status != DOCA_SUCCESS) fail(DESCRIPTOR_FAULT);
    }

    // Until the burst may be posted, also at the pace; false: stopped.
    __device__ bool wait_for_turn(u64 burst, u32 count) const {
        while (load_acquire(&state->turn) != burst) {
            if (!going()) return false;
            __nanosleep(50);
        }
        if (!frame_ps) return going();
        u64 now = time_ps(), due = load_relaxed(&state->due);
        for (; now < due; now = time_ps()) {
            if (!going()) return false;
            __nanosleep(50);
        }
        store_relaxed(&state->due, (now - due < count * frame_ps ? due : now) + count * frame_ps);
        return going();
    }

    __device__ static u64 time_ps() {
        u64 ns;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
        return ns * 1000;  // wraps after 213 days of uptime, when one burst may wait as long
    }
};
#endif
