"""Which layers lose most when their keys are kept in few bits: judged by what it does to the answers, layer by layer.

A context is read densely once. Then for each layer alone its keys are put through 4 bits and back, page by page, the
tail reads them, and the squared change of the last hidden states where the answers are foreseen is that layer's damage.
"""

import threading
from collections.abc import Sequence

import torch

from engine.gates.sample import Progress, ReadContext, Sample, poll_of, read_context
from engine.gates.tail import Heads, TailMasks, at_answers, layer_outputs
from engine.model import Decoder
from engine.patterns.policy import RECENT, SINK
from kernels.decode_attention import PAGE
from kernels.kv_codec import FORMATS, layer_format, pack_pages, unpack_page_keys

JUDGED_BY = "k4v4"
FIRST_SAMPLES, SHORTEST = 4, 2  # so many of the first ones are judged by, however many there are
REMAINS = 0.005  # of the damage of all layers, at most so much is left where keys stay in few bits


@torch.no_grad()
def key_damage(
    decoder: Decoder,
    samples: Sequence[Sample],
    *,
    progress: Progress = lambda what, share: None,
    cancel: threading.Event | None = None,
) -> torch.Tensor:
    """float64 [layers]: the mean squared change of the hidden states at the answers, added up over the two shortest of
    the first four samples: one costs half a tail for each layer.

    0 for layers whose keys keep 8 bits in any format, and for all where head_dim is no multiple of 8, as no such format
    takes those. ValueError without samples; raises Cancelled within a layer's time after `cancel` is set.
    """
    if not samples:
        raise ValueError("samples: got none, need at least 1")
    layers, poll = decoder.config.layers, poll_of(cancel)
    damage = torch.zeros(layers, dtype=torch.float64)
    chosen = sorted(samples[:FIRST_SAMPLES], key=lambda sample: len(sample.context))[:SHORTEST]
    judged = [layer for layer in range(layers) if layer_format(JUDGED_BY, layer, layers) == FORMATS[JUDGED_BY]]
    if decoder.config.head_dim % 8 or not judged:
        return damage
    for done, sample in enumerate(chosen):
        read = read_context(decoder, sample, poll)
        masks = TailMasks(read.start, len(sample.tail), SINK, RECENT, decoder.embed.device)

        def full(layer: int, q: Heads, k: Heads, v: Heads, masks: TailMasks = masks) -> Heads:
            return masks.full(q, k, v)

        outputs = list(layer_outputs(decoder, read, full, poll))
        wanted = at_answers(decoder, read, outputs[-1])
        for number, layer in enumerate(judged):
            coarse = in_few_bits(read, layer)

            def one(index: int, q: Heads, k: Heads, v: Heads, at: int = layer, coarse: Heads = coarse) -> Heads:
                return full(index, q, torch.cat((coarse, k[:, coarse.shape[1] :]), 1) if index == at else k, v)

            before = outputs[layer - 1]  # the first layers are not judged
            *_, x = layer_outputs(decoder, read, one, poll, layer, before)
            damage[layer] += (at_answers(decoder, read, x) - wanted).double().square().mean().cpu()
            progress("keys", (done + (number + 1) / len(judged)) / len(chosen))
    return damage


def in_few_bits(read: ReadContext, layer: int) -> Heads:
    """The context's keys of a layer as they come back from 4 bits, float32 [kv_heads, context, d]; the sink page and a
    last page that is not complete are exact."""
    keys = read.keys[layer].float()
    whole = keys[:, PAGE : keys.shape[1] // PAGE * PAGE].unflatten(1, (-1, PAGE))
    if whole.shape[1] == 0:
        return keys
    fmt = FORMATS[JUDGED_BY]
    keys[:, PAGE : PAGE + whole.shape[1] * PAGE] = unpack_page_keys(pack_pages(whole, whole, fmt), fmt).flatten(1, 2)
    return keys


def wide_layers(damage: torch.Tensor, remains: float = REMAINS) -> tuple[int, ...]:
    """The fewest layers, worst first and of equals the earlier, without which at most `remains` of the damage is left;
    in ascending order."""
    order = sorted(range(len(damage)), key=lambda layer: (-float(damage[layer]), layer))
    left, allowed = float(damage.sum()), remains * float(damage.sum())
    chosen: list[int] = []
    while order and left > allowed:
        chosen.append(order.pop(0))
        left = float(damage[order].sum())
    return tuple(sorted(chosen))
