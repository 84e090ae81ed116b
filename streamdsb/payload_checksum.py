"""xxh32 (seed 0) of the payloads of many frames, for links that do not guard them.

The four lanes of xxh32 depend on each other's past only within themselves, so those of four frames fill a
512-bit vector; the products take long, so four such vectors are under way at once.  They are written as
LLVM vector code, which LLVM splits into what the machine has.
"""

# numba reads an intrinsic's signature from the parameters of its Python function
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from streamdsb.jit import inline, kernel
from streamdsb.layout import HEADER_BYTES, PAYLOAD_BYTES

_PRIMES = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
_LANES = 4
_FRAMES_A_VECTOR = 4
_VECTOR_LANES = _LANES * _FRAMES_A_VECTOR
_STRIPE_BYTES = 16
_STRIPES = PAYLOAD_BYTES // _STRIPE_BYTES
assert _STRIPES * _STRIPE_BYTES == PAYLOAD_BYTES

_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_STRIPE = ir.VectorType(_I32, _LANES)
_VECTOR = ir.VectorType(_I32, _VECTOR_LANES)


def _constant(lanes):
    return ir.Constant(_VECTOR, [lane & 0xFFFF_FFFF for lane in lanes])


def _joined(builder, parts):
    """Vectors one after another in a vector that is as many times as long."""
    while len(parts) > 1:
        length = 2 * parts[0].type.count
        order = ir.Constant(ir.VectorType(_I32, length), list(range(length)))
        parts = [builder.shuffle_vector(a, b, order) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _lane_sums(vectors: int):
    """An intrinsic for the lanes of 4 `vectors` frames after all stripes."""

    @intrinsic
    def sums(typingctx, frames, first, last, lanes):
        def codegen(context, builder, signature, args):
            array = context.make_array(frames)(context, builder, args[0])
            row_bytes = cgutils.unpack_tuple(builder, array.strides)[0]
            start = builder.ptrtoint(array.data, _I64)
            payloads = []
            for k in range(_FRAMES_A_VECTOR * vectors):
                index = builder.add(args[1], ir.Constant(_I64, k))
                is_there = builder.icmp_signed("<", index, args[2])
                row = builder.select(is_there, index, args[2])
                at = builder.add(start, builder.mul(row, row_bytes))
                payloads.append(builder.add(at, ir.Constant(_I64, HEADER_BYTES)))
            one, two, _ = _PRIMES
            seeds = _constant([one + two, two, 0, -one] * _FRAMES_A_VECTOR)
            kept = [cgutils.alloca_once_value(builder, seeds) for _ in range(vectors)]
            with cgutils.for_range(builder, ir.Constant(_I64, _STRIPES)) as loop:
                offset = builder.mul(loop.index, ir.Constant(_I64, _STRIPE_BYTES))
                for v in range(vectors):
                    stripes = []
                    for payload in payloads[v * _FRAMES_A_VECTOR : (v + 1) * _FRAMES_A_VECTOR]:
                        pointer = builder.inttoptr(builder.add(payload, offset), _STRIPE.as_pointer())
                        stripes.append(builder.load(pointer, align=8))
                    words = builder.mul(_joined(builder, stripes), _constant([two] * _VECTOR_LANES))
                    mixed = builder.add(builder.load(kept[v]), words)
                    turned = builder.or_(
                        builder.shl(mixed, _constant([13] * _VECTOR_LANES)),
                        builder.lshr(mixed, _constant([32 - 13] * _VECTOR_LANES)),
                    )
                    builder.store(builder.mul(turned, _constant([one] * _VECTOR_LANES)), kept[v])
            out = context.make_array(lanes)(context, builder, args[3]).data
            for v in range(vectors):
                place = builder.gep(out, [ir.Constant(_I64, v * _VECTOR_LANES)])
                builder.store(builder.load(kept[v]), builder.bitcast(place, _VECTOR.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(frames, types.int64, types.int64, lanes), codegen

    return sums


_VECTORS = 4
_FRAMES_AT_ONCE = _VECTORS * _FRAMES_A_VECTOR
_many_lane_sums = _lane_sums(_VECTORS)
_few_lane_sums = _lane_sums(1)


@inline
def _turn(value: int, distance: int) -> int:
    return ((value << distance) | (value >> (32 - distance))) & 0xFFFF_FFFF


@inline
def _finish(lanes: np.ndarray, at: int) -> int:
    """The hash of a payload whose four lanes stand at lanes[at]."""
    low = 0xFFFF_FFFF
    total = PAYLOAD_BYTES + (
        _turn(np.int64(lanes[at]), 1)
        + _turn(np.int64(lanes[at + 1]), 7)
        + _turn(np.int64(lanes[at + 2]), 12)
        + _turn(np.int64(lanes[at + 3]), 18)
    )
    total &= low
    total = ((total ^ (total >> 15)) * 0x85EBCA77) & low
    total = ((total ^ (total >> 13)) * 0xC2B2AE3D) & low
    return total ^ (total >> 16)


@kernel("void(uint64[:, ::1], uint32[::1])")
def checksums(frames: np.ndarray, sums: np.ndarray) -> None:
    """sums[i] = xxh32 of the payload of frames[i]; frames: uint64 (count, >= 512)."""
    lanes = np.empty(_FRAMES_AT_ONCE * _LANES, np.uint32)
    count, first = frames.shape[0], 0
    while first < count:
        if first + _FRAMES_A_VECTOR < count:
            _many_lane_sums(frames, first, count - 1, lanes)
            stop = min(first + _FRAMES_AT_ONCE, count)
        else:
            _few_lane_sums(frames, first, count - 1, lanes)
            stop = count
        for i in range(first, stop):
            sums[i] = _finish(lanes, _LANES * (i - first))
        first = stop


@kernel("void(uint64[:, ::1])")
def write_checksums(frames: np.ndarray) -> None:
    """Put the xxh32 of its payload into the header of each of `frames`, uint64 (count, >= 512)."""
    sums = np.empty(frames.shape[0], np.uint32)
    checksums(frames, sums)
    for i in range(frames.shape[0]):
        frames[i, 6] = (frames[i, 6] & np.uint64(0xFFFF_FFFF)) | (np.uint64(sums[i]) << np.uint64(32))


KERNELS = (checksums, write_checksums)
