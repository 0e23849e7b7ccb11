"""The second launch of split-K decode attention: merges what the parts gathered, in their order."""

# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl

from kernels.decode_attention.triton_steps import run_length

_LOWEST = tl.constexpr(-2e30)  # below every maximum of a part, and finite


@triton.jit
def _rotate_back(x, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """The orthonormal Hadamard transform of x [SIZE] in blocks of BLOCK, by butterflies."""
    LEVELS: tl.constexpr = BLOCK.bit_length() - 1
    for level in tl.static_range(LEVELS):
        x = _butterfly(x, SIZE, 1 << level)
    return x * (BLOCK**-0.5)


@triton.jit
def _butterfly(x, SIZE: tl.constexpr, STEP: tl.constexpr):
    a, b = tl.split(tl.permute(tl.reshape(x, (SIZE // (2 * STEP), 2, STEP)), (0, 2, 1)))
    return tl.reshape(tl.permute(tl.join(a + b, a - b), (0, 2, 1)), (SIZE,))


@triton.jit(do_not_specialize=["capacity", "maxima_head", "mass_head"])
def merge_parts(
    partial, maxima, totals, page_sums, capacity, partial_head, maxima_head, starts, ends, length, out, out_token,
    out_head, mass, mass_head, pages, weights,
    GROUP: tl.constexpr, TOKENS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, LISTED: tl.constexpr,
    SPLITS: tl.constexpr, MOST: tl.constexpr, EXACT_PROGRAMS: tl.constexpr, PARTS: tl.constexpr, TILE: tl.constexpr,
    COLD: tl.constexpr, ROTATED: tl.constexpr, BLOCK: tl.constexpr, MASS_PROGRAMS: tl.constexpr,
    QUERIES_PADDED: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Grid (kv_heads, queries + MASS_PROGRAMS): a program for each query, then those that make page masses.

    ADD: masses are weighed by KV head and added to those of the pages, not stored by list entry.
    PARTS: a power of two, at least the number of parts; TILE: so many are merged at once, a power of two. Parts without
    list entries were not written and do not count.
    """
    QUERIES: tl.constexpr = GROUP * TOKENS
    head = tl.program_id(0)
    program = tl.program_id(1)
    length = tl.load(length).to(tl.int32)
    count = tl.cdiv(length, 64)
    if LISTED:
        count = tl.load(ends + head) - tl.load(starts + head)
    begin = tl.where(count <= MOST, EXACT_PROGRAMS, 0)
    written = tl.cdiv(count, run_length(count, SPLITS, MOST))
    end = EXACT_PROGRAMS + (MOST if COLD else 0) + written
    wide = head.to(tl.int64)
    partial += wide * partial_head
    maxima += wide * maxima_head
    totals += wide * maxima_head
    if program < QUERIES:
        place = out + (program // GROUP) * out_token + (head * GROUP + program % GROUP) * out_head
        _merge_query(
            partial, maxima, totals, program, begin, written, end, place, D, DP, QUERIES, MOST, EXACT_PROGRAMS, TILE,
            ROTATED, BLOCK,
        )  # fmt: skip
    elif MASS_PROGRAMS > 0:
        page_sums += wide * capacity * QUERIES
        weight = 1.0
        if ADD:
            weight = tl.load(weights + head)
            if LISTED:
                pages += tl.load(starts + head)
        if weight != 0:
            here = _written(tl.arange(0, PARTS), begin, written, end, MOST, EXACT_PROGRAMS)
            _make_masses(
                maxima, totals, here, page_sums, program - QUERIES, count, mass + wide * mass_head, pages, weight,
                QUERIES, QUERIES_PADDED, PARTS, MASS_PROGRAMS, ADD, LISTED,
            )  # fmt: skip


@triton.jit
def _merge_query(
    partial, maxima, totals, query, begin, written, end, out, D: tl.constexpr, DP: tl.constexpr, QUERIES: tl.constexpr,
    MOST: tl.constexpr, EXACT_PROGRAMS: tl.constexpr, TILE: tl.constexpr, ROTATED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One row, TILE parts after the other: what these need is read at once."""
    dim = tl.arange(0, DP)
    acc = tl.zeros([DP], tl.float32)
    largest = tl.full([1], _LOWEST, tl.float32)
    gathered_total = tl.zeros([1], tl.float32)
    for base in range(begin, end, TILE):
        part = base + tl.arange(0, TILE)
        row = part * QUERIES + query
        some = _written(part, begin, written, end, MOST, EXACT_PROGRAMS)
        maximum = tl.load(maxima + row, mask=some, other=float("-inf"))
        total = tl.load(totals + row, mask=some, other=0.0)
        gathered = tl.load(
            partial + row[:, None] * D + dim[None, :], mask=some[:, None] & (dim < D)[None, :], other=0.0
        )
        highest = tl.maximum(largest, tl.max(maximum, 0))
        shrink, weight = tl.exp2(largest - highest), tl.exp2(maximum - highest)
        gathered_total = gathered_total * shrink + tl.sum(total * weight, 0)
        acc = acc * shrink + tl.sum(gathered * weight[:, None], 0)
        largest = highest
    acc = acc / gathered_total
    if ROTATED:
        acc = _rotate_back(acc, DP, BLOCK)
    tl.store(out + dim, acc.to(out.dtype.element_ty), mask=dim < D)


@triton.jit
def _make_masses(
    maxima, totals, here, page_sums, program, count, mass, pages, weight, QUERIES: tl.constexpr,
    QUERIES_PADDED: tl.constexpr, PARTS: tl.constexpr, MASS_PROGRAMS: tl.constexpr, ADD: tl.constexpr,
    LISTED: tl.constexpr,
):  # fmt: skip
    """Blocks of list entries: `program`, and each MASS_PROGRAMS-th after it. A list names a page once, so none is added
    to twice at a time."""
    ENTRIES: tl.constexpr = 4096 // QUERIES_PADDED if QUERIES_PADDED > 8 else 512
    part = tl.arange(0, PARTS)
    query = tl.arange(0, QUERIES_PADDED)
    real = query < QUERIES
    mask = here[:, None] & real[None, :]
    maximum = tl.load(maxima + part[:, None] * QUERIES + query[None, :], mask=mask, other=float("-inf"))
    total = tl.load(totals + part[:, None] * QUERIES + query[None, :], mask=mask, other=0.0)
    largest = tl.where(real, tl.max(maximum, 0), 0.0)
    total = tl.sum(total * tl.exp2(maximum - largest[None, :]), 0)
    largest += tl.log2(tl.where(real, total, 1.0))
    for base in range(program * ENTRIES, count, MASS_PROGRAMS * ENTRIES):
        entry = base + tl.arange(0, ENTRIES)
        inside = entry < count
        at = page_sums + entry[:, None] * QUERIES + query[None, :]
        sums = tl.load(at, mask=inside[:, None] & real[None, :], other=float("-inf"))
        drawn = tl.sum(tl.exp2(sums - largest[None, :]), 1)
        place = entry
        if ADD:
            if LISTED:
                place = tl.load(pages + entry, mask=inside, other=0)
            drawn = tl.load(mass + place, mask=inside, other=0.0) + weight * drawn
        tl.store(mass + place, drawn, mask=inside)


@triton.jit
def _written(part, begin, written, end, MOST: tl.constexpr, EXACT_PROGRAMS: tl.constexpr):
    return (part >= begin) & ((part < EXACT_PROGRAMS) | ((part < end) & ((part - EXACT_PROGRAMS) % MOST < written)))
