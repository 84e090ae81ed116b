// The persistent receiver, resident from the first pass to the last. The first blocks' extra warp is the receive
// warp of a queue: it asks the queue for bursts, checks every header and publishes what may be added as units in
// the work ring. All blocks' other warps are workers: a block takes units by ticket, reads the frames in place,
// and adds the mismatch counts. One more extra warp, the monitor, is the only one that talks to the host: it
// tells it when a pass is drained and, when told to, publishes the update of all rows as units like the others.
#include "accumulate.cuh"
#include "peer_queue.cuh"
#include "update.cuh"

#ifndef STREAMDSB_QUEUE
#define STREAMDSB_QUEUE PeerQueue
#endif

typedef STREAMDSB_QUEUE Queue;

constexpr u32 MAX_QUEUES = 8;
constexpr u32 REPLICAS_AT_MOST = 64;
// What happened to a frame; all but ACCEPTED and MISSING are rejections.
enum Count : u32 { ACCEPTED, MISSING, DUPLICATE, MALFORMED, FOREIGN_RUN, WRONG_PASS, WRONG_QUEUE, MISPLACED, COUNTS };

struct Unit {          // consecutive rows of one column block, in consecutive slots; or rows to update
    u64 ticket;        // of the unit, plus 1; written last
    u64 slot;          // UPDATE: where the signs go on the host
    u64 burst;         // what the queue wants back with the slot
    u64 row;
    u64 rows;
    u32 block;         // UPDATE: the bits of c_k
    u32 pass;          // UPDATE: whether it moves
    u32 queue;         // or UPDATE: no frames, but an update of the rows
    u32 shared;        // other units, or other shards, read the same burst
    u64 unused;
};
constexpr u32 UPDATE = ~0u;

struct Share {         // one queue and the rows it carries
    Queue queue;
    u64 first_row;
    u64 rows;
    u32* pending;      // of each burst place: reads of its frames still to come
};

struct Control {       // host-mapped
    u64 stop;          // from the host
    u64 update;        // passes whose update may be made; written after the next three
    u64 moves;
    u64 decay;         // the bits of c_k, a float32
    u64 signs;         // where the new sign bitmaps go on the host
    u64 unused[11];
    u64 drained;       // to the host: passes received and accumulated to the end
    u64 updated;       // passes whose update was made; their energies are there
    u64 beat;          // counts on while the kernel lives
    i64 energies[REPLICAS_AT_MOST];
    u64 ended[MAX_QUEUES];   // passes whose PASS_END has come
    u64 sent[MAX_QUEUES];    // frames the sender counted in the last one
    u64 counts[MAX_QUEUES][COUNTS];  // since the start
};

struct State {         // device memory, zero at the start
    u64 stop;
    u64 head;          // units published
    u64 tail[2];       // tickets taken, by each shard
    u64 completed;     // units done, by every shard
    u64 starved;       // clock cycles that blocks waited for a unit
    i64 energies[REPLICAS_AT_MOST];
    u64 ended[MAX_QUEUES];
    u64 sent[MAX_QUEUES];
    u64 counts[MAX_QUEUES][COUNTS];
};

struct Job {
    States states;     // of the rows this receiver owns
    u64 first_pass;
    u64 queues;
    u64 ring_mask;     // units in the work ring - 1, a power of two that no backlog can reach
    u32 run;
    u32 ethertype;     // as it lies in the header
    float xi;
    float dt;
    Unit* ring;
    Control* control;
    State* state;
    Share share[MAX_QUEUES];
};

struct Words {         // a header as 64-bit words
    u64 word[8];
};

__device__ __forceinline__ Words load_header(const u8* frame) {
    Words h;
    const uint4* p = reinterpret_cast<const uint4*>(frame);
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        uint4 v = load_uncached(p + k);
        h.word[2 * k] = u64(v.y) << 32 | v.x;
        h.word[2 * k + 1] = u64(v.w) << 32 | v.z;
    }
    return h;
}

typedef uint4 Headers[BURST_FRAMES * HEADER_BYTES / 16];

