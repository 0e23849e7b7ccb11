"""A KV cache that holds a long text nobody has read: random keys and values, laid out as after a real prefill."""

from __future__ import annotations

from array import array

import torch

from engine.cache import PAGE, PREFILL, KvCache, Sequence
from engine.config import ModelConfig
from engine.kv_memory import SCORERS

_RECENT_PAGES = 3  # packed formats keep so many at the end, and the sink page, exact
_SPARE_PAGES = 8


def make_cache(
    model: ModelConfig,
    kv_format: str,
    tokens: int,
    device: torch.device,
    chunk: int = 0,
    wide: tuple[int, ...] = (),
) -> KvCache:
    """Room for a sequence of `tokens`, and for chunks of `chunk` in packed formats. `wide`: layers with 8-bit keys."""
    pages = -(-tokens // PAGE) + _SPARE_PAGES
    exact = _RECENT_PAGES + 1 + _SPARE_PAGES + chunk // PAGE
    return KvCache(model, kv_format, pages, exact, str(device), SCORERS, wide=wide)


def filled(cache: KvCache, tokens: int) -> Sequence:
    """A sequence of `tokens` (a multiple of 64) with random KV in every page and summaries that fit exact keys."""
    if tokens % PAGE:
        raise ValueError(f"tokens: got {tokens}, need a multiple of {PAGE}")
    made = torch.Generator(device=cache.device).manual_seed(1)
    memory, pages, sequence = cache.memory, tokens // PAGE, Sequence()
    for pool in (memory.keys, memory.values):
        for layer in pool:
            layer.normal_(generator=made)
    for pool, fmt in zip(memory.packed, memory.formats):
        for name, part in zip(pool._fields, pool):
            if fmt.float8 and name.endswith("codes"):
                for head in part:
                    head.copy_(_random_float8(head.shape, made, cache.device))
            elif name.endswith("codes"):
                part.random_(0, 256, generator=made)
            else:
                largest = 3.0 if fmt.float8 else 6.0
                bits = fmt.key_bits if name.startswith("key") else fmt.value_bits
                minimum = 0 if fmt.float8 else -largest / 2
                part.fill_(minimum if name.endswith("minimum") else largest / (448 if fmt.float8 else 2**bits - 1))
    for tensors in memory.summaries.values():
        for number, part in enumerate(tensors):
            if part.dtype == torch.uint8:
                part.random_(0, 256, generator=made)
                continue
            part.normal_(generator=made)
            if number:
                part.abs_()
    if cache.packs:
        middle = pages - _RECENT_PAGES - 1
        table = cache.exact.take(1) + [~page for page in cache.packed.take(middle)] + cache.exact.take(_RECENT_PAGES)
        sequence.table, sequence.packed = table, pages - _RECENT_PAGES
    else:
        sequence.table = cache.exact.take(pages)
    sequence.ids.extend(array("i", [1]) * tokens)
    sequence.made_by.extend(bytes([PREFILL]) * tokens)
    return sequence


def _random_float8(shape: torch.Size, made: torch.Generator, device: torch.device) -> torch.Tensor:
    numbers = torch.empty(shape, device=device, dtype=torch.bfloat16).normal_(0, 100, generator=made)
    return numbers.clamp_(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
