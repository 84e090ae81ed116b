// One request solved whole by one block of 256 threads: B replicas, K updates, the best replica's spins.
//
// Coupling sums are tensor-core products of the couplings (16 rows a tile) and the signs (8 replicas a tile).
// In the accumulator layout a thread holds rows g and g + 8 and replicas 2t and 2t + 1 of a tile (g = lane / 4,
// t = lane % 4), and x and y of those four stay in its registers for the whole trajectory; the couplings do
// too where they fit. Signs go through shared memory, double buffered: one barrier an update.
//
// INT8 is m16n8k32 with signs as bytes. PM1 and TERNARY are two planes of bits, m16n8k256 and.popc:
//   a = 2 (popc(P and v) - popc(M and v)) - (|P| - |M|).
// A sum may be taken in any order, so columns lie as is handy: place q of each 16 is column (q >> 1) + 8 (q & 1),
// which puts the two rows of a thread side by side. The host packs couplings accordingly (`fragments.py`).
#pragma once
#include "solve_parts.cuh"

// ROWS row tiles and REPLICAS replica tiles a warp, CHUNKS chunks of columns: all in registers. What no branch
// sets is zero: left undefined, it would be kept from one request to the next, in memory.
template <bool IS_INT8, u32 ROWS, u32 CHUNKS, u32 REPLICAS>
__device__ __noinline__ void solve_in_registers(const Problem& problem, Shared& shared, bool has_field) {
    const Problem p = problem;
    const Shape shape(p);
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    u32 across = 2;  // warps that take different row tiles
    while (across < shape.row_tiles && across < WARPS) across *= 2;
    const u32 first_row = warp % across, first_replica = warp / across, replica_step = WARPS / across;
    Fragment fragments[ROWS][CHUNKS];
    i32 lifted[ROWS][2];  // base + LIFT
    float x[ROWS][REPLICAS][4] = {}, y[ROWS][REPLICAS][4] = {};
    const u64 position_key = mix(p.seed + 3 * HASH_ROW), momentum_key = mix(p.seed + 4 * HASH_ROW);
    bool up[4] = {};
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
        const u32 tile = first_row + r * WARPS;
        const bool inside = tile < shape.row_tiles;
#pragma unroll
        for (u32 c = 0; c < CHUNKS; c++) {
            const uint4* from = p.couplings + (u64(tile) * CHUNKS + c) * 2 * WARP + lane;
            fragments[r][c].a = inside ? load_uncached(from) : uint4{0, 0, 0, 0};
            fragments[r][c].b = inside ? load_uncached(from + WARP) : uint4{0, 0, 0, 0};
        }
        for (u32 i = 0; i < 2; i++) lifted[r][i] = LIFT + (inside ? shared.base[tile * 16 + lane / 4 + 8 * i] : 0);
#pragma unroll
        for (u32 b = 0; b < REPLICAS; b++) {
            const u32 replica_tile = first_replica + b * replica_step;
            if (!inside || replica_tile >= shape.replica_tiles) continue;
            for (u32 i = 0; i < 4; i++) {
                u32 replica = replica_tile * 8 + lane % 4 * 2 + i % 2, row = tile * 16 + lane / 4 + i / 2 * 8;
                x[r][b][i] = initial_value(position_key, replica, row);
                y[r][b][i] = initial_value(momentum_key, replica, row);
                up[i] = is_up(x[r][b][i]);
            }
            store_signs<IS_INT8>(up, shared.signs, shape, replica_tile, tile, lane);
        }
    }
    Detuning detuning;
    u32 now = 0, next = shape.half;
    __syncthreads();
    for (u32 k = 0; k < p.updates; k++) {
        const float c_k = detuning.at(k, p.updates, lane);
#pragma unroll
        for (u32 b = 0; b < REPLICAS; b++) {
            const u32 replica_tile = first_replica + b * replica_step;
            if (replica_tile >= shape.replica_tiles) continue;
#pragma unroll
            for (u32 r = 0; r < ROWS; r++) {
                const u32 tile = first_row + r * WARPS;
                if (tile >= shape.row_tiles) continue;
                i32 force[4];
                forces_of<IS_INT8>(force, fragments[r], lifted[r], shared.signs + now, shape, replica_tile, lane);
#pragma unroll
                for (u32 i = 0; i < 4; i++)
                    up[i] = advance(x[r][b][i], y[r][b][i], lifted_to_float(force[i]), p.xi, p.dt, c_k);
                store_signs<IS_INT8>(up, shared.signs + next, shape, replica_tile, tile, lane);
            }
        }
        const u32 other = now;
        now = next, next = other;
        __syncthreads();
    }
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
        const u32 tile = first_row + r * WARPS;
        if (tile >= shape.row_tiles) continue;
        i32 h[2];
        for (u32 i = 0; i < 2; i++) h[i] = field_of(shared, p, has_field, tile * 16 + lane / 4 + 8 * i);
