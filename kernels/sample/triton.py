"""The likeliest token on a GPU, in two launches: of each block of logits, then of all. Nothing waits for them."""

# pyright: reportArgumentType=false, reportCallIssue=false

import torch
import triton
import triton.language as tl

from kernels.triton_overlap import let_next_start, options, overlaps, wait_for_earlier

_BLOCK = 1024


def copy_and_choose(values: torch.Tensor, logits: torch.Tensor, choice: torch.Tensor) -> None:
    """values [vocab] of a float type -> logits float32 [vocab], the same, and choice int64 [1], the first of the
    largest. NaN is never chosen; where all are NaN or minus infinity, token 0 is."""
    vocab, blocks = values.shape[0], triton.cdiv(values.shape[0], _BLOCK)
    largest = torch.empty(blocks, dtype=torch.float32, device=values.device)
    places = torch.empty(blocks, dtype=torch.int32, device=values.device)
    overlap = overlaps(values.device)
    _largest_of_block[(blocks,)](
        values, logits, largest, places, vocab, BLOCK=_BLOCK, OVERLAP=overlap, num_warps=4, **options(overlap)
    )
    _largest_of_all[(1,)](
        largest, places, choice, blocks, BLOCKS=triton.next_power_of_2(blocks), OVERLAP=overlap, num_warps=4,
        **options(overlap),
    )  # fmt: skip


@triton.jit
def _largest_of_block(values, logits, largest, places, vocab, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    let_next_start(OVERLAP)
    wait_for_earlier(OVERLAP)
    block = tl.program_id(0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(values + at, at < vocab, 0.0).to(tl.float32)
    tl.store(logits + at, x, at < vocab)
    x = tl.where((at < vocab) & (x == x), x, float("-inf"))
    most = tl.max(x, 0)
    tl.store(largest + block, most)
    tl.store(places + block, tl.min(tl.where(x == most, at, vocab), 0))


@triton.jit
def _largest_of_all(largest, places, choice, blocks, BLOCKS: tl.constexpr, OVERLAP: tl.constexpr):
    let_next_start(OVERLAP)
    wait_for_earlier(OVERLAP)
    at = tl.arange(0, BLOCKS)
    x = tl.load(largest + at, at < blocks, float("-inf"))
    place = tl.load(places + at, at < blocks, 0x7FFFFFFF)
    best = tl.min(tl.where(x == tl.max(x, 0), place, 0x7FFFFFFF), 0)
    tl.store(choice + tl.arange(0, 1), tl.full([1], best, tl.int64))
