// A 32x32 bit transpose inside one thread.
#pragma once
#include "types.cuh"

// One butterfly: swaps the bits of `a` selected by ~low (shifted) with those of `b` selected by low.
template <int SHIFT, u32 LOW>
__device__ __forceinline__ void butterfly(u32& a, u32& b) {
    u32 left = b << SHIFT, right = a >> SHIFT;
    a = (a & LOW) | (left & ~LOW);
    b = (right & LOW) | (b & ~LOW);
}

// On return bit k of word[r] is what bit r of word[k] was.
__device__ __forceinline__ void transpose32(u32 (&word)[32]) {
#pragma unroll
    for (int k = 0; k < 16; k++) {  // whole half-words: one byte permutation each
        u32 a = word[k], b = word[k + 16];
        word[k] = __byte_perm(a, b, 0x5410);
        word[k + 16] = __byte_perm(a, b, 0x7632);
    }
#pragma unroll
    for (int k = 0; k < 32; k++) {
        if (k & 8) continue;
        u32 a = word[k], b = word[k + 8];
        word[k] = __byte_perm(a, b, 0x6240);
        word[k + 8] = __byte_perm(a, b, 0x7351);
    }
#pragma unroll
    for (int k = 0; k < 32; k++)
        if (!(k & 4)) butterfly<4, 0x0f0f0f0fu>(word[k], word[k + 4]);
#pragma unroll
    for (int k = 0; k < 32; k++)
        if (!(k & 2)) butterfly<2, 0x33333333u>(word[k], word[k + 2]);
#pragma unroll
    for (int k = 0; k < 32; k++)
        if (!(k & 1)) butterfly<1, 0x55555555u>(word[k], word[k + 1]);
}
