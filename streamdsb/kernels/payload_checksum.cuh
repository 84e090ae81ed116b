// xxh32 (seed 0) of a payload, by four threads next to each other in a warp: of each stripe of 16 bytes, a thread
// takes the four bytes that its lane of the hash depends on.
#pragma once
#include "frame.cuh"
#include "memory.cuh"

constexpr u32 PAYLOAD_BYTES = FRAME_BYTES - HEADER_BYTES;
constexpr u32 STRIPES = PAYLOAD_BYTES / 16;
static_assert(STRIPES * 16 == PAYLOAD_BYTES, "whole stripes only");

__device__ __forceinline__ u32 rotate(u32 value, u32 distance) { return value << distance | value >> (32 - distance); }

// For all lanes of a warp; the four threads of a payload get the same hash. The very words that were hashed go to
// `copy`, unless it is null.
__device__ __forceinline__ u32 payload_checksum(const u8* payload, u8* copy) {
    constexpr u32 ONE = 0x9E3779B1u, TWO = 0x85EBCA77u, THREE = 0xC2B2AE3Du;
    constexpr u32 AHEAD = 28;
    static_assert(STRIPES % AHEAD == 0, "whole rounds only");
    u32 part = threadIdx.x % 4;
    const u32* from = reinterpret_cast<const u32*>(payload) + part;
    u32* to = reinterpret_cast<u32*>(copy) + part;
    u32 sum = part == 0 ? ONE + TWO : part == 1 ? TWO : part == 2 ? 0 : 0 - ONE;
#pragma unroll 1
    for (u32 stripe = 0; stripe < STRIPES; stripe += AHEAD) {
        u32 word[AHEAD];
#pragma unroll
        for (u32 k = 0; k < AHEAD; k++) word[k] = load_uncached(from + 4 * (stripe + k));
#pragma unroll
        for (u32 k = 0; k < AHEAD; k++) {
            if (copy) to[4 * (stripe + k)] = word[k];
            sum = rotate(sum + word[k] * TWO, 13) * ONE;
        }
    }
    u32 hash = rotate(sum, part == 0 ? 1 : part == 1 ? 7 : part == 2 ? 12 : 18);
    hash += __shfl_xor_sync(ALL_LANES, hash, 1);
    hash += __shfl_xor_sync(ALL_LANES, hash, 2);
    hash += PAYLOAD_BYTES;
    hash = (hash ^ hash >> 15) * TWO;
    hash = (hash ^ hash >> 13) * THREE;
    return hash ^ hash >> 16;
}
