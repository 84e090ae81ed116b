// Synthetic +-1 couplings, composed as frames by one block of COMPOSERS threads (bit 1 is +1, padding is 0).
//   random:  for i < j the bit is (H(key, i, j / 64) >> (j % 64)) & 1, and u_ji = u_ij; the diagonal is 1
//   Mattis:  eta_i is bit i % 64 of H(key, 0, i / 64); the coupling of i and j is eta_i eta_j
#pragma once
#include "frame.cuh"
#include "hash.cuh"
#include "transpose.cuh"

constexpr u32 COMPOSERS = 256;
constexpr u32 COMPOSER_WARPS = COMPOSERS / WARP;
constexpr u32 LINE_SHIFT = 4;  // 16-byte pieces of a header: from a line's start to a payload's

// The rows of one 64-row group in one column block.
struct Tile {
    u8* frames;  // the first row's frame; one every FRAME_BYTES
    u64 n;
    u64 key;
    u64 group;   // row / 64
    u64 block;   // column block
    u32 rows;    // 1 to 64

    __device__ u64 first_word() const { return block * BLOCK_WORDS; }
    __device__ u32 words() const { return u32(words_of(block_couplings(n, block))); }
    __device__ u64* payload(u32 row) const {
        return reinterpret_cast<u64*>(frames + u64(row) * FRAME_BYTES + HEADER_BYTES);
    }
    // Which bits of global word w are columns of the matrix.
    __device__ u64 inside(u64 w) const { return w + 1 == words_of(n) && n % 64 ? (1ull << (n % 64)) - 1 : ~0ull; }
    // Readers take payloads 16 bytes at a time, so an odd last word is followed by a zero one.
    __device__ void pad(u32 row) const {
        if (words() & 1) payload(row)[words()] = 0;
    }
};

// Random words [begin, end) of the block, all right of the diagonal tile: the hash words themselves.
__device__ __forceinline__ void compose_above(const Tile& t, u32 begin, u32 end) {
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    // Pairs of words that need no mask and no edge; the few words around them follow one by one.
    u32 whole = t.inside(t.first_word() + end - 1) == ~0ull ? end : end - 1;
    u32 pair_begin = (begin + 1) / 2, pair_end = whole / 2;
    if (pair_end < pair_begin) pair_end = pair_begin;
    for (u32 row = warp; row < t.rows; row += COMPOSER_WARPS) {
        u64 i = t.group * GROUP_ROWS + row;
        u64 base = counter(t.key, i, t.first_word());
        ulonglong2* out = reinterpret_cast<ulonglong2*>(t.payload(row));
        // A payload begins in the middle of a 128-byte line: start where a warp's stores fill whole lines.
#pragma unroll 4
        for (u32 q = (pair_begin + LINE_SHIFT) / WARP * WARP + lane; q < pair_end + LINE_SHIFT; q += WARP) {
            u32 p = q - LINE_SHIFT;
            if (q < pair_begin + LINE_SHIFT) continue;
            u64 z = base + u64(2 * p) * HASH_WORD;
            out[p] = make_ulonglong2(mix(z), mix(z + HASH_WORD));
        }
        u32 edge = lane == 0 ? begin : 2 * pair_end + lane - 1;
        bool owned = lane == 0 ? begin < 2 * pair_begin && begin < end : edge < end;
        if (owned)
            t.payload(row)[edge] = mix(base + u64(edge) * HASH_WORD) & t.inside(t.first_word() + edge);
    }
}

