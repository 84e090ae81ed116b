// The counter-based hash of couplings, planted signs and initial states.
//   mix(z):            z ^= z >> 30; z *= M1; z ^= z >> 27; z *= M2; z ^= z >> 31
//   H(key, i, w)     = mix(key + i * A + w * C)
#pragma once
#include "types.cuh"

constexpr u64 HASH_ROW = 0x9E3779B97F4A7C15ull;   // A
constexpr u64 HASH_WORD = 0xD1342543DE82EF95ull;  // C

__device__ __forceinline__ u64 mix(u64 z) {
    z ^= z >> 30;
    z *= 0xBF58476D1CE4E5B9ull;
    z ^= z >> 27;
    z *= 0x94D049BB133111EBull;
    z ^= z >> 31;
    return z;
}

// The argument of mix, so that a loop can step it by HASH_ROW or HASH_WORD instead of multiplying.
__device__ __forceinline__ u64 counter(u64 key, u64 i, u64 w) { return key + i * HASH_ROW + w * HASH_WORD; }

__device__ __forceinline__ u64 hash(u64 key, u64 i, u64 w) { return mix(counter(key, i, w)); }
