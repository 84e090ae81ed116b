// Mismatch counts of a burst against the sign tiles of the replicas, by one block's WORKERS threads.
// For row i and replica b:  counts[b][i] += popc(u_i xor v_b), u_i the payload of row i, v_b the sign bits of the
// same columns. Two paths with equal results: `popc`, and `mma` on binary tensor cores with
// popc(u xor v) = popc(u) + popc(v) - 2 popc(u and v).
#pragma once
#include "frame.cuh"
#include "memory.cuh"

#ifndef STREAMDSB_REPLICAS
#define STREAMDSB_REPLICAS 8
#endif
#ifndef STREAMDSB_PATH
#define STREAMDSB_PATH mma
#endif

#ifndef STREAMDSB_WORKERS
#define STREAMDSB_WORKERS 256
#endif
#ifndef STREAMDSB_AHEAD
#define STREAMDSB_AHEAD 4
#endif

constexpr u32 WORKERS = STREAMDSB_WORKERS;  // threads that accumulate, a multiple of 128
constexpr u32 WORKER_WARPS = WORKERS / WARP;
constexpr u32 REPLICAS = STREAMDSB_REPLICAS;
// A sign tile of more than 32 replicas does not fit in shared memory: blocks then divide the replicas.
constexpr u32 SHARDS = (REPLICAS + 31) / 32;
constexpr u32 SHARD = (REPLICAS + SHARDS - 1) / SHARDS;  // replicas a block
constexpr u32 TILE_WORDS = BLOCK_WORDS;

struct SignTile {  // dynamic shared memory
    u64 words[SHARD][TILE_WORDS];
    i32 set[SHARD];  // set bits of each replica's words
};

struct Burst {
    const u8* frames;  // consecutive frames of one column block, of consecutive rows
    u32 rows;
    u32 words;         // 64-bit words of a payload that are inside the matrix
    u32 replicas;      // of this shard
    i32* counts;       // of the first row and the shard's first replica; replicas `stride` apart
    u64 stride;
};

__device__ __forceinline__ void workers_barrier() { asm volatile("bar.sync 1, %0;" ::"n"(WORKERS) : "memory"); }

__device__ __forceinline__ u32 warp_sum(u32 value) {
#if __CUDA_ARCH__ >= 800
    return __reduce_add_sync(ALL_LANES, value);
#else
    for (u32 step = 16; step; step /= 2) value += __shfl_xor_sync(ALL_LANES, value, step);
    return value;
#endif
}

// Sign bitmaps are uint64 (replicas, stride); the tile is words [first, first + words) of each, then zeros up to
// a multiple of 8 words. Ends with a barrier.
__device__ __forceinline__ void load_signs(SignTile& tile, const u64* signs, u64 stride, u64 first, u32 words,
                                           u32 replicas) {
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    for (u32 b = warp; b < replicas; b += WORKER_WARPS) {
        u32 set = 0;
#pragma unroll 4
        for (u32 w = lane; w < (words + 7) / 8 * 8; w += WARP) {
            u64 word = w < words ? load_uncached(signs + b * stride + first + w) : 0;
            tile.words[b][w] = word;
            set += __popcll(word);
        }
        set = warp_sum(set);
        if (lane == 0) tile.set[b] = set;
    }
    workers_barrier();
}

__device__ __forceinline__ uint4 load_piece(const u8* payload, u32 piece, u32 words) {
    if (2 * piece < words) return load_uncached(reinterpret_cast<const uint4*>(payload) + piece);
    return make_uint4(0, 0, 0, 0);
}

__device__ __forceinline__ u32 popc4(uint4 a) { return __popc(a.x) + __popc(a.y) + __popc(a.z) + __popc(a.w); }

// Replicas [b0, b0 + R): a warp takes 4 rows at a time, a lane every 32nd piece of 16 bytes.
template <u32 R>
__device__ __forceinline__ void popc_rows(const Burst& burst, const SignTile& tile, u32 b0) {
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    for (u32 row0 = 4 * warp; row0 < burst.rows; row0 += 4 * WORKER_WARPS) {
        const u8* payload[4];
#pragma unroll
        for (u32 r = 0; r < 4; r++)
            payload[r] = burst.frames + (row0 + r < burst.rows ? row0 + r : row0) * FRAME_BYTES + HEADER_BYTES;
        u32 sum[R][4] = {};
#pragma unroll
        for (u32 step = 0; step < 8; step++) {
            u32 piece = step * WARP + lane;
            if (2 * step * WARP >= burst.words) break;
            uint4 u[4];
#pragma unroll
            for (u32 r = 0; r < 4; r++) u[r] = load_piece(payload[r], piece, burst.words);
            if (2 * piece >= burst.words) continue;
#pragma unroll
            for (u32 b = 0; b < R; b++) {
                uint4 v = reinterpret_cast<const uint4*>(tile.words[b0 + b])[piece];
#pragma unroll
                for (u32 r = 0; r < 4; r++)
                    sum[b][r] += popc4(make_uint4(u[r].x ^ v.x, u[r].y ^ v.y, u[r].z ^ v.z, u[r].w ^ v.w));
            }
        }
        u32 mine = 0;  // lane 4 b + r keeps the sum of replica b, row r
#pragma unroll
        for (u32 b = 0; b < R; b++)
#pragma unroll
            for (u32 r = 0; r < 4; r++) {
                u32 total = warp_sum(sum[b][r]);
                if (lane == 4 * b + r) mine = total;
            }
        u32 row = row0 + lane % 4, b = b0 + lane / 4;
        if (lane < 4 * R && row < burst.rows) atomicAdd(burst.counts + b * burst.stride + row, i32(mine));
    }
}