// Random words [0, end) of the block, all left of the diagonal tile: the bit transposes of the 64x64 tiles above
// it. A lane hashes half a tile, 32 rows of it, and so writes 32 bits of each of the 64 rows; 32 lanes write
// 128 consecutive bytes of a row at a time.
__device__ __forceinline__ void compose_below(const Tile& t, u32 end) {
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    for (u32 first = warp * WARP; first < 2 * end + 4 * LINE_SHIFT; first += COMPOSERS) {
        u32 half = first + lane - 4 * LINE_SHIFT;  // of a word, so that a warp writes whole lines; may wrap below 0
        u64 j = t.first_word() * 64 + u64(half) * 32;
        u64 z = counter(t.key, j, t.group);
        u32 low[32], high[32];
#pragma unroll
        for (int k = 0; k < 32; k++) {
            u64 word = mix(z + k * HASH_ROW);
            low[k] = u32(word);
            high[k] = u32(word >> 32);
        }
        transpose32(low);
        transpose32(high);
        if (half >= 2 * end) continue;
        u8* out = t.frames + HEADER_BYTES + half * 4;
        if (t.rows == GROUP_ROWS) {
#pragma unroll
            for (u32 row = 0; row < 32; row++) {
                *reinterpret_cast<u32*>(out + row * FRAME_BYTES) = low[row];
                *reinterpret_cast<u32*>(out + (row + 32) * FRAME_BYTES) = high[row];
            }
        } else {
#pragma unroll
            for (u32 row = 0; row < 32; row++) {
                if (row < t.rows) *reinterpret_cast<u32*>(out + row * FRAME_BYTES) = low[row];
                if (row + 32 < t.rows) *reinterpret_cast<u32*>(out + (row + 32) * FRAME_BYTES) = high[row];
            }
        }
    }
}

// The diagonal tile, by one warp: hash bits right of the diagonal, their mirror image left of it, 1 on it.
__device__ __forceinline__ void compose_diagonal(const Tile& t) {
    if (threadIdx.x >= WARP) return;
    u32 lane = threadIdx.x;
    u64 row0 = t.group * GROUP_ROWS;
    u64 upper[2] = {hash(t.key, row0 + lane, t.group), hash(t.key, row0 + lane + 32, t.group)};
    u64 left[2] = {0, 0};
    for (u32 j = 0; j < GROUP_ROWS; j++) {
        u64 word = __shfl_sync(ALL_LANES, upper[j / 32], j % 32);
        for (u32 h = 0; h < 2; h++) {
            u32 row = lane + 32 * h;
            if (j < row) left[h] |= (word >> row & 1) << j;
        }
    }
    for (u32 h = 0; h < 2; h++) {
        u32 row = lane + 32 * h;
        u64 right = upper[h] & (~0ull << row << 1);
        if (row < t.rows)
            t.payload(row)[t.group - t.first_word()] = (left[h] | 1ull << row | right) & t.inside(t.group);
    }
}

__device__ __forceinline__ void compose_random(const Tile& t) {
    u64 first = t.first_word();
    u32 words = t.words();
    u32 below = t.group <= first ? 0 : t.group - first < words ? u32(t.group - first) : words;
    bool diagonal = t.group >= first && t.group < first + words;
    if (below) compose_below(t, below);
    if (diagonal) compose_diagonal(t);
    if (below + diagonal < words) compose_above(t, below + diagonal, words);
}

// A word of the row of spin i is the word of planted signs, or its complement where eta_i is -1.
__device__ __forceinline__ void compose_mattis(const Tile& t) {
    u64 rows = hash(t.key, 0, t.group);
    static_assert(COMPOSERS == BLOCK_WORDS / 2 + LINE_SHIFT, "a thread a pair of words, in whole lines");
    u32 p = threadIdx.x - LINE_SHIFT;
    if (threadIdx.x >= LINE_SHIFT && 2 * p < t.words()) {
        u64 w = t.first_word() + 2 * p;
        u64 first = hash(t.key, 0, w), second = hash(t.key, 0, w + 1);
        u64 first_inside = t.inside(w), second_inside = 2 * p + 1 < t.words() ? t.inside(w + 1) : 0;
#pragma unroll 4
        for (u32 row = 0; row < t.rows; row++) {
            u64 flip = (rows >> row & 1) - 1;
            reinterpret_cast<ulonglong2*>(t.payload(row))[p] =
                make_ulonglong2((first ^ flip) & first_inside, (second ^ flip) & second_inside);
        }
    }
}

#ifndef STREAMDSB_SOURCE
#define STREAMDSB_SOURCE random
#endif
#define STREAMDSB_JOIN_(a, b) a##b
#define STREAMDSB_JOIN(a, b) STREAMDSB_JOIN_(a, b)

// The payloads of a tile; words past the matrix are left as they are, except for the pad.
__device__ __forceinline__ void compose_payload(const Tile& t) {
    STREAMDSB_JOIN(compose_, STREAMDSB_SOURCE)(t);
    if (threadIdx.x < t.rows) t.pad(threadIdx.x);
}
