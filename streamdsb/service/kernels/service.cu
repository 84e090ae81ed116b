// Solving on the GPU: workers, and the rings between them and who feeds them.
//
// serve: block 0 has a warp that follows the host's work ring, where workers read requests themselves, and one
// that carries replies from a ring in device memory to the host's; the other blocks are workers.
// saturate: block 0 has producer warps and a consumer warp on rings in device memory, as a receive warp and a
// transmit thread beside a NIC would be.
// solve_batch: a block a request.
//
// Each takes a while to compile; STREAMDSB_WITHOUT_<NAME> leaves it out.
#include "solve.cuh"

// The layout of rings.py.
constexpr u32 RING_ITEMS = 4096;
constexpr u32 WORK_BYTES = 1536;
constexpr u32 REPLY_BYTES = 512;
constexpr u32 RECEIVED_AT = 1504, PLACE_AT = 1512, XI_AT = 1520, DT_AT = 1524;
constexpr u32 TICKET_AT = 480, SIZE_AT = 496;

// Counters in device memory, 128 bytes apart.
constexpr u32 CLAIMED = 0, ANSWERED = 16, AVAILABLE = 32, STOP = 48, DRAINED = 64, STARTED_NS = 80, ENDED_NS = 96;

constexpr u64 MODEL_BYTES = STREAMDSB_MODEL_BYTES;
constexpr u64 STOPPED = ~0ull;

struct Rings {
    u8* work;
    u8* replies;
    u64* reply_sequence;
    u64* acknowledged;  // ticket + 1 whose reply is published, by work slot
    u64* control;
};

// Rings that the host has mapped, as far as workers do not use them; see rings.py.
struct Host {
    u8* replies;
    u64* reply_sequence;
    const u64* control;
};
constexpr u32 HOST_STOP = 0, HOST_PUBLISHED = 24;

struct Store {
    const u8* models;   // fragments, MODEL_BYTES a place
    const u32* formats; // by place
};