__device__ __forceinline__ void accumulate_popc(const Burst& burst, const SignTile& tile) {
    u32 b = 0;
    for (; b + 8 <= burst.replicas; b += 8) popc_rows<8>(burst, tile, b);
    for (; b + 2 <= burst.replicas; b += 2) popc_rows<2>(burst, tile, b);
    for (; b < burst.replicas; b++) popc_rows<1>(burst, tile, b);
}

#if __CUDA_ARCH__ >= 800
__device__ __forceinline__ void mma_and_popc(i32 (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// A warp takes 16 rows, AHEAD chunks of 8 words at a time and then as many for each other warp of those rows;
// replicas are the columns, 8 to an mma. An mma sums over all its columns k, so any order of k will do if rows and
// signs share it: each thread takes 16 bytes in a row.
__device__ __forceinline__ void accumulate_mma(const Burst& burst, const SignTile& tile) {
    constexpr u32 COLUMNS = (SHARD + 7) / 8;
    constexpr u32 AHEAD = STREAMDSB_AHEAD;  // chunks in flight
    constexpr u32 SPLIT = WORKER_WARPS / 4;
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    u32 row0 = warp % 4 * 16, split = warp / 4;
    if (row0 >= burst.rows) return;
    u32 quad = lane / 4, t = lane % 4;
    u32 upper = row0 + quad, lower = row0 + quad + 8;
    const u8* upper_payload = burst.frames + (upper < burst.rows ? upper : row0) * FRAME_BYTES + HEADER_BYTES;
    const u8* lower_payload = burst.frames + (lower < burst.rows ? lower : row0) * FRAME_BYTES + HEADER_BYTES;
    i32 both[COLUMNS][4] = {};
    u32 upper_set = 0, lower_set = 0;
    u32 chunks = (burst.words + 7) / 8;
    for (u32 chunk = split * AHEAD; chunk < chunks; chunk += SPLIT * AHEAD) {
        uint4 x[AHEAD], y[AHEAD];
#pragma unroll
        for (u32 k = 0; k < AHEAD; k++) {
            x[k] = load_piece(upper_payload, (chunk + k) * 4 + t, burst.words);
            y[k] = load_piece(lower_payload, (chunk + k) * 4 + t, burst.words);
        }
#pragma unroll
        for (u32 k = 0; k < AHEAD; k++) {
            if (chunk + k >= chunks) break;
            upper_set += popc4(x[k]);
            lower_set += popc4(y[k]);
#pragma unroll
            for (u32 column = 0; column < COLUMNS; column++) {
                u32 b = column * 8 + quad;
                uint4 v = make_uint4(0, 0, 0, 0);
                if (SHARD % 8 == 0 || b < SHARD)
                    v = reinterpret_cast<const uint4*>(tile.words[b])[(chunk + k) * 4 + t];
                mma_and_popc(both[column], x[k].x, y[k].x, x[k].y, y[k].y, v.x, v.y);
                mma_and_popc(both[column], x[k].z, y[k].z, x[k].w, y[k].w, v.z, v.w);
            }
        }
    }
    for (u32 step = 1; step < 4; step *= 2) {
        upper_set += __shfl_xor_sync(ALL_LANES, upper_set, step);
        lower_set += __shfl_xor_sync(ALL_LANES, lower_set, step);
    }
#pragma unroll
    for (u32 column = 0; column < COLUMNS; column++)
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            u32 b = column * 8 + t * 2 + k % 2, row = k < 2 ? upper : lower;
            if (b >= burst.replicas || row >= burst.rows) continue;
            i32 mismatches = i32(k < 2 ? upper_set : lower_set) - 2 * both[column][k];
            if (split == 0) mismatches += tile.set[b];
            atomicAdd(burst.counts + b * burst.stride + row, mismatches);
        }
}
#endif

#define STREAMDSB_JOIN_(a, b) a##b
#define STREAMDSB_JOIN(a, b) STREAMDSB_JOIN_(a, b)

__device__ __forceinline__ void accumulate_burst(const Burst& burst, const SignTile& tile) {
    STREAMDSB_JOIN(accumulate_, STREAMDSB_PATH)(burst, tile);
}
