"""The tail of a sample, in torch and differentiable: its queries over the context's keys and its own.

Weights are frozen. Under autograd each layer is computed again in the backward pass, so memory holds the activations of
one layer at a time.
"""

from collections.abc import Callable, Iterator
from typing import cast

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from engine.gates.sample import ReadContext
from engine.model import Decoder, LayerWeights
from kernels.block_index import PAGE
from kernels.linear import linear
from kernels.rms_norm.reference import rms_norm

Heads = torch.Tensor
"""[heads, t, d]; query heads of one KV head are neighbours."""
Attend = Callable[[int, Heads, Heads, Heads], Heads]
"""(layer, q [heads, tail, d], k and v [kv_heads, context + tail, d]) -> [heads, tail, d]; q and k rotated."""


class TailMasks:
    """Which keys each token of a tail may read, made once for all layers. `sink` and `recent` in tokens.

    Streaming heads read whole KV pages, as in decode: those of the sink and those with any of the newest `recent`
    tokens.
    """

    def __init__(self, start: int, tail: int, sink: int, recent: int, device: torch.device) -> None:
        self.length = start + tail
        query = torch.arange(start, self.length, device=device)[:, None]
        key = torch.arange(self.length, device=device)
        self.causal = key <= query  # bool [tail, context + tail]
        near = key // PAGE >= (query - (recent - 1)).clamp(min=0) // PAGE
        self.streaming = self.causal & (near | (key < -(-sink // PAGE) * PAGE))
        self._some = self.streaming.any(0).nonzero()[:, 0]  # keys that any query streams over
        self._over_some = self.streaming[:, self._some]

    def full(self, q: Heads, k: Heads, v: Heads) -> Heads:
        """Attention to everything."""
        return _attention(q, k, v, self.causal)

    def stream(self, q: Heads, k: Heads, v: Heads) -> Heads:
        """Attention to sink and recent pages."""
        return _attention(q, k[:, self._some], v[:, self._some], self._over_some)


def _attention(q: Heads, k: Heads, v: Heads, mask: torch.Tensor) -> Heads:
    group = q.shape[0] // k.shape[0]
    rows = q.unflatten(0, (-1, group)).flatten(1, 2)[None]  # the group's queries are rows over one KV head's keys
    out = functional.scaled_dot_product_attention(rows, k[None], v[None], attn_mask=mask.repeat(group, 1))
    return out[0].unflatten(1, (group, -1)).flatten(0, 1)


def answer_hidden(decoder: Decoder, read: ReadContext, attend: Attend, poll: Callable[[], None]) -> torch.Tensor:
    """What the head multiplies with where the answers are foreseen, float32 [answers, hidden].

    `poll` runs before each layer and may raise.
    """
    *_, x = layer_outputs(decoder, read, attend, poll)
    return at_answers(decoder, read, x)


def at_answers(decoder: Decoder, read: ReadContext, x: torch.Tensor) -> torch.Tensor:
    """The last layer's output [tail, hidden], normed, where the answers are foreseen: float32 [answers, hidden]."""
    return rms_norm(x[list(read.sample.answers)], decoder.norm, decoder.config.norm_eps)


def layer_outputs(
    decoder: Decoder,
    read: ReadContext,
    attend: Attend,
    poll: Callable[[], None],
    first: int = 0,
    x: torch.Tensor | None = None,
) -> Iterator[torch.Tensor]:
    """What comes out of each layer from `first` on, float32 [tail, hidden]; `x` goes into it, by default the tokens."""
    sample = read.sample
    angles = decoder.rope.angles(read.start, read.start + len(sample.tail))
    if x is None:
        x = decoder.embed[torch.tensor(sample.tail, device=decoder.embed.device)].float()

    def one(x: torch.Tensor, index: int, layer: LayerWeights) -> torch.Tensor:
        normed = rms_norm(x, layer.attn_norm, decoder.config.norm_eps)
        q, k, v = (part.float().transpose(0, 1) for part in decoder.qkv(layer, normed, angles))
        keys, values = torch.cat((read.keys[index].float(), k), 1), torch.cat((read.values[index].float(), v), 1)
        out = attend(index, q, keys, values).transpose(0, 1).flatten(1)
        x = x + linear(out, layer.o).float()
        gate, up = linear(rms_norm(x, layer.ffn_norm, decoder.config.norm_eps), layer.gate_up).chunk(2, dim=-1)
        return x + linear(functional.silu(gate) * up, layer.down).float()

    for index in range(first, len(decoder.layers)):
        poll()
        layer = decoder.layers[index]
        if torch.is_grad_enabled():
            made = checkpoint(one, x, index, layer, use_reentrant=False)
        else:
            made = one(x, index, layer)
        x = cast(torch.Tensor, made)  # checkpoint's result has no type
        yield x
