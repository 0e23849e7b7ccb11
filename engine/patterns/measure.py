"""How much of dense attention a pattern keeps, on given queries and keys: a first look before a model is run."""

from dataclasses import dataclass

import torch

from engine.patterns.context import BlockContext, QueryBlocks, sample_queries
from engine.patterns.pattern import Pattern
from kernels.block_index import PAGE


@dataclass(frozen=True, slots=True)
class Kept:
    """Averages over queries and heads. `mass`: share of dense attention on listed pages; `pages`: share listed."""

    mass: float
    pages: float

    def __str__(self) -> str:
        return f"{self.mass:.1%} of the attention in {self.pages:.1%} of the pages"


@torch.inference_mode()
def kept_attention(
    pattern: Pattern, q: torch.Tensor, keys: torch.Tensor, layer: int = 2, streaming: torch.Tensor | None = None
) -> Kept:
    """q [t, heads, d], the queries of the last t tokens, each of which selects for itself; keys [kv_heads, n, d]."""
    kv_heads, tokens, d = keys.shape
    blocks = QueryBlocks.chunk(tokens - q.shape[0], tokens, 1, keys.device)
    rows = sample_queries(q, blocks, kv_heads, rows=1)  # [kv_heads, t, group, d]
    complete = keys[:, : tokens // PAGE * PAGE].unflatten(1, (-1, PAGE))
    summaries = {scorer.summary: scorer.summarize(complete) for scorer in pattern.scorers()}
    listed = pattern.listed(BlockContext(blocks, kv_heads, layer, rows, summaries, streaming))

    scores = torch.einsum("htgd,hnd->htgn", rows, keys.float()) * d**-0.5
    later = torch.arange(tokens, device=keys.device) > blocks.first[:, None, None]
    weights = scores.masked_fill(later, -torch.inf).softmax(-1)
    tokens_listed = listed.repeat_interleave(PAGE, dim=-1)[..., None, :tokens]
    mass = (weights * tokens_listed).sum(-1).mean()
    return Kept(float(mass), float(listed.sum() / (blocks.causal.sum() * kv_heads)))
