// Plain 16-byte stores over a buffer, again and again: the ceiling of what one device can write into another.
#include "types.cuh"

extern "C" __global__ void store(uint4* out, u64 bytes, u64 rounds) {
    u64 pieces = bytes / 16, step = u64(gridDim.x) * blockDim.x;
    for (u64 round = 0; round < rounds; round++)
        for (u64 k = u64(blockIdx.x) * blockDim.x + threadIdx.x; k < pieces; k += step)
            out[k] = make_uint4(u32(k), u32(round), 1, 2);
}
