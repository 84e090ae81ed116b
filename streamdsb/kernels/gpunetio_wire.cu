// Software network card, the card itself: blocks that read send descriptors after the doorbell, copy the frames into
// the receive queue at the other end, on the same device or another, and complete both. What a real link and card do
// to frames happens here at chosen rates; without a free slot at the receiver a frame is dropped.
#include "gpunetio_software.cuh"
#include "hash.cuh"

constexpr u32 CHUNK = WARP;  // descriptors that a block takes at once
constexpr u32 FRAME_PIECES = 4096 / 16;

struct Wire {        // one send queue and the receive queue that its frames go to
    doca_gpu_eth_txq* from;
    doca_gpu_eth_rxq* to;
    u64 key;
    u64 lose;        // the rates, of 65,536
    u64 repeat;
    u64 delay;       // behind the others of its chunk
    u64 fail;        // the completion from which on all fail, plus 1; 0 for none
    u64 locked;      // zero at the start, from here on
    u64 taken;       // descriptors
    u64 arrived;     // number, at the receiver, of the next frame
    u64 posted;      // frames that the receiver had room for when last asked
    u64 notified;    // completions of sends that were asked for
    u64 chunks;      // taken, and
    u64 finished;
    u64 lost;
    u64 repeated;
    u64 dropped;     // no slot was free
};

struct Job {
    u64 wires;
    const u64* stop;  // host-mapped
    u64 stopped;
    Wire wire[8];
};

#ifdef STREAMDSB_JOB_BYTES
static_assert(sizeof(Job) == STREAMDSB_JOB_BYTES, "struct Job is not what the host fills");
#endif

struct Chunk {
    u64 number;
    u64 first_notice;
    u64 first_target;               // number, at the receiver, of the first frame
    u32 frames;                     // to be copied
    u32 notices;                    // completions of sends after that
    const uint4* source[2 * CHUNK];
};

__device__ u32 before_me(u32 lanes) { return __popc(lanes & (1u << threadIdx.x % WARP) - 1); }

// What becomes of the next `count` descriptors, one a lane of a warp that holds the lock.
__device__ void decide(Wire& wire, Chunk& chunk, u64 count) {
    u32 lane = threadIdx.x % WARP;
    u64 fate = hash(wire.key, wire.taken + lane, 0), arrived = wire.arrived, posted = wire.posted;
    const void* from = doca_gpu_dev_eth_txq_get_wqe_ptr(wire.from, uint16_t(wire.taken + lane));
    uint4 descriptor = load_uncached(reinterpret_cast<const uint4*>(from));
    if (arrived + 2 * CHUNK > posted) posted = load_acquire_system(&wire.to->posted);
    bool given = lane < count, kept = given && (fate & 0xffff) >= wire.lose;
    bool twice = kept && (fate >> 16 & 0xffff) < wire.repeat, late = kept && (fate >> 32 & 0xffff) < wire.delay;
    u32 notices = __ballot_sync(ALL_LANES, given && descriptor.w & DOCA_GPUNETIO_ETH_SEND_FLAG_NOTIFY);
    u32 all_kept = __ballot_sync(ALL_LANES, kept), all_twice = __ballot_sync(ALL_LANES, twice);
    u32 all_late = __ballot_sync(ALL_LANES, late), in_time = __popc(all_kept & ~all_late) + __popc(all_twice);
    u32 total = in_time + __popc(all_late), room = posted - arrived < total ? u32(posted - arrived) : total;
    u32 place = before_me(all_kept & ~all_late) + before_me(all_twice);
    const uint4* source = reinterpret_cast<const uint4*>(u64(descriptor.y) << 32 | descriptor.x);
    if (kept) chunk.source[late ? in_time + before_me(all_late) : place] = source;
    if (twice) chunk.source[late ? place : place + 1] = source;
    __syncwarp();
    if (lane) return;
    chunk.number = wire.chunks++;
    chunk.first_notice = wire.notified;
    chunk.first_target = arrived;
    chunk.frames = room;
    chunk.notices = __popc(notices);
    wire.taken += count;
    wire.arrived = arrived + room;
    wire.posted = posted;
    wire.notified += __popc(notices);
    wire.lost += count - __popc(all_kept);
    wire.repeated += __popc(all_twice);
    wire.dropped += total - room;
}