// The receive warp of a queue. All lanes hold the same state, but for what the queue tells each.
struct Checker {
    const Job& job;
    Headers* headers;  // shared memory for those of a batch
    Share share;
    u32 queue;
    u32 lane;
    u64 pass;
    u64 n;
    u32 run_id;
    u32 frame_kind;    // EtherType and version, without the type
    u64 blocks;        // column blocks
    u64 next = 0;      // sequence number expected: that of row `offset` of column block `block`
    u64 block = 0;
    u64 offset = 0;
    u64 accepted = 0;
    u64 counts[COUNTS] = {};  // the others

    __device__ Checker(const Job& j, u32 q, Headers* h)
        : job(j),
          headers(h),
          share(j.share[q]),
          queue(q),
          lane(threadIdx.x % WARP),
          pass(j.first_pass),
          n(j.states.n),
          run_id(j.run),
          frame_kind(FRAME_VERSION << 16 | j.ethertype),
          blocks((j.states.n + BLOCK_COUPLINGS - 1) / BLOCK_COUPLINGS) {}

    __device__ u32 kind(u32 type) const { return type << 24 | frame_kind; }
    __device__ u64 run_word() const { return pass << 32 | run_id; }
    __device__ u64 place_word(u64 of) const { return u64(FORMAT_PM1) << 48 | u64(queue) << 32 | of; }

    __device__ void expect(u64 sequence) {
        next = sequence;
        block = share.rows ? sequence / share.rows : 0;
        offset = sequence - block * share.rows;
    }

    // Moves past frames of one column block.
    __device__ void step(u32 rows) {
        next += rows;
        offset += rows;
        if (offset == share.rows) {
            block++;
            offset = 0;
        }
    }

    // Four lanes share a header, 16 bytes each; a lane checks the very pieces that it fetched.
    __device__ void fetch_headers(u64 slot, u32 count, uint4* headers) const {
        const u8* from = share.queue.frame(slot) + lane / 4 * FRAME_BYTES + lane % 4 * 16;
#pragma unroll
        for (u32 k = 0; k < BURST_FRAMES / 8; k++)
            if (count == BURST_FRAMES || lane / 4 + 8 * k < count)
                copy_uncached(headers + WARP * k + lane, reinterpret_cast<const uint4*>(from + 8 * k * FRAME_BYTES));
    }

    // Whether the burst is exactly the frames that come next. This warp's instructions bound the rate of a queue,
    // so a piece is compared as four 32-bit words under a mask; `step` is what grows by 1 from frame to frame.
    __device__ bool is_next(u32 count, const uint4* headers) const {
        u64 row = share.first_row + offset;
        bool fits = block < blocks && offset + count <= share.rows && u32(next) < ~0u - BURST_FRAMES &&
                    u32(row) < ~0u - BURST_FRAMES;
        if (!fits) return false;
        u32 part = lane % 4, couplings = block_couplings(n, block);
        u64 run = run_word(), place = place_word(block);
        uint4 mask = make_uint4(~0u, ~0u, ~0u, ~0u), want;
        if (part == 0) want = make_uint4(0, 0, 0, kind(TYPE_TILE)), mask = make_uint4(0, 0, 0, ~0u);
        if (part == 1) want = make_uint4(u32(run), u32(run >> 32), u32(next) + lane / 4, u32(next >> 32));
        if (part == 2) want = make_uint4(u32(row) + lane / 4, u32(row >> 32), u32(place), u32(place >> 32));
        if (part == 3) want = make_uint4(couplings, 0, 0, 0), mask = make_uint4(~0u, 0, 0, 0);
        u32 step_x = part == 2 ? 8 : 0, step_z = part == 1 ? 8 : 0, difference = 0;
#pragma unroll
        for (u32 k = 0; k < BURST_FRAMES / 8; k++) {
            uint4 got = headers[WARP * k + lane];
            u32 d = (got.x ^ want.x) & mask.x | (got.y ^ want.y) & mask.y | (got.z ^ want.z) & mask.z |
                    (got.w ^ want.w) & mask.w;
            if (count == BURST_FRAMES || lane / 4 + 8 * k < count) difference |= d;
            want.x += step_x;
            want.z += step_z;
        }
        return __all_sync(ALL_LANES, difference == 0);
    }

