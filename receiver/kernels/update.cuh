// The dynamics: energies, and the update of positions and momenta from finished mismatch counts.
// Every float32 operation is rounded on its own and keeps subnormals, whatever the compiler's options: hence the
// explicit PTX. State is replica-major, float32 (replicas, rows); counts int32 (replicas, rows); sign bitmaps
// uint64 (replicas, sign_stride), the local rows starting at word first_row / 64.
#pragma once
#include "frame.cuh"
#include "hash.cuh"

__device__ __forceinline__ float mul(float a, float b) {
    float c;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}
__device__ __forceinline__ float add(float a, float b) {
    float c;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}
__device__ __forceinline__ float sub(float a, float b) {
    float c;
    asm("sub.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}
// Compares that do not flush subnormals either.
__device__ __forceinline__ bool above(float a, float b) {
    u32 c;
    asm("{.reg .pred p; setp.gt.f32 p, %1, %2; selp.u32 %0, 1, 0, p;}" : "=r"(c) : "f"(a), "f"(b));
    return c;
}

struct States {
    float* x;
    float* y;
    i32* counts;
    u64* signs;
    const i32* field;  // of the local rows, or null
    u64 n;
    u64 first_row;
    u64 rows;
    u64 sign_stride;
};

struct Step {
    u64* host_signs;  // where in mapped host memory the new sign bitmaps go too, or null
    u32 moves;      // 0: the last pass, which only evaluates
    float xi;
    float dt;
    float decay;    // c_k
};

// One row of one replica: returns its part of 2E of the signs that entered the pass, and clears its count; `up`
// is the new sign bit. With a_i = n - 2 c_i - s_i:  2E = -sum s_i a_i - 2 sum h_i s_i, and a step is
//   g = xi * float32(a + h) - c_k * x;  y = y + g * dt;  x = x + y * dt;  |x| > 1: x = +-1, y = 0
__device__ __forceinline__ i64 update_row(const States& s, const Step& step, u64 b, u64 row, bool& up) {
    u64 at = b * s.rows + row;
    float x = s.x[at];
    i64 sign = above(x, 0.0f) ? 1 : -1;
    // Counts were added in the L2 by other blocks: no old line of the L1 may answer.
    i64 sum = i64(s.n) - 2 * i64(__ldcg(s.counts + at)) - sign;
    i64 field = s.field ? s.field[row] : 0;
    s.counts[at] = 0;
    if (step.moves) {
        float y = s.y[at];
        float g = sub(mul(step.xi, __ll2float_rn(sum + field)), mul(step.decay, x));
        y = add(y, mul(g, step.dt));
        x = add(x, mul(y, step.dt));
        if (above(x, 1.0f) || above(-1.0f, x)) {
            x = above(x, 0.0f) ? 1.0f : -1.0f;
            y = 0.0f;
        }
        s.x[at] = x;
        s.y[at] = y;
    }
    up = above(x, 0.0f);
    return -sign * (sum + 2 * field);
}

__device__ __forceinline__ i64 warp_sum(i64 value) {
    for (u32 step = 16; step; step /= 2) value += __shfl_xor_sync(ALL_LANES, value, step);
    return value;
}

// Rows 64 word to 64 word + 63 of replica b, by one warp; returns a lane's part of 2E. The new sign word goes to
// the device's bitmap and, if there is one, to the host's.
__device__ __forceinline__ i64 update_word(const States& s, const Step& step, u64 b, u64 word) {
    u32 lane = threadIdx.x % WARP, half[2];
    i64 energy = 0;
    for (u32 h = 0; h < 2; h++) {
        u64 row = word * 64 + 32 * h + lane;
        bool up = false;
        if (row < s.rows) energy += update_row(s, step, b, row, up);
        half[h] = __ballot_sync(ALL_LANES, up);
    }
    if (step.moves && lane == 0) {
        u64 at = b * s.sign_stride + s.first_row / 64 + word, bits = u64(half[1]) << 32 | half[0];
        s.signs[at] = bits;
        if (step.host_signs) step.host_signs[at] = bits;
    }
    return energy;
}

// Words [first, end) of replicas [b0, b0 + replicas), by `warps` warps of a block; adds to energies[replica].
__device__ __forceinline__ void update_words(const States& s, const Step& step, u64 first, u64 end, u32 b0,
                                             u32 replicas, u32 warps, i64* energies) {
    u64 words = end - first;
    i64 energy = 0;
    u64 last = ~0ull;
    for (u64 task = threadIdx.x / WARP; task < words * replicas; task += warps) {
        u64 b = b0 + task / words;
        if (last != ~0ull && last != b) {
            energy = warp_sum(energy);
            if (threadIdx.x % WARP == 0) atomicAdd(reinterpret_cast<u64*>(energies + last), u64(energy));
            energy = 0;
        }
        last = b;
        energy += update_word(s, step, b, first + task % words);
    }
    if (last == ~0ull) return;
    energy = warp_sum(energy);
    if (threadIdx.x % WARP == 0) atomicAdd(reinterpret_cast<u64*>(energies + last), u64(energy));
}
