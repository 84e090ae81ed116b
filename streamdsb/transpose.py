"""Eight 64x64 bit tiles side by side, one in each lane of a 512-bit vector, and their transposes.

A tile set is a contiguous uint64 array of 512 words: word 8 k + t is row k of tile t.  The vectors are
written as LLVM vector code because the loop vectorizer does not find them; LLVM splits them into what
the machine has (AVX2, NEON).
"""

# numba reads an intrinsic's signature from the parameters of its Python function
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from streamdsb.hashing import A
from streamdsb.jit import inline

LANES = 8
TILE_SET_WORDS = 64 * LANES

_WORD = ir.IntType(64)
_VECTOR = ir.VectorType(_WORD, LANES)


def _splat(value: int) -> ir.Constant:
    return ir.Constant(_VECTOR, [value & 0xFFFF_FFFF_FFFF_FFFF] * LANES)


def _low_half_mask(distance: int) -> int:
    """The bits b with b & distance == 0: the columns that stay when blocks of that size swap."""
    return sum(1 << bit for bit in range(64) if not bit & distance)


def _vector_at(context, builder, array_type, array, index):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), _VECTOR.as_pointer())


def _spread(builder, value):
    """A vector with `value` in all lanes."""
    one = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))


def _counters(builder, first, step):
    """first + t * step in the eight lanes t."""
    lanes = ir.Constant(_VECTOR, list(range(LANES)))
    return builder.add(_spread(builder, first), builder.mul(_spread(builder, step), lanes))


def _mix(builder, z):
    """streamdsb.hashing.mix of each lane."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = builder.mul(builder.xor(z, builder.lshr(z, _splat(shift))), _splat(factor))
    return builder.xor(z, builder.lshr(z, _splat(31)))


@intrinsic
def hash_bits(typingctx, first, step, bit):
    """A word of bits from 64 hashes: bit k is that of mix(first + k * step) & bit; all unsigned 64-bit."""

    def codegen(context, builder, signature, args):
        first_value, step_value, bit_value = args
        z, tested = _counters(builder, first_value, step_value), _spread(builder, bit_value)
        next_lanes = _spread(builder, builder.mul(step_value, ir.Constant(_WORD, LANES)))
        word = ir.Constant(_WORD, 0)
        for at in range(0, 64, LANES):
            is_set = builder.icmp_unsigned("!=", builder.and_(_mix(builder, z), tested), _splat(0))
            bits = builder.zext(builder.bitcast(is_set, ir.IntType(LANES)), _WORD)
            word = builder.or_(word, builder.shl(bits, ir.Constant(_WORD, at)))
            z = builder.add(z, next_lanes)
        return word

    return types.uint64(types.uint64, types.uint64, types.uint64), codegen


@intrinsic
def _store_hashes(typingctx, tiles, at, first, row_step):
    """tiles[at + t] = mix(first + t * row_step) for the eight lanes t."""

    def codegen(context, builder, signature, args):
        tiles_value, at_value, first_value, step_value = args
        z = _mix(builder, _counters(builder, first_value, step_value))
        builder.store(z, _vector_at(context, builder, tiles, tiles_value, at_value), align=8)
        return context.get_dummy_value()

    return types.void(tiles, types.intp, types.uint64, types.uint64), codegen


def _row_pointer(context, builder, array_type, array, row, at):
    """The vector at word `at` of row `row` of a tile set or of a 2-D array with unit inner stride."""
    array = context.make_array(array_type)(context, builder, array)
    if array_type.ndim == 1:
        row_step = ir.Constant(_WORD, 8 * LANES)
    else:
        row_step = cgutils.unpack_tuple(builder, array.strides)[0]
    offset = builder.add(builder.mul(row, row_step), builder.mul(at, ir.Constant(_WORD, 8)))
    start = builder.ptrtoint(array.data, _WORD)
    return builder.inttoptr(builder.add(start, offset), _VECTOR.as_pointer())


def _swap_rounds(distances: tuple[int, int, int]):
    """An intrinsic that swaps blocks at three distances among eight rows, distances[2] rows apart.

    It reads them from a tile set and writes them to the same rows of `out`, eight words from word `at`;
    out may be the tile set itself, at = 0.
    """

    @intrinsic
    def rounds(typingctx, tiles, first_row, out, at):
        def codegen(context, builder, signature, args):
            tiles_value, first_value, out_value, at_value = args
            stride = distances[2]
            places = [builder.add(first_value, ir.Constant(_WORD, k * stride)) for k in range(8)]
            rows = []
            for place in places:
                index = builder.mul(place, ir.Constant(_WORD, LANES))
                rows.append(builder.load(_vector_at(context, builder, tiles, tiles_value, index), align=8))
            for distance in distances:
                shift, mask = _splat(distance), _splat(_low_half_mask(distance))
                apart = distance // stride
                for low in (k for k in range(8) if not k & apart):
                    high = low + apart
                    crossed = builder.and_(builder.xor(builder.lshr(rows[low], shift), rows[high]), mask)
                    rows[low] = builder.xor(rows[low], builder.shl(crossed, shift))
                    rows[high] = builder.xor(rows[high], crossed)
            for row, place in zip(rows, places, strict=True):
                pointer = _row_pointer(context, builder, out, out_value, place, at_value)
                builder.store(row, pointer, align=8)
            return context.get_dummy_value()

        return types.void(tiles, types.intp, out, types.intp), codegen

    return rounds


_far_rounds = _swap_rounds((32, 16, 8))
_near_rounds = _swap_rounds((4, 2, 1))


@inline
def new_tile_sets(count: int) -> np.ndarray:
    """Uninitialized tile sets, uint64 (count, 512), on a cache line so that no vector straddles two."""
    words = np.empty(count * TILE_SET_WORDS + LANES, np.uint64)
    skip = (-words.ctypes.data // 8) % LANES
    return words[skip : skip + count * TILE_SET_WORDS].reshape((count, TILE_SET_WORDS))


@inline
def transpose_tiles_into(tiles: np.ndarray, out: np.ndarray, at: int) -> None:
    """Write row k of the transpose of tile t to out[k, at + t]; the tile set is used up.

    out: uint64 (64, >= at + 8), unit inner stride, or the tile set itself (seen as such, not reshaped:
    a reshape costs half the rate).  Six rounds of block swaps (Warren, Hacker's Delight, section 7-3),
    three a trip through memory.
    """
    for k in range(8):
        _far_rounds(tiles, k, tiles, 0)
    for k in range(0, 64, 8):
        _near_rounds(tiles, k, out, at)


@inline
def transpose_tiles(tiles: np.ndarray) -> None:
    """Transpose the eight tiles of a tile set in place."""
    transpose_tiles_into(tiles, tiles, 0)


@inline
def hash_tiles(tiles: np.ndarray, row_zero: np.uint64) -> None:
    """Fill a tile set: row k of tile t becomes mix(row_zero + (64 t + k) * A)."""
    tile_step = np.uint64(64) * A
    for k in range(64):
        _store_hashes(tiles, LANES * k, row_zero + np.uint64(k) * A, tile_step)
