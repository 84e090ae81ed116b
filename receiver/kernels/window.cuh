// The receive warp of a queue that may lose, repeat, reorder and overwrite frames. A window remembers, two bits a
// frame, what has been published and what has been added from the first missing frame on, however long the pass;
// what is missing the host reads from it and asks for again.
//
// Frames are numbered through all passes: number = pass * frames a pass + sequence number, passes from the job's
// first one on. So the window never has to be emptied, and all that the host reads only grows.
#pragma once
#include "check.cuh"

constexpr u32 LOOK_WORDS = 4;     // of a queue in the looks, before the bits of `added`
constexpr u32 LOOK_SHOWN = 8;     // where the looks say which look they are
constexpr u32 LOOK_QUEUES = 16;   // and where the queues begin

struct WindowChecker {
    static constexpr u32 END = COUNTS, NOTHING = COUNTS + 1;  // verdicts that are no counts

    const Job& job;
    Headers* headers;  // shared memory for those of a batch
    Share share;
    u32 queue;
    u32 lane;
    u64 pass;
    u64 blocks;        // column blocks
    u64 expected;      // frames a pass
    u64 mask;          // words of the window - 1
    u64 start = 0;     // number of the pass's first frame
    u64 base = 0;      // number of the first frame that is not added
    u64 highest = 0;   // the one after the last that has come
    u64 ends = 0;      // PASS_ENDs that have come
    bool ending = false;
    u64 counts[COUNTS] = {};

    __device__ WindowChecker(const Job& j, u32 q, Headers* h)
        : job(j),
          headers(h),
          share(j.share[q]),
          queue(q),
          lane(threadIdx.x % WARP),
          pass(j.first_pass),
          blocks((j.states.n + BLOCK_COUPLINGS - 1) / BLOCK_COUPLINGS),
          expected(share.rows * blocks),
          mask(j.window_words - 1) {}

    __device__ u64* word(u64* bits, u64 number) const { return bits + (number / 64 & mask); }

    // Four lanes share a header, 16 bytes each.
    __device__ void fetch_headers(u64 slot, u32 count, uint4* to) const {
        for (u32 frame = lane / 4; frame < count; frame += WARP / 4)
            copy_uncached(to + 4 * frame + lane % 4,
                          reinterpret_cast<const uint4*>(share.queue.frame(slot + frame)) + lane % 4);
    }

    // What the header of one frame says, a frame a lane.
    __device__ u32 judge(const uint4* header, u64& sequence, u64& row, u32& block) const {
        u32 kind = header[0].w, tile = TYPE_TILE << 24 | FRAME_VERSION << 16 | job.ethertype;
        u32 end = TYPE_PASS_END << 24 | FRAME_VERSION << 16 | job.ethertype;
        uint4 run = header[1], place = header[2];
        sequence = u64(run.w) << 32 | run.z;
        row = u64(place.y) << 32 | place.x;
        block = place.z;
        if (kind != tile && kind != end) return MALFORMED;
        if (run.x != job.run) return FOREIGN_RUN;
        if (run.y != u32(pass)) return run.y < u32(pass) ? LATE : WRONG_PASS;
        if ((place.w & 0xffff) != queue) return WRONG_QUEUE;
        if (kind == end) return sequence == expected && row == expected ? END : MISPLACED;
        u64 offset = row - share.first_row;  // far beyond the rows if it is before them
        if (offset >= share.rows || block >= blocks || sequence != block * share.rows + offset) return MISPLACED;
        if (place.w >> 16 != FORMAT_PM1 || header[3].x != block_couplings(job.states.n, block)) return MISPLACED;
        return ACCEPTED;
    }

    // Whether a frame is to be added: inside the window, and neither added nor on its way to that.
    __device__ u32 admit(u64 number) const {
        if (number >= base + 64 * mask) return OVERRUN;
        if (number < base) return DUPLICATE;
        u64 bit = 1ull << number % 64;
        return atomicOr(word(share.window->seen, number), bit) & bit ? DUPLICATE : ACCEPTED;
    }

