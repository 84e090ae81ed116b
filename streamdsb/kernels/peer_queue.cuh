// Queue kind `peer`: slots in the receiver's memory, written in place by the sender, on the same device, over
// NVLink or PCIe, or by the host's copies. Lossless and ordered; credits are the back-pressure.
#pragma once
#include "queue.cuh"

struct PeerQueue {
    static constexpr bool LOSSY = false;

    u8* frames;   // places * 64 slots of 4096 bytes
    u64* ready;   // a word a place: (burst + 1) << 8 | frames, written once the frames are visible
    u64* credit;  // a word a place: the burst that may be composed there next
    u64 places;
    u64 next;     // receiver: the burst that comes next, and
    u64 place;    // its place

    __device__ u32 receive(Arrival& mine) {
        u32 lane = threadIdx.x % WARP;
        u64 burst = next + lane;
        u32 at = (u32(place) + lane) % u32(places);
        u64 word = lane < MOST_ARRIVALS ? load_acquire_system(ready + at) : 0;
        u32 arrived = __ffs(__ballot_sync(ALL_LANES, word >> 8 != burst + 1)) - 1;
        __syncwarp();  // what some lanes acquired, every lane may read
        mine = Arrival{u64(at) * BURST_FRAMES, burst, u32(word & 0xff)};
        next += arrived;
        place = (u32(place) + arrived) % u32(places);
        return arrived;
    }

    __device__ const u8* frame(u64 slot) const { return frames + slot * FRAME_BYTES; }

    __device__ void release(u64 slot, u64 burst) const {
        store_relaxed_system(credit + slot / BURST_FRAMES, burst + places);
    }

    __device__ bool acquire(u64 burst, const u64* stop) const {
        __shared__ bool granted;
        if (threadIdx.x == 0) {
            const u64* word = credit + burst % places;
            // asked for first and looked at last, so that the two loads overlap
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

    __device__ u8* compose(u64 burst) const { return frames + burst % places * BURST_FRAMES * FRAME_BYTES; }

    __device__ void submit(u64 burst, u32 count) const {
        __syncthreads();
        if (threadIdx.x == 0) store_release_system(ready + burst % places, (burst + 1) << 8 | count);
    }

    __device__ bool complete(u64) const { return true; }
};