__device__ __forceinline__ u64 now_ns() {
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

// Whoever sees it sees what a fence has put before it.
__device__ __forceinline__ void set_flag(u64* p, u64 v) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

__device__ __forceinline__ uint4 load_volatile(const uint4* p) {
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

template <class T>
__device__ __forceinline__ T at(const u8* bytes, u32 offset) {
    return *reinterpret_cast<const T*>(bytes + offset);
}

// Solves the request in a work item; all threads of the block.
__device__ __forceinline__ Problem solve_item(const u8* item, const Store& store, Shared& shared) {
    if (threadIdx.x < WORK_BYTES / 16)
        reinterpret_cast<uint4*>(shared.request)[threadIdx.x] =
            load_volatile(reinterpret_cast<const uint4*>(item) + threadIdx.x);
    __syncthreads();
    const u8* r = shared.request;
    const u32 place = at<u32>(r, PLACE_AT);
    const uint4* couplings = reinterpret_cast<const uint4*>(store.models + place * MODEL_BYTES);
    Problem p = {__ldcg(store.formats + place), at<u32>(r, 32),       at<u16>(r, 36), at<u32>(r, 40),
                 at<float>(r, XI_AT),           at<float>(r, DT_AT), at<u64>(r, 56), couplings};
    solve(p, shared, at<u16>(r, 38) & 1);
    return p;
}

// Writes the RESULT; one warp. Only then may the reply be published.
__device__ __forceinline__ void write_reply(u8* reply, const Shared& shared, const Problem& p, u64 ticket, u32 worker,
                                            u32 queue_ns, u32 solve_ns) {
    const u32 lane = threadIdx.x % WARP, words = (p.n + 31) / 32;
    volatile u32* out = reinterpret_cast<u32*>(reply);
    for (u32 w = lane; w < 16 + words; w += WARP) {
        u32 value = w >= 16 ? shared.spins[w - 16] : w < 8 ? at<u32>(shared.request, 4 * w) : 0;
        if (w == 3) value = (value & 0x00ffffff) | 19u << 24;
        if (w == 8) value = u32(shared.best_energy);
        if (w == 9) value = u32(shared.best_energy >> 31);
        if (w == 10) value = shared.best_replica << 16;
        if (w == 11) value = worker;
        if (w == 12) value = queue_ns;
        if (w == 13) value = solve_ns;
        out[w] = value;
    }
    if (lane == 0) {
        *reinterpret_cast<volatile u64*>(reply + TICKET_AT) = ticket;
        *reinterpret_cast<volatile u64*>(reply + TICKET_AT + 8) = 0;  // this clock is not the host's
        *reinterpret_cast<volatile u32*>(reply + SIZE_AT) = 64 + 4 * words;
    }
}

__device__ __forceinline__ bool is_stopped(const Rings& rings) { return load_relaxed(rings.control + STOP) != 0; }

// The next ticket once its item is there, or STOPPED; one thread.
__device__ __forceinline__ u64 claim(const Rings& rings) {
    u64 ticket = atomicAdd(rings.control + CLAIMED, 1ull);
    while (load_acquire(rings.control + AVAILABLE) <= ticket) {
        if (is_stopped(rings)) return STOPPED;
        __nanosleep(50);
    }
    return ticket;
}

// A reply slot; waits while the consumer is behind.
__device__ __forceinline__ u64 take_reply_slot(const Rings& rings) {
    u64 turn = atomicAdd(rings.control + ANSWERED, 1ull);
    while (load_acquire(rings.control + DRAINED) + RING_ITEMS <= turn && !is_stopped(rings)) __nanosleep(50);
    return turn;
}

// Publishes the reply to the request in `shared`; one warp.
__device__ __forceinline__ void answer(const Rings& rings, const Shared& shared, const Problem& p, u64 ticket,
                                       u64 claimed_ns) {
    const u32 lane = threadIdx.x % WARP;
    const u64 solved_ns = now_ns();
    u64 turn = lane == 0 ? take_reply_slot(rings) : 0;
    turn = __shfl_sync(ALL_LANES, turn, 0);
    write_reply(rings.replies + turn % RING_ITEMS * REPLY_BYTES, shared, p, ticket, blockIdx.x,
                u32(claimed_ns - at<u64>(shared.request, RECEIVED_AT)), u32(solved_ns - claimed_ns));
    __syncwarp();
    if (lane == 0) {
        __threadfence();  // of the whole warp's stores, which the barrier put before it
        set_flag(rings.reply_sequence + turn % RING_ITEMS, turn + 1);
        set_flag(rings.acknowledged + ticket % RING_ITEMS, ticket + 1);
    }
}

// Solves requests until everyone is stopped; the next one is claimed while the reply is being written.
__device__ __forceinline__ void work(const Rings& rings, const Store& store, Shared& shared) {
    if (threadIdx.x == WARP) shared.ticket = claim(rings);
    __syncthreads();
    while (shared.ticket != STOPPED) {
        const u64 ticket = shared.ticket, claimed_ns = now_ns();
        const Problem p = solve_item(rings.work + ticket % RING_ITEMS * WORK_BYTES, store, shared);
        if (threadIdx.x < WARP) answer(rings, shared, p, ticket, claimed_ns);
        else if (threadIdx.x == WARP) shared.ticket = claim(rings);
        __syncthreads();
    }
}

// Replies ready in order from turn `first` on, at most a warp of them; one warp, which then may read them.
__device__ __forceinline__ u32 ready_replies(const Rings& rings, u64 first) {
    const u64 turn = first + threadIdx.x % WARP;
    const bool ready = load_acquire(rings.reply_sequence + turn % RING_ITEMS) == turn + 1;
    const u32 leading = __ffs(~__ballot_sync(ALL_LANES, ready));
    __syncwarp();
    return leading ? leading - 1 : WARP;
}

constexpr u32 COPIED_AT_ONCE = 8;

// --- the host's rings

// Passes on what the host has published, and that it stopped; one warp.
__device__ __forceinline__ void follow(const Rings& rings, const Host& host) {
    const u32 lane = threadIdx.x % WARP;
    u64 available = 0;
    while (true) {
        // both words are on their way at once: each takes as long as the way to the host and back
        const u64 word = lane < 2 ? load_acquire_system(host.control + (lane ? HOST_STOP : HOST_PUBLISHED)) : 0;
        const u64 published = __shfl_sync(ALL_LANES, word, 0), stop = __shfl_sync(ALL_LANES, word, 1);
        if (lane == 0 && published != available) store_release(rings.control + AVAILABLE, published);
        available = published;
        if (stop) break;
    }
    if (lane == 0) store_release(rings.control + STOP, 1);
}

// Carries replies to the host's ring, with one fence for all that are ready; one warp.
__device__ __forceinline__ void carry(const Rings& rings, const Host& host) {
    const u32 lane = threadIdx.x % WARP;
    static_assert(REPLY_BYTES == WARP * 16, "a lane takes 16 bytes of every reply");
    u64 drained = 0;
    while (!is_stopped(rings)) {
        const u32 fresh = ready_replies(rings, drained);
        if (fresh == 0) continue;
        for (u32 first = 0; first < fresh; first += COPIED_AT_ONCE) {
            uint4 v[COPIED_AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < COPIED_AT_ONCE; i++) {
                const u64 place = (drained + first + i) % RING_ITEMS * WARP + lane;
                v[i] = load_volatile(reinterpret_cast<const uint4*>(rings.replies) + place);
            }
#pragma unroll
            for (u32 i = 0; i < COPIED_AT_ONCE; i++) {
                const u64 place = (drained + first + i) % RING_ITEMS * WARP + lane;
                if (first + i < fresh) reinterpret_cast<uint4*>(host.replies)[place] = v[i];
            }
        }
        __threadfence_system();
        __syncwarp();
        const u64 turn = drained + lane;
        if (lane < fresh) store_relaxed_system(host.reply_sequence + turn % RING_ITEMS, turn + 1);
        drained += fresh;
        if (lane == 0) store_release(rings.control + DRAINED, drained);
    }
}

#ifndef STREAMDSB_WITHOUT_SERVE
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    serve(const Rings* rings_at, const Host* host_at, const Store* store_at) {
    extern __shared__ __align__(128) u8 memory[];
    const Rings rings = *rings_at;
    if (blockIdx.x == 0) {
        const Host host = *host_at;
        if (threadIdx.x < WARP) follow(rings, host);
        else if (threadIdx.x < 2 * WARP) carry(rings, host);
        return;
    }
    work(rings, *store_at, *reinterpret_cast<Shared*>(memory));
}
#endif

// --- rings in device memory

constexpr u32 PRODUCERS = 4;  // warps
constexpr u32 PRODUCED_AT_ONCE = PRODUCERS * COPIED_AT_ONCE;

__device__ __forceinline__ void producers_barrier() {
    asm volatile("bar.sync 1, %0;" ::"n"(PRODUCERS * WARP) : "memory");
}

// Copies `patterns` items in turn into the work ring, `count` in all, each with a seed of its own; the first
// PRODUCERS warps of a block. Once everyone is stopped they go on as if there were room.
__device__ __forceinline__ void produce(const Rings& rings, const u8* patterns, u32 pattern_count, u64 count,
                                        u32 frame_bytes) {
    const u32 lane = threadIdx.x % WARP, pieces = frame_bytes / 16;
    if (threadIdx.x == 0) rings.control[STARTED_NS] = now_ns();
    for (u64 turn = 0; turn < count; turn += PRODUCED_AT_ONCE) {
        const u64 first = turn + threadIdx.x / WARP * COPIED_AT_ONCE, mine = first + lane % COPIED_AT_ONCE;
        while (mine >= RING_ITEMS && !is_stopped(rings) &&
               load_acquire(rings.acknowledged + mine % RING_ITEMS) != mine + 1 - RING_ITEMS) {
        }
        __syncwarp();
        const u64 now = now_ns();
        for (u32 piece = lane; piece < pieces + 4; piece += WARP) {
            // the frame, then the 64 bytes that lie beyond the largest frame
            const u32 offset = piece < pieces ? piece : 1472 / 16 + piece - pieces;
            uint4 v[COPIED_AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < COPIED_AT_ONCE; i++)
                v[i] = reinterpret_cast<const uint4*>(patterns + (first + i) % pattern_count * WORK_BYTES)[offset];
#pragma unroll
            for (u32 i = 0; i < COPIED_AT_ONCE; i++) {
                if (offset == 3) v[i].z = u32(first + i), v[i].w = u32((first + i) >> 32);  // seed
                if (offset == RECEIVED_AT / 16) v[i].x = u32(now), v[i].y = u32(now >> 32);
                reinterpret_cast<uint4*>(rings.work + (first + i) % RING_ITEMS * WORK_BYTES)[offset] = v[i];
            }
        }
        producers_barrier();
        if (threadIdx.x == 0) store_release(rings.control + AVAILABLE, turn + PRODUCED_AT_ONCE);
    }
}

// Takes replies in order until `count` have come, then stops everyone; one warp.
__device__ __forceinline__ void consume(const Rings& rings, u64 count) {
    const u32 lane = threadIdx.x % WARP;
    u64 drained = 0;
    while (drained < count && !is_stopped(rings)) {
        const u32 fresh = ready_replies(rings, drained);
        drained += fresh;
        if (fresh && lane == 0) store_release(rings.control + DRAINED, drained);
    }
    if (lane == 0) {
        rings.control[ENDED_NS] = now_ns();
        store_release(rings.control + STOP, 1);
    }
}

#ifndef STREAMDSB_WITHOUT_SATURATE
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    saturate(const Rings* rings_at, const Store* store_at, const u8* patterns, u32 pattern_count, u64 count,
             u32 frame_bytes) {
    extern __shared__ __align__(128) u8 memory[];
    const Rings rings = *rings_at;
    if (blockIdx.x == 0) {
        if (threadIdx.x < PRODUCERS * WARP) produce(rings, patterns, pattern_count, count, frame_bytes);
        else if (threadIdx.x < (PRODUCERS + 1) * WARP) consume(rings, count);
        return;
    }
    work(rings, *store_at, *reinterpret_cast<Shared*>(memory));
}
#endif

#ifndef STREAMDSB_WITHOUT_SOLVE_BATCH
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    solve_batch(const u8* items, u8* replies, const Store* store_at) {
    extern __shared__ __align__(128) u8 memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const u64 begun_ns = now_ns();
    const Problem p = solve_item(items + u64(blockIdx.x) * WORK_BYTES, *store_at, shared);
    const u64 solved_ns = now_ns();
    if (threadIdx.x < WARP)
        write_reply(replies + u64(blockIdx.x) * REPLY_BYTES, shared, p, 0, blockIdx.x, 0, u32(solved_ns - begun_ns));
}
#endif

extern "C" __global__ void shared_bytes(u32* bytes) { *bytes = sizeof(Shared); }