    // The same for frames that follow each other, one in each of the first `count` lanes, of which the first is
    // `first`: two words of the window, asked at once, tell all.
    __device__ u32 admit_run(u64 first, u32 count) const {
        u64 bits = (1ull << count) - 1, old = 0;
        u32 shift = first % 64;
        u64 mine = lane == 0 ? bits << shift : lane == 1 && shift ? bits >> (64 - shift) : 0;
        if (lane < 2) old = atomicOr(word(share.window->seen, first + 64 * lane), mine);
        u64 low = __shfl_sync(ALL_LANES, old, 0), high = __shfl_sync(ALL_LANES, old, 1);
        u64 before = low >> shift | (shift ? high << (64 - shift) : 0);
        return before >> lane & 1 ? DUPLICATE : ACCEPTED;
    }

    // Up to 32 frames in consecutive slots; what follows each other is published as one unit.
    __device__ void take(u64 slot, u32 count, const uint4* header) {
        u64 sequence = 0, row = 0;
        u32 block = 0, verdict = NOTHING;
        if (lane < count) verdict = judge(header + 4 * lane, sequence, row, block);
        u64 number = start + sequence;
        u64 head = __shfl_sync(ALL_LANES, number, 0);
        bool in_run = lane >= count || (verdict == ACCEPTED && number == head + lane);
        if (__all_sync(ALL_LANES, in_run) && head >= base && head + count <= base + 64 * mask) {
            u32 run = admit_run(head, count);
            if (lane < count) verdict = run;
        } else if (verdict == ACCEPTED) {
            verdict = admit(number);
        }
        u32 accepted = __ballot_sync(ALL_LANES, verdict == ACCEPTED);
        u64 before = __shfl_up_sync(ALL_LANES, number, 1);
        bool follows = verdict == ACCEPTED && lane && accepted >> (lane - 1) & 1 && number == before + 1 &&
                       row != share.first_row;
        u32 following = __ballot_sync(ALL_LANES, follows), first = accepted & ~following;
        u32 behind = lane < WARP - 1 ? following >> (lane + 1) : 0;
        if (first) publish(first, slot + lane, number, row, __ffs(~behind), block);
        note(number, accepted, __ballot_sync(ALL_LANES, verdict == END));
        if (__any_sync(ALL_LANES, verdict < COUNTS && verdict != ACCEPTED)) count_rejected(verdict);
    }

    // A unit for each lane in `first`: `rows` frames from its own on.
    __device__ void publish(u32 first, u64 slot, u64 number, u64 row, u32 rows, u32 block) const {
        u64 ticket = 0;
        if (lane == 0) ticket = atomicAdd(&job.state->head, u64(__popc(first)));
        ticket = __shfl_sync(ALL_LANES, ticket, 0) + __popc(first & ((1u << lane) - 1));
        if (first >> lane & 1) {
            Unit* unit = job.ring + (ticket & job.ring_mask);
            unit->slot = slot;
            unit->burst = number;
            unit->row = row;
            unit->rows = rows;
            unit->block = block;
            unit->pass = u32(pass);
            unit->queue = queue;
            store_release(&unit->ticket, ticket + 1);
        }
        __syncwarp();
    }

    __device__ void note(u64 number, u32 accepted, u32 ended) {
        counts[ACCEPTED] += __popc(accepted);
        // accepted frames are inside the window, so that 32 bits tell how far
        u32 reach = accepted >> lane & 1 ? u32(number + 1 - base) : 0;
        for (u32 step = WARP / 2; step; step /= 2) {
            u32 other = __shfl_xor_sync(ALL_LANES, reach, step);
            reach = other > reach ? other : reach;
        }
        if (accepted && base + reach > highest) highest = base + reach;
        if (ended) {
            ending = true;
            highest = start + expected;
            ends += __popc(ended);
        }
    }

    __device__ void count_rejected(u32 verdict) {
#pragma unroll
        for (u32 reason = MISSING; reason < COUNTS; reason++)
            counts[reason] += __popc(__ballot_sync(ALL_LANES, verdict == reason));
    }

