"""transformers on the same shape: random bf16 weights, SDPA, its own dynamic KV cache, no compilation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from engine.config import ModelConfig

_STEPS = 16
_STEADY = 1.3  # a prompt n times as long takes up to n * n times as long, and something on top


@dataclass(frozen=True, slots=True)
class PeerRow:
    """One length; `note` says why there are no figures, or "". peak_gib: of everything on the card."""

    length: int
    ttft_s: float | None = None
    tpot_ms: float | None = None
    peak_gib: float | None = None
    note: str = ""


def is_installed() -> bool:
    return find_spec("transformers") is not None


def make_model(shape: ModelConfig, device: torch.device) -> Any:
    """A causal LM of `shape` with random weights, made on the device."""
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

    make: Any = Qwen3Config if shape.family == "qwen3" else LlamaConfig
    config = make(
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.ffn_size,
        vocab_size=shape.vocab_size,
        max_position_embeddings=shape.native_context,
        tie_word_embeddings=shape.tied_embeddings,
        bos_token_id=None,
        eos_token_id=None,
    )
    with device:
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa").eval()


def measure_transformers(
    shape: ModelConfig,
    lengths: tuple[int, ...],
    seconds: float,
    progress: Callable[[str], None],
    device: torch.device,
) -> Iterator[PeerRow]:
    """Lengths in turn, `seconds` in all: one that would take longer than what is left is not begun, and said so."""
    until, on_card = time.monotonic() + seconds, device.type == "cuda"
    progress("transformers: making random weights")
    model = make_model(shape, device)
    _read(model, 1024, device)  # libraries make their workspaces
    before: tuple[int, float] | None = None  # the last length and its seconds
    for length in sorted(lengths):
        left = until - time.monotonic()
        expected = 0.0 if before is None else _STEADY * before[1] * (length / before[0]) ** 2
        if expected > left or left < 1:
            yield PeerRow(length, note=f"not run: {left:.0f} s left, some {expected:.0f} s needed")
            continue
        progress(f"transformers: {length} tokens")
        if on_card:
            torch.cuda.reset_peak_memory_stats()
        try:
            ttft, tpot = _read(model, length, device)
        except torch.cuda.OutOfMemoryError:
            yield PeerRow(length, note="not enough memory")
        else:
            before = length, ttft
            peak = torch.cuda.max_memory_allocated() / 2**30 if on_card else None
            yield PeerRow(length, ttft, tpot, peak)
        torch.cuda.empty_cache()


@torch.inference_mode()
def _read(model: Any, length: int, device: torch.device) -> tuple[float, float]:
    """(seconds to the first token, milliseconds for each of the next), host included."""
    from transformers import DynamicCache

    made = torch.Generator().manual_seed(2)
    ids = torch.randint(0, model.config.vocab_size, (1, length), generator=made).to(device)
    cache = DynamicCache(config=model.config)
    started = time.perf_counter()
    token = _next(model, ids, cache)
    first = time.perf_counter()
    for _ in range(_STEPS):
        token = _next(model, token, cache)
    return first - started, 1000 * (time.perf_counter() - first) / _STEPS


def _next(model: Any, ids: torch.Tensor, cache: Any) -> torch.Tensor:
    token = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1:].argmax(-1)
    token.tolist()  # somebody reads it
    return token