#pragma unroll
        for (u32 b = 0; b < REPLICAS; b++) {
            const u32 replica_tile = first_replica + b * replica_step;
            if (replica_tile >= shape.replica_tiles) continue;
            i32 force[4];
            forces_of<IS_INT8>(force, fragments[r], lifted[r], shared.signs + now, shape, replica_tile, lane);
#pragma unroll
            for (u32 i = 0; i < 4; i++) force[i] -= LIFT, up[i] = is_up(x[r][b][i]);
            add_energy(force, up, shared, h, p, replica_tile, tile, lane);
        }
    }
    __syncthreads();
}

// The same for any shape: x and y in shared memory, couplings from the cache at every update.
template <bool IS_INT8>
__device__ __noinline__ void solve_in_memory(const Problem& problem, Shared& shared, bool has_field) {
    const Problem p = problem;
    const Shape shape(p);
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u64 position_key = mix(p.seed + 3 * HASH_ROW), momentum_key = mix(p.seed + 4 * HASH_ROW);
    const u32 tiles = shape.row_tiles * shape.replica_tiles;
    Detuning detuning;
    for (u32 k = 0; k <= p.updates + 1; k++) {  // turn 0 makes the initial state, turn k + 1 update k
        const u8* now = shared.signs + (~k & 1) * shape.half;
        u8* next = shared.signs + (k & 1) * shape.half;
        const bool first = k == 0, last = k == p.updates + 1;
        const float c_k = first ? 0.0f : detuning.at(k - 1, p.updates, lane);
        for (u32 turn = warp; turn < tiles; turn += WARPS) {
            const u32 tile = turn % shape.row_tiles, replica_tile = turn / shape.row_tiles;
            i32 c[4] = {0, 0, 0, 0}, d[4] = {0, 0, 0, 0}, force[4], base[2];
            const uint4* from = p.couplings + u64(tile) * shape.chunks * 2 * WARP + lane;
            for (u32 chunk = 0; chunk < shape.chunks && !first; chunk++) {
                Fragment f = {load_uncached(from + chunk * 2 * WARP), load_uncached(from + (chunk * 2 + 1) * WARP)};
                add_sums<IS_INT8>(c, d, f, now, shape, replica_tile, chunk, lane);
            }
            for (u32 i = 0; i < 2; i++) base[i] = LIFT + shared.base[tile * 16 + lane / 4 + 8 * i];
            forces_of<IS_INT8>(force, c, d, base);
            bool up[4];
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                u32 replica = replica_tile * 8 + lane % 4 * 2 + i % 2, row = tile * 16 + lane / 4 + i / 2 * 8;
                const float lifted = lifted_to_float(force[i]);
                force[i] -= LIFT;
                up[i] = false;
                if (replica >= p.replicas) continue;
                float2& place = shared.state[replica * shape.padded + row];
                float x = place.x, y = place.y;
                if (first) {
                    x = initial_value(position_key, replica, row);
                    y = initial_value(momentum_key, replica, row);
                } else if (!last) {
                    advance(x, y, lifted, p.xi, p.dt, c_k);
                }
                place = {x, y};
                up[i] = is_up(x);
            }
            if (!last) {
                store_signs<IS_INT8>(up, next, shape, replica_tile, tile, lane);
            } else {
                i32 h[2];
                for (u32 i = 0; i < 2; i++) h[i] = field_of(shared, p, has_field, tile * 16 + lane / 4 + 8 * i);
                add_energy(force, up, shared, h, p, replica_tile, tile, lane);
            }
        }
        __syncthreads();
    }
}

// One replica of up to CHUNKS * 256 spins of bits: a thread counts for rows g and g + 8 of a tile. Of a product on
// tensor cores, seven columns of eight would be nobody's.
template <u32 CHUNKS>
__device__ __forceinline__ void counted_forces(i32 (&force)[2], const Fragment (&words)[CHUNKS][4], const i32 (&base)[2],
                                               const u8* signs) {
    i32 low = 0, high = 0;
#pragma unroll
    for (u32 c = 0; c < CHUNKS; c++)
#pragma unroll
        for (u32 t = 0; t < 4; t++) {
            const uint2 s = *reinterpret_cast<const uint2*>(signs + c * 32 + t * 8);
            const uint4 plus = words[c][t].a, minus = words[c][t].b;
            low += __popc(plus.x & s.x) + __popc(plus.z & s.y) - __popc(minus.x & s.x) - __popc(minus.z & s.y);
            high += __popc(plus.y & s.x) + __popc(plus.w & s.y) - __popc(minus.y & s.x) - __popc(minus.w & s.y);
        }
    force[0] = 2 * low + base[0];
    force[1] = 2 * high + base[1];
}

