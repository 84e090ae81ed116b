// The persistent generator: blocks take bursts by ticket, wait for room, compose frames where the queue says and
// submit them, from the first pass to the last. Burst numbers of a queue run on through the passes; a pass is
// its rows, 64 at a time, in column-block-major order, then one PASS_END.
//
// Over a lossy queue, bursts are numbered as they come, a tile waits until the host lets its frames be on the way,
// and a few blocks do nothing but make again what the host says is missing: nothing is kept.
#include "payload_checksum.cuh"
#include "queue_kind.cuh"
#include "synthesis.cuh"

struct Share {  // what one queue carries
    Queue queue;
    u64 first_group;
    u64 groups;
};

struct Control {  // host-mapped
    u64 stop;      // from the host
    u64 released;  // from the host: passes that may be sent
    u64 sent[8];   // to the host: bursts submitted, a queue
    u64 beat;      // to the host: counts on while the kernel lives
};

struct Order {     // frames of one tile that are to be sent again
    u64 queue;
    u64 pass;      // from the first of the job on
    u64 tile;      // in the order of the pass
    u64 rows;      // a bit a row; none: PASS_END
};

constexpr u32 MOST_ORDERS = 1024;

struct Repair {    // host-mapped, for lossy queues
    u64 permitted[8];  // from the host: frames that may be sent since the start, a queue
    u64 posted;        // from the host: orders given so far; the next are written once all are filled
    u64 unused[7];
    u64 filled;        // to the host: orders carried out
    u64 unused_too[7];
    Order orders[MOST_ORDERS];  // order k in place k % MOST_ORDERS
};

struct State {  // device memory, zero at the start
    u64 stop;
    u64 released;
    u64 ticket;
    u64 finished;  // blocks that have ended
    u64 sent[8];
    u64 blocked;   // clock cycles that blocks waited for room
    u64 permitted[8];
    u64 bursts[8];     // LOSSY: numbers given to bursts
    u64 posted;
    u64 taken;         // orders taken, or waited for
    u64 filled;
};

struct Job {
    u64 n;
    u64 key;
    u64 first_pass;
    u64 passes;      // passes to send, the first included
    u64 queues;
    u64 rounds;      // bursts a pass of the queue that has most
    u32 run;
    u32 ethertype;   // as it lies in the header
    Control* control;
    State* state;
    Repair* repair;  // LOSSY
    u8* made;        // LOSSY: 64 frames for each block that repairs
    u64 repairers;   // blocks that repair, after the first; 0 unless LOSSY
    Share share[8];
};

#ifdef STREAMDSB_JOB_BYTES  // what the host takes the sizes to be
static_assert(sizeof(Job) == STREAMDSB_JOB_BYTES, "struct Job is not what the host fills");
static_assert(sizeof(Control) == STREAMDSB_CONTROL_BYTES, "struct Control is not what the host reads");
#endif
#ifdef STREAMDSB_REPAIR_BYTES
static_assert(sizeof(Repair) == STREAMDSB_REPAIR_BYTES, "struct Repair is not what the host writes");
#endif

// Four threads a header, 16 bytes each, so that it leaves as one store.
__device__ void compose_headers(const Job& job, const Tile& tile, u32 pass, u32 queue, u64 sequence, u32 checksum) {
    u32 frame = threadIdx.x / 4, part = threadIdx.x % 4;
    if (frame >= tile.rows) return;
    TileHeader header{job.ethertype, job.run, pass, queue, sequence + frame, tile.group * GROUP_ROWS + frame,
                      u32(tile.block), block_couplings(job.n, tile.block), checksum};
    reinterpret_cast<uint4*>(tile.frames + frame * FRAME_BYTES)[part] = header.piece(part);
}
static_assert(COMPOSERS == 4 * GROUP_ROWS, "four threads a header");

// The rows of queue q, as frames of one column block.
__device__ __forceinline__ u64 rows_of(const Job& job, const Share& share) {
    u64 end_row = (share.first_group + share.groups) * GROUP_ROWS;
    return share.groups ? (end_row < job.n ? end_row : job.n) - share.first_group * GROUP_ROWS : 0;
}

// Tile `number` of a pass of queue q, to be composed at `frames`; `sequence` is that of its first frame.
__device__ __forceinline__ Tile tile_of(const Job& job, const Share& share, u64 number, u8* frames, u64& sequence) {
    u64 rows = rows_of(job, share);
    u64 block = number / share.groups, group = number % share.groups;
    u64 left = rows - group * GROUP_ROWS;
    sequence = block * rows + group * GROUP_ROWS;
    return Tile{frames, job.n, job.key, share.first_group + group, block, left < 64 ? u32(left) : 64u};
}

