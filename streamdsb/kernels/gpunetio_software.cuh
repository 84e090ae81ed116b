// Software network card, device side: the few types, values and functions of DOCA GPUNetIO that queue kind `gpunetio`
// uses, over plain device memory instead of a ConnectX. The names are DOCA's; what lies behind them is not.
#pragma once
#include "memory.cuh"

#ifdef __CUDACC_RTC__
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#endif

enum doca_error_t { DOCA_SUCCESS = 0, DOCA_ERROR_UNEXPECTED = 22 };
enum doca_gpu_dev_eth_exec_scope { DOCA_GPUNETIO_ETH_EXEC_SCOPE_THREAD, DOCA_GPUNETIO_ETH_EXEC_SCOPE_WARP };
enum doca_gpu_dev_eth_mcst_mode { DOCA_GPUNETIO_ETH_MCST_DISABLED, DOCA_GPUNETIO_ETH_MCST_AUTO = 2 };
enum doca_gpu_dev_eth_resource_sharing_mode { DOCA_GPUNETIO_ETH_RESOURCE_SHARING_MODE_GPU = 2 };
enum doca_gpu_dev_eth_wait_flags { DOCA_GPUNETIO_ETH_WAIT_FLAG_NB, DOCA_GPUNETIO_ETH_WAIT_FLAG_B };
enum doca_gpu_eth_send_flags { DOCA_GPUNETIO_ETH_SEND_FLAG_NONE, DOCA_GPUNETIO_ETH_SEND_FLAG_NOTIFY };

struct doca_gpu_dev_eth_rxq_attr;

struct doca_gpu_dev_eth_txq_wqe {  // a send descriptor
    u64 addr;
    u32 bytes;
    u32 flags;
    u32 key;
    u32 index;
    u64 unused[5];
};
static_assert(sizeof(doca_gpu_dev_eth_txq_wqe) == 64, "a descriptor has 64 bytes");

// A completion is a word: the number of what it completes, plus 1, and FAILED if that went wrong.
constexpr u64 SOFTWARE_CARD_FAILED = 1ull << 63;

struct doca_gpu_eth_txq {  // a send queue
    u64 wqe_addr;     // descriptors
    u64 wqe_mask;
    u64 wqe_pi;       // of the next descriptor
    u64 doorbell;     // descriptors that the card may read
    u64 cqe_addr;     // completions
    u64 cqe_mask;
    u64 cqe_ci;       // completions that were taken
    u64 key;          // of the memory that may be sent from
};

struct doca_gpu_eth_rxq {  // a receive queue
    u64 pkt_addr;     // ring of pkt_num slots of max_pkt_sz bytes
    u64 pkt_num;      // a power of two
    u64 max_pkt_sz;
    u64 cqe_addr;     // pkt_num completions
    u64 cqe_ci;       // frames that were taken
    u64 posted;       // frames that the card may have written in all: those taken give their slots back
    u64 strides;      // slots that go back together
};

__device__ inline u64 software_card_time() {
    u64 ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
    return ns;
}

// --- receiving --------------------------------------------------------------------------------------

// One whole warp, the only one of its block and of its queue. As on the card: returns 1 to 32 frames as soon as
// one is there, success and none after the time, and gives the slots back at once, so that they are soon overwritten.
template <doca_gpu_dev_eth_exec_scope scope, doca_gpu_dev_eth_mcst_mode mode>
__device__ inline doca_error_t doca_gpu_dev_eth_rxq_recv(doca_gpu_eth_rxq* queue, uint32_t, uint64_t timeout_ns,
                                                         uint64_t* first, uint32_t* number,
                                                         doca_gpu_dev_eth_rxq_attr*) {
    static_assert(scope == DOCA_GPUNETIO_ETH_EXEC_SCOPE_WARP, "the software card receives in warp scope");
    u32 lane = threadIdx.x % 32, count;
    u64 taken = *const_cast<volatile u64*>(&queue->cqe_ci), start = software_card_time();
    u64 slots = queue->pkt_num, done = taken + lane + 1;
    const u64* completion = reinterpret_cast<const u64*>(queue->cqe_addr) + (taken + lane & slots - 1);
    do {
        u64 word = load_acquire_system(completion);
        if (__any_sync(~0u, word == (SOFTWARE_CARD_FAILED | done))) return DOCA_ERROR_UNEXPECTED;
        u32 missing = __ballot_sync(~0u, word != done);
        count = missing ? __ffs(missing) - 1 : 32;
    } while (!count && __shfl_sync(~0u, software_card_time() - start, 0) <= timeout_ns);
    if (lane == 0) {
        u64 now = taken + count, stride = queue->strides;
        *number = count;
        *first = taken & slots - 1;
        *const_cast<volatile u64*>(&queue->cqe_ci) = now;
        // relaxed: the card does not wait until what it gets back was read
        if (now / stride > taken / stride) store_relaxed_system(&queue->posted, now - now % stride + slots);
    }
    __syncwarp();
    return DOCA_SUCCESS;
}

// --- sending ----------------------------------------------------------------------------------------

__device__ inline doca_gpu_dev_eth_txq_wqe* doca_gpu_dev_eth_txq_get_wqe_ptr(doca_gpu_eth_txq* queue,
                                                                             uint16_t index) {
    return reinterpret_cast<doca_gpu_dev_eth_txq_wqe*>(queue->wqe_addr) + (index & queue->wqe_mask);
}

__device__ inline doca_error_t doca_gpu_dev_eth_txq_wqe_prepare_send(const doca_gpu_eth_txq*,
                                                                     doca_gpu_dev_eth_txq_wqe* descriptor,
                                                                     uint16_t index, uint64_t addr, uint32_t key,
                                                                     uint32_t bytes, doca_gpu_eth_send_flags flags) {
    uint4* pieces = reinterpret_cast<uint4*>(descriptor);
    pieces[0] = make_uint4(uint32_t(addr), uint32_t(addr >> 32), bytes, flags);
    pieces[1] = make_uint4(key, index, 0, 0);
    return DOCA_SUCCESS;
}

// As on the card, an end that was submitted before, or lies before one, does nothing.
template <doca_gpu_dev_eth_resource_sharing_mode sharing>
__device__ inline void doca_gpu_dev_eth_txq_submit(doca_gpu_eth_txq* queue, uint64_t end) {
    if (atomicMax(&queue->wqe_pi, u64(end)) >= end) return;
    __threadfence_system();
    atomicMax_system(&queue->doorbell, u64(end));
}

template <doca_gpu_dev_eth_resource_sharing_mode sharing>
__device__ inline doca_error_t doca_gpu_dev_eth_txq_poll_completion_at(doca_gpu_eth_txq* queue, uint64_t index,
                                                                       doca_gpu_dev_eth_wait_flags wait) {
    const u64* completion = reinterpret_cast<const u64*>(queue->cqe_addr) + (index & queue->cqe_mask);
    u64 word;
    do {
        word = load_acquire_system(completion);
        if (word == (SOFTWARE_CARD_FAILED | (index + 1))) return DOCA_ERROR_UNEXPECTED;
    } while (word != index + 1 && wait == DOCA_GPUNETIO_ETH_WAIT_FLAG_B);
    if (word == index + 1) atomicMax(&queue->cqe_ci, u64(index + 1));
    return DOCA_SUCCESS;
}