    // Moves on over what the workers have added meanwhile, up to 32 words of it.
    __device__ void advance() {
        u64* mine = word(share.window->added, base + 64 * lane);
        u64 bits = load_relaxed(mine);
        u32 open = __ballot_sync(ALL_LANES, bits != ~0ull);
        u32 whole = open ? __ffs(open) - 1 : WARP;
        u64 rest = __shfl_sync(ALL_LANES, bits, whole % WARP);
        u64 reached = (base / 64 + whole) * 64 + (whole < WARP ? __ffsll(~rest) - 1 : 0);
        if (reached == base) return;
        u64* seen = word(share.window->seen, base + 64 * lane);
        base = reached;
        // The base before the bits: who finds a bit cleared finds the base beyond it.
        if (lane == 0) store_relaxed(&share.window->base, base);
        __threadfence();
        __syncwarp();
        if (lane < whole) {
            atomicExch(seen, 0ull);
            atomicExch(mine, 0ull);
        }
        __syncwarp();
    }

    __device__ void end_pass() {
        show();
        if (lane == 0) {
            job.state->sent[queue] = expected;
            store_release(&job.state->ended[queue], pass - job.first_pass + 1);
        }
        __syncwarp();
        pass++;
        start += expected;
        ending = false;
    }

    // For the monitor; workers count those that are CORRUPT.
    __device__ void show() const {
        if (lane < COUNTS && lane != CORRUPT)
            reinterpret_cast<volatile u64*>(job.state->counts[queue])[lane] = counts[lane];
        if (lane == 0) {
            store_relaxed(&share.window->highest, highest);
            store_relaxed(&share.window->repeats, counts[DUPLICATE] + ends);
        }
        __syncwarp();
    }

    __device__ void run() {
        bool shown = true;
        for (u32 turn = 0;; turn++) {
            Arrival mine;
            u32 arrived = share.queue.receive(mine);
            __syncwarp();
            for (u32 k = 0; k < arrived; k++)
                fetch_headers(__shfl_sync(ALL_LANES, mine.slot, k), __shfl_sync(ALL_LANES, mine.count, k), headers[k]);
            wait_for_copies();
            __syncwarp();
            for (u32 k = 0; k < arrived; k++) {
                u64 slot = __shfl_sync(ALL_LANES, mine.slot, k);
                u32 count = __shfl_sync(ALL_LANES, mine.count, k);
                for (u32 first = 0; first < count; first += WARP)
                    take(slot + first, count - first < WARP ? count - first : WARP, headers[k] + 4 * first);
            }
            if (arrived) shown = false;
            if (!arrived || turn % 8 == 0) {  // not always: it takes round trips to the L2
                if (!shown) show();
                shown = true;
                u64 stop = load_relaxed(&job.state->stop);
                advance();
                if (__any_sync(ALL_LANES, stop != 0)) return;
            }
            if (ending && base == start + expected) end_pass();
        }
    }
};

// The windows of all queues, for look number `look` of the host: a queue's bits of `added`, then, read later so that
// none of them is older than the bits, its base, highest and repeats.
__device__ void show_windows(const Job& job, u64 look) {
    u32 lane = threadIdx.x % WARP;
    for (u32 q = 0; q < job.queues; q++) {
        const Window& window = *job.share[q].window;
        u64* out = job.looks + LOOK_QUEUES + q * (LOOK_WORDS + job.window_words);
        for (u64 k = lane; k < job.window_words; k += WARP)
            store_relaxed_system(out + LOOK_WORDS + k, load_relaxed(window.added + k));
        __threadfence();
        __syncwarp();
        if (lane == 0) {
            store_relaxed_system(out + 2, load_acquire(&window.repeats));
            store_relaxed_system(out + 1, load_acquire(&window.highest));
            store_relaxed_system(out, load_acquire(&window.base));
        }
    }
    __threadfence_system();
    __syncwarp();
    if (lane == 0) store_release_system(job.looks + LOOK_SHOWN, look);
}
