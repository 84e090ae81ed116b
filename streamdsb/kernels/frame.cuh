// The stream frame: 64 header bytes, then 4032 payload bytes (504 little-endian 64-bit words of one row).
#pragma once
#include "types.cuh"

constexpr u32 FRAME_BYTES = 4096;
constexpr u32 HEADER_BYTES = 64;
constexpr u32 BLOCK_WORDS = 504;             // 64-bit words of couplings in a frame
constexpr u32 BLOCK_COUPLINGS = 64 * BLOCK_WORDS;
constexpr u32 GROUP_ROWS = 64;               // rows that share one hash word below the diagonal
constexpr u32 FRAME_VERSION = 1;
constexpr u32 TYPE_TILE = 1;
constexpr u32 TYPE_PASS_END = 2;
constexpr u32 FORMAT_PM1 = 1;

struct Header {
    u32 destination_low;
    u16 destination_high;
    u16 source_low;
    u32 source_high;
    u16 ethertype;  // big-endian
    u8 version;
    u8 type;
    u32 run;
    u32 pass;
    u64 sequence;
    u64 row;  // PASS_END: frames sent on the queue in the pass
    u32 block;
    u16 queue;
    u16 format;
    u32 couplings;
    u32 checksum;
    u64 timestamp;
};
static_assert(sizeof(Header) == HEADER_BYTES, "the header is 64 bytes");

__device__ __forceinline__ u64 words_of(u64 couplings) { return (couplings + 63) / 64; }

// Couplings of column block `block` that lie inside an n by n matrix.
__device__ __forceinline__ u32 block_couplings(u64 n, u64 block) {
    u64 left = n - block * BLOCK_COUPLINGS;
    return left < BLOCK_COUPLINGS ? u32(left) : BLOCK_COUPLINGS;
}

// What the header of a TILE frame says, but for its addresses and timestamp.
struct TileHeader {
    u32 ethertype;
    u32 run;
    u32 pass;
    u32 queue;
    u64 sequence;
    u64 row;
    u32 block;
    u32 couplings;
    u32 checksum;

    // Its 16 bytes from 16 `part` on.
    __device__ __forceinline__ uint4 piece(u32 part) const {
        uint4 piece = make_uint4(couplings, checksum, 0, 0);
        if (part == 0) piece = make_uint4(0, 0, 0, TYPE_TILE << 24 | FRAME_VERSION << 16 | ethertype);
        if (part == 1) piece = make_uint4(run, pass, u32(sequence), u32(sequence >> 32));
        if (part == 2) piece = make_uint4(u32(row), u32(row >> 32), block, FORMAT_PM1 << 16 | queue);
        return piece;
    }

    // Whether those 16 bytes are `got`, addresses and timestamp aside.
    __device__ __forceinline__ bool matches(u32 part, uint4 got) const {
        uint4 want = piece(part);
        bool same = part == 3 || got.w == want.w;
        if (part != 0) same &= got.x == want.x && got.y == want.y;
        if (part == 1 || part == 2) same &= got.z == want.z;
        return same;
    }
};
