"""Prefill attention over a block index in torch: each query block gathers its listed pages and attends without a mask.

Three parts are merged by their log-sum-exp: listed pages before the block, the tokens before the block in its own first
page, and the block itself, causally. KV heads that list equally many pages are computed together.
"""

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

import torch

from kernels.block_index import PAGE, BlockIndex
from kernels.partial_attention import merge_attention, partial_attention


def sparse_prefill_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    index: BlockIndex,
    blocks: SequenceOf[tuple[int, int]],
    scale: float,
    poll: Callable[[], None] | None = None,
) -> torch.Tensor:
    """As `kernels.prefill_attention.sparse_prefill_attention`; `poll` is called between blocks."""
    start, kv_heads = k.shape[1] - q.shape[0], k.shape[0]
    offsets = index.offsets.tolist()
    out = torch.empty_like(q)
    for number, (first, end) in enumerate(blocks):
        if poll:
            poll()
        lists = []
        for head in range(kv_heads):
            row = head * len(blocks) + number
            pages = index.pages[offsets[row] : offsets[row + 1]]
            lists.append(pages[pages < first // PAGE].long())
        part = (
            q[first - start : end - start].unflatten(1, (kv_heads, -1)).permute(1, 2, 0, 3)
        )  # [kv_heads, group, t, d]
        merged = torch.empty_like(part)
        for count in sorted({len(pages) for pages in lists}):
            heads = [head for head in range(kv_heads) if len(lists[head]) == count]
            pages = torch.stack([lists[head] for head in heads])
            merged[heads] = _attend(part[heads], k, v, heads, pages, first, end, scale)
        out[first - start : end - start] = merged.permute(2, 0, 1, 3).flatten(1, 2)
    return out


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    heads: list[int],
    pages: torch.Tensor,
    first: int,
    end: int,
    scale: float,
) -> torch.Tensor:
    """q [chosen heads, group, t, d], pages [chosen heads, count], all before the page of `first` -> like q."""
    group = q.shape[1]

    def repeated(x: torch.Tensor) -> torch.Tensor:
        return x[:, None].expand(-1, group, -1, -1)

    own = slice(first, end)
    parts = [partial_attention(q, repeated(k[heads, own]), repeated(v[heads, own]), scale, causal=True)]
    page_start = first // PAGE * PAGE
    if page_start < first:
        before = slice(page_start, first)
        parts.append(partial_attention(q, repeated(k[heads, before]), repeated(v[heads, before]), scale))
    if pages.shape[1]:
        tokens = (pages[..., None] * PAGE + torch.arange(PAGE, device=q.device)).flatten(1)
        which = torch.tensor(heads, device=q.device)[:, None]
        parts.append(partial_attention(q, repeated(k[which, tokens]), repeated(v[which, tokens]), scale))
    return merge_attention(parts)
