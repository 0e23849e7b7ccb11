"""Decode attention on a card: split-K over the listed KV pages of each KV head, exact and packed, in two launches.

The first gives each program a run of a KV head's list; the second merges what they gathered, in a fixed order, rotates
values back and makes the page masses. How a list is cut depends on its length alone, so a row's result has the same
bits on every repeat and whatever else is computed beside it.

Where a cache has packed pages, a list's few exact pages (sink, newest) go to programs of their own, so that the loop
over packed pages has no branches; so do demoted pages, whose values have fewer bits. Any mixture is right, whatever
its order; only long runs of exact pages in a packed cache are slow. Where a list is so short that each program takes
one page, it takes it as it is, exact or packed.
"""

# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
import triton.language as tl
from triton import knobs

from kernels import card
from kernels.block_index import PageLists
from kernels.decode_attention.paged import PagedKv
from kernels.decode_attention.triton_dequantize import padded_units
from kernels.decode_attention.triton_merge import merge_parts
from kernels.decode_attention.triton_steps import (
    FLOOR,
    exact_step,
    load_queries,
    packed_part,
    run_length,
    store_page,
    store_part,
    visible,
)

EXACT_PROGRAMS = 6  # for each KV head of a packed cache: the exact pages of a list are the sink and at most 5 newest
_MASS_PROGRAMS = 16  # for each KV head, at most
_LOG2_E = 1.4426950408889634
_REGISTERS = 255  # said aloud, else ptxas now and then takes 168 and spills


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """`programs`: for each multiprocessor, of all KV heads, those for exact pages included. `most`: the same where a
    list is so short that each program takes one page. `scan`: list entries in which exact pages of a packed cache are
    looked for together."""

    warps: int
    stages: int
    programs: int
    most: int
    scan: int = 256


@dataclass(frozen=True, slots=True, eq=False)
class DecodeScratch:
    """What programs hand to the merging kernel. Holds nothing between calls; one serves all layers in turn.

    partial float32 [kv_heads, parts, queries, d]; maxima and totals float32 [kv_heads, parts, queries]; page_sums
    float32 [kv_heads, capacity, queries], None without masses. queries = tokens * heads / kv_heads.
    """

    partial: torch.Tensor
    maxima: torch.Tensor
    totals: torch.Tensor
    page_sums: torch.Tensor | None
    capacity: int


def _card(device: torch.device) -> tuple[int, int]:
    """(compute capability as 90 for 9.0, multiprocessors); a small one for the interpreter."""
    if device.type != "cuda":
        return 90, 2
    major, minor = card.capability(device)
    return 10 * major + minor, _multiprocessors(device)