    // `taken` bursts, the k-th known to lane k, whose first rows `row` and column blocks `of` are known to it.
    __device__ void publish(u32 taken, const Arrival& mine, u64 row, u64 of, u32 shared) {
        u64 ticket = 0;
        if (lane == 0) ticket = atomicAdd(&job.state->head, u64(taken));
        ticket = __shfl_sync(ALL_LANES, ticket, 0) + lane;
        if (lane >= taken) return;
        Unit* unit = job.ring + (ticket & job.ring_mask);
        unit->slot = mine.slot;
        unit->burst = mine.burst;
        unit->row = row;
        unit->rows = mine.count;
        unit->block = u32(of);
        unit->pass = u32(pass);
        unit->queue = queue;
        unit->shared = shared;
        store_release(&unit->ticket, ticket + 1);
    }

    // The bursts that hold the very frames that come next; returns how many of `arrived` those are.
    __device__ u32 take_next(u32 arrived, const Arrival& mine) {
        u64 row = 0, of = 0;
        u32 taken = 0;
        for (u32 k = 0; k < arrived; k++)
            fetch_headers(__shfl_sync(ALL_LANES, mine.slot, k), __shfl_sync(ALL_LANES, mine.count, k), headers[k]);
        wait_for_copies();
        for (; taken < arrived; taken++) {
            u32 count = __shfl_sync(ALL_LANES, mine.count, taken);
            if (!is_next(count, headers[taken])) break;
            if (lane == taken) {
                row = share.first_row + offset;
                of = block;
            }
            accepted += count;
            step(count);
        }
        if (SHARDS > 1 && lane < taken) share.pending[mine.slot / BURST_FRAMES] = SHARDS;
        if (taken) publish(taken, mine, row, of, SHARDS > 1);
        __syncwarp();
        return taken;
    }

    // What becomes of one frame, in the order of the checks; moves on if it is accepted.
    __device__ Count judge(const Words& h) {
        bool tile = h.word[1] >> 32 == kind(TYPE_TILE);
        if (!tile && h.word[1] >> 32 != kind(TYPE_PASS_END)) return MALFORMED;
        if (u32(h.word[2]) != run_id) return FOREIGN_RUN;
        if (h.word[2] != run_word()) return WRONG_PASS;
        if (u16(h.word[5] >> 32) != queue) return WRONG_QUEUE;
        if (!tile) {
            end_pass(h.word[4]);
            return COUNTS;
        }
        u64 sequence = h.word[3];
        if (sequence >= share.rows * blocks) return MISPLACED;
        u64 of = sequence / share.rows, row = share.first_row + sequence % share.rows;
        if (h.word[4] != row || h.word[5] != place_word(of)) return MISPLACED;
        if (u32(h.word[6]) != block_couplings(n, of)) return MISPLACED;
        if (sequence < next) return DUPLICATE;
        counts[MISSING] += sequence - next;
        accepted++;
        expect(sequence);
        return ACCEPTED;
    }

    __device__ void end_pass(u64 sent) {
        show_counts();
        if (lane == 0) {
            job.state->sent[queue] = sent;
            store_release(&job.state->ended[queue], pass - job.first_pass + 1);
        }
        pass++;
        expect(0);
    }

    // A burst with anything else in it: frame by frame.
    __device__ void take_each(const Arrival& arrival) {
        u32* pending = share.pending + arrival.slot / BURST_FRAMES;
        // One more than the frames, so that the burst is not released before the last was looked at.
        if (lane == 0) atomicAdd(pending, arrival.count * SHARDS + 1);
        u32 dropped = 1;
        for (u32 k = 0; k < arrival.count; k++) {
            Words h = load_header(share.queue.frame(arrival.slot + k));
            Count outcome = judge(h);
            if (outcome == ACCEPTED) {
                publish(1, Arrival{arrival.slot + k, arrival.burst, 1}, share.first_row + offset, block, true);
                step(1);
                continue;
            }
            dropped += SHARDS;
            if (outcome != COUNTS) counts[outcome]++;
        }
        __syncwarp();
        if (lane == 0 && atomicSub(pending, dropped) == dropped) {
            __threadfence_system();
            share.queue.release(arrival.slot, arrival.burst);
        }
    }

    __device__ void show_counts() {
        if (lane < COUNTS) {
            u64 mine = lane == ACCEPTED ? accepted : counts[lane];
            reinterpret_cast<volatile u64*>(job.state->counts[queue])[lane] = mine;
        }
        __syncwarp();
    }