// The xxh32 of the payload of row threadIdx.x / 4, after zeros in all words that hold no couplings.
__device__ u32 seal(const Tile& tile) {
    for (u32 row = 0; row < tile.rows; row++)
        for (u32 word = tile.words() + threadIdx.x; word < BLOCK_WORDS; word += COMPOSERS) tile.payload(row)[word] = 0;
    __syncthreads();
    u32 row = threadIdx.x / 4;
    return payload_checksum(reinterpret_cast<const u8*>(tile.payload(row < tile.rows ? row : 0)), nullptr);
}

// Whole frames of a tile; over a lossy queue with checksums.
__device__ __forceinline__ void compose_frames(const Job& job, const Tile& tile, u32 pass, u32 queue, u64 sequence) {
    if constexpr (Queue::LOSSY) {
        compose_payload(tile);
        compose_headers(job, tile, pass, queue, sequence, seal(tile));
    } else {
        compose_headers(job, tile, pass, queue, sequence, 0);
        compose_payload(tile);
    }
}

__device__ void compose_end(const Job& job, u8* frame, u32 pass, u32 queue, u64 count) {
    if (threadIdx.x) return;
    Header h{};
    h.ethertype = u16(job.ethertype);
    h.version = FRAME_VERSION;
    h.type = TYPE_PASS_END;
    h.run = job.run;
    h.pass = pass;
    h.sequence = count;
    h.row = count;
    h.queue = u16(queue);
    h.format = FORMAT_PM1;
    *reinterpret_cast<Header*>(frame) = h;
}

__device__ __forceinline__ void relay_repair(const Job& job) {
    u32 lane = threadIdx.x;
    Repair& repair = *job.repair;
    if (lane < job.queues)
        store_release(&job.state->permitted[lane], load_acquire_system(&repair.permitted[lane]));
    if (lane == 0) {
        store_release(&job.state->posted, load_acquire_system(&repair.posted));
        store_release_system(&repair.filled, load_acquire(&job.state->filled));
    }
}

// One warp passes words between the host and the device, so that no other block ever polls across PCIe.
__device__ void relay(const Job& job) {
    if (threadIdx.x >= WARP) return;
    u32 lane = threadIdx.x;
    u64 beat = 0;
    while (load_acquire(&job.state->finished) + 1 < gridDim.x) {
        if (lane == 0) {
            if (u64 stop = load_acquire_system(&job.control->stop)) store_release(&job.state->stop, stop);
            store_release(&job.state->released, load_acquire_system(&job.control->released));
            store_release_system(&job.control->beat, ++beat);
        }
        if (lane < job.queues) store_release_system(&job.control->sent[lane], load_relaxed(&job.state->sent[lane]));
        if constexpr (Queue::LOSSY) relay_repair(job);
        __nanosleep(1000);
    }
    if (lane < job.queues) store_release_system(&job.control->sent[lane], load_relaxed(&job.state->sent[lane]));
}

// The next burst of this block into `ticket` (claimed before the last was composed, to hide the latency), once
// its pass is released; false: the passes are over or the run was stopped. `released` is what thread 0 last saw.
__device__ bool take_ticket(const Job& job, u64 per_pass, u64 claimed, u64& ticket, u64& released) {
    __shared__ u64 shared_ticket;
    __shared__ bool going;
    if (threadIdx.x == 0) {
        shared_ticket = claimed;
        u64 pass = claimed / per_pass;
        going = pass < job.passes;
        while (going && released <= pass) {
            released = load_acquire(&job.state->released);
            going = !load_relaxed(&job.state->stop);
        }
    }
    __syncthreads();
    ticket = shared_ticket;
    return going;
}

// The number of a burst of a lossy queue, given once `frames` frames since the start may be on the way.
__device__ bool take_number(const Job& job, u32 q, u64 frames, u64& burst) {
    __shared__ u64 number;
    __shared__ bool granted;
    if (threadIdx.x == 0) {
        u64 stopped = load_relaxed(&job.state->stop);
        while (load_acquire(&job.state->permitted[q]) < frames && !stopped) {
            __nanosleep(200);
            stopped = load_relaxed(&job.state->stop);
        }
        granted = !stopped;
        if (granted) number = atomicAdd(&job.state->bursts[q], 1ull);
    }
    __syncthreads();
    burst = number;
    return granted;
}

