// Queue kind `faulty`, for tests: a ring in the receiver's memory that is overwritten in turn whether or not its
// frames were read, and a way there that loses, repeats, delays and alters frames at chosen rates. What befalls a
// frame follows from a hash of its burst and place, so a frame that is sent again meets another fate.
#pragma once
#include "hash.cuh"
#include "queue.cuh"

struct FaultyQueue {
    static constexpr bool LOSSY = true;

    u8* frames;    // slots of 4096 bytes
    u64* ready;    // a word a slot: the number of the frame written there last, plus 1
    u64* arrived;  // frames that were given a slot so far: the number of the next
    u64 slots;     // a power of two
    u8* staging;   // sender: places * 64 frames
    u64* vacant;   // sender: a word a place, the burst that may be composed there next
    u64 places;
    u64 key;
    u64 lose;      // the rates, of 65,536
    u64 repeat;
    u64 delay;     // behind all others of its burst
    u64 alter;     // one bit, of header or payload
    u64 next;      // receiver: the number of the frame that comes next

    __device__ u32 receive(Arrival& mine) {
        u64 number = next + threadIdx.x % WARP;
        // A later number means that the slot was overwritten; its header tells what lies there now.
        u32 empty = __ballot_sync(ALL_LANES, load_acquire_system(ready + (number & (slots - 1))) <= number);
        __syncwarp();  // what some lanes acquired, every lane may read
        u32 count = empty ? __ffs(empty) - 1 : WARP;
        u64 slot = next & (slots - 1), left = slots - slot;
        if (count > left) count = u32(left);
        mine = Arrival{slot, next, count};
        next += count;
        return count > 0;
    }

    __device__ const u8* frame(u64 slot) const { return frames + slot * FRAME_BYTES; }

    __device__ void release(u64, u64) const {}

    __device__ bool acquire(u64 burst, const u64* stop) const {
        __shared__ bool granted;
        if (threadIdx.x == 0) {
            const u64* word = vacant + burst % places;
            u64 stopped = load_relaxed(stop);
            while (load_acquire_system(word) != burst && !stopped) {
                __nanosleep(200);
                stopped = load_relaxed(stop);
            }
            granted = !stopped;
        }
        __syncthreads();
        return granted;
    }

    __device__ u8* compose(u64 burst) const { return staging + burst % places * BURST_FRAMES * FRAME_BYTES; }

    // Into `order`: the frames of a burst as they arrive; returns how many do.
    __device__ u32 decide(u64 burst, u32 count, u32* order) const {
        u32 total = 0;
        for (u32 late = 0; late < 2; late++)
            for (u32 k = 0; k < count; k++) {
                u64 fate = hash(key, burst, k);
                bool lost = (fate & 0xffff) < lose, repeated = (fate >> 16 & 0xffff) < repeat;
                bool delayed = (fate >> 32 & 0xffff) < delay;
                if (lost || delayed != (late == 1)) continue;
                order[total++] = k;
                if (repeated) order[total++] = k;
            }
        return total;
    }

    __device__ void submit(u64 burst, u32 count) const {
        __shared__ u32 order[2 * BURST_FRAMES];
        __shared__ u32 total;
        __shared__ u64 first;
        __syncthreads();
        if (threadIdx.x == 0) {
            total = decide(burst, count, order);
            first = atomicAdd_system(arrived, u64(total));
        }
        __syncthreads();
        for (u32 k = 0; k < total; k++) {
            const uint4* from = reinterpret_cast<const uint4*>(compose(burst) + u64(order[k]) * FRAME_BYTES);
            uint4* to = reinterpret_cast<uint4*>(frames + (first + k & (slots - 1)) * FRAME_BYTES);
            u64 fate = hash(key, first + k, 1ull << 32);
            bool altered = (fate & 0xffff) < alter;
            for (u32 piece = threadIdx.x; piece < FRAME_BYTES / 16; piece += blockDim.x) {
                uint4 v = load_uncached(from + piece);
                if (altered && piece == (fate >> 16) % (FRAME_BYTES / 16)) v.z ^= 1u << (fate >> 32) % 32;
                to[piece] = v;
            }
        }
        __threadfence_system();
        __syncthreads();
        // Whoever comes late by a whole ring must not make a slot look older than it is.
        for (u32 k = threadIdx.x; k < total; k += blockDim.x)
            atomicMax_system(ready + (first + k & (slots - 1)), first + k + 1);
        if (threadIdx.x == 0) store_release_system(vacant + burst % places, burst + places);
    }

    __device__ bool complete(u64) const { return true; }
};
