"""Page selection on a GPU, for one decode token: one program for each KV head, no sort and no wait for the device.

Scores become integers of the same order. The budget's last key is found digit by digit, from the top: one pass counts
the keys that reach each of `2**digit` evenly spaced candidates, and the search goes on between the two that enclose the
wanted count, or ends early where a candidate meets it. A last pass writes the chosen pages in order.
"""

# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false
# (kernels are in a language that only looks like Python to a type checker)

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.block_index import PAGE, PageLists

_SMALLEST = tl.constexpr(-(2**31))
_LARGEST = tl.constexpr(2**31 - 1)
_MOST = tl.constexpr(0x7F7FFFFF)  # the key of the largest finite float32


@dataclass(frozen=True, slots=True)
class Config:
    """`chunk`: pages looked at together, up to 16384; up to so many stay in registers during the search. `digit`: bits
    of a key found in one pass."""

    chunk: int
    digit: int
    num_warps: int


def configuration(capacity: int) -> Config:
    if capacity <= 1024:
        return Config(chunk=1024, digit=3, num_warps=8)
    return Config(chunk=2048, digit=3, num_warps=16)


def select_page_lists(
    scores: torch.Tensor,
    length: torch.Tensor,
    budget: torch.Tensor,
    sink: int,
    recent: int,
    streaming: torch.Tensor | None,
    lists: PageLists,
    config: Config | None = None,
) -> None:
    """scores float32 [kv_heads, capacity] of pages p < (length - 1) // 64 -> lists, row r in pages[r * capacity:].

    length int32 [1]: tokens, the new one included, at most 64 * capacity. budget int32 [1], in pages: what
    `kernels.page_selection.select_pages` selects for the newest token, where pages with any of the first `sink` tokens
    or the newest `recent` ones and pages without a score are forced; every page where there are no more than that.
    streaming uint8 [kv_heads] or None: heads that read sink and newest tokens only, whatever the budget.
    """
    kv_heads, capacity = scores.shape
    if not scores.is_contiguous() or lists.pages.shape[0] < kv_heads * capacity:
        raise ValueError(f"lists: got room for {lists.pages.shape[0]} pages, need {kv_heads} * {capacity}, contiguous")
    config = config or configuration(capacity)
    _select[(kv_heads,)](
        scores, length, budget, streaming, *lists, capacity,
        SINK_PAGES=triton.cdiv(sink, PAGE), BACK=max(recent - 1, 0), PAGE_TOKENS=PAGE,
        CHUNK=config.chunk, DIGIT=config.digit, num_warps=config.num_warps,
    )  # fmt: skip


@triton.jit
def _keys(scores, page, candidate):
    """int32 that are ordered as the scores; 0.0 and -0.0 are equal, infinities the largest finite, NaN the largest."""
    score = tl.load(scores + page, mask=candidate, other=0.0)
    bits = score.to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, bits ^ _LARGEST, bits)
    key = tl.where(score == 0, 0, tl.minimum(tl.maximum(key, -_MOST - 1), _MOST))
    return tl.where(score != score, _MOST, key)


@triton.jit
def _threshold(scores, begin, end, count, CHUNK: tl.constexpr, DIGIT: tl.constexpr):
    """Of the keys of pages from `begin` to `end` - 1, more than `count`: (key, ties) such that those above `key` and
    the first `ties` of those equal to it are the `count` largest. count is at least 1."""
    way = tl.arange(0, 1 << DIGIT)
    low, here, above = -_MOST - 1, end - begin, 0  # `here` keys are at least low, `above` at least the range's end
    shift = 32 - DIGIT
    first = _candidate_keys(scores, begin, end, CHUNK)  # for all passes; most contexts have no more
    while (here != count) & (shift >= 0):
        candidates = low + (way << shift)
        reached = (first[:, None] >= candidates[None, :]).to(tl.int32)
        for start in range(begin + CHUNK, end, CHUNK):
            key = _candidate_keys(scores, start, end, CHUNK)
            reached += (key[:, None] >= candidates[None, :]).to(tl.int32)
        counts = tl.sum(reached, 0)
        enough = counts >= count
        above = tl.max(tl.where(enough, above, counts), 0)
        here = tl.min(tl.where(enough, counts, _LARGEST), 0)
        low += (tl.sum(enough.to(tl.int32), 0) - 1) << shift
        shift = tl.where(shift > DIGIT, shift - DIGIT, tl.where(shift > 0, 0, -1))
    exactly = here == count
    return tl.where(exactly, low - 1, low), tl.where(exactly, 0, count - above)


@triton.jit
def _candidate_keys(scores, start, end, CHUNK: tl.constexpr):
    """Keys of CHUNK pages from `start` on, below every candidate from `end` on."""
    page = start + tl.arange(0, CHUNK)
    return tl.where(page < end, _keys(scores, page, page < end), _SMALLEST)


@triton.jit(do_not_specialize_on_alignment=["length", "budget", "streaming", "starts", "ends", "pages"])
def _select(
    scores, length, budget, streaming, starts, ends, pages, capacity,
    SINK_PAGES: tl.constexpr, BACK: tl.constexpr, PAGE_TOKENS: tl.constexpr, CHUNK: tl.constexpr, DIGIT: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    last, allowed = tl.load(length) - 1, tl.load(budget)
    total = last // PAGE_TOKENS + 1
    streams = False
    if streaming is not None:
        streams = tl.load(streaming + head) != 0
    newest = tl.maximum(last - BACK, 0) // PAGE_TOKENS  # from here on, and up to the sink's end, pages are forced
    candidates = tl.maximum(newest - SINK_PAGES, 0)
    wanted = allowed - (total - candidates)
    scores += head.to(tl.int64) * capacity
    limit, ties = _LARGEST, 0  # no candidate
    if not streams:
        if total <= allowed:
            limit = _SMALLEST  # every candidate
        elif wanted > 0:
            limit, ties = _threshold(scores, SINK_PAGES, newest, wanted, CHUNK, DIGIT)

    start = head * capacity
    pages += start.to(tl.int64)
    listed, equal = 0, 0  # pages so far above the limit or forced, and those at the limit
    for first in range(0, total, CHUNK):
        page = first + tl.arange(0, CHUNK)
        forced = (page < SINK_PAGES) | (page >= newest)
        candidate = (page < total) & (forced == 0)
        key = _keys(scores, page, candidate)
        sure = (page < total) & (forced | (key > limit))
        tie = candidate & (key == limit)
        flags = sure.to(tl.int32) + (tie.to(tl.int32) << 16)
        before = tl.cumsum(flags, 0) - flags
        equal_before = equal + (before >> 16)
        place = listed + (before & 0xFFFF) + tl.minimum(equal_before, ties)
        tl.store(pages + place, page, mask=sure | (tie & (equal_before < ties)))
        flags = tl.sum(flags, 0)
        listed, equal = listed + (flags & 0xFFFF), equal + (flags >> 16)
    tl.store(starts + head, start)
    tl.store(ends + head, start + listed + tl.minimum(equal, ties))
