"""Mismatches of a few rows with a few replicas at once, as 512-bit vectors.

Written as LLVM vector code so that every sum stays in a register, each word of a row is read once for all
the replicas, and the rows that come next are fetched meanwhile: frames lie where another core wrote them,
each on a page of its own, where no hardware prefetcher follows.  LLVM splits the vectors into what the
machine has.
"""

# numba reads an intrinsic's signature from the parameters of its Python function
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from streamdsb.layout import HEADER_WORDS

_LANES = 8
_WORD = ir.IntType(64)
_INT = ir.IntType(32)
_VECTOR = ir.VectorType(_WORD, _LANES)
_ZERO = ir.Constant(_VECTOR, [0] * _LANES)


def _call(builder, name, result, *arguments):
    function_type = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), arguments)


def _prefetch(builder, pointer):
    """Fetch the line for reading into all levels of the data cache."""
    line = builder.bitcast(pointer, ir.IntType(8).as_pointer())
    _call(builder, "llvm.prefetch.p0i8", ir.VoidType(), line, _INT(0), _INT(3), _INT(1))


def _lanes_below(builder, count):
    """All bits set in the first `count` lanes."""
    one = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), count, _INT(0))
    everywhere = ir.Constant(ir.VectorType(_INT, _LANES), [0] * _LANES)
    limit = builder.shuffle_vector(one, one, everywhere)
    return builder.sext(builder.icmp_unsigned("<", ir.Constant(_VECTOR, list(range(_LANES))), limit), _VECTOR)


class _Rows:
    """Rows of a contiguous 2-D array of uint64."""

    def __init__(self, context, builder, array_type, array):
        self._builder = builder
        self._array = context.make_array(array_type)(context, builder, array)
        self._width = cgutils.unpack_tuple(builder, self._array.shape)[1]

    def word(self, row, index):
        """Where word `index` of the row lies."""
        return self._builder.gep(
            self._array.data, [self._builder.add(self._builder.mul(row, self._width), index)]
        )

    def vector(self, row, index):
        """Eight words from `index` on."""
        pointer = self._builder.bitcast(self.word(row, index), _VECTOR.as_pointer())
        return self._builder.load(pointer, align=8)


def mismatch_counter(row_count: int, replica_count: int):
    """An intrinsic that counts the mismatches of so many frames with so many replicas.

    count(frames, picked, ahead, signs, replica, words, sums) writes popcount(row XOR sign bits) of
    frames[picked[k]] and signs[replica + r] to sums[k * replica_count + r], over the first `words` words of
    the payload, and prefetches the payloads of frames[ahead[k]].  frames, signs: uint64, 2-D, contiguous;
    picked, ahead: int32, contiguous, at least row_count; sums: uint64.  Nothing is checked here.
    """

    @intrinsic
    def count(typingctx, frames, picked, ahead, signs, replica, words, sums):
        def codegen(context, builder, signature, args):
            frame_rows = _Rows(context, builder, frames, args[0])
            sign_rows = _Rows(context, builder, signs, args[3])
            _, _, _, _, first_replica, word_count, _ = args

            def frames_at(array_type, array):
                indices = context.make_array(array_type)(context, builder, array).data
                each = [builder.load(builder.gep(indices, [_WORD(k)])) for k in range(row_count)]
                return [builder.sext(index, _WORD) for index in each]

            these, next_ones = frames_at(picked, args[1]), frames_at(ahead, args[2])
            replicas = [builder.add(first_replica, _WORD(r)) for r in range(replica_count)]
            counts = [[cgutils.alloca_once_value(builder, _ZERO) for _ in replicas] for _ in these]

            def add(word, counted=None):
                in_payload = builder.add(word, _WORD(HEADER_WORDS))
                couplings = [frame_rows.vector(frame, in_payload) for frame in these]
                for r, of_replica in enumerate(replicas):
                    sign_words = sign_rows.vector(of_replica, word)
                    for k, coupling_words in enumerate(couplings):
                        differing = builder.xor(coupling_words, sign_words)
                        if counted is not None:
                            differing = builder.and_(differing, counted)
                        bits = _call(builder, "llvm.ctpop.v8i64", _VECTOR, differing)
                        builder.store(builder.add(builder.load(counts[k][r]), bits), counts[k][r])

            whole, rest = builder.udiv(word_count, _WORD(_LANES)), builder.urem(word_count, _WORD(_LANES))
            with cgutils.for_range(builder, whole) as loop:
                word = builder.mul(loop.index, _WORD(_LANES))
                for frame in next_ones:
                    _prefetch(builder, frame_rows.word(frame, builder.add(word, _WORD(HEADER_WORDS))))
                add(word)
            with builder.if_then(builder.icmp_unsigned("!=", rest, _WORD(0))):
                add(builder.mul(whole, _WORD(_LANES)), _lanes_below(builder, rest))
            out = context.make_array(sums)(context, builder, args[6]).data
            for place, vector in enumerate(vector for row in counts for vector in row):
                total = _call(builder, "llvm.vector.reduce.add.v8i64", _WORD, builder.load(vector))
                builder.store(total, builder.gep(out, [_WORD(place)]))
            return context.get_dummy_value()

        return types.void(frames, picked, ahead, signs, types.intp, types.intp, sums), codegen

    return count
