// The persistent receiver, resident from the first pass to the last. The first blocks' extra warp is the receive
// warp of a queue: it asks the queue for bursts, checks every header and publishes what may be added as units in
// the work ring. All blocks' other warps are workers: a block takes units by ticket, reads the frames in place,
// and adds the mismatch counts. One more extra warp, the monitor, is the only one that talks to the host: it
// tells it when a pass is drained and, when told to, publishes the update of all rows as units like the others.
#include "check.cuh"
#include "verify.cuh"
#include "window.cuh"

// Groups of blocks that each see all units, for some of the replicas. Frames that have to be verified are verified
// once, so a block then adds them for all replicas.
constexpr u32 TEAMS = Queue::LOSSY ? 1 : SHARDS;

// Passes that every queue has ended and whose units are all accumulated.
__device__ u64 drained_passes(const Job& job) {
    u64 passes = ~0ull;
    for (u32 q = 0; q < job.queues; q++) {
        u64 ended = load_acquire(&job.state->ended[q]);
        passes = ended < passes ? ended : passes;
    }
    u64 published = load_acquire(&job.state->head);
    return load_acquire(&job.state->completed) == published * TEAMS ? passes : 0;
}

// Publishes the update of all rows, as some units a block.
__device__ void publish_update(const Job& job) {
    u32 lane = threadIdx.x % WARP;
    u64 words = words_of(job.states.rows), most = 4 * gridDim.x;
    u64 share = (words + most - 1) / most, units = (words + share - 1) / share, first = 0;
    u64 moves = load_acquire_system(&job.control->moves), decay = load_acquire_system(&job.control->decay);
    u64 signs = load_acquire_system(&job.control->signs);
    if (lane == 0) first = atomicAdd(&job.state->head, units);
    first = __shfl_sync(ALL_LANES, first, 0);
    for (u64 k = lane; k < units; k += WARP) {
        Unit* unit = job.ring + (first + k & job.ring_mask);
        unit->row = k * share * 64;
        unit->rows = (words - k * share < share ? words - k * share : share) * 64;
        unit->slot = signs;
        unit->pass = u32(moves);
        unit->block = u32(decay);
        unit->queue = UPDATE;
        store_release(&unit->ticket, first + k + 1);
    }
}

__device__ void show_energies(const Job& job) {
    for (u32 b = threadIdx.x % WARP; b < REPLICAS_AT_MOST; b += WARP) {
        u64* energy = reinterpret_cast<u64*>(job.state->energies + b);
        store_release_system(reinterpret_cast<u64*>(job.control->energies + b), atomicExch(energy, 0ull));
    }
    __syncwarp();
}

__device__ void show_progress(const Job& job, u64 beat) {
    u32 lane = threadIdx.x % WARP;
    Control* control = job.control;
    for (u32 k = lane; k < MAX_QUEUES * COUNTS; k += WARP)
        store_release_system(&control->counts[0][k], load_relaxed(&job.state->counts[0][k]));
    if (lane < MAX_QUEUES) {
        store_release_system(&control->sent[lane], load_relaxed(&job.state->sent[lane]));
        store_release_system(&control->ended[lane], load_relaxed(&job.state->ended[lane]));
    }
    __syncwarp();
    if (lane == 0) store_release_system(&control->beat, beat);
}

// Talks to the host, a round every microsecond or two: one warp of the whole device polls across PCIe.
__device__ void monitor(const Job& job) {
    u32 lane = threadIdx.x % WARP;
    Control* control = job.control;
    u64 drained = 0, updating = 0, updated = 0, looked = 0;
    const u64* from = lane == 0 ? &control->stop : lane == 1 ? &control->update : job.looks;
    for (u64 beat = 0;; beat++) {
        u64 word = lane < (Queue::LOSSY ? 3 : 2) ? load_acquire_system(from) : 0;
        u64 stop = __shfl_sync(ALL_LANES, word, 0), update = __shfl_sync(ALL_LANES, word, 1);
        if (stop) break;
        u64 now = __shfl_sync(ALL_LANES, drained_passes(job), 0);
        if (now > drained || beat % 64 == 0) show_progress(job, beat);
        if (now > drained) {
            drained = now;
            if (lane == 0) store_release_system(&control->drained, now);
        }
        if (update > updating && drained >= update) {
            updating = update;
            publish_update(job);
        } else if (updating > updated && now == drained) {
            updated = updating;
            show_energies(job);
            if (lane == 0) store_release_system(&control->updated, updated);
        }
        if constexpr (Queue::LOSSY) {
            u64 look = __shfl_sync(ALL_LANES, word, 2);
            if (look != looked) {
                show_progress(job, beat);
                show_windows(job, look);
                looked = look;
            }
        }
        __nanosleep(200);
    }
    if (lane == 0) store_release(&job.state->stop, 1);
}

// The next unit for this block into `unit`; false: stopped. For all workers.
__device__ bool take_unit(const Job& job, u64 ticket, Unit& unit, u64& starved) {
    __shared__ bool taken;
    if (threadIdx.x == 0) {
        const Unit* published = job.ring + (ticket & job.ring_mask);
        i64 start = clock64();
        // asked for first and looked at last, so that the two loads overlap; also while there is work
        u64 stopped = load_relaxed(&job.state->stop);
        while (load_acquire(&published->ticket) != ticket + 1 && !stopped) {
            __nanosleep(20);
            stopped = load_relaxed(&job.state->stop);
        }
        taken = !stopped;
        starved += clock64() - start;
        if (taken) {
            const uint4* from = reinterpret_cast<const uint4*>(published);
            for (u32 k = 0; k < sizeof(Unit) / 16; k++) reinterpret_cast<uint4*>(&unit)[k] = load_uncached(from + k);
        }
    }
    workers_barrier();
    return taken;
}

