"""The steps of split-K decode attention on one KV head: a page of keys and values against a tile of query rows.

Row r of a tile is query head r % GROUP of the KV head and query token r // GROUP. Tiles of scores are [tokens, rows],
accumulators [dimensions, rows]: keys and values are the large side of each product, so that few rows waste little.
Softmax runs online (Milakov and Gimelshein, arXiv 1805.02867) on base-2 scores: `maximum` and `total` per row; weights
are relative to the maximum. Page numbers become 64-bit before they are multiplied.
"""

# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl

from kernels.decode_attention.triton_dequantize import (
    as_columns,
    factor,
    key_dimension,
    key_tile,
    load_channels,
    load_units,
    undo,
    value_dimension,
    value_tile,
)

FLOOR = tl.constexpr(-1e30)  # maximum of a row that has seen no token: finite, so that differences are never NaN
WEIGHT_SCALE = tl.constexpr(16384.0)  # float16 weights lie in 0..2**14, which leaves small ones their precision


@triton.jit
def load_queries(
    q, q_token, q_head, head, dim, valid, GROUP: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """-> [dimensions, rows]; rows beyond the queries are 0."""
    row = tl.arange(0, ROWS)
    place = (row // GROUP) * q_token + (head * GROUP + row % GROUP) * q_head
    mask = valid[:, None] & (row < GROUP * TOKENS)[None, :]
    return tl.load(q + place[None, :] + dim[:, None], mask=mask, other=0)


@triton.jit
def visible(length, GROUP: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr):
    """How many tokens of the sequence each row may attend to."""
    return tl.minimum(length - TOKENS + tl.arange(0, ROWS) // GROUP + 1, length)


@triton.jit
def softmax_step(scores, seen, maximum, total):
    """scores float32 [tokens, rows], `seen` which of them count -> weights, shrinking of what was added before, their
    sum, and the new maximum and total."""
    scores = tl.where(seen, scores, float("-inf"))
    largest = tl.maximum(maximum, tl.max(scores, 0))
    shrink = tl.exp2(maximum - largest)
    weights = tl.exp2(scores - largest[None, :])
    added = tl.sum(weights, 0)
    return weights, shrink, added, largest, total * shrink + added


@triton.jit
def exact_step(
    q, keys, values, key_token, value_token, first, left, dim, valid, scale, limit, maximum, total, acc,
    TOKENS: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    """TOKENS entries of the exact pool from slot `first` on, of which `left` exist; rows see those below `limit`.

    q [dimensions, rows] in the type of the products. -> maximum, total, acc, shrink, added
    """
    token = tl.arange(0, TOKENS)
    there = token < left
    slot = first + token
    k = tl.load(keys + slot[:, None] * key_token + dim[None, :], mask=there[:, None] & valid[None, :], other=0)
    # Values are loaded as they enter the product: a transposition behind the load would keep it out of the pipeline.
    v = tl.load(values + slot[None, :] * value_token + dim[:, None], mask=there[None, :] & valid[:, None], other=0)
    k, v = k.to(q.dtype), v.to(q.dtype)
    if IEEE:
        # Four sums over dimensions: one would be added up in a row, which is off by more than torch's product.
        SUMS: tl.constexpr = 4 if q.shape[0] >= 64 else 1
        k = tl.permute(tl.reshape(k, (TOKENS, SUMS, q.shape[0] // SUMS)), (1, 0, 2))
        of_dimensions = tl.reshape(q, (SUMS, q.shape[0] // SUMS, q.shape[1]))
        scores = tl.sum(tl.dot(k, of_dimensions, input_precision="ieee"), 0) * scale
    else:
        scores = tl.dot(k, q) * scale
    weights, shrink, added, maximum, total = softmax_step(
        scores, token[:, None] < limit[None, :], maximum, total
    )  # fmt: skip
    if IEEE:
        acc = tl.dot(v, weights, acc * shrink[None, :], input_precision="ieee")
    else:
        acc = tl.dot(v, weights.to(q.dtype), acc * shrink[None, :])
    return maximum, total, acc, shrink, added


@triton.jit
def normalized_queries(q, scale, LARGEST: tl.constexpr):
    """q [dimensions, rows] -> float16 of at most LARGEST, by a power of two for each row, and what undoes it on base-2
    scores. bfloat16 queries stay exact: bits below those of float16 are too small to count."""
    q = q.to(tl.float32)
    largest = tl.maximum(tl.max(tl.abs(q), 0), 1e-30)
    exponent = tl.minimum(largest.to(tl.int32, bitcast=True) & 0x7F800000, 0x7E800000)
    power = exponent.to(tl.float32, bitcast=True) * (2.0 / LARGEST)
    inverse = (0x7F000000 - exponent).to(tl.float32, bitcast=True) * (LARGEST / 2.0)
    return (q * inverse[None, :]).to(tl.float16), power * scale


@triton.jit
def sum_by_sixteen(x):
    """[64, rows] -> [16, rows]: sums of what a thread holds anyway, if the tile lies as tensor cores return it"""
    return tl.sum(tl.reshape(x, (4, 16, x.shape[1])), 0)


@triton.jit
def packed_step(
    q, run_q, key_units, key_scale, key_minimum, even, odd, value_scale, value_minimum, scale, limit, maximum, total,
    acc, unit, offset, KEY_BITS: tl.constexpr, VALUE_BITS: tl.constexpr, FLOAT8: tl.constexpr,
    KEY_UNITS: tl.constexpr, INLINE: tl.constexpr,
):  # fmt: skip
    """One packed page. Key scales are folded into the query and value scales into the weights, so that products are of
    codes; key minima add a term for each row, value minima one that all dimensions share, gathered in `offset`.

    q and scale: of `normalized_queries`; run_q: q as `factor` changes it. `unit`: the largest value scale so far, that
    acc is in, so that float16 weights neither overflow nor vanish. total, offset: [16, rows], to be summed at the end.
    -> maximum, total, acc, unit, offset, weights
    """
    UNDO: tl.constexpr = undo(FLOAT8, INLINE)
    channel = as_columns(key_scale, KEY_BITS, KEY_UNITS)
    scores = tl.dot(key_tile(key_units, KEY_BITS, FLOAT8, INLINE), run_q * channel[:, None])
    # A product with 16 equal rows: the tensor cores sum over dimensions sooner than lanes do.
    minimum = as_columns(key_minimum, KEY_BITS, KEY_UNITS)
    equal = tl.dot(tl.broadcast_to(minimum[None, :], (16, minimum.shape[0])), q) * (1.0 / UNDO)
    scores += tl.reshape(tl.broadcast_to(equal[None, :, :], (4, 16, equal.shape[1])), (64, equal.shape[1]))
    token = tl.arange(0, 64)
    scores = tl.where(token[:, None] < limit[None, :], scores, float("-inf"))
    scale *= UNDO
    largest = tl.maximum(maximum, tl.max(scores, 0) * scale)
    shrink = tl.exp2(maximum - largest)
    weights = tl.exp2(scores * scale[None, :] - largest[None, :])
    total = total * shrink[None, :] + sum_by_sixteen(weights)
    if FLOAT8:
        highest = tl.maximum(unit, tl.max(value_scale.to(tl.float32), 0))
        codes_weights = (weights * (WEIGHT_SCALE * tl.max(value_scale.to(tl.float32), 0) / highest)).to(tl.float16)
    else:
        value_scale = value_scale.to(tl.float32)
        highest = tl.maximum(tl.max(value_scale, 0), unit)
        codes_weights = (weights * (value_scale * (WEIGHT_SCALE / highest))[:, None]).to(tl.float16)
        offset = offset * shrink[None, :] + sum_by_sixteen(weights * value_minimum.to(tl.float32)[:, None])
    shrink *= unit / highest
    acc = tl.dot(value_tile(even, odd, VALUE_BITS, FLOAT8, INLINE), codes_weights, acc * shrink[None, :])
    return largest, total, acc, highest, offset, weights


@triton.jit
def store_part(
    acc, maximum, total, partial, maxima, totals, part, dim, valid,
    D: tl.constexpr, QUERIES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """What one program has gathered. part: int64, its number over all KV heads."""
    row = tl.arange(0, ROWS)
    mask = row < QUERIES
    tl.store(maxima + part * QUERIES + row, maximum, mask=mask)
    tl.store(totals + part * QUERIES + row, total, mask=mask)
    place = partial + part * (QUERIES * D) + row[None, :] * D + dim[:, None]
    tl.store(place, acc, mask=mask[None, :] & valid[:, None])


@triton.jit
def store_page(page_sums, entry, maximum, added, mask, QUERIES: tl.constexpr, ROWS: tl.constexpr):
    """Base-2 logarithm of a list entry's sum of weights, for the rows in `mask`. page_sums: the KV head's."""
    row = tl.arange(0, ROWS)
    tl.store(page_sums + entry * QUERIES + row, maximum + tl.log2(added), mask=mask)


@triton.jit
def between(number, low, high, SHAPE: tl.constexpr):
    """low <= number < high, as a mask of SHAPE: the interpreter does not know masks that are scalars."""
    number = tl.full(SHAPE, number, tl.int32)
    return (number >= low) & (number < high)


@triton.jit
def run_length(count, SPLITS: tl.constexpr, MOST: tl.constexpr):
    """How many of a list's `count` entries each run has: one while MOST runs suffice, else what SPLITS runs share."""
    return tl.where(count <= MOST, 1, tl.cdiv(count, SPLITS))


@triton.jit
def packed_part(
    q, kv, strides, head, table, pages, first, last, length, scale, low, high, part, partial, maxima, totals,
    page_sums, KEY_BITS: tl.constexpr, VALUE_BITS: tl.constexpr, FLOAT8: tl.constexpr, D: tl.constexpr,
    KEY_UNITS: tl.constexpr, VALUE_UNITS: tl.constexpr, GROUP: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr,
    LISTED: tl.constexpr, MASS: tl.constexpr, INLINE: tl.constexpr,
):  # fmt: skip
    """List entries `first` to `last` - 1, those whose packed page number lies in low..high - 1.

    q = (pointer, token stride, head stride); kv: six pointers as `PackedPages` orders them; strides: of their heads.
    """
    # The largest key scale times it stays in float16: a scale is at most 2 * 65504 / levels, in fp8 65504 / 448.
    LARGEST: tl.constexpr = 256 if FLOAT8 else (64 if KEY_BITS == 8 else (1 << (KEY_BITS - 2)))
    QUERIES: tl.constexpr = GROUP * TOKENS
    page = first
    following = tl.minimum(first + 1, last - 1)
    if LISTED:  # the numbers of the pages ahead are read an iteration early: none waits for a chain of loads
        page = tl.load(pages + first)
        following = tl.load(pages + following)
    place = tl.load(table + page)
    dim, valid, run = key_dimension(D, KEY_BITS, KEY_UNITS)
    queries, back = normalized_queries(
        load_queries(q[0], q[1], q[2], head, dim, valid, GROUP, TOKENS, ROWS), scale, LARGEST
    )  # fmt: skip
    run_queries = (queries.to(tl.float32) * factor(run, KEY_BITS, FLOAT8)[:, None]).to(tl.float16)
    token = tl.arange(0, 64)
    pair = tl.arange(0, 32) * 2
    real = tl.arange(0, ROWS) < QUERIES
    limit = visible(length, GROUP, TOKENS, ROWS)
    maximum = tl.full([ROWS], FLOOR, tl.float32)
    total = tl.zeros([16, ROWS], tl.float32)
    offset = tl.zeros([16, ROWS], tl.float32)
    dim, valid, run = value_dimension(D, VALUE_BITS, VALUE_UNITS)
    acc = tl.zeros([dim.shape[0], ROWS], tl.float32)
    unit = 1e-30
    key_codes = kv[0] + head.to(tl.int64) * strides[0]
    key_scales = kv[1] + head.to(tl.int64) * strides[1]
    key_minima = kv[2] + head.to(tl.int64) * strides[2]
    value_codes = kv[3] + head.to(tl.int64) * strides[3]
    value_scales = kv[4] + head.to(tl.int64) * strides[4]
    value_minima = kv[5] + head.to(tl.int64) * strides[5]
    for entry in range(first, last):
        number = ~place
        at = (number - low).to(tl.int64)
        mine = between(number, low, high, (1, 1))
        key_units = load_units(key_codes, at * (8 * D * KEY_BITS), token, mine, D, KEY_BITS, KEY_UNITS, 4)
        start = at * (8 * D * VALUE_BITS)
        even = load_units(value_codes, start, pair, mine, D, VALUE_BITS, VALUE_UNITS, 2)
        odd = load_units(value_codes, start, pair + 1, mine, D, VALUE_BITS, VALUE_UNITS, 2)
        key_scale = load_channels(key_scales + at * D, mine, D, KEY_BITS, KEY_UNITS)
        key_minimum = load_channels(key_minima + at * D, mine, D, KEY_BITS, KEY_UNITS)
        mine = between(number, low, high, (ROWS,))
        here = tl.where(mine, limit - page * 64, 0)
        if FLOAT8:
            one = tl.arange(0, 1)
            value_scale = tl.load(value_scales + at + one, mask=between(number, low, high, (1,)), other=0)
            value_minimum = value_scale
        else:
            # One load for both: Triton reads ahead only what a product depends on.
            apart = tl.multiple_of((value_minima.to(tl.int64) - value_scales.to(tl.int64)) // 2, 8)
            both = value_scales + at * 64 + tl.arange(0, 2)[:, None] * apart + token[None, :]
            both = tl.load(both, mask=between(number, low, high, (2, 64)), other=0)
            value_scale, value_minimum = tl.split(tl.trans(both))
        maximum, total, acc, unit, offset, weights = packed_step(
            queries, run_queries, key_units, key_scale, key_minimum, even, odd, value_scale, value_minimum, back, here,
            maximum, total, acc, unit, offset, KEY_BITS, VALUE_BITS, FLOAT8, KEY_UNITS, INLINE,
        )  # fmt: skip
        if MASS:
            store_page(page_sums, entry, maximum, tl.sum(weights, 0), mine & real, QUERIES, ROWS)
        page = tl.maximum(following, 0)  # more than a renaming: Triton pipelines no loop that carries one
        place = tl.load(table + page)
        following = tl.minimum(entry + 2, last - 1)
        if LISTED:
            following = tl.load(pages + following)
    acc *= (factor(run, VALUE_BITS, FLOAT8) * (unit * (undo(FLOAT8, INLINE) / WEIGHT_SCALE)))[:, None]
    if not FLOAT8:
        acc += tl.sum(offset, 0)[None, :]
    store_part(acc, maximum, tl.sum(total, 0), partial, maxima, totals, part, dim, valid, D, QUERIES, ROWS)
