"""Sampling in torch. The order of the filters is that of transformers: temperature, top-k, top-p, min-p."""

import math

import torch


def penalize(logits: torch.Tensor, seen: torch.Tensor, penalty: float) -> torch.Tensor:
    """Make the token ids in `seen` [n] less likely: positive logits are divided by the penalty, others multiplied."""
    values = logits[seen]
    return logits.index_put((seen,), torch.where(values > 0, values / penalty, values * penalty))


def filter_logits(logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """logits [vocab] -> scaled logits, minus infinity where a filter removes the token. One always stays."""
    logits = logits / temperature
    if 0 < top_k < logits.shape[0]:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], -math.inf)
    if top_p < 1:
        order = logits.argsort(descending=True, stable=True)
        probabilities = logits[order].softmax(-1)
        before = probabilities.cumsum(-1) - probabilities  # mass of all likelier tokens
        logits = logits.index_fill(0, order[before >= top_p], -math.inf)
    if min_p > 0:
        probabilities = logits.softmax(-1)
        logits = logits.masked_fill(probabilities < min_p * probabilities.max(), -math.inf)
    return logits


def sample(logits: torch.Tensor, generator: torch.Generator) -> int:
    """Draw a token id from filtered logits [vocab]."""
    return int(torch.multinomial(logits.softmax(-1), 1, generator=generator))