// Every second bit of the result is one of the lowest eight of v.
__device__ __forceinline__ u32 spread(u32 v) {
    v = (v & 0xff) | (v & 0xff) << 4;
    v = (v & 0x0f0f) | (v & 0x0f0f) << 2;
    v = v & 0x3333;
    return (v | v << 1) & 0x5555;
}

__device__ __forceinline__ void store_counted_signs(const bool (&up)[2], u8* signs, u32 lane) {
    u32 low = __ballot_sync(ALL_LANES, up[0]), high = __ballot_sync(ALL_LANES, up[1]);
    if (lane < 4) {
        u32 tile = threadIdx.x / WARP * 4 + lane;
        reinterpret_cast<u16*>(signs)[tile] = u16(spread(low >> 8 * lane) | spread(high >> 8 * lane) << 1);
    }
}

template <u32 CHUNKS>
__device__ __noinline__ void solve_by_counting(const Problem& problem, Shared& shared, bool has_field) {
    static_assert(CHUNKS * 256 == 2 * THREADS, "two rows a thread");
    const Problem p = problem;
    const Shape shape(p);
    const u32 lane = threadIdx.x % WARP, tile = threadIdx.x / 8;
    const bool inside = tile < shape.row_tiles;
    Fragment words[CHUNKS][4];
    i32 lifted[2];  // base + LIFT
    float x[2], y[2];
    bool up[2];
#pragma unroll
    for (u32 c = 0; c < CHUNKS; c++)
#pragma unroll
        for (u32 t = 0; t < 4; t++) {
            const uint4* from = p.couplings + (u64(tile) * CHUNKS + c) * 2 * WARP + threadIdx.x % 8 * 4 + t;
            words[c][t].a = inside ? load_uncached(from) : uint4{0, 0, 0, 0};
            words[c][t].b = inside ? load_uncached(from + WARP) : uint4{0, 0, 0, 0};
        }
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        const u32 row = tile * 16 + threadIdx.x % 8 + 8 * i;
        lifted[i] = LIFT + (inside ? shared.base[row] : 0);
        x[i] = initial_value(mix(p.seed + 3 * HASH_ROW), 0, row);
        y[i] = initial_value(mix(p.seed + 4 * HASH_ROW), 0, row);
        up[i] = is_up(x[i]);
    }
    store_counted_signs(up, shared.signs, lane);
    Detuning detuning;
    i32 force[2];
    u32 now = 0, next = shape.half;
    __syncthreads();
    for (u32 k = 0; k < p.updates; k++) {
        const float c_k = detuning.at(k, p.updates, lane);
        counted_forces(force, words, lifted, shared.signs + now);
#pragma unroll
        for (u32 i = 0; i < 2; i++) up[i] = advance(x[i], y[i], lifted_to_float(force[i]), p.xi, p.dt, c_k);
        store_counted_signs(up, shared.signs + next, lane);
        const u32 other = now;
        now = next, next = other;
        __syncthreads();
    }
    counted_forces(force, words, lifted, shared.signs + now);
    i32 total = 0;
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        const u32 row = tile * 16 + threadIdx.x % 8 + 8 * i;
        const i32 doubled = force[i] - LIFT + field_of(shared, p, has_field, row);
        total += row < p.n ? (up[i] ? doubled : -doubled) : 0;
    }
    total = __reduce_add_sync(ALL_LANES, total);
    if (lane == 0) atomicSub(&shared.energy[0], total);
    __syncthreads();
}

