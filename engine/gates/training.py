"""Gates by training, as in DuoAttention: one number for each KV head, all weights frozen.

    attention = gate * full + (1 - gate) * streaming
    loss = mean squared difference of the last hidden states from those of the full model, where answers are foreseen
           + 0.05 * mean |gate|

A gate that the answers need stays near 1, the others are pulled to 0. Gates mix in a sample's tail only; its context is
read densely, as the engine reads prompts (streaming heads read 8192 tokens there).
"""

import random
import threading
from collections.abc import Callable, Iterator, Sequence

import torch

from engine.gates.sample import Progress, ReadContext, Sample, bytes_of, poll_of, read_context
from engine.gates.tail import Heads, TailMasks, answer_hidden
from engine.model import Decoder
from engine.patterns.policy import RECENT, SINK

LEARNING_RATE = 0.02
SHRINK = 0.05  # weight of mean |gate|
RAMP = 5  # the learning rate rises over the first, and falls over the last, of so many parts of all steps
LOWEST_RATE = 0.1
KEPT_BYTES = 1 << 30  # of contexts that have been read


def train_gates(
    decoder: Decoder,
    samples: Sequence[Sample],
    *,
    steps: int,
    seed: int = 0,
    sink: int = SINK,
    recent: int = RECENT,
    progress: Progress = lambda what, share: None,
    cancel: threading.Event | None = None,
) -> torch.Tensor:
    """Gates float32 [layers, kv_heads] after `steps` samples, drawn from `samples` in an order that `seed` decides.

    The same arguments give the same gates, bit for bit, with the same number of threads. `sink`, `recent`: tokens that
    a streaming head reads. Raises ValueError, and Cancelled within a layer's time after `cancel` is set.
    """
    if steps < 1 or not samples:
        raise ValueError(f"steps: got {steps} over {len(samples)} samples, need at least 1 of each")
    config = decoder.config
    poll, group = poll_of(cancel), config.heads // config.kv_heads
    gates = torch.ones(config.layers, config.kv_heads, device=decoder.embed.device, requires_grad=True)
    optimizer = torch.optim.AdamW([gates], lr=LEARNING_RATE, weight_decay=0.0)
    for step, (read, wanted) in enumerate(_lessons(decoder, samples, steps, seed, progress, poll)):
        masks = TailMasks(read.start, len(read.sample.tail), sink, recent, gates.device)

        def mixed(layer: int, q: Heads, k: Heads, v: Heads, masks: TailMasks = masks) -> Heads:
            gate = gates[layer].repeat_interleave(group)[:, None, None]
            return torch.lerp(masks.stream(q, k, v), masks.full(q, k, v), gate)

        got = answer_hidden(decoder, read, mixed, poll)
        loss = (got - wanted).square().mean() + SHRINK * gates.abs().mean()
        optimizer.zero_grad()
        loss.backward()
        for group_of_parameters in optimizer.param_groups:
            group_of_parameters["lr"] = LEARNING_RATE * rate(step, steps)
        optimizer.step()
        with torch.no_grad():
            gates.clamp_(0, 1)
        progress("training", (step + 1) / steps)
    return gates.detach()


def rate(step: int, steps: int) -> float:
    """The share of the learning rate at a step from 0 on: up, level, down, never below a tenth."""
    ramp = max(1, steps // RAMP)
    return max(LOWEST_RATE, min(1.0, (step + 1) / ramp, (steps - step) / ramp))


Lesson = tuple[ReadContext, torch.Tensor]


def _lessons(
    decoder: Decoder, samples: Sequence[Sample], steps: int, seed: int, progress: Progress, poll: Callable[[], None]
) -> Iterator[Lesson]:
    """For each step a context that was read and the full model's hidden states at its answers.

    As many as fit into memory are kept and come again; if not all do, each round over them brings in new ones.
    """
    order, rng = list(range(len(samples))), random.Random(seed)
    kept: dict[int, Lesson] = {}
    size = [bytes_of(decoder, sample) for sample in samples]
    queue: list[int] = []
    for step in range(steps):
        if not queue:
            rng.shuffle(order)
            queue = list(order)
        at = queue.pop()
        if at not in kept:
            progress("reading", step / steps)
            while kept and sum(size[each] for each in (*kept, at)) > KEPT_BYTES:
                del kept[next(iter(kept))]
            kept[at] = _lesson(decoder, samples[at], poll)
        yield kept[at]


@torch.no_grad()
def _lesson(decoder: Decoder, sample: Sample, poll: Callable[[], None]) -> Lesson:
    read = read_context(decoder, sample, poll)
    masks = TailMasks(read.start, len(sample.tail), SINK, RECENT, decoder.embed.device)
    return read, answer_hidden(decoder, read, lambda layer, q, k, v: masks.full(q, k, v), poll)