__device__ void send_burst(const Job& job, u64 pass, u32 q, u64 number, bool* stopped,
                           u64& blocked) {
    const Share& share = job.share[q];
    u64 blocks = (job.n + BLOCK_COUPLINGS - 1) / BLOCK_COUPLINGS;
    u64 tiles = share.groups * blocks;
    if (number > tiles) return;
    u64 burst = pass * (tiles + 1) + number;
    u64 total = blocks * rows_of(job, share), sequence = total;
    u32 count = 1;
    if constexpr (Queue::LOSSY) {
        u64 end = total;
        if (number < tiles) {
            Tile tile = tile_of(job, share, number, nullptr, sequence);
            end = sequence + tile.rows;
        }
        if (!take_number(job, q, pass * total + end, burst)) {
            *stopped = true;
            return;
        }
    }
    i64 start = clock64();
    *stopped = !share.queue.acquire(burst, &job.state->stop);
    blocked += clock64() - start;
    if (*stopped) return;
    u8* frames = share.queue.compose(burst);
    if (number < tiles) {
        Tile tile = tile_of(job, share, number, frames, sequence);
        compose_frames(job, tile, u32(job.first_pass + pass), q, sequence);
        count = tile.rows;
    } else {
        compose_end(job, frames, u32(job.first_pass + pass), q, total);
    }
    share.queue.submit(burst, count);
    if (threadIdx.x == 0) atomicAdd(&job.state->sent[q], 1ull);
}

// The next order of the host; false: stopped.
__device__ bool take_order(const Job& job, Order& order) {
    __shared__ bool given;
    if (threadIdx.x == 0) {
        u64 ticket = atomicAdd(&job.state->taken, 1ull);
        u64 stopped = load_relaxed(&job.state->stop);
        while (load_acquire(&job.state->posted) <= ticket && !stopped) {
            __nanosleep(500);
            stopped = load_relaxed(&job.state->stop);
        }
        given = !stopped;
        if (given) {
            const Order& from = job.repair->orders[ticket % MOST_ORDERS];
            order = Order{load_acquire_system(&from.queue), load_acquire_system(&from.pass),
                          load_acquire_system(&from.tile), load_acquire_system(&from.rows)};
        }
    }
    __syncthreads();
    return given;
}

// Sends frames of a pass again: the tile is made anew, and of it what is wanted. False: stopped.
__device__ bool fill_order(const Job& job, const Order& order, u8* made) {
    u32 q = u32(order.queue), pass = u32(job.first_pass + order.pass);
    const Share& share = job.share[q];
    u64 burst, sequence;
    if (order.rows) {
        Tile tile = tile_of(job, share, order.tile, made, sequence);
        compose_frames(job, tile, pass, q, sequence);
    }
    if (!take_number(job, q, 0, burst) || !share.queue.acquire(burst, &job.state->stop)) return false;
    u8* frames = share.queue.compose(burst);
    u32 count = 0;
    for (u64 left = order.rows; left; left &= left - 1) {
        const uint4* from = reinterpret_cast<const uint4*>(made + u64(__ffsll(left) - 1) * FRAME_BYTES);
        uint4* to = reinterpret_cast<uint4*>(frames + u64(count++) * FRAME_BYTES);
        for (u32 piece = threadIdx.x; piece < FRAME_BYTES / 16; piece += COMPOSERS) to[piece] = load_uncached(from + piece);
    }
    if (!order.rows) {
        u64 blocks = (job.n + BLOCK_COUPLINGS - 1) / BLOCK_COUPLINGS;
        compose_end(job, frames, pass, q, blocks * rows_of(job, share));
        count = 1;
    }
    share.queue.submit(burst, count);
    return true;
}

// Carries out the host's orders until the run is stopped.
__device__ void repair(const Job& job) {
    __shared__ Order order;
    u8* made = job.made + u64(blockIdx.x - 1) * BURST_FRAMES * FRAME_BYTES;
    while (take_order(job, order) && fill_order(job, order, made)) {
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            atomicAdd(&job.state->filled, 1ull);
        }
    }
}

// Sends the bursts that this block draws, from the first pass to the last.
__device__ void send_passes(const Job& job) {
    u64 per_pass = job.rounds * job.queues, claimed = 0, ticket, released = 0, blocked = 0;
    bool stopped = false;
    if (threadIdx.x == 0) claimed = atomicAdd(&job.state->ticket, 1ull);
    while (!stopped && take_ticket(job, per_pass, claimed, ticket, released)) {
        if (threadIdx.x == 0) claimed = atomicAdd(&job.state->ticket, 1ull);
        u64 pass = ticket / per_pass;
        u32 item = u32(ticket % per_pass), queues = u32(job.queues);
        send_burst(job, pass, item % queues, item / queues, &stopped, blocked);
        __syncthreads();
    }
    if (threadIdx.x == 0) atomicAdd(&job.state->blocked, blocked);
}

extern "C" __global__ void __launch_bounds__(COMPOSERS, 2) generate(const Job* job_pointer) {
    const Job& job = *job_pointer;
    if (blockIdx.x == 0) return relay(job);
    if constexpr (Queue::LOSSY) {
        if (blockIdx.x <= job.repairers)
            repair(job);
        else
            send_passes(job);
    } else {
        send_passes(job);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(&job.state->finished, 1ull);
    }
}
