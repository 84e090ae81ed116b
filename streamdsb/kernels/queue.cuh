// The device-side queue: what the receive and generate kernels ask of a transport.
//
// A queue carries bursts: 1 to 64 whole frames in consecutive slots of 4096 bytes, never across the end of the
// ring. A kind is a type with these members; the kernels are templates over it and know no other:
//
//   static constexpr bool LOSSY        false: every frame arrives once, in order and unchanged, and stays in its
//                                      slot until it is released.
//                                      true: frames may be lost, repeated, reordered, altered, and overwritten in
//                                      their slots at any time, even while they are read. The kernels then write
//                                      and verify checksums, and workers copy a frame, verify the copy and add
//                                      only that, so a kind has nothing to guard. No more frames than the host
//                                      permits are on the way; a ring of twice as many slots is seldom overrun.
//   receiver side
//     u32 receive(Arrival& mine)         one whole warp a queue: how many bursts have arrived that were not
//                                        returned before, MOST_ARRIVALS at most; lane k learns of the k-th.
//                                        Returns soon, with 0 if there is none.
//     const u8* frame(u64 slot) const    where a received frame lies; slots of a burst are consecutive
//     void release(u64 slot, u64 burst)  one thread, once nobody reads the burst any more and after a system
//                                        fence; never called for a lossy kind
//   sender side, one whole block a burst; bursts of a queue are numbered from 0 through all passes
//     bool acquire(u64 burst, const u64* stop)   wait until the burst may be composed; false: stopped
//     u8* compose(u64 burst) const               where its frames go, one every FRAME_BYTES
//     void submit(u64 burst, u32 count)          hand the composed frames over; the order of bursts and, for a
//                                                lossy kind, even of frames is only a likely one
//     bool complete(u64 burst)                   whether the frames have left the sender's memory
#pragma once
#include "frame.cuh"
#include "memory.cuh"

constexpr u32 BURST_FRAMES = 64;
constexpr u32 MOST_ARRIVALS = 8;

struct Arrival {
    u64 slot;   // of the first frame
    u64 burst;  // what release wants back
    u32 count;  // frames
};
