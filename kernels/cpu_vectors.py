"""Vector arithmetic inside kernels that numba compiles, for loops that LLVM does not turn into good code by itself.

Each function here is written in LLVM's vector types, which it maps to what the processor has (AVX2, NEON, ...). Rows
are those of C-contiguous arrays of two dimensions. Mind that our options let LLVM reorder float products, also these.
"""

from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

intrinsic: Any = extending.intrinsic  # callers do not pass the first parameter, which type checkers cannot know

F32, I8, I16, _I32, I64 = ir.FloatType(), ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
LANES = 8


@intrinsic
def nibble_dot(context, codes, scales, minimums, row, x, x_scales, sums, token):
    """Two sums over groups g of 32 entries: scales[row, g] * x_scales[token, g] * (codes . x), and minimums[row, g] *
    sums[token, g].

    codes uint8 [rows, 16 groups]: byte n of a group has entry n in its low half and entry n + 16 in its high one; x
    int16 [tokens, 32 groups] of up to 15 bits and sign, scales and minimums int16, the others float32 [tokens, groups].
    The products are exact, in 32 bits.
    """

    def generate(context, builder, signature, args):
        code, scale, minimum = (row_address(context, builder, signature, args, place, args[3]) for place in (0, 1, 2))
        entry, factor, total = (row_address(context, builder, signature, args, place, args[7]) for place in (4, 5, 6))
        groups = builder.extract_value(context.make_array(signature.args[1])(context, builder, args[1]).shape, 1)
        result = cgutils.alloca_once_value(builder, constant(F32, LANES, 0.0))
        low = cgutils.alloca_once_value(builder, ir.Constant(F32, 0.0))

        def number(row, group):
            return builder.sitofp(builder.load(at(builder, row, group, I16)), F32)

        def pairs(nibbles, place):
            wide = builder.zext(nibbles, ir.VectorType(_I32, 16))
            product = builder.mul(wide, builder.sext(load(builder, entry, place, I16, 16), wide.type))
            nothing = ir.Constant(product.type, ir.Undefined)
            even, odd = (
                builder.shuffle_vector(product, nothing, ir.Constant(ir.VectorType(_I32, 8), list(range(first, 16, 2))))
                for first in (0, 1)
            )
            return builder.add(even, odd)

        with cgutils.for_range(builder, groups) as loop:
            group = loop.index
            s = builder.fmul(number(scale, group), builder.load(at(builder, factor, group, F32)))
            m = builder.fmul(number(minimum, group), builder.load(at(builder, total, group, F32)))
            builder.store(builder.fadd(m, builder.load(low)), low)
            both = load(builder, code, builder.shl(group, i64(4)), I8, 16)
            place = builder.shl(group, i64(5))
            first = pairs(builder.and_(both, constant(I8, 16, 15)), place)
            second = pairs(builder.lshr(both, constant(I8, 16, 4)), builder.add(place, i64(16)))
            exact = builder.sitofp(builder.add(first, second), ir.VectorType(F32, LANES))
            builder.store(fma(builder, exact, splat(builder, s, LANES), builder.load(result)), result)
        return context.make_tuple(
            builder, signature.return_type, (sum_of(builder, builder.load(result)), builder.load(low))
        )

    pair = types.UniTuple(types.float32, 2)
    given = (codes, scales, minimums, types.intp, x, x_scales, sums, types.intp)
    return pair(*given), generate


def i64(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


def whole(builder, count):
    return builder.and_(count, i64(-LANES))


def constant(entry, lanes: int, value) -> ir.Constant:
    return ir.Constant(ir.VectorType(entry, lanes), [value] * lanes)


def rows_of(context, builder, signature, args, place: int):
    """(address of the first row, bytes from row to row) of the array that is argument `place`."""
    array = context.make_array(signature.args[place])(context, builder, args[place])
    return builder.bitcast(array.data, ir.PointerType(I8)), builder.extract_value(array.strides, 0)


def row_address(context, builder, signature, args, place: int, number=None):
    start, stride = rows_of(context, builder, signature, args, place)
    return builder.gep(start, [builder.mul(args[place + 1] if number is None else number, stride)])


def at(builder, row, place, entry):
    return builder.gep(builder.bitcast(row, ir.PointerType(entry)), [place])


def load(builder, row, place, entry, lanes: int):
    address = builder.bitcast(at(builder, row, place, entry), ir.PointerType(ir.VectorType(entry, lanes)))
    return builder.load(address, align=1 if entry is I8 else 2 if entry is I16 else 4)


def store(builder, row, place, value) -> None:
    address = builder.bitcast(at(builder, row, place, F32), ir.PointerType(value.type))
    builder.store(value, address, align=4)


def splat(builder, value, lanes: int):
    one = builder.insert_element(
        ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined), value, ir.Constant(_I32, 0)
    )
    return builder.shuffle_vector(one, ir.Constant(one.type, ir.Undefined), constant(_I32, lanes, 0))


def fma(builder, x, y, z):
    name = f"llvm.fma.v{x.type.count}f32"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(x.type, [x.type] * 3), name)
    return builder.call(function, [x, y, z])


def sum_of(builder, vector):
    name = f"llvm.vector.reduce.fadd.v{vector.type.count}f32"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(F32, [F32, vector.type]), name)
    return builder.call(function, [ir.Constant(F32, 0.0), vector], fastmath=("reassoc",))


def sums_of(builder, vectors):
    """The sums of one or four vectors of 8 lanes, as a vector of so many lanes."""
    if len(vectors) == 1:
        return builder.insert_element(
            ir.Constant(ir.VectorType(F32, 1), ir.Undefined), sum_of(builder, vectors[0]), ir.Constant(_I32, 0)
        )

    def pick(x, y, lanes):
        return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(_I32, len(lanes)), lanes))

    def fold(x, y, low, high):
        return builder.fadd(pick(x, y, low), pick(x, y, high))

    a, b, c, d = vectors
    # Lanes stay within the halves of a register until the last step: others cost more to move.
    pairs = [0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15]
    halves = [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]
    both = fold(fold(a, b, *pairs), fold(c, d, *pairs), *halves)
    return fold(both, both, [0, 1, 2, 3], [4, 5, 6, 7])
