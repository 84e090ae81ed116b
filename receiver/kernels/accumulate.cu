// Accumulation alone: bursts of up to 64 frames lie one after another, 64 frames apart; burst k holds rows
// 64 (k % groups) to 64 (k % groups) + 63 of column block k / groups. For tests and benchmarks.
#include "accumulate.cuh"

extern "C" __global__ void __launch_bounds__(WORKERS, WORKERS > 256 ? 1 : 2)
accumulate(const u8* frames, const u64* signs, i32* counts, u64 n, u64 bursts) {
    extern __shared__ __align__(16) u8 dynamic[];
    SignTile& tile = *reinterpret_cast<SignTile*>(dynamic);
    u64 groups = words_of(n);
    u32 shard = blockIdx.x % SHARDS, first = shard * SHARD;
    u32 replicas = REPLICAS - first < SHARD ? REPLICAS - first : SHARD;
    u64 loaded = ~0ull;
    for (u64 k = blockIdx.x / SHARDS; k < bursts; k += gridDim.x / SHARDS) {
        u64 block = k / groups, row = k % groups * GROUP_ROWS;
        u32 words = u32(words_of(block_couplings(n, block)));
        if (loaded != block) {
            workers_barrier();
            load_signs(tile, signs + first * groups, groups, block * BLOCK_WORDS, words, replicas);
            loaded = block;
        }
        Burst burst{frames + k * GROUP_ROWS * FRAME_BYTES, n - row < GROUP_ROWS ? u32(n - row) : GROUP_ROWS, words,
                    replicas, counts + first * n + row, n};
        accumulate_burst(burst, tile);
    }
}
