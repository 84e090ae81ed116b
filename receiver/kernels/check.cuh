// The receive warp of a queue: every header is checked before its frame becomes part of a unit.
#pragma once
#include "accumulate.cuh"
#include "job.cuh"

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
            return COUNTS;  // neither added nor rejected
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
                if (__any_sync(ALL_LANES, load_relaxed(&job.state->stop) != 0)) return;
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
