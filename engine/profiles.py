"""The profile in force, and how a model's KV divides the memory that it leaves.

Which profile a machine gets is decided in engine.profile_rules, from what engine.machine finds.
"""

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import psutil
import torch

from engine.cache import PAGE
from engine.config import EngineConfig, ModelConfig
from engine.fit import check_weights, weight_bytes, weights_for, workspace_bytes, workspace_bytes_per_token
from engine.kv_memory import (
    EXACT_DTYPES,
    SCORERS,
    bytes_per_token,
    demoted_formats,
)
from engine.machine import look
from engine.patterns import Scorer, streaming_heads
from engine.profile_rules import Profile, choose_profile
from engine.two_pools import HeadSplit
from kernels import card, cpu_jit

_CHUNK_FLOPS = 4e9  # work of one layer's matrices on one chunk: some 50 ms on two slow cores
_LARGEST_CHUNK = 512
_CARD_CHUNK_FLOPS = 1.2e14  # work of all matrices on one chunk: some 0.2 s at 600 TFLOP/s
_LARGEST_CARD_CHUNK = 8192
_MEMORY_SHARE = 0.5  # of the host's free memory, for the KV cache; of a card's what weights and workspaces leave
_CAPACITY_CONTEXTS = 4
_EXACT_SHARE = 4  # packed formats: one exact page for so many packed ones
_CARD_EXACT_SHARE = 64  # the same on a card, whose memory is for one long context rather than for many short ones
_DEMOTED_SHARE = 3  # at most so many demoted pages for one in full format
_WINDOWS = 4  # two-pool cache: whole windows that streaming heads can keep, of live sequences and of earlier states
SPARE_PAGES = 16  # for the copied last pages of checkpoints


def profile_of(config: EngineConfig) -> Profile:
    """The profile that this machine gets under `config`. ValueError for what it asks and cannot be."""
    return choose_profile(
        look(config.device),
        config.profile,
        config.device,
        kv_format=config.kv_format,
        weights=config.decode_weights,
        threads=config.threads,
    )


def put_in_force(profile: Profile) -> None:
    """Threads; on a card its memory limit, and the card that kernels are configured for. They hold for the process."""
    torch.set_num_threads(profile.threads)
    cpu_jit.set_threads(profile.threads)
    if profile.device != "cpu":
        card.emulate(profile.capability if profile.emulated else None)
        total = torch.cuda.get_device_properties(profile.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, profile.memory_limit / total), profile.device)


def cpu_kernels() -> tuple[bool, str]:
    """Whether decode on the CPU runs compiled kernels, and by what or why not."""
    reason = cpu_jit.unavailable_reason()
    return not reason, reason or f"numba {version('numba')} compiles decode for the CPU"


def keep_compiled_kernels(folder: Path) -> None:
    """Keep compiled kernels in `folder`: Triton's unless TRITON_CACHE_DIR says where, numba's if they cannot be kept
    beside their source. Call before an engine is loaded."""
    cpu_jit.keep_compiled(folder)
    os.environ.setdefault("TRITON_CACHE_DIR", str(folder / "triton"))


def prefill_chunk_tokens(model: ModelConfig, device: str = "cpu", largest: int | None = None) -> int:
    """A power of two, so small that Stop waits well under 300 ms: on a CPU for a layer of one chunk, from 32 to 512
    tokens; on a card, where all layers of a chunk are under way at once, for the whole of it, from 256 to 8192.
    `largest`: tokens at most, as the profile says."""
    d = model.head_dim
    matrices = model.hidden_size * (d * 2 * (model.heads + model.kv_heads) + 3 * model.ffn_size)
    if torch.device(device).type == "cpu":
        return max(32, min(largest or _LARGEST_CHUNK, 2 ** int(math.log2(_CHUNK_FLOPS / (2 * matrices)))))
    work = 2 * matrices * model.layers
    return max(256, min(largest or _LARGEST_CARD_CHUNK, 2 ** int(math.log2(_CARD_CHUNK_FLOPS / work))))


def exact_pages(pages: int, chunk: int, device: str = "cpu") -> int:
    """Packed formats: pages that are not packed (yet), beside `pages` packed ones."""
    return chunk // PAGE + 2 * SPARE_PAGES + pages // _exact_share(device)


def _exact_share(device: str) -> int:
    return _EXACT_SHARE if torch.device(device).type == "cpu" else _CARD_EXACT_SHARE


