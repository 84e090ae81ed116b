// What the warps of the receive kernel share: the job, the work ring's units, and the words for the host.
#pragma once
#include "queue_kind.cuh"
#include "update.cuh"

constexpr u32 MAX_QUEUES = 8;
constexpr u32 REPLICAS_AT_MOST = 64;
// What happened to a frame; all but ACCEPTED and MISSING are rejections.
enum Count : u32 {
    ACCEPTED, MISSING, DUPLICATE, MALFORMED, FOREIGN_RUN, WRONG_PASS, WRONG_QUEUE, MISPLACED, LATE, CORRUPT, OVERRUN,
    COUNTS
};

struct Unit {          // consecutive rows of one column block, in consecutive slots; or rows to update
    u64 ticket;        // of the unit, plus 1; written last
    u64 slot;          // UPDATE: where the signs go on the host
    u64 burst;         // what the queue wants back with the slot; LOSSY: number of the first frame
    u64 row;
    u64 rows;
    u32 block;         // UPDATE: the bits of c_k
    u32 pass;          // UPDATE: whether it moves
    u32 queue;         // or UPDATE: no frames, but an update of the rows
    u32 shared;        // other units, or other shards, read the same burst
    u64 unused;
};
constexpr u32 UPDATE = ~0u;

struct Window {        // of a lossy queue, see window.cuh
    u64 base;          // number of the first frame that is not added
    u64 highest;       // of the one after the last that has come
    u64 repeats;       // frames that came again and PASS_ENDs
    u64* seen;         // bits of frames that are published or added; workers clear those that turn out spoiled
    u64* added;        // bits of frames that are added; set by workers, cleared once the base is beyond
};

struct Share {         // one queue and the rows it carries
    Queue queue;
    u64 first_row;
    u64 rows;
    u32* pending;      // of each burst place: reads of its frames still to come
    Window* window;    // null unless LOSSY
};

struct Control {       // host-mapped
    u64 stop;          // from the host
    u64 update;        // passes whose update may be made; written after the next three
    u64 moves;
    u64 decay;         // the bits of c_k, a float32
    u64 signs;         // where the new sign bitmaps go on the host
    u64 unused[11];
    u64 drained;       // to the host: passes received and accumulated to the end
    u64 updated;       // passes whose update was made; their energies are there
    u64 beat;          // counts on while the kernel lives
    i64 energies[REPLICAS_AT_MOST];
    u64 ended[MAX_QUEUES];   // passes whose PASS_END has come
    u64 sent[MAX_QUEUES];    // frames the sender counted in the last one
    u64 counts[MAX_QUEUES][COUNTS];  // since the start
};

struct State {         // device memory, zero at the start
    u64 stop;
    u64 head;          // units published
    u64 tail[2];       // tickets taken, by each shard
    u64 completed;     // units done, by every shard
    u64 starved;       // clock cycles that blocks waited for a unit
    i64 energies[REPLICAS_AT_MOST];
    u64 ended[MAX_QUEUES];
    u64 sent[MAX_QUEUES];
    u64 counts[MAX_QUEUES][COUNTS];
};

struct Job {
    States states;     // of the rows this receiver owns
    u64 first_pass;
    u64 queues;
    u64 ring_mask;     // units in the work ring - 1, a power of two that no backlog can reach
    u32 run;
    u32 ethertype;     // as it lies in the header
    float xi;
    float dt;
    Unit* ring;
    Control* control;
    State* state;
    u8* copies;        // LOSSY: 64 frames a block
    u64* looks;        // LOSSY: host-mapped windows
    u64 window_words;  // LOSSY: of 64 bits in a window, a power of two from 64 on
    Share share[MAX_QUEUES];
};

#ifdef STREAMDSB_JOB_BYTES  // what the host takes the sizes to be
static_assert(sizeof(Job) == STREAMDSB_JOB_BYTES, "struct Job is not what the host fills");
static_assert(sizeof(Control) == STREAMDSB_CONTROL_BYTES, "struct Control is not what the host reads");
static_assert(sizeof(Unit) == STREAMDSB_UNIT_BYTES, "struct Unit is not what the host allocates");
#endif