__device__ void complete(const Job& job, const Unit& unit, u64 intact) {
    // Counts, reads and signs of all workers come before this, by the barrier.
    __threadfence_system();
    if (unit.queue != UPDATE) {
        const Share& share = job.share[unit.queue];
        if constexpr (Queue::LOSSY) {
            settle(job, unit, intact);
            __threadfence();
        } else if (!unit.shared || atomicSub(&share.pending[unit.slot / BURST_FRAMES], 1) == 1) {
            share.queue.release(unit.slot, unit.burst);
        }
    }
    atomicAdd(&job.state->completed, 1ull);
}

__device__ void update_unit(const Job& job, const Unit& unit, u32 first, u32 replicas) {
    Step step{reinterpret_cast<u64*>(unit.slot), unit.pass, job.xi, job.dt, __uint_as_float(unit.block)};
    u64 word = unit.row / 64;
    update_words(job.states, step, word, word + unit.rows / 64, first, replicas, WORKER_WARPS, job.state->energies);
}

// The replicas of one shard, and the sign tile that is loaded.
struct Shard {
    u32 first;
    u32 replicas;
    u64 loaded = ~0ull;

    __device__ explicit Shard(u32 shard)
        : first(shard * SHARD), replicas(REPLICAS - first < SHARD ? REPLICAS - first : SHARD) {}
};

// Adds `rows` rows of a unit from its row `skip` on, that of the first of `frames`.
__device__ __forceinline__ void add_rows(const Job& job, const Unit& unit, const u8* frames, u32 skip, u32 rows,
                                         Shard& shard, SignTile& tile) {
    const States& states = job.states;
    u32 words = u32(words_of(block_couplings(states.n, unit.block)));
    u64 wanted = u64(unit.pass) << 32 | unit.block;
    if (shard.loaded != wanted) {
        load_signs(tile, states.signs + shard.first * states.sign_stride, states.sign_stride,
                   u64(unit.block) * BLOCK_WORDS, words, shard.replicas);
        shard.loaded = wanted;
    }
    Burst burst{frames, rows, words, shard.replicas,
                states.counts + shard.first * states.rows + (unit.row + skip - states.first_row), states.rows};
    accumulate_burst(burst, tile);
}

// Adds those frames of a unit that are intact, for all replicas, and returns which.
__device__ u64 add_intact(const Job& job, const Unit& unit, Shard& only, SignTile& tile) {
    u8* copy = job.copies + u64(blockIdx.x) * BURST_FRAMES * FRAME_BYTES;
    u64 intact = copy_intact(job, unit, copy);
    for (u32 k = 0; k < SHARDS; k++) {
        Shard another(k);  // more than one share the tile, so that it is loaded anew for each
        for (u32 at = 0; at < 64 && intact >> at; workers_barrier()) {
            u32 skip = at + __ffsll(intact >> at) - 1;
            u64 broken = ~(intact >> skip);
            u32 rows = broken ? __ffsll(broken) - 1 : 64;
            add_rows(job, unit, copy + u64(skip) * FRAME_BYTES, skip, rows, SHARDS > 1 ? another : only, tile);
            at = skip + rows;
        }
    }
    return intact;
}

__device__ void work(const Job& job, SignTile& tile) {
    __shared__ __align__(16) Unit unit;
    u32 team = blockIdx.x % TEAMS;
    Shard shard(team);
    u64 ticket = 0, starved = 0, intact = 0;
    if (threadIdx.x == 0) ticket = atomicAdd(&job.state->tail[team], 1ull);
    while (take_unit(job, ticket, unit, starved)) {
        if (threadIdx.x == 0) ticket = atomicAdd(&job.state->tail[team], 1ull);
        if (unit.queue == UPDATE)
            update_unit(job, unit, shard.first, TEAMS == SHARDS ? shard.replicas : REPLICAS);
        else if constexpr (Queue::LOSSY)
            intact = add_intact(job, unit, shard, tile);
        else
            add_rows(job, unit, job.share[unit.queue].queue.frame(unit.slot), 0, u32(unit.rows), shard, tile);
        workers_barrier();
        if (threadIdx.x == 0) complete(job, unit, intact);
    }
    if (threadIdx.x == 0) atomicAdd(&job.state->starved, starved);
}

__device__ __forceinline__ void receive_on(const Job& job, u32 queue, Headers* headers) {
    if constexpr (Queue::LOSSY)
        WindowChecker(job, queue, headers).run();
    else
        Checker(job, queue, headers).run();
}

extern "C" __global__ void __launch_bounds__(WORKERS + WARP, WORKERS > 256 ? 1 : 2) receive(const Job* job_pointer) {
    extern __shared__ __align__(16) u8 dynamic[];
    const Job& job = *job_pointer;
    // Headers first, so that they are aligned to 16 bytes whatever the size of the tile.
    Headers* headers = reinterpret_cast<Headers*>(dynamic);
    if (threadIdx.x < WORKERS)
        work(job, *reinterpret_cast<SignTile*>(headers + MOST_ARRIVALS));
    else if (blockIdx.x < job.queues)
        receive_on(job, blockIdx.x, headers);
    else if (blockIdx.x == job.queues)
        monitor(job);
}
