// Enough of CUDA to run the project's kernels on a CPU: a block is a thread of the system, its threads are
// coroutines that take turns where they wait. Memory order and the speed of warps are not what they are on a GPU.
#include <sched.h>
#include <sys/mman.h>
#include <x86intrin.h>

#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static thread_local
#define __align__(n) __attribute__((aligned(n)))

struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) ulonglong2 { unsigned long long x, y; };
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return uint4{x, y, z, w}; }
inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y) { return ulonglong2{x, y}; }

namespace emulated {
extern "C" void emulated_switch(void** from, void* to);
asm(R"(
.text
emulated_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

struct Index { unsigned x, y; };
struct Barrier { unsigned arrived = 0, turn = 0; };
struct Warp { Barrier barrier; unsigned long long value[2][32]; };
struct Fiber {
    void* stack;
    Index thread;
    const unsigned* waits_for = nullptr;  // a barrier's turn that has to change from
    unsigned turn;
    unsigned exchanges = 0;
    bool done = false;
};
struct Block {
    Index index, grid, size;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    Barrier barriers[2];
    void* scheduler;
    const unsigned long long* arguments;
};
static thread_local Block* block;
static thread_local Fiber* self;

inline void yield() { emulated_switch(&self->stack, block->scheduler); }

inline void wait(Barrier& barrier, unsigned count) {
    unsigned turn = barrier.turn;
    if (++barrier.arrived == count) {
        barrier.arrived = 0;
        barrier.turn++;
        return;
    }
    self->waits_for = &barrier.turn;
    self->turn = turn;
    yield();
}

// What every lane of this warp has as `value`; valid until the exchange after the next.
inline const unsigned long long* exchange(unsigned long long value) {
    Warp& warp = block->warps[self->thread.x / 32];
    unsigned long long* values = warp.value[self->exchanges++ % 2];
    values[self->thread.x % 32] = value;
    wait(warp.barrier, 32);
    return values;
}

void call(const unsigned long long* a);

static void enter() {
    call(block->arguments);
    self->done = true;
    yield();
}

static void run(Index index, Index grid, Index size, const unsigned long long* arguments) {
    constexpr size_t STACK = 128 << 10;
    Block here{index, grid, size, std::vector<Fiber>(size.x), std::vector<Warp>((size.x + 31) / 32)};
    here.arguments = arguments;
    block = &here;
    char* stacks = static_cast<char*>(mmap(nullptr, STACK * size.x, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    for (unsigned k = 0; k < size.x; k++) {
        void** top = reinterpret_cast<void**>(stacks + STACK * (k + 1));
        top[-2] = reinterpret_cast<void*>(&enter);
        for (int saved = 3; saved <= 8; saved++) top[-saved] = nullptr;
        here.fibers[k].stack = top - 8;
        here.fibers[k].thread = Index{k, 0};
    }
    unsigned left = size.x, turn = index.x * 7919u;
    while (left) {
        turn = turn * 1664525u + 1013904223u;
        for (unsigned k = 0; k < size.x; k++) {
            Fiber& fiber = here.fibers[(k + (turn >> 16)) % size.x];
            if (fiber.done || (fiber.waits_for && *fiber.waits_for == fiber.turn)) continue;
            fiber.waits_for = nullptr;
            self = &fiber;
            emulated_switch(&here.scheduler, fiber.stack);
            if (fiber.done) left--;
        }
        sched_yield();
    }
    munmap(stacks, STACK * size.x);
}
}  // namespace emulated

extern "C" void emulated_launch(unsigned x, unsigned y, unsigned threads, const unsigned long long* arguments) {
    std::vector<std::thread> blocks;
    for (unsigned k = 0; k < x * y; k++)
        blocks.emplace_back(emulated::run, emulated::Index{k % x, k / x}, emulated::Index{x, y},
                            emulated::Index{threads, 1}, arguments);
    for (std::thread& one : blocks) one.join();
}

#define threadIdx (emulated::self->thread)
#define blockIdx (emulated::block->index)
#define gridDim (emulated::block->grid)
#define blockDim (emulated::block->size)

inline void __syncthreads() { emulated::wait(emulated::block->barriers[0], blockDim.x); }
inline void emulated_worker_barrier(unsigned count) { emulated::wait(emulated::block->barriers[1], count); }
inline void __syncwarp() { emulated::exchange(0); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __threadfence(); }
inline void __nanosleep(unsigned) { emulated::yield(); }
inline long long clock64() { return static_cast<long long>(__rdtsc()); }

template <class T> T __shfl_sync(unsigned, T value, unsigned lane) { return T(emulated::exchange(u64(value))[lane % 32]); }
template <class T> T __shfl_xor_sync(unsigned, T value, unsigned step) {
    return T(emulated::exchange(u64(value))[(threadIdx.x ^ step) % 32]);
}
template <class T> T __shfl_up_sync(unsigned, T value, unsigned step) {
    unsigned lane = threadIdx.x % 32;
    return T(emulated::exchange(u64(value))[lane < step ? lane : lane - step]);
}
inline unsigned __ballot_sync(unsigned, bool value) {
    const u64* values = emulated::exchange(value);
    unsigned mask = 0;
    for (unsigned lane = 0; lane < 32; lane++) mask |= unsigned(values[lane]) << lane;
    return mask;
}
inline bool __any_sync(unsigned mask, bool value) { return __ballot_sync(mask, value) != 0; }
inline bool __all_sync(unsigned mask, bool value) { return __ballot_sync(mask, value) == ~0u; }
inline unsigned __reduce_add_sync(unsigned, unsigned value) {
    const u64* values = emulated::exchange(value);
    unsigned sum = 0;
    for (unsigned lane = 0; lane < 32; lane++) sum += unsigned(values[lane]);
    return sum;
}

template <class T, class U> T atomicAdd(T* p, U v) { return __atomic_fetch_add(p, T(v), __ATOMIC_RELAXED); }
template <class T, class U> T atomicAdd_system(T* p, U v) { return atomicAdd(p, v); }
template <class T, class U> T atomicSub(T* p, U v) { return __atomic_fetch_sub(p, T(v), __ATOMIC_RELAXED); }
template <class T, class U> T atomicOr(T* p, U v) { return __atomic_fetch_or(p, T(v), __ATOMIC_RELAXED); }
template <class T, class U> T atomicAnd(T* p, U v) { return __atomic_fetch_and(p, T(v), __ATOMIC_RELAXED); }
template <class T, class U> T atomicExch(T* p, U v) { return __atomic_exchange_n(p, T(v), __ATOMIC_RELAXED); }
inline u64 atomicCAS(u64* p, u64 compare, u64 value) {
    __atomic_compare_exchange_n(p, &compare, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return compare;
}
template <class T, class U> T atomicMax(T* p, U v) {
    T old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (old < T(v) && !__atomic_compare_exchange_n(p, &old, T(v), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    return old;
}
template <class T, class U> T atomicMax_system(T* p, U v) { return atomicMax(p, v); }

inline int __ffs(unsigned v) { return __builtin_ffs(int(v)); }
inline int __ffsll(u64 v) { return __builtin_ffsll(static_cast<long long>(v)); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(u64 v) { return __builtin_popcountll(v); }
inline float __uint_as_float(unsigned v) { float f; memcpy(&f, &v, 4); return f; }
inline float __ll2float_rn(long long v) { return float(v); }
template <class T> T __ldcg(const T* p) { return *reinterpret_cast<const volatile T*>(p); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    u64 bytes = u64(b) << 32 | a;
    unsigned out = 0;
    for (int k = 0; k < 4; k++) out |= unsigned(bytes >> 8 * (selector >> 4 * k & 7) & 0xff) << 8 * k;
    return out;
}

// What memory.cuh has as inline assembly.
inline uint4 load_uncached(const uint4* p) {
    const volatile u64* words = reinterpret_cast<const volatile u64*>(p);
    u64 low = words[0], high = words[1];
    return uint4{unsigned(low), unsigned(low >> 32), unsigned(high), unsigned(high >> 32)};
}
inline u64 load_uncached(const u64* p) { return *reinterpret_cast<const volatile u64*>(p); }
inline u32 load_uncached(const u32* p) { return *reinterpret_cast<const volatile u32*>(p); }
inline void copy_uncached(uint4* shared, const uint4* p) { *shared = load_uncached(p); }
inline void wait_for_copies() {}
inline u64 load_acquire(const u64* p) {
    emulated::yield();
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
inline u64 load_relaxed(const u64* p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
inline u64 load_acquire_system(const u64* p) { return load_acquire(p); }
inline void store_relaxed(u64* p, u64 v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
inline void store_release(u64* p, u64 v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
inline void store_relaxed_system(u64* p, u64 v) { store_relaxed(p, v); }
inline void store_release_system(u64* p, u64 v) { store_release(p, v); }
