// Workers and frames that may be altered or overwritten at any time: a frame is copied, the copy is verified, and
// only what was verified is added.
#pragma once
#include "check.cuh"
#include "payload_checksum.cuh"

// Copies the payloads of a unit's frames to `copy`, one every FRAME_BYTES; bit k of the result says whether the k-th
// is the frame that the receive warp saw, payload and all. For all workers.
__device__ u64 copy_intact(const Job& job, const Unit& unit, u8* copy) {
    __shared__ u64 intact;
    if (threadIdx.x == 0) intact = 0;
    workers_barrier();
    const Share& share = job.share[unit.queue];
    u64 sequence = u64(unit.block) * share.rows + unit.row - share.first_row;
    u32 part = threadIdx.x % 4, rows = u32(unit.rows);
    for (u32 first = 0; first < rows; first += WORKERS / 4) {
        u32 frame = first + threadIdx.x / 4;
        bool wanted = frame < rows;
        if (!wanted) frame = first;
        const u8* from = share.queue.frame(unit.slot + frame);
        u8* to = wanted ? copy + u64(frame) * FRAME_BYTES + HEADER_BYTES : nullptr;
        u32 checksum = payload_checksum(from + HEADER_BYTES, to);
        TileHeader header{job.ethertype,    job.run,    unit.pass,
                          unit.queue,       sequence + frame, unit.row + frame,
                          unit.block,       block_couplings(job.states.n, unit.block), checksum};
        u32 same = header.matches(part, load_uncached(reinterpret_cast<const uint4*>(from) + part));
        same &= __shfl_xor_sync(ALL_LANES, same, 1);
        same &= __shfl_xor_sync(ALL_LANES, same, 2);
        if (wanted && part == 0 && same) atomicOr(&intact, 1ull << frame);
    }
    workers_barrier();
    return intact;
}

// Bits [number % 64, ...) of a window: the two words that `bits`, the first for frame `number`, falls into.
__device__ __forceinline__ u64 low_part(u64 bits, u64 number) { return bits << number % 64; }
__device__ __forceinline__ u64 high_part(u64 bits, u64 number) {
    return number % 64 ? bits >> (64 - number % 64) : 0;
}

// Tells the window what became of a unit: `intact` frames were added, the others are missing again. One thread.
__device__ void settle(const Job& job, const Unit& unit, u64 intact) {
    const Window& window = *job.share[unit.queue].window;
    u64 number = unit.burst, mask = job.window_words - 1;
    u64 low = number / 64 & mask, high = low + 1 & mask;
    u64 all = unit.rows < 64 ? (1ull << unit.rows) - 1 : ~0ull, spoiled = all & ~intact;
    if (u64 bits = low_part(intact, number)) atomicOr(window.added + low, bits);
    if (u64 bits = high_part(intact, number)) atomicOr(window.added + high, bits);
    if (!spoiled) return;
    atomicAdd(&job.state->counts[unit.queue][CORRUPT], u64(__popcll(spoiled)));
    if (u64 bits = low_part(spoiled, number)) atomicAnd(window.seen + low, ~bits);
    if (u64 bits = high_part(spoiled, number)) atomicAnd(window.seen + high, ~bits);
}