def capacity_tokens(
    config: EngineConfig,
    model: ModelConfig,
    context: int,
    device: str,
    scorers: Sequence[Scorer] = SCORERS,
    free: int | None = None,
) -> int:
    """Tokens of KV to make room for: several conversations of full length, if the memory holds them: half of what the
    host has free, on a card all that is free but for the workspaces of a conversation of full length. `free`: bytes, in
    place of those that are free now."""
    if config.kv_capacity_tokens is not None:
        return config.kv_capacity_tokens
    split, chunk = head_split(config), config.prefill_chunk or prefill_chunk_tokens(model, device)
    heads = split.heads(False) if split else None
    token = bytes_per_token(model, config.kv_format, scorers, heads, wide=config.wide_key_layers)
    budget = _kv_budget(config, model, device, chunk, free)
    if config.kv_format not in EXACT_DTYPES:
        exact = bytes_per_token(model, "bf16", scorers, heads)
        budget -= PAGE * (SPARE_PAGES * token + exact_pages(SPARE_PAGES, chunk, device) * exact)
        token += -(-exact // _exact_share(device))
    work = _workspace(model, device)
    if budget - work * context >= token * context:
        return max(PAGE, min(_CAPACITY_CONTEXTS * context, (budget - work * context) // token))
    return max(PAGE, min(context, budget // (token + work)))


def _kv_budget(config: EngineConfig, model: ModelConfig, device: str, chunk: int, free: int | None) -> int:
    """Bytes for KV and for what grows with it."""
    free = free_memory(device) if free is None else free
    if torch.device(device).type == "cpu":
        return int(free * _MEMORY_SHARE) - _window_bytes(config, model, chunk)
    return free - workspace_bytes(model, chunk) - _window_bytes(config, model, chunk)


def _workspace(model: ModelConfig, device: str) -> int:
    """Bytes for each token of the longest context, beside its KV."""
    return 0 if torch.device(device).type == "cpu" else workspace_bytes_per_token(model)


def head_split(config: EngineConfig) -> HeadSplit | None:
    """Which KV heads keep everything and which only a window; None if all keep everything. ValueError for impossible
    gates."""
    if config.gates is None or not config.sparsity.compact:
        return None
    return HeadSplit(
        streaming_heads(torch.tensor(config.gates), config.sparsity.streaming_ratio), config.sparsity.local
    )


def _window_pages(split: HeadSplit, chunk: int) -> int:
    return _WINDOWS * split.window_pages(chunk) + SPARE_PAGES


def _window_bytes(config: EngineConfig, model: ModelConfig, chunk: int) -> int:
    """Memory for the windows of streaming heads."""
    split = head_split(config)
    if split is None:
        return 0
    exact = config.kv_format if config.kv_format in EXACT_DTYPES else "bf16"
    return _window_pages(split, chunk) * PAGE * bytes_per_token(model, exact, (), split.heads(True))


@dataclass(frozen=True, slots=True)
class KvSizes:
    """`tokens`: of KV that fit in; in KV pages, `pages` of the format, `exact` unpacked and `cold` demoted ones, and
    `window` ones of streaming heads, if they have a pool of their own."""

    tokens: int
    pages: int
    exact: int
    cold: int
    window: int


def kv_sizes(
    config: EngineConfig,
    model: ModelConfig,
    context: int,
    device: str,
    scorers: Sequence[Scorer] = SCORERS,
    free: int | None = None,
) -> KvSizes:
    """How to divide the memory. There are pages for demoted values only where the context does not fit without them; on
    a card only if that context was asked for, as choosing pages to demote keeps decode steps out of graphs.

    Then, of the same memory, so much goes to them that the context fits, as far as a quarter of all pages can keep the
    full format. A capacity that was asked for stays as it is, and they come on top, from memory that is left.
    """
    capacity = capacity_tokens(config, model, context, device, scorers, free)
    pages, wanted = -(-capacity // PAGE), -(-context // PAGE)
    chunk, cold, split = config.prefill_chunk or prefill_chunk_tokens(model, device), 0, head_split(config)
    may_demote = torch.device(device).type == "cpu" or config.context is not None
    if wanted > pages and may_demote and demoted_formats(model, config.kv_format):
        heads = split.heads(False) if split else None
        wide = config.wide_key_layers
        token, demoted = (
            bytes_per_token(model, config.kv_format, scorers, heads, cold, wide) for cold in (False, True)
        )
        exact = bytes_per_token(model, "bf16", scorers, heads)
        if config.kv_capacity_tokens is None:
            work = _workspace(model, device)
            token, demoted = token + -(-exact // _exact_share(device)) + work, demoted + work
            most = int(_DEMOTED_SHARE * pages * demoted / (token + _DEMOTED_SHARE * demoted))
            given = min(most, -(-(wanted - pages) * demoted // (token - demoted)))
            if pages - given > chunk // PAGE:  # a chunk is packed at once
                pages, cold = pages - given, given * token // demoted
        elif pages + SPARE_PAGES > chunk // PAGE:
            held = PAGE * ((pages + SPARE_PAGES) * token + exact_pages(pages + SPARE_PAGES, chunk, device) * exact)
            work = _workspace(model, device)
            left = _kv_budget(config, model, device, chunk, free) - held - PAGE * pages * work
            cold = max(0, left // (PAGE * (demoted + work)))
        cold = min(cold, wanted - pages, _DEMOTED_SHARE * pages)
    tokens = capacity if not cold else (pages + cold) * PAGE
    window = _window_pages(split, chunk) if split else 0
    return KvSizes(tokens, pages + SPARE_PAGES, exact_pages(pages + SPARE_PAGES, chunk, device), cold, window)


def estimated_context(config: EngineConfig, profile: Profile, model: ModelConfig, scorers: Sequence[Scorer]) -> int:
    """Tokens of prompt and answer that would fit, were the model loaded now; an estimate from its shapes alone, at most
    the context that it has. DoesNotFitError if its weights do not fit."""
    context = config.context or model.native_context
    chunk = config.prefill_chunk or prefill_chunk_tokens(model, profile.device, profile.largest_chunk)
    config = replace(config, prefill_chunk=chunk)
    token = bytes_per_token(model, config.kv_format, scorers, wide=config.wide_key_layers)
    weights = profile.weights
    if profile.device != "cpu" and config.decode_weights == "auto":
        weights = weights_for(model, weights, profile.memory_limit)[0]
    check_weights(model, weights, profile.memory_limit, f"profile {profile.name} here", token, chunk)
    left = profile.memory_limit - weight_bytes(model, weights)
    return min(context, kv_sizes(config, model, context, profile.device, scorers, left).tokens)


def free_memory(device: str) -> int:
    """Bytes that could still be allocated; on a card within the limit that `put_in_force` has set."""
    if torch.device(device).type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        reserved, used = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
        limit = int(torch.cuda.get_per_process_memory_fraction(device) * total)
        return max(0, min(free, limit - reserved) + reserved - used)
    return psutil.virtual_memory().available


def peak_memory_bytes() -> int:
    """The most memory that this process has held so far."""
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset
    import resource  # not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
