// The kind of queue that a kernel is compiled for, -DSTREAMDSB_QUEUE=<type>: `Queue` has the members of queue.cuh.
#pragma once
#include "faulty_queue.cuh"
#include "peer_queue.cuh"

#ifndef STREAMDSB_QUEUE
#define STREAMDSB_QUEUE PeerQueue
#endif

typedef STREAMDSB_QUEUE Queue;