@lru_cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def configuration(capability: int, key_bits: int, value_bits: int, d: int, rows: int = 8) -> DecodeConfig:
    """Bits of 0: exact pages alone. `rows`: of a tile of queries. A multiprocessor holds all its programs at once, by
    the shared memory and registers that compiling ahead of time shows, and each reads at least one page ahead."""
    roomy = capability in (80, 90, 100, 103)  # more than 99 KB of shared memory
    large = rows * d > 2048
    if key_bits == 0:
        warps, programs = (8 if rows * d > 4096 else 4 if large or d > 128 else 2), 2
    else:
        # A warp alone waits for no other. Where keys and values have 8 bits each, one has too few registers.
        eight = key_bits + value_bits == 16
        warps = 8 if rows * d > 4096 else 4 if large or (eight and d > 128) else 2 if eight or d > 128 else 1
        programs = (8 if roomy else 4) // warps
        programs = min(programs, 5) if eight else programs
    stages = 3 if roomy and (key_bits > 0 or d <= 128) else 2
    programs = max(1, programs // 2 if key_bits == 0 and (large or d > 128) else programs)
    # Programs for exact pages end at once where each page has its own: one more fits.
    return DecodeConfig(warps, stages, programs, programs + (0 < key_bits < 8))


_MOST_PROGRAMS = 12  # a scratch has room for
_TILE_LISTED, _TILE_DENSE = 64, 128  # parts of 128 dimensions that are merged together at most


def _splits(programs: int, multiprocessors: int, kv_heads: int, own: int) -> int:
    """Into how many runs a list is cut at most: the same for all lengths, so that one kernel serves them."""
    return max(1, programs * multiprocessors // kv_heads - own)


def make_scratch(
    tokens: int, heads: int, kv_heads: int, d: int, capacity: int, device: torch.device | str, mass: bool
) -> DecodeScratch:
    """For calls with so many query tokens and rows of at most `capacity` listed pages."""
    multiprocessors = _card(torch.device(device))[1]
    parts = EXACT_PROGRAMS + 2 * _splits(_MOST_PROGRAMS, multiprocessors, kv_heads, 0)
    queries = tokens * heads // kv_heads
    partial, maxima, totals = (
        torch.empty(kv_heads, parts, queries, *more, dtype=torch.float32, device=device) for more in ((d,), (), ())
    )
    sums = torch.empty(kv_heads, capacity, queries, dtype=torch.float32, device=device) if mass else None
    return DecodeScratch(partial, maxima, totals, sums, capacity)


def paged_decode(
    q: torch.Tensor,
    kv: PagedKv,
    table: torch.Tensor,
    lists: PageLists | None,
    length: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    scratch: DecodeScratch,
    mass: torch.Tensor | None = None,
    config: DecodeConfig | None = None,
    weights: torch.Tensor | None = None,
) -> None:
    """q [tokens, heads, d], bfloat16 or float32: the newest 1 to 8 tokens, each seeing the keys up to itself.

    `table` int32 [capacity]: places of the sequence's KV pages (`PagedKv`). `lists`: one for each KV head; None for all
    pages. `length` int [1], on the device: tokens of the sequence, these included. `out` [tokens, heads, d]: bfloat16
    or float32, values rotated back. `mass` float32 [kv_heads, capacity] or None: what each list entry draws, summed
    over tokens and the KV head's query heads; entries behind the list stay as they are. `weights` float32 [kv_heads]:
    then `mass` is by page, and to each page's is added what it draws times its KV head's weight. `scratch`: made for as
    many tokens, heads and KV heads.
    """
    tokens, heads, d = q.shape
    kv_heads = kv.keys.shape[0]
    group = heads // kv_heads
    fmt, cold = kv.format, kv.cold_format
    packed, padded = kv.packed is not None and fmt is not None, triton.next_power_of_2(d)
    capability, multiprocessors = _card(q.device)
    key_bits, value_bits, cold_bits, float8 = 0, 0, 0, False
    if packed and fmt is not None:
        key_bits, value_bits, float8 = fmt.key_bits, fmt.value_bits, fmt.float8
        cold_bits = cold.value_bits if kv.cold is not None and cold is not None else 0
    rows = max(8, triton.next_power_of_2(tokens * group))
    config = config or configuration(capability, key_bits, value_bits, d, rows)
    own = EXACT_PROGRAMS if packed else 0  # programs for exact pages of a packed cache
    splits = _splits(config.programs, multiprocessors, kv_heads, own)
    most = max(splits, _splits(config.most, multiprocessors, kv_heads, own))
    parts = own + most * (2 if cold_bits else 1)
    if parts > scratch.partial.shape[1] or scratch.partial.shape[2] != tokens * group:
        raise ValueError(f"scratch: made for other shapes, need {parts} parts of {tokens * group} queries")
    pools: list[torch.Tensor | int | None] = []
    for pool in (kv.packed, kv.cold):
        pools += [None] * 12 if pool is None else [*pool, *(part.stride(0) for part in pool)]
    starts, ends, pages = lists if lists is not None else (None, None, None)
    inline = not knobs.runtime.interpret
    # The interpreter has no bfloat16 products.
    float32 = not inline or q.dtype == torch.float32 or kv.keys.dtype == torch.float32
    shared = {
        "GROUP": group, "TOKENS": tokens, "D": d, "DP": padded, "LISTED": lists is not None, "SPLITS": splits,
        "MOST": most, "EXACT_PROGRAMS": own,
    }  # fmt: skip
    _split[(kv_heads, parts)](
        q, q.stride(0), q.stride(1), kv.keys, kv.keys.stride(0), kv.keys.stride(1), kv.values, kv.values.stride(0),
        kv.values.stride(1), *pools, 0 if kv.packed is None else kv.packed.key_codes.shape[1], table, starts, ends,
        pages, length, scale * _LOG2_E, scratch.partial, scratch.maxima, scratch.totals,
        scratch.page_sums if mass is not None else None, scratch.capacity, scratch.partial.stride(0),
        scratch.maxima.stride(0),
        **shared, ROWS=rows, KEY_BITS=key_bits, VALUE_BITS=value_bits,
        COLD_BITS=cold_bits, FLOAT8=float8, IEEE=float32,
        MASS=mass is not None, INLINE=inline, KEY_UNITS=padded_units(d, key_bits or 8, 4),
        VALUE_UNITS=padded_units(d, value_bits or 8, 2), COLD_UNITS=padded_units(d, cold_bits or 8, 2),
        SCAN=config.scan, num_warps=config.warps, num_stages=config.stages, maxnreg=_REGISTERS,
    )  # fmt: skip
    slots = triton.next_power_of_2(parts)
    tile = min(slots, max(1, (_TILE_DENSE if lists is None else _TILE_LISTED) * 128 // padded))
    blocks = min(_MASS_PROGRAMS, triton.cdiv(scratch.capacity, 512)) if mass is not None else 0
    merge_parts[(kv_heads, tokens * group + blocks)](
        scratch.partial, scratch.maxima, scratch.totals, scratch.page_sums if mass is not None else None,
        scratch.capacity, scratch.partial.stride(0), scratch.maxima.stride(0), starts, ends, length, out, out.stride(0),
        out.stride(1), mass, 0 if mass is None else mass.stride(0), pages, weights,
        **shared, PARTS=slots, TILE=tile, COLD=cold_bits > 0, ROTATED=packed, BLOCK=d & -d,
        MASS_PROGRAMS=blocks, QUERIES_PADDED=triton.next_power_of_2(tokens * group),
        ADD=weights is not None, num_warps=8 if tile * padded <= 8192 else 16,
    )  # fmt: skip


@triton.jit
def _exact_entries(
    q, keys, key_token, values, value_token, head, program, table, pages, first, last, length, scale, part, partial,
    maxima, totals, page_sums, D: tl.constexpr, DP: tl.constexpr, GROUP: tl.constexpr, TOKENS: tl.constexpr,
    ROWS: tl.constexpr, LISTED: tl.constexpr, MASS: tl.constexpr, IEEE: tl.constexpr, EXACT_PROGRAMS: tl.constexpr,
    SCAN: tl.constexpr,
):  # fmt: skip
    """Of the exact pages among list entries `first` to `last` - 1, each EXACT_PROGRAMS-th from number `program` on."""
    CHUNK: tl.constexpr = 16
    QUERIES: tl.constexpr = GROUP * TOKENS
    dim = tl.arange(0, DP)
    valid = dim < D
    queries = load_queries(q[0], q[1], q[2], head, dim, valid, GROUP, TOKENS, ROWS)
    queries = queries.to(tl.float32) if IEEE else queries
    real = tl.arange(0, ROWS) < QUERIES
    limit = visible(length, GROUP, TOKENS, ROWS)
    maximum = tl.full([ROWS], FLOOR, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([DP, ROWS], tl.float32)
    seen = 0
    for base in range(first, last, SCAN):
        entries = base + tl.arange(0, SCAN)
        listed = entries
        if LISTED:
            listed = tl.load(pages + entries, mask=entries < last, other=0)
        exact = tl.load(table + listed, mask=entries < last, other=-1) >= 0
        number = seen + tl.cumsum(exact.to(tl.int32), 0) - 1
        seen += tl.sum(exact.to(tl.int32), 0)
        mine = tl.where(exact & (number % EXACT_PROGRAMS == program), entries, last)
        entry = tl.min(mine, 0)
        while entry < last:
            page = entry
            if LISTED:
                page = tl.load(pages + entry)
            slot = tl.load(table + page).to(tl.int64) * 64
            sums = tl.zeros([ROWS], tl.float32)
            for done in range(0, 64, CHUNK):
                at = page * 64 + done
                maximum, total, acc, shrink, added = exact_step(
                    queries, keys, values, key_token, value_token, slot + done, length - at, dim, valid, scale,
                    limit - at, maximum, total, acc, CHUNK, IEEE,
                )  # fmt: skip
                sums = sums * shrink + added
            if MASS:
                store_page(page_sums, entry, maximum, sums, real, QUERIES, ROWS)
            entry = tl.min(tl.where(mine > entry, mine, last), 0)
    store_part(acc, maximum, total, partial, maxima, totals, part, dim, valid, D, QUERIES, ROWS)


@triton.jit
def _exact_part(
    q, keys, key_token, values, value_token, head, table, pages, first, last, length, scale, part, partial, maxima,
    totals, page_sums, D: tl.constexpr, DP: tl.constexpr, GROUP: tl.constexpr, TOKENS: tl.constexpr,
    ROWS: tl.constexpr, LISTED: tl.constexpr, MASS: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    """List entries `first` to `last` - 1 of a cache that has exact pages alone."""
    QUERIES: tl.constexpr = GROUP * TOKENS
    CHUNK: tl.constexpr = 16 if IEEE else 64
    page = first
    following = tl.minimum(first + 1, last - 1)
    if LISTED:  # as in `packed_part`
        page = tl.load(pages + first)
        following = tl.load(pages + following)
    place = tl.load(table + page)
    dim = tl.arange(0, DP)
    valid = dim < D
    queries = load_queries(q[0], q[1], q[2], head, dim, valid, GROUP, TOKENS, ROWS)
    queries = queries.to(tl.float32) if IEEE else queries
    real = tl.arange(0, ROWS) < QUERIES
    limit = visible(length, GROUP, TOKENS, ROWS)
    maximum = tl.full([ROWS], FLOOR, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([DP, ROWS], tl.float32)
    for entry in range(first, last):
        slot = place.to(tl.int64) * 64
        if IEEE:
            sums = tl.zeros([ROWS], tl.float32)
            for done in range(0, 64, CHUNK):
                at = page * 64 + done
                maximum, total, acc, shrink, added = exact_step(
                    queries, keys, values, key_token, value_token, slot + done, length - at, dim, valid, scale,
                    limit - at, maximum, total, acc, CHUNK, IEEE,
                )  # fmt: skip
                sums = sums * shrink + added
        else:
            maximum, total, acc, _, sums = exact_step(
                queries, keys, values, key_token, value_token, slot, length - page * 64, dim, valid, scale,
                limit - page * 64, maximum, total, acc, CHUNK, IEEE,
            )  # fmt: skip
        if MASS:
            store_page(page_sums, entry, maximum, sums, real, QUERIES, ROWS)
        page = tl.maximum(following, 0)  # more than a renaming: Triton pipelines no loop that carries one
        place = tl.load(table + page)
        following = tl.minimum(entry + 2, last - 1)
        if LISTED:
            following = tl.load(pages + following)
    store_part(acc, maximum, total, partial, maxima, totals, part, dim, valid, D, QUERIES, ROWS)


@triton.jit(do_not_specialize=["packed_pages", "capacity", "maxima_head"])
def _split(
    q, q_token, q_head, keys, key_head, key_token, values, value_head, value_token,
    key_codes, key_scale, key_minimum, value_codes, value_scale, value_minimum,
    key_codes_head, key_scale_head, key_minimum_head, value_codes_head, value_scale_head, value_minimum_head,
    cold_key_codes, cold_key_scale, cold_key_minimum, cold_value_codes, cold_value_scale, cold_value_minimum,
    cold_key_codes_head, cold_key_scale_head, cold_key_minimum_head, cold_value_codes_head, cold_value_scale_head,
    cold_value_minimum_head,
    packed_pages, table, starts, ends, pages, length, scale, partial, maxima, totals, page_sums, capacity,
    partial_head, maxima_head,
    GROUP: tl.constexpr, TOKENS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, LISTED: tl.constexpr,
    SPLITS: tl.constexpr, MOST: tl.constexpr, EXACT_PROGRAMS: tl.constexpr, ROWS: tl.constexpr,
    KEY_BITS: tl.constexpr, VALUE_BITS: tl.constexpr, COLD_BITS: tl.constexpr, FLOAT8: tl.constexpr,
    IEEE: tl.constexpr, MASS: tl.constexpr, INLINE: tl.constexpr, KEY_UNITS: tl.constexpr,
    VALUE_UNITS: tl.constexpr, COLD_UNITS: tl.constexpr, SCAN: tl.constexpr,
):  # fmt: skip
    """Grid (kv_heads, parts). Parts: EXACT_PROGRAMS, then MOST runs of the list, then these again for cold pages."""
    head = tl.program_id(0)
    part = tl.program_id(1)
    length = tl.load(length).to(tl.int32)
    start, count = 0, tl.cdiv(length, 64)
    if LISTED:
        start = tl.load(starts + head)
        count = tl.load(ends + head) - start
        pages += start
    q += 0
    wide = head.to(tl.int64)
    keys += wide * key_head
    values += wide * value_head
    partial += wide * partial_head
    maxima += wide * maxima_head
    totals += wide * maxima_head
    if MASS:
        page_sums += wide * capacity * (GROUP * TOKENS)
    query = (q, q_token, q_head)
    each = run_length(count, SPLITS, MOST)
    if KEY_BITS == 0:
        first = part * each
        last = tl.minimum(first + each, count)
        if first < last:
            _exact_part(
                query, keys, key_token, values, value_token, head, table, pages, first, last, length, scale, part,
                partial, maxima, totals, page_sums, D, DP, GROUP, TOKENS, ROWS, LISTED, MASS, IEEE,
            )  # fmt: skip
    else:
        seeks = part < EXACT_PROGRAMS  # exact pages, in all of the list
        first = tl.where(seeks, 0, (part - EXACT_PROGRAMS) % MOST * each)
        last = tl.minimum(tl.where(seeks, tl.where(count <= MOST, 0, count), first + each), count)
        if first < last:
            exact = seeks
            if count <= MOST:
                page = first
                if LISTED:
                    page = tl.load(pages + first)
                exact = (tl.load(table + page) >= 0) & (part < EXACT_PROGRAMS + MOST)
            if exact:
                _exact_entries(
                    query, keys, key_token, values, value_token, head, tl.where(seeks, part, 0), table, pages, first,
                    last, length, scale, part, partial, maxima, totals, page_sums, D, DP, GROUP, TOKENS, ROWS, LISTED,
                    MASS, IEEE, EXACT_PROGRAMS, SCAN,
                )  # fmt: skip
            elif part < EXACT_PROGRAMS + MOST:
                pool = (key_codes, key_scale, key_minimum, value_codes, value_scale, value_minimum)
                strides = (
                    key_codes_head, key_scale_head, key_minimum_head, value_codes_head, value_scale_head,
                    value_minimum_head,
                )  # fmt: skip
                packed_part(
                    query, pool, strides, head, table, pages, first, last, length, scale, 0, packed_pages, part,
                    partial, maxima, totals, page_sums, KEY_BITS, VALUE_BITS, FLOAT8, D, KEY_UNITS, VALUE_UNITS,
                    GROUP, TOKENS, ROWS, LISTED, MASS, INLINE,
                )  # fmt: skip
            elif COLD_BITS > 0:
                pool = (
                    cold_key_codes, cold_key_scale, cold_key_minimum, cold_value_codes, cold_value_scale,
                    cold_value_minimum,
                )  # fmt: skip
                strides = (
                    cold_key_codes_head, cold_key_scale_head, cold_key_minimum_head, cold_value_codes_head,
                    cold_value_scale_head, cold_value_minimum_head,
                )  # fmt: skip
                packed_part(
                    query, pool, strides, head, table, pages, first, last, length, scale, packed_pages, 0x7FFFFFFF,
                    part, partial, maxima, totals, page_sums, KEY_BITS, COLD_BITS, False, D, KEY_UNITS, COLD_UNITS,
                    GROUP, TOKENS, ROWS, LISTED, MASS, INLINE,
                )  # fmt: skip
