// Couplings alone, without a queue: tile k of a list goes to frames + k * 64 frames. For tests and benchmarks.
#include "synthesis.cuh"

extern "C" __global__ void __launch_bounds__(COMPOSERS, 2)
synthesize(u8* frames, const u64* groups, const u64* blocks, u64 tiles, u64 n, u64 key) {
    for (u64 k = blockIdx.x; k < tiles; k += gridDim.x) {
        u64 left = n - groups[k] * GROUP_ROWS;
        Tile tile{frames + k * GROUP_ROWS * FRAME_BYTES, n, key, groups[k], blocks[k], left < 64 ? u32(left) : 64u};
        compose_payload(tile);
    }
}
