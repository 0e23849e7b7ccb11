"""Gates without training: how much of its attention a KV head puts where a streaming head could not read.

A quick guess, not a proof: a head may look far away at what changes nothing, and training would let it stream.
"""

import threading
from collections.abc import Sequence

import torch

from engine.gates.sample import Progress, Sample, poll_of, read_context
from engine.gates.tail import Heads, TailMasks, answer_hidden
from engine.model import Decoder
from engine.patterns.policy import RECENT, SINK

FULL_GATE_MASS = 0.4  # a head that draws so much of its attention from afar gets gate 1; under half of it may stream


@torch.no_grad()
def attention_outside(
    decoder: Decoder,
    samples: Sequence[Sample],
    *,
    sink: int = SINK,
    recent: int = RECENT,
    progress: Progress = lambda what, share: None,
    cancel: threading.Event | None = None,
) -> torch.Tensor:
    """float32 [layers, kv_heads]: the share of attention outside sink and recent pages, where answers are foreseen.

    The mean over answers and samples, of the query head of each KV head that looks away most. Raises as `train_gates`.
    """
    if not samples:
        raise ValueError("samples: got none, need at least 1")
    config, poll = decoder.config, poll_of(cancel)
    total = torch.zeros(config.layers, config.kv_heads, device=decoder.embed.device)
    for done, sample in enumerate(samples):
        read = read_context(decoder, sample, poll)
        masks = TailMasks(read.start, len(sample.tail), sink, recent, total.device)
        rows = list(sample.answers)

        def full(layer: int, q: Heads, k: Heads, v: Heads, masks: TailMasks = masks, rows: list[int] = rows) -> Heads:
            queries = q[:, rows].unflatten(0, (config.kv_heads, -1))  # [kv_heads, group, answers, d]
            scores = torch.einsum("hgad,hnd->hgan", queries, k) * config.head_dim**-0.5
            weights = scores.masked_fill(~masks.causal[rows], -torch.inf).softmax(-1)
            outside = (weights * ~masks.streaming[rows]).sum(-1).mean(-1)  # [kv_heads, group]
            total[layer] += outside.amax(-1)
            return masks.full(q, k, v)

        answer_hidden(decoder, read, full, poll)
        progress("reading", (done + 1) / len(samples))
    return total / len(samples)


def gates_from_mass(outside: torch.Tensor) -> torch.Tensor:
    """Shares of attention [layers, kv_heads] -> gates from 0 to 1, linear up to `FULL_GATE_MASS`."""
    return (outside / FULL_GATE_MASS).clamp(0, 1)