// The next descriptors of a wire, if any, for one warp. All words but `finished` belong to whoever holds the lock.
__device__ bool take(Wire& wire, Chunk& chunk) {
    u64 rung = 0;
    bool locked = false;
    if (threadIdx.x == 0) {
        rung = load_acquire_system(&wire.from->doorbell);
        locked = load_relaxed(&wire.taken) < rung && !atomicCAS(&wire.locked, 0ull, 1ull);
    }
    if (!__shfl_sync(ALL_LANES, locked, 0)) return false;
    rung = __shfl_sync(ALL_LANES, rung, 0);
    __threadfence();
    u64 left = rung > wire.taken ? rung - wire.taken : 0;
    __syncwarp();
    if (left) decide(wire, chunk, left < CHUNK ? left : CHUNK);
    __threadfence();
    __syncwarp();
    if (threadIdx.x == 0) atomicExch(&wire.locked, 0ull);
    return left;
}

__device__ void copy(const Wire& wire, const Chunk& chunk) {
    u8* ring = reinterpret_cast<u8*>(wire.to->pkt_addr);
    u64 mask = wire.to->pkt_num - 1, stride = wire.to->max_pkt_sz;
    for (u32 frame = threadIdx.x / WARP; frame < chunk.frames; frame += blockDim.x / WARP) {
        uint4* to = reinterpret_cast<uint4*>(ring + (chunk.first_target + frame & mask) * stride);
#pragma unroll
        for (u32 piece = 0; piece < FRAME_PIECES; piece += WARP)
            to[piece + threadIdx.x % WARP] = load_uncached(chunk.source[frame] + piece + threadIdx.x % WARP);
    }
    __threadfence_system();
}

// Completions of sends in their order, whichever block copied first.
__device__ void notify(Wire& wire, const Chunk& chunk) {
    while (load_acquire(&wire.finished) != chunk.number) __nanosleep(20);
    u64* completions = reinterpret_cast<u64*>(wire.from->cqe_addr);
    for (u32 k = 0; k < chunk.notices; k++) {
        u64 done = chunk.first_notice + k + 1;
        u64 word = wire.fail && done >= wire.fail ? SOFTWARE_CARD_FAILED | done : done;
        store_release_system(completions + (done - 1 & wire.from->cqe_mask), word);
    }
    store_release(&wire.finished, chunk.number + 1);
}

extern "C" __global__ void __launch_bounds__(256, 6) wire(Job* job) {
    __shared__ Chunk chunk;
    __shared__ bool taken, stopped;
    Wire& mine = job->wire[blockIdx.x % job->wires];
    u64* completions = reinterpret_cast<u64*>(mine.to->cqe_addr);
    u64 mask = mine.to->pkt_num - 1;
    for (;;) {
        if (threadIdx.x < WARP) {
            bool some = take(mine, chunk);
            if (threadIdx.x == 0) {
                taken = some;
                stopped = load_acquire(&job->stopped);
                // only one block asks across PCIe
                if (blockIdx.x == 0 && !some && load_acquire_system(job->stop)) store_release(&job->stopped, 1);
                if (!some) __nanosleep(200);
            }
        }
        __syncthreads();
        if (taken) {
            copy(mine, chunk);
            __syncthreads();
            for (u32 k = threadIdx.x; k < chunk.frames; k += blockDim.x) {
                u64 number = chunk.first_target + k;
                store_release_system(completions + (number & mask), number + 1);
            }
            if (threadIdx.x == 0) notify(mine, chunk);
        } else if (stopped) {
            break;
        }
        __syncthreads();
    }
}
