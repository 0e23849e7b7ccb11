"""Products of several queries with the rows of a KV page, which are widened in registers and never stored.

Written in LLVM's vector types as `kernels.cpu_vectors`. Rows are float32, or int16 with the bits of a bfloat16; a row
is read once for up to four queries. Sums of one query are kept in eight lanes, whose order LLVM may change.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils

from kernels.cpu_vectors import (
    F32,
    I16,
    LANES,
    at,
    constant,
    fma,
    i64,
    intrinsic,
    load,
    rows_of,
    splat,
    store,
    sums_of,
    whole,
)

_I32 = ir.IntType(32)
_QUERIES_OF_PRODUCTS = 3  # side by side: with more, sums leave the registers
_SUMS = 8  # vectors of sums in `add_rows`, likewise


@intrinsic
def row_products(context, rows, first, count, queries, scores):
    """scores[g, n] = queries[g] . rows[first + n] for n < count; queries [group, d] and scores [group, ...] float32."""

    def generate(context, builder, signature, args):
        entry, width, start, stride = _rows_from(context, builder, signature, args)
        query, query_stride = rows_of(context, builder, signature, args, 3)
        result, result_stride = rows_of(context, builder, signature, args, 4)
        group = _extent(context, builder, signature, args, 3, 0)

        def block(number, rows_at_once: int, g, queries_at_once: int) -> None:
            lines = [
                builder.gep(start, [builder.mul(builder.add(number, i64(r)), stride)]) for r in range(rows_at_once)
            ]
            asked = [
                builder.gep(query, [builder.mul(builder.add(g, i64(q)), query_stride)]) for q in range(queries_at_once)
            ]
            pairs = [(r, q) for r in range(rows_at_once) for q in range(queries_at_once)]
            sums = {pair: cgutils.alloca_once_value(builder, constant(F32, LANES, 0.0)) for pair in pairs}
            with cgutils.for_range_slice(builder, i64(0), whole(builder, width), i64(LANES), width.type) as (place, _):
                keys = [_wide(builder, line, place, entry, LANES) for line in lines]
                vectors = [load(builder, line, place, F32, LANES) for line in asked]
                for r, q in pairs:
                    total = sums[r, q]
                    builder.store(fma(builder, keys[r], vectors[q], builder.load(total)), total)
            for q in range(queries_at_once):
                found = sums_of(builder, [builder.load(sums[r, q]) for r in range(rows_at_once)])
                totals = cgutils.alloca_once_value(builder, found)
                with cgutils.for_range_slice(builder, whole(builder, width), width, i64(1), width.type) as (place, _):
                    column = ir.Constant(found.type, ir.Undefined)
                    for r, line in enumerate(lines):
                        key = builder.extract_element(_wide(builder, line, place, entry, 1), i64(0))
                        column = builder.insert_element(column, key, i64(r))
                    weight = splat(builder, builder.load(at(builder, asked[q], place, F32)), rows_at_once)
                    builder.store(fma(builder, weight, column, builder.load(totals)), totals)
                line = builder.gep(result, [builder.mul(builder.add(g, i64(q)), result_stride)])
                store(builder, line, number, builder.load(totals))

        def all_rows(g, queries_at_once: int) -> None:
            together = 4
            full = builder.mul(builder.sdiv(args[2], i64(together)), i64(together))
            with cgutils.for_range_slice(builder, i64(0), full, i64(together), full.type) as (number, _):
                block(number, together, g, queries_at_once)
            with cgutils.for_range_slice(builder, full, args[2], i64(1), full.type) as (number, _):
                block(number, 1, g, queries_at_once)

        _over_queries(builder, group, _QUERIES_OF_PRODUCTS, all_rows)
        return context.get_dummy_value()

    return types.void(rows, types.intp, types.intp, queries, scores), generate


@intrinsic
def add_rows(context, rows, first, count, weights, out):
    """out[g] += sum over n < count of weights[g, n] * rows[first + n]; weights [group, ...], out [group, d] float32."""

    def generate(context, builder, signature, args):
        entry, width, start, stride = _rows_from(context, builder, signature, args)
        factor, factor_stride = rows_of(context, builder, signature, args, 3)
        into, into_stride = rows_of(context, builder, signature, args, 4)
        group = _extent(context, builder, signature, args, 4, 0)

        def columns(place, vectors: int, lanes: int, g, queries_at_once: int) -> None:
            sums = {}
            places = [builder.add(place, i64(v * lanes)) for v in range(vectors)]
            lines = [
                builder.gep(into, [builder.mul(builder.add(g, i64(q)), into_stride)]) for q in range(queries_at_once)
            ]
            factors = [
                builder.gep(factor, [builder.mul(builder.add(g, i64(q)), factor_stride)])
                for q in range(queries_at_once)
            ]
            for q, line in enumerate(lines):
                for v, column in enumerate(places):
                    sums[q, v] = cgutils.alloca_once_value(builder, load(builder, line, column, F32, lanes))
            with cgutils.for_range(builder, args[2]) as loop:
                row = builder.gep(start, [builder.mul(loop.index, stride)])
                values = [_wide(builder, row, column, entry, lanes) for column in places]
                for q, line in enumerate(factors):
                    weight = splat(builder, builder.load(at(builder, line, loop.index, F32)), lanes)
                    for v, value in enumerate(values):
                        builder.store(fma(builder, weight, value, builder.load(sums[q, v])), sums[q, v])
            for q, line in enumerate(lines):
                for v, column in enumerate(places):
                    store(builder, line, column, builder.load(sums[q, v]))

        def all_columns(g, queries_at_once: int) -> None:
            together = min(4, _SUMS // queries_at_once)
            block = LANES * together
            full = builder.mul(builder.sdiv(width, i64(block)), i64(block))
            for begin, end, vectors, lanes in (
                (i64(0), full, together, LANES),
                (full, whole(builder, width), 1, LANES),
                (whole(builder, width), width, 1, 1),
            ):
                step = i64(vectors * lanes)
                with cgutils.for_range_slice(builder, begin, end, step, width.type) as (place, _):
                    columns(place, vectors, lanes, g, queries_at_once)

        _over_queries(builder, group, 4, all_columns)
        return context.get_dummy_value()

    return types.void(rows, types.intp, types.intp, weights, out), generate


def _over_queries(builder, group, most: int, emit) -> None:
    """`emit(first, number)` for all queries, as many at once as there may be."""
    full = builder.mul(builder.sdiv(group, i64(most)), i64(most))
    with cgutils.for_range_slice(builder, i64(0), full, i64(most), full.type) as (g, _):
        emit(g, most)
    rest = builder.sub(group, full)
    for number in range(1, most):
        with builder.if_then(builder.icmp_signed("==", rest, i64(number))):
            emit(full, number)


def _rows_from(context, builder, signature, args):
    """(type of the entries, entries of a row, address of row `first`, bytes from row to row)."""
    start, stride = rows_of(context, builder, signature, args, 0)
    entry = F32 if signature.args[0].dtype.bitwidth == 32 else I16
    width = _extent(context, builder, signature, args, 0, 1)
    return entry, width, builder.gep(start, [builder.mul(args[1], stride)]), stride


def _extent(context, builder, signature, args, place: int, axis: int):
    return builder.extract_value(context.make_array(signature.args[place])(context, builder, args[place]).shape, axis)


def _wide(builder, line, place, entry, lanes: int):
    """A vector of float32 from `place` of a row on."""
    found = load(builder, line, place, entry, lanes)
    if entry is F32:
        return found
    bits = builder.shl(builder.zext(found, ir.VectorType(_I32, lanes)), constant(_I32, lanes, 16))
    return builder.bitcast(bits, ir.VectorType(F32, lanes))
