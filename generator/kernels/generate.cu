// The persistent generator: blocks take bursts by ticket, wait for room, compose frames where the queue says and
// submit them, from the first pass to the last. Burst numbers of a queue run on through the passes; a pass is
// its rows, 64 at a time, in column-block-major order, then one PASS_END.
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

struct State {  // device memory, zero at the start
    u64 stop;
    u64 released;
    u64 ticket;
    u64 finished;  // blocks that have ended
    u64 sent[8];
    u64 blocked;   // clock cycles that blocks waited for room
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
    Share share[8];
};

#ifdef STREAMDSB_JOB_BYTES  // what the host takes the sizes to be
static_assert(sizeof(Job) == STREAMDSB_JOB_BYTES, "struct Job is not what the host fills");
static_assert(sizeof(Control) == STREAMDSB_CONTROL_BYTES, "struct Control is not what the host reads");
#endif

// Four threads a header, 16 bytes each, so that it leaves as one store.
__device__ void compose_headers(const Job& job, const Tile& tile, u32 pass, u32 queue, u64 sequence) {
    u32 frame = threadIdx.x / 4, part = threadIdx.x % 4;
    if (frame >= tile.rows) return;
    u64 number = sequence + frame, row = tile.group * GROUP_ROWS + frame;
    uint4 piece = make_uint4(block_couplings(job.n, tile.block), 0, 0, 0);
    if (part == 0) piece = make_uint4(0, 0, 0, TYPE_TILE << 24 | FRAME_VERSION << 16 | job.ethertype);
    if (part == 1) piece = make_uint4(job.run, pass, u32(number), u32(number >> 32));
    if (part == 2) piece = make_uint4(u32(row), u32(row >> 32), u32(tile.block), FORMAT_PM1 << 16 | queue);
    reinterpret_cast<uint4*>(tile.frames + frame * FRAME_BYTES)[part] = piece;
}
static_assert(COMPOSERS == 4 * GROUP_ROWS, "four threads a header");

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

__device__ void send_burst(const Job& job, u64 pass, u32 q, u64 number, bool* stopped,
                           u64& blocked) {
    const Share& share = job.share[q];
    u64 blocks = (job.n + BLOCK_COUPLINGS - 1) / BLOCK_COUPLINGS;
    u64 tiles = share.groups * blocks;
    if (number > tiles) return;
    u64 burst = pass * (tiles + 1) + number;
    i64 start = clock64();
    *stopped = !share.queue.acquire(burst, &job.state->stop);
    blocked += clock64() - start;
    if (*stopped) return;
    u8* frames = share.queue.compose(burst);
    u64 end_row = (share.first_group + share.groups) * GROUP_ROWS;
    u64 rows = share.groups ? (end_row < job.n ? end_row : job.n) - share.first_group * GROUP_ROWS : 0;
    u32 count = 1;
    if (number < tiles) {
        u64 block = number / share.groups, group = number % share.groups;
        u64 left = rows - group * GROUP_ROWS;
        Tile tile{frames, job.n, job.key, share.first_group + group, block, left < 64 ? u32(left) : 64u};
        compose_headers(job, tile, u32(job.first_pass + pass), q, block * rows + group * GROUP_ROWS);
        compose_payload(tile);
        count = tile.rows;
    } else {
        compose_end(job, frames, u32(job.first_pass + pass), q, blocks * rows);
    }
    share.queue.submit(burst, count);
    if (threadIdx.x == 0) atomicAdd(&job.state->sent[q], 1ull);
}

extern "C" __global__ void __launch_bounds__(COMPOSERS, 2) generate(const Job* job_pointer) {
    const Job& job = *job_pointer;
    if (blockIdx.x == 0) return relay(job);
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
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(&job.state->blocked, blocked);
        atomicAdd(&job.state->finished, 1ull);
    }
}
