// Initial states, and the update as a launch of its own.
#include "update.cuh"

constexpr u32 THREADS = 128;

// x and y of replica b, row i: float32(t - 8388608) * (float32(0.1) * 2^-23), t = H(key, b, i) >> 40.
__device__ __forceinline__ float initial(u64 key, u64 b, u64 i) {
    float centred = float(i32(hash(key, b, i) >> 40) - 8388608);
    return mul(centred, mul(0.1f, 1.1920928955078125e-07f));
}

extern "C" __global__ void __launch_bounds__(THREADS)
initialise(const States* states, u64 position_key, u64 momentum_key) {
    const States s = *states;
    u64 b = blockIdx.y;
    u32 lane = threadIdx.x % WARP;
    for (u64 word = (u64(blockIdx.x) * THREADS + threadIdx.x) / WARP; word * 64 < s.rows;
         word += u64(gridDim.x) * THREADS / WARP) {
        u32 half[2];
        for (u32 h = 0; h < 2; h++) {
            u64 row = word * 64 + 32 * h + lane;
            bool up = false;
            if (row < s.rows) {
                float x = initial(position_key, b, s.first_row + row);
                s.x[b * s.rows + row] = x;
                s.y[b * s.rows + row] = initial(momentum_key, b, s.first_row + row);
                s.counts[b * s.rows + row] = 0;
                up = above(x, 0.0f);
            }
            half[h] = __ballot_sync(ALL_LANES, up);
        }
        if (lane == 0) s.signs[b * s.sign_stride + s.first_row / 64 + word] = u64(half[1]) << 32 | half[0];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
update(const States* states, i64* energies, u32 replicas, u32 moves, float xi, float dt, float decay) {
    u64 words = words_of(states->rows), share = (words + gridDim.x - 1) / gridDim.x;
    u64 first = blockIdx.x * share, end = first + share < words ? first + share : words;
    if (first < end)
        update_words(*states, Step{nullptr, moves, xi, dt, decay}, first, end, 0, replicas, THREADS / WARP, energies);
}
