"""The few operations that the CPU's hot loops need and numba does not offer by itself."""

# numba reads an intrinsic's signature from the parameters of its Python function
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def popcount(typingctx, word):
    """Set bits of an unsigned 64-bit word."""

    def codegen(context, builder, signature, args):
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), codegen


@intrinsic
def row_of(typingctx, array, index):
    """Row `index` of a 2-D array with unit inner stride, as a contiguous 1-D array.

    Slicing a strided 2-D array would leave numba unsure of the inner stride and its loops scalar.
    The caller has checked the stride; nothing here does.
    """
    row_type = types.Array(array.dtype, 1, "C")

    def codegen(context, builder, signature, args):
        source = context.make_array(array)(context, builder, args[0])
        shape = cgutils.unpack_tuple(builder, source.shape)
        strides = cgutils.unpack_tuple(builder, source.strides)
        start = builder.ptrtoint(source.data, strides[0].type)
        address = builder.add(start, builder.mul(args[1], strides[0]))
        row = context.make_array(row_type)(context, builder)
        item_bytes = context.get_constant(
            types.intp, context.get_abi_sizeof(context.get_data_type(array.dtype))
        )
        context.populate_array(
            row,
            data=builder.inttoptr(address, source.data.type),
            shape=cgutils.pack_array(builder, [shape[1]]),
            strides=cgutils.pack_array(builder, [item_bytes]),
            itemsize=item_bytes,
            meminfo=None,
        )
        return row._getvalue()

    return row_type(array, types.intp), codegen


def _word_pointer(context, builder, array_type, array, index):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [index])


@intrinsic
def load_acquire(typingctx, words, index):
    """Atomic load of words[index] (1-D contiguous uint64) that later accesses stay behind."""

    def codegen(context, builder, signature, args):
        pointer = _word_pointer(context, builder, words, args[0], args[1])
        return builder.load_atomic(pointer, ordering="acquire", align=8)

    return types.uint64(words, types.intp), codegen


@intrinsic
def store_release(typingctx, words, index, value):
    """Atomic store to words[index] (1-D contiguous uint64) that earlier accesses stay before."""

    def codegen(context, builder, signature, args):
        pointer = _word_pointer(context, builder, words, args[0], args[1])
        builder.store_atomic(args[2], pointer, ordering="release", align=8)
        return context.get_dummy_value()

    return types.void(words, types.intp, types.uint64), codegen


@intrinsic
def full_fence(typingctx):
    """Order every access before it with every access after it."""

    def codegen(context, builder, signature, args):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen
