"""Vector arithmetic inside kernels that numba compiles, for loops that LLVM does not turn into good code by itself.

Each function here is written in LLVM's vector types, which it maps to what the processor has (AVX2, NEON, ...). Rows
are those of C-contiguous arrays of two dimensions. Mind that our options let LLVM reorder float products, also these.
"""

from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

intrinsic: Any = extending.intrinsic  # callers do not pass the first parameter, which type checkers cannot know

_F32, _I8, _I16, _I32, _I64 = ir.FloatType(), ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_LANES = 8
_COLUMNS = 4  # vectors that `add_weighted` sums side by side: additions need not wait for each other


@intrinsic
def dot(context, a, i, b, j, count):
    """The product of the first `count` entries of row i of a and row j of b, both float32."""

    def generate(context, builder, signature, args):
        left, right = _row(context, builder, signature, args, 0), _row(context, builder, signature, args, 2)
        total = cgutils.alloca_once_value(builder, _constant(_F32, _LANES, 0.0))
        with cgutils.for_range(builder, builder.lshr(args[4], _i64(3))) as loop:
            place = builder.shl(loop.index, _i64(3))
            x, y = (_load(builder, row, place, _F32, _LANES) for row in (left, right))
            builder.store(_fma(builder, x, y, builder.load(total)), total)
        rest = cgutils.alloca_once_value(builder, _sum(builder, builder.load(total)))
        with cgutils.for_range_slice(builder, _whole(builder, args[4]), args[4], _i64(1), _I64) as (place, _):
            product = builder.fmul(*(builder.load(_at(builder, row, place, _F32)) for row in (left, right)))
            builder.store(builder.fadd(product, builder.load(rest)), rest)
        return builder.load(rest)

    return types.float32(a, types.intp, b, types.intp, types.intp), generate


@intrinsic
def add_weighted(context, out, i, rows, first, count, weights, j, skip):
    """out[i] += sum over n < count of weights[j, skip + n] * rows[first + n]; all float32."""

    def generate(context, builder, signature, args):
        into, weight = _row(context, builder, signature, args, 0), _row(context, builder, signature, args, 5)
        start, stride = _rows(context, builder, signature, args, 2)
        start = builder.gep(start, [builder.mul(args[3], stride)])
        width = builder.extract_value(context.make_array(signature.args[2])(context, builder, args[2]).shape, 1)

        def columns(place, vectors: int, lanes: int) -> None:
            places = [builder.add(place, _i64(number * lanes)) for number in range(vectors)]
            sums = [cgutils.alloca_once_value(builder, _load(builder, into, at, _F32, lanes)) for at in places]
            with cgutils.for_range(builder, args[4]) as loop:
                row = builder.gep(start, [builder.mul(loop.index, stride)])
                factor = builder.load(_at(builder, weight, builder.add(args[7], loop.index), _F32))
                for at, total in zip(places, sums, strict=True):
                    x = _load(builder, row, at, _F32, lanes)
                    builder.store(_fma(builder, _splat(builder, factor, lanes), x, builder.load(total)), total)
            for at, total in zip(places, sums, strict=True):
                _store(builder, into, at, builder.load(total))

        block = _LANES * _COLUMNS
        blocks = builder.and_(width, _i64(-block))
        with cgutils.for_range_slice(builder, _i64(0), blocks, _i64(block), _I64) as (place, _):
            columns(place, _COLUMNS, _LANES)
        with cgutils.for_range_slice(builder, blocks, _whole(builder, width), _i64(_LANES), _I64) as (place, _):
            columns(place, 1, _LANES)
        with cgutils.for_range_slice(builder, _whole(builder, width), width, _i64(1), _I64) as (place, _):
            columns(place, 1, 1)
        return context.get_dummy_value()

    return types.void(out, types.intp, rows, types.intp, types.intp, weights, types.intp, types.intp), generate


@intrinsic
def nibble_dot(context, codes, scales, minimums, row, x, x_scales, sums, token):
    """Two sums over groups g of 32 entries: scales[row, g] * x_scales[token, g] * (codes . x), and minimums[row, g] *
    sums[token, g].

    codes uint8 [rows, 16 groups]: byte n of a group has entry n in its low half and entry n + 16 in its high one; x
    int16 [tokens, 32 groups] of up to 15 bits and sign, scales and minimums int16, the others float32 [tokens, groups].
    The products are exact, in 32 bits.
    """

    def generate(context, builder, signature, args):
        code, scale, minimum = (_row(context, builder, signature, args, place, args[3]) for place in (0, 1, 2))
        entry, factor, total = (_row(context, builder, signature, args, place, args[7]) for place in (4, 5, 6))
        groups = builder.extract_value(context.make_array(signature.args[1])(context, builder, args[1]).shape, 1)
        result = cgutils.alloca_once_value(builder, _constant(_F32, _LANES, 0.0))
        low = cgutils.alloca_once_value(builder, ir.Constant(_F32, 0.0))

        def number(row, group):
            return builder.sitofp(builder.load(_at(builder, row, group, _I16)), _F32)

        def pairs(nibbles, place):
            wide = builder.zext(nibbles, ir.VectorType(_I32, 16))
            product = builder.mul(wide, builder.sext(_load(builder, entry, place, _I16, 16), wide.type))
            nothing = ir.Constant(product.type, ir.Undefined)
            even, odd = (
                builder.shuffle_vector(product, nothing, ir.Constant(ir.VectorType(_I32, 8), list(range(first, 16, 2))))
                for first in (0, 1)
            )
            return builder.add(even, odd)

        with cgutils.for_range(builder, groups) as loop:
            group = loop.index
            s = builder.fmul(number(scale, group), builder.load(_at(builder, factor, group, _F32)))
            m = builder.fmul(number(minimum, group), builder.load(_at(builder, total, group, _F32)))
            builder.store(builder.fadd(m, builder.load(low)), low)
            both = _load(builder, code, builder.shl(group, _i64(4)), _I8, 16)
            place = builder.shl(group, _i64(5))
            first = pairs(builder.and_(both, _constant(_I8, 16, 15)), place)
            second = pairs(builder.lshr(both, _constant(_I8, 16, 4)), builder.add(place, _i64(16)))
            exact = builder.sitofp(builder.add(first, second), ir.VectorType(_F32, _LANES))
            builder.store(_fma(builder, exact, _splat(builder, s, _LANES), builder.load(result)), result)
        return context.make_tuple(
            builder, signature.return_type, (_sum(builder, builder.load(result)), builder.load(low))
        )

    pair = types.UniTuple(types.float32, 2)
    given = (codes, scales, minimums, types.intp, x, x_scales, sums, types.intp)
    return pair(*given), generate


def _i64(value: int) -> ir.Constant:
    return ir.Constant(_I64, value)


def _whole(builder, count):
    return builder.and_(count, _i64(-_LANES))


def _constant(entry, lanes: int, value) -> ir.Constant:
    return ir.Constant(ir.VectorType(entry, lanes), [value] * lanes)


def _rows(context, builder, signature, args, place: int):
    """(address of the first row, bytes from row to row) of the array that is argument `place`."""
    array = context.make_array(signature.args[place])(context, builder, args[place])
    return builder.bitcast(array.data, ir.PointerType(_I8)), builder.extract_value(array.strides, 0)


def _row(context, builder, signature, args, place: int, number=None):
    start, stride = _rows(context, builder, signature, args, place)
    return builder.gep(start, [builder.mul(args[place + 1] if number is None else number, stride)])


def _at(builder, row, place, entry):
    return builder.gep(builder.bitcast(row, ir.PointerType(entry)), [place])


def _load(builder, row, place, entry, lanes: int):
    address = builder.bitcast(_at(builder, row, place, entry), ir.PointerType(ir.VectorType(entry, lanes)))
    return builder.load(address, align=1 if entry is _I8 else 2 if entry is _I16 else 4)


def _store(builder, row, place, value) -> None:
    address = builder.bitcast(_at(builder, row, place, _F32), ir.PointerType(value.type))
    builder.store(value, address, align=4)


def _splat(builder, value, lanes: int):
    one = builder.insert_element(
        ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined), value, ir.Constant(_I32, 0)
    )
    return builder.shuffle_vector(one, ir.Constant(one.type, ir.Undefined), _constant(_I32, lanes, 0))


def _fma(builder, x, y, z):
    name = f"llvm.fma.v{x.type.count}f32"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(x.type, [x.type] * 3), name)
    return builder.call(function, [x, y, z])


def _sum(builder, vector):
    name = f"llvm.vector.reduce.fadd.v{vector.type.count}f32"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_F32, [_F32, vector.type]), name)
    return builder.call(function, [ir.Constant(_F32, 0.0), vector], fastmath=("reassoc",))
