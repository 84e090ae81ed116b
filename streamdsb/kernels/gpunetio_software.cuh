// Software network card, device side: the few types, values and functions of DOCA GPUNetIO that queue kind `gpunetio`
// uses, over plain device memory instead of a ConnectX. The names are DOCA's; what lies behind them is not.
#pragma once

typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;

enum doca_error_t { DOCA_SUCCESS = 0, DOCA_ERROR_UNEXPECTED = 22 };
enum doca_gpu_dev_eth_exec_scope { DOCA_GPUNETIO_ETH_EXEC_SCOPE_THREAD, DOCA_GPUNETIO_ETH_EXEC_SCOPE_WARP };
enum doca_gpu_dev_eth_mcst_mode { DOCA_GPUNETIO_ETH_MCST_DISABLED, DOCA_GPUNETIO_ETH_MCST_AUTO = 2 };
enum doca_gpu_dev_eth_resource_sharing_mode { DOCA_GPUNETIO_ETH_RESOURCE_SHARING_MODE_GPU = 2 };
enum doca_gpu_dev_eth_wait_flags { DOCA_GPUNETIO_ETH_WAIT_FLAG_NB, DOCA_GPUNETIO_ETH_WAIT_FLAG_B };
enum doca_gpu_eth_send_flags { DOCA_GPUNETIO_ETH_SEND_FLAG_NONE, DOCA_GPUNETIO_ETH_SEND_FLAG_NOTIFY };

struct doca_gpu_dev_eth_rxq_attr;

struct doca_gpu_dev_eth_txq_wqe {  // a send descriptor
    uint64_t addr;
    uint32_t bytes;
    uint32_t flags;
    uint32_t key;
    uint32_t index;
    uint64_t unused[5];
};
static_assert(sizeof(doca_gpu_dev_eth_txq_wqe) == 64, "a descriptor has 64 bytes");

// A completion is a word: the number of what it completes, plus 1, and FAILED if that went wrong.
constexpr uint64_t SOFTWARE_CARD_FAILED = 1ull << 63;

struct doca_gpu_eth_txq {  // a send queue
    uint64_t wqe_addr;     // descriptors
    uint64_t wqe_mask;
    uint64_t wqe_pi;       // of the next descriptor
    uint64_t doorbell;     // descriptors that the card may read
    uint64_t cqe_addr;     // completions
    uint64_t cqe_mask;
    uint64_t cqe_ci;       // completions that were taken
    uint64_t key;          // of the memory that may be sent from
};

struct doca_gpu_eth_rxq {  // a receive queue
    uint64_t pkt_addr;     // ring of pkt_num slots of max_pkt_sz bytes
    uint64_t pkt_num;      // a power of two
    uint64_t max_pkt_sz;
    uint64_t cqe_addr;     // pkt_num completions
    uint64_t cqe_ci;       // frames that were taken
    uint64_t posted;       // frames that the card may have written in all: those taken give their slots back
    uint64_t strides;      // slots that go back together
};

__device__ inline uint64_t software_card_load(const uint64_t* p) {
    uint64_t v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

__device__ inline void software_card_store(uint64_t* p, uint64_t v) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

__device__ inline uint64_t software_card_time() {
    uint64_t ns;
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
    uint32_t lane = threadIdx.x % 32, count;
    uint64_t taken = *const_cast<volatile uint64_t*>(&queue->cqe_ci), start = software_card_time();
    uint64_t slots = queue->pkt_num, done = taken + lane + 1;
    const uint64_t* completion = reinterpret_cast<const uint64_t*>(queue->cqe_addr) + (taken + lane & slots - 1);
    do {
        uint64_t word = software_card_load(completion);
        if (__any_sync(~0u, word == (SOFTWARE_CARD_FAILED | done))) return DOCA_ERROR_UNEXPECTED;
        uint32_t missing = __ballot_sync(~0u, word != done);
        count = missing ? __ffs(missing) - 1 : 32;
    } while (!count && __shfl_sync(~0u, software_card_time() - start, 0) <= timeout_ns);
    if (lane == 0) {
        *number = count;
        *first = taken & slots - 1;
        taken += count;
        *const_cast<volatile uint64_t*>(&queue->cqe_ci) = taken;
        if (count) software_card_store(&queue->posted, taken - taken % queue->strides + slots);
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
    if (atomicMax(&queue->wqe_pi, end) >= end) return;
    __threadfence_system();
    atomicMax_system(&queue->doorbell, end);
}

template <doca_gpu_dev_eth_resource_sharing_mode sharing>
__device__ inline doca_error_t doca_gpu_dev_eth_txq_poll_completion_at(doca_gpu_eth_txq* queue, uint64_t index,
                                                                       doca_gpu_dev_eth_wait_flags wait) {
    const uint64_t* completion = reinterpret_cast<const uint64_t*>(queue->cqe_addr) + (index & queue->cqe_mask);
    uint64_t word;
    do {
        word = software_card_load(completion);
        if (word == (SOFTWARE_CARD_FAILED | (index + 1))) return DOCA_ERROR_UNEXPECTED;
    } while (word != index + 1 && wait == DOCA_GPUNETIO_ETH_WAIT_FLAG_B);
    if (word == index + 1) atomicMax(&queue->cqe_ci, index + 1);
    return DOCA_SUCCESS;
}