    __device__ void run() {
        for (;;) {
            Arrival mine;
            u32 arrived = share.queue.receive(mine);
            if (!arrived) {
                if (load_relaxed(&job.state->stop)) return;
                continue;
            }
            u32 taken = take_next(arrived, mine);
            if (lane == 0) *reinterpret_cast<volatile u64*>(&job.state->counts[queue][ACCEPTED]) = accepted;
            if (taken == arrived) continue;
            for (u32 k = taken; k < arrived; k++)
                take_each(Arrival{__shfl_sync(ALL_LANES, mine.slot, k), __shfl_sync(ALL_LANES, mine.burst, k),
                                  __shfl_sync(ALL_LANES, mine.count, k)});
            show_counts();
        }
    }
};

// Passes that every queue has ended and whose units are all accumulated.
__device__ u64 drained_passes(const Job& job) {
    u64 passes = ~0ull;
    for (u32 q = 0; q < job.queues; q++) {
        u64 ended = load_acquire(&job.state->ended[q]);
        passes = ended < passes ? ended : passes;
    }
    u64 published = load_acquire(&job.state->head);
    return load_acquire(&job.state->completed) == published * SHARDS ? passes : 0;
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
    u64 drained = 0, updating = 0, updated = 0;
    for (u64 beat = 0;; beat++) {
        u64 word = lane < 2 ? load_acquire_system(lane ? &control->update : &control->stop) : 0;
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

__device__ void complete(const Job& job, const Unit& unit) {
    // Counts, reads and signs of all workers come before this, by the barrier.
    __threadfence_system();
    if (unit.queue != UPDATE) {
        const Share& share = job.share[unit.queue];
        if (!unit.shared || atomicSub(&share.pending[unit.slot / BURST_FRAMES], 1) == 1)
            share.queue.release(unit.slot, unit.burst);
    }
    atomicAdd(&job.state->completed, 1ull);
}

__device__ void update_unit(const Job& job, const Unit& unit, u32 first, u32 replicas) {
    Step step{reinterpret_cast<u64*>(unit.slot), unit.pass, job.xi, job.dt, __uint_as_float(unit.block)};
    u64 word = unit.row / 64;
    update_words(job.states, step, word, word + unit.rows / 64, first, replicas, WORKER_WARPS, job.state->energies);
}

__device__ void work(const Job& job, SignTile& tile) {
    __shared__ __align__(16) Unit unit;
    const States& states = job.states;
    u32 shard = blockIdx.x % SHARDS, first = shard * SHARD;
    u32 replicas = REPLICAS - first < SHARD ? REPLICAS - first : SHARD;
    u64 loaded = ~0ull, ticket = 0, starved = 0;
    if (threadIdx.x == 0) ticket = atomicAdd(&job.state->tail[shard], 1ull);
    while (take_unit(job, ticket, unit, starved)) {
        if (threadIdx.x == 0) ticket = atomicAdd(&job.state->tail[shard], 1ull);
        if (unit.queue == UPDATE) {
            update_unit(job, unit, first, replicas);
        } else {
            u32 words = u32(words_of(block_couplings(states.n, unit.block)));
            u64 wanted = u64(unit.pass) << 32 | unit.block;
            if (loaded != wanted) {
                load_signs(tile, states.signs + first * states.sign_stride, states.sign_stride,
                           u64(unit.block) * BLOCK_WORDS, words, replicas);
                loaded = wanted;
            }
            Burst burst{job.share[unit.queue].queue.frame(unit.slot), u32(unit.rows), words, replicas,
                        states.counts + first * states.rows + (unit.row - states.first_row), states.rows};
            accumulate_burst(burst, tile);
        }
        workers_barrier();
        if (threadIdx.x == 0) complete(job, unit);
    }
    if (threadIdx.x == 0) atomicAdd(&job.state->starved, starved);
}

extern "C" __global__ void __launch_bounds__(WORKERS + WARP, WORKERS > 256 ? 1 : 2) receive(const Job* job_pointer) {
    extern __shared__ __align__(16) u8 dynamic[];
    const Job& job = *job_pointer;
    // Headers first, so that they are aligned to 16 bytes whatever the size of the tile.
    Headers* headers = reinterpret_cast<Headers*>(dynamic);
    if (threadIdx.x < WORKERS)
        work(job, *reinterpret_cast<SignTile*>(headers + MOST_ARRIVALS));
    else if (blockIdx.x < job.queues)
        Checker(job, blockIdx.x, headers).run();
    else if (blockIdx.x == job.queues)
        monitor(job);
}