__device__ __forceinline__ void solve_int8(const Problem& p, Shared& shared, bool has_field) {
    const Shape s(p);
    const u32 replica_tiles = s.row_tiles <= 2 ? (s.replica_tiles + 3) / 4
                              : s.row_tiles <= 4 ? (s.replica_tiles + 1) / 2 : s.replica_tiles;
    if (s.chunks == 1 && replica_tiles == 1) return solve_in_registers<true, 1, 1, 1>(p, shared, has_field);
    if (s.chunks == 1 && replica_tiles <= 4) return solve_in_registers<true, 1, 1, 4>(p, shared, has_field);
    if (s.chunks == 2 && replica_tiles == 1) return solve_in_registers<true, 1, 2, 1>(p, shared, has_field);
    if (s.chunks == 2 && replica_tiles <= 4) return solve_in_registers<true, 1, 2, 4>(p, shared, has_field);
    if (s.chunks == 3 && replica_tiles == 1) return solve_in_registers<true, 2, 3, 1>(p, shared, has_field);
    if (s.chunks == 3 && replica_tiles == 2) return solve_in_registers<true, 2, 3, 2>(p, shared, has_field);
    if (s.chunks == 4 && replica_tiles == 1) return solve_in_registers<true, 2, 4, 1>(p, shared, has_field);
    if (s.chunks == 4 && replica_tiles == 2) return solve_in_registers<true, 2, 4, 2>(p, shared, has_field);
    solve_in_memory<true>(p, shared, has_field);
}

__device__ __forceinline__ void solve_bits(const Problem& p, Shared& shared, bool has_field) {
    const Shape s(p);
    const u32 replica_tiles = s.row_tiles <= 2 ? (s.replica_tiles + 3) / 4
                              : s.row_tiles <= 4 ? (s.replica_tiles + 1) / 2 : s.replica_tiles;
    if (s.row_tiles <= 8 && replica_tiles == 1) return solve_in_registers<false, 1, 1, 1>(p, shared, has_field);
    if (s.row_tiles <= 8 && replica_tiles <= 4) return solve_in_registers<false, 1, 1, 4>(p, shared, has_field);
    if (s.row_tiles <= 16 && replica_tiles == 1) return solve_in_registers<false, 2, 1, 1>(p, shared, has_field);
    if (s.row_tiles <= 16 && replica_tiles == 2) return solve_in_registers<false, 2, 1, 2>(p, shared, has_field);
    if (s.chunks == 2 && p.replicas == 1) return solve_by_counting<2>(p, shared, has_field);
    if (s.row_tiles <= 32 && s.chunks == 2 && replica_tiles == 1)
        return solve_in_registers<false, 4, 2, 1>(p, shared, has_field);
    solve_in_memory<false>(p, shared, has_field);
}

// Whether the sign of a row of replica b is up after update K.
__device__ __forceinline__ bool final_sign(const Problem& p, const Shared& shared, const Shape& shape, u32 b, u32 row) {
    const u8* signs = shared.signs + (p.updates & 1) * shape.half + b * shape.stride;
    const u32 place = row % 8 * 2 + row % 16 / 8;
    if (p.form == INT8) return signs[sign_chunk(b, row / 16) + place] == 1;
    return reinterpret_cast<const u16*>(signs)[row / 16] >> place & 1;
}

// Leaves best_energy, best_replica and spins in `shared`; shared.request holds the header and field.
__device__ __forceinline__ void solve(const Problem& p, Shared& shared, bool has_field) {
    const Shape shape(p);
    const i32* constants = reinterpret_cast<const i32*>(p.couplings + u64(shape.row_tiles) * shape.chunks * 2 * WARP);
    for (u32 row = threadIdx.x; row < shape.padded; row += THREADS)
        shared.base[row] = field_of(shared, p, has_field, row) -
                           (p.form == INT8 ? 0 : i32(__ldcg(reinterpret_cast<const int*>(constants) + row)));
    for (u32 b = threadIdx.x; b < p.replicas; b += THREADS) shared.energy[b] = 0;
    __syncthreads();
    if (p.form == INT8) {
        solve_int8(p, shared, has_field);
    } else {
        solve_bits(p, shared, has_field);
    }
    const u32 lane = threadIdx.x % WARP;
    if (threadIdx.x < WARP) {
        i32 energy = 0x7fffffff;
        u32 replica = 0xffffffff;
        for (u32 b = lane; b < p.replicas; b += WARP)
            if (shared.energy[b] < energy) energy = shared.energy[b], replica = b;
        for (u32 step = 16; step; step /= 2) {
            i32 other_energy = __shfl_xor_sync(ALL_LANES, energy, step);
            u32 other = __shfl_xor_sync(ALL_LANES, replica, step);
            if (other_energy < energy || (other_energy == energy && other < replica))
                energy = other_energy, replica = other;
        }
        if (lane == 0) shared.best_energy = energy, shared.best_replica = replica;
    }
    __syncthreads();
    for (u32 row = threadIdx.x; row < shape.padded; row += THREADS) {
        bool up = row < p.n && final_sign(p, shared, shape, shared.best_replica, row);
        u32 word = __ballot_sync(ALL_LANES, up);
        if (lane == 0) shared.spins[row / WARP] = word;
    }
    __syncthreads();
}
