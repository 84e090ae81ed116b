// What the solvers of solve.cuh share: the problem, where its parts lie, one update, sums and signs of a tile.
#pragma once
#include "hash.cuh"
#include "memory.cuh"
#include "types.cuh"

constexpr u32 THREADS = 256;
constexpr u32 WARPS = THREADS / WARP;
constexpr u32 MAX_PAIRS = 4096;
constexpr u32 MAX_ROWS = 2048;
constexpr u32 MAX_REPLICAS = 128;
constexpr u32 INT8 = 3;
constexpr u32 SIGN_BYTES = 2 * 128 * 128;  // two buffers; 128 replicas of a row of 128 bytes is the most

__device__ __forceinline__ float mul(float a, float b) {
    float c;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}
__device__ __forceinline__ float add(float a, float b) {
    float c;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}
__device__ __forceinline__ float sub(float a, float b) {
    float c;
    asm("sub.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}

// Whether x > 0, subnormals included whatever the compiler flushes.
__device__ __forceinline__ bool is_up(float x) { return __float_as_int(x) > 0; }

// i32 to float, exact for |i| < 2^22, which every force is: LIFT added before, often to what is constant, then
// one short operation instead of a long one.
constexpr i32 LIFT = 0x4B400000;
__device__ __forceinline__ float lifted_to_float(i32 i) { return sub(__int_as_float(i), 12582912.0f); }

struct Problem {
    u32 form, n, replicas, updates;
    float xi, dt;
    u64 seed;
    const uint4* couplings;  // fragments, then i32 row constants of the bit planes
};

struct Shared {
    alignas(128) u8 signs[SIGN_BYTES];
    float2 state[MAX_PAIRS];  // x and y, where registers do not hold them
    i32 base[MAX_ROWS];       // h, minus the row constant of bit planes
    i32 energy[MAX_REPLICAS];
    i32 best_energy;
    u32 best_replica;
    u32 spins[MAX_PAIRS / 32];
    alignas(16) u8 request[1536];
    u64 ticket;
};

struct Shape {
    u32 padded, row_tiles, chunks, replica_tiles, stride, half;
    __device__ Shape(const Problem& p) {
        padded = (p.n + 31) / 32 * 32;
        row_tiles = padded / 16;
        chunks = p.form == INT8 ? (p.n + 63) / 64 : (p.n + 255) / 256;
        replica_tiles = (p.replicas + 7) / 8;
        // bytes of a replica's signs; see `sign_chunk` and `sign_words` for what spreads them over the banks
        stride = p.form == INT8 ? (chunks + 1) / 2 * 128 : (chunks | 1) * 32;
        half = replica_tiles * 8 * stride;
    }
};

// One update of one spin; whether it is up afterwards, which the walls do not change.
__device__ __forceinline__ bool advance(float& x, float& y, float force, float xi, float dt, float detuning) {
    float g = sub(mul(xi, force), mul(detuning, x));
    y = add(y, mul(g, dt));
    x = add(x, mul(y, dt));
    const bool up = is_up(x), outside = fabsf(x) > 1.0f;
    x = outside ? (up ? 1.0f : -1.0f) : x;
    y = outside ? 0.0f : y;
    return up;
}

__device__ __forceinline__ float initial_value(u64 key, u32 replica, u32 row) {
    i32 t = i32(hash(key, replica, row) >> 40) - 8388608;
    return mul(__int2float_rn(t), mul(0.1f, 1.0f / 8388608.0f));
}

__device__ __forceinline__ float detuning_of(u32 k, u32 updates) {
    double pump = updates > 1 ? __ddiv_rn(double(k), double(updates - 1)) : 0.0;
    return __double2float_rn(1.0 - pump);
}

__device__ __forceinline__ void mma_int8(i32 (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_bits(i32 (&c)[4], uint4 a, uint2 b) {
    asm("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
}

// Where 16 sign bytes of a replica lie: swizzled, so that neither the loads of a quarter warp (2 replicas, 4
// chunks) nor the stores of a warp (4 replicas, 1 chunk) meet in a bank.
__device__ __forceinline__ u32 sign_chunk(u32 replica, u32 chunk) {
    u32 r = replica & 7;
    return (chunk ^ (((r & 1) << 2) | (r >> 1))) * 16;
}

// Two fragments of one row tile: 64 columns of INT8, or both planes of 256 columns of bits.
struct Fragment {
    uint4 a, b;
};

template <bool IS_INT8>
__device__ __forceinline__ void add_sums(i32 (&c)[4], i32 (&d)[4], const Fragment& f, const u8* signs,
                                         const Shape& shape, u32 replica_tile, u32 chunk, u32 lane) {
    u32 replica = replica_tile * 8 + lane / 4;
    if (IS_INT8) {
        uint4 s = *reinterpret_cast<const uint4*>(signs + replica * shape.stride +
                                                  sign_chunk(replica, chunk * 4 + lane % 4));
        mma_int8(c, f.a.x, f.b.x, f.a.y, f.b.y, s.x, s.y);
        mma_int8(d, f.a.z, f.b.z, f.a.w, f.b.w, s.z, s.w);
    } else {
        uint2 s = *reinterpret_cast<const uint2*>(signs + replica * shape.stride + chunk * 32 + lane % 4 * 8);
        mma_bits(c, f.a, s);
        mma_bits(d, f.b, s);
    }
}

// a + base of a thread's four from the two accumulators; base holds h, or h - (|P| - |M|), of its two rows.
template <bool IS_INT8>
__device__ __forceinline__ void forces_of(i32 (&force)[4], const i32 (&c)[4], const i32 (&d)[4],
                                          const i32 (&base)[2]) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) force[i] = (IS_INT8 ? c[i] + d[i] : 2 * (c[i] - d[i])) + base[i / 2];
}

template <bool IS_INT8, u32 CHUNKS>
__device__ __forceinline__ void forces_of(i32 (&force)[4], const Fragment (&fragments)[CHUNKS], const i32 (&base)[2],
                                          const u8* signs, const Shape& shape, u32 replica_tile, u32 lane) {
    i32 c[4] = {}, d[4] = {};
#pragma unroll
    for (u32 chunk = 0; chunk < CHUNKS; chunk++)
        add_sums<IS_INT8>(c, d, fragments[chunk], signs, shape, replica_tile, chunk, lane);
    forces_of<IS_INT8>(force, c, d, base);
}

template <bool IS_INT8>
__device__ __forceinline__ void store_signs(const bool (&up)[4], u8* signs, const Shape& shape, u32 replica_tile,
                                            u32 row_tile, u32 lane) {
    if (IS_INT8) {
        for (u32 i = 0; i < 2; i++) {
            u32 replica = replica_tile * 8 + lane % 4 * 2 + i;
            u16 both = (up[i] ? 0x01 : 0xff) | (up[i + 2] ? 0x0100 : 0xff00);
            *reinterpret_cast<u16*>(signs + replica * shape.stride + sign_chunk(replica, row_tile) + lane / 4 * 2) =
                both;
        }
    } else {
        u32 word[4];
        for (u32 i = 0; i < 4; i++) word[i] = __ballot_sync(ALL_LANES, up[i]);
        if (lane < 8) {  // lane r takes replica r: its bits are every fourth from r / 2 on
            u32 low = (lane & 1) ? word[1] : word[0], high = (lane & 1) ? word[3] : word[2];
            u32 v = ((low >> lane / 2) & 0x11111111) | (((high >> lane / 2) & 0x11111111) << 1);
            v = (v | v >> 2) & 0x0f0f0f0f;
            v = (v | v >> 4) & 0x00ff00ff;
            v = v | v >> 8;
            *reinterpret_cast<u16*>(signs + (replica_tile * 8 + lane) * shape.stride + row_tile * 2) = u16(v);
        }
    }
}

// Adds s (a + 2 h) of the rows inside the problem to the replicas' energies, negated.
__device__ __forceinline__ void add_energy(const i32 (&force)[4], const bool (&up)[4], Shared& shared,
                                           const i32 (&h)[2], const Problem& p, u32 replica_tile, u32 row_tile,
                                           u32 lane) {
    for (u32 i = 0; i < 2; i++) {
        i32 total = 0;
        for (u32 j = i; j < 4; j += 2) {
            i32 doubled = force[j] + h[j / 2];
            bool inside = row_tile * 16 + lane / 4 + j / 2 * 8 < p.n;
            total += inside ? (up[j] ? doubled : -doubled) : 0;
        }
        for (u32 step = 4; step < WARP; step *= 2) total += __shfl_xor_sync(ALL_LANES, total, step);
        u32 replica = replica_tile * 8 + lane % 4 * 2 + i;
        if (lane < 4 && replica < p.replicas) atomicSub(&shared.energy[replica], total);
    }
}

__device__ __forceinline__ i32 field_of(const Shared& shared, const Problem& p, bool has_field, u32 row) {
    return has_field && row < p.n ? reinterpret_cast<const short*>(shared.request + 64)[row] : 0;
}

// c_k of the next 32 updates, one a lane.
struct Detuning {
    float values = 0.0f;
    __device__ float at(u32 k, u32 updates, u32 lane) {
        if (k % WARP == 0) values = detuning_of(k + lane, updates);
        return __shfl_sync(ALL_LANES, values, k % WARP);
    }
};
