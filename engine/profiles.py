"""What this machine is for the engine: where tensors live, how many threads, how much memory, and why.

So far there is one profile, `cpu`. A CUDA device can be named explicitly and runs the same torch code, untuned.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import psutil
import torch

from engine.cache import PAGE
from engine.config import EngineConfig, ModelConfig
from engine.kv_memory import (
    EXACT_DTYPES,
    SCORERS,
    bytes_per_token,
    demoted_formats,
)
from engine.patterns import Scorer, streaming_heads
from engine.two_pools import HeadSplit
from kernels import cpu_jit

_CHUNK_FLOPS = 4e9  # work of one layer's matrices on one chunk: some 50 ms on two slow cores
_LARGEST_CHUNK = 512
_CARD_CHUNK_FLOPS = 1.2e14  # work of all matrices on one chunk: some 0.2 s at 600 TFLOP/s
_LARGEST_CARD_CHUNK = 8192
_MEMORY_SHARE = 0.5  # of the free memory, for the KV cache
_CAPACITY_CONTEXTS = 4
_EXACT_SHARE = 4  # packed formats: one exact page for so many packed ones
_DEMOTED_SHARE = 3  # at most so many demoted pages for one in full format
_WINDOWS = 4  # two-pool cache: whole windows that streaming heads can keep, of live sequences and of earlier states
SPARE_PAGES = 16  # for the copied last pages of checkpoints


@dataclass(frozen=True, slots=True)
class Profile:
    """`name` and `reason` are shown to people; weights are kept in `dtype`."""

    name: str
    reason: str
    device: str
    dtype: torch.dtype
    threads: int


def choose_profile(config: EngineConfig) -> Profile:
    """The profile for the device that `config` names."""
    threads = config.threads or psutil.cpu_count(logical=False) or 1
    device = torch.device(config.device)
    if device.type == "cpu":
        return Profile("cpu", _cpu_reason(), "cpu", torch.float32, threads)
    if device.type == "cuda" and torch.cuda.is_available():
        name = torch.cuda.get_device_name(device)
        return Profile(
            "cuda",
            f"asked for; {name} runs the torch path, without tuned kernels",
            config.device,
            torch.bfloat16,
            threads,
        )
    raise ValueError(f"device: got {config.device!r}, need cpu or a CUDA device that torch can use here")


def _cpu_reason() -> str:
    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()} is there, but this version computes on the CPU"
    if torch.version.cuda is None:
        return "this PyTorch is built for CPUs"
    return "no CUDA device was found"


def cpu_kernels() -> tuple[bool, str]:
    """Whether decode on the CPU runs compiled kernels, and by what or why not."""
    reason = cpu_jit.unavailable_reason()
    return not reason, reason or f"numba {version('numba')} compiles decode for the CPU"


def keep_compiled_kernels(folder: Path) -> None:
    """Keep compiled kernels in `folder` if they cannot be kept beside their source. Call before an engine is loaded."""
    cpu_jit.keep_compiled(folder)


def prefill_chunk_tokens(model: ModelConfig, device: str = "cpu") -> int:
    """A power of two, so small that Stop waits well under 300 ms: on a CPU for a layer of one chunk, from 32 to 512
    tokens; on a card, where all layers of a chunk are under way at once, for the whole of it, from 256 to 8192."""
    d = model.head_dim
    matrices = model.hidden_size * (d * 2 * (model.heads + model.kv_heads) + 3 * model.ffn_size)
    if torch.device(device).type == "cpu":
        return max(32, min(_LARGEST_CHUNK, 2 ** int(math.log2(_CHUNK_FLOPS / (2 * matrices)))))
    work = 2 * matrices * model.layers
    return max(256, min(_LARGEST_CARD_CHUNK, 2 ** int(math.log2(_CARD_CHUNK_FLOPS / work))))


def exact_pages(pages: int, chunk: int) -> int:
    """Packed formats: pages that are not packed (yet), beside `pages` packed ones."""
    return chunk // PAGE + 2 * SPARE_PAGES + pages // _EXACT_SHARE


def capacity_tokens(
    config: EngineConfig, model: ModelConfig, context: int, device: str, scorers: Sequence[Scorer] = SCORERS
) -> int:
    """Tokens of KV to make room for: several conversations of full length, if half of the free memory holds them."""
    if config.kv_capacity_tokens is not None:
        return config.kv_capacity_tokens
    split, chunk = head_split(config), config.prefill_chunk or prefill_chunk_tokens(model, device)
    heads = split.heads(False) if split else None
    token = bytes_per_token(model, config.kv_format, scorers, heads)
    budget = int(free_memory(device) * _MEMORY_SHARE) - _window_bytes(config, model, chunk)
    if config.kv_format not in EXACT_DTYPES:
        exact = bytes_per_token(model, "bf16", scorers, heads)
        budget -= PAGE * (SPARE_PAGES * token + exact_pages(SPARE_PAGES, chunk) * exact)
        token += -(-exact // _EXACT_SHARE)
    return max(PAGE, min(_CAPACITY_CONTEXTS * context, budget // token))


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
    config: EngineConfig, model: ModelConfig, context: int, device: str, scorers: Sequence[Scorer] = SCORERS
) -> KvSizes:
    """How to divide the memory. There are pages for demoted values only where the context does not fit without them.

    Then, of the same memory, so much goes to them that the context fits, as far as a quarter of all pages can keep the
    full format. A capacity that was asked for stays as it is, and they come on top, from memory that is left.
    """
    capacity = capacity_tokens(config, model, context, device, scorers)
    pages, wanted = -(-capacity // PAGE), -(-context // PAGE)
    chunk, cold, split = config.prefill_chunk or prefill_chunk_tokens(model, device), 0, head_split(config)
    if wanted > pages and demoted_formats(model, config.kv_format):
        heads = split.heads(False) if split else None
        token, exact = (bytes_per_token(model, name, scorers, heads) for name in (config.kv_format, "bf16"))
        demoted = bytes_per_token(model, config.kv_format, scorers, heads, demoted=True)
        if config.kv_capacity_tokens is None:
            token += -(-exact // _EXACT_SHARE)
            most = int(_DEMOTED_SHARE * pages * demoted / (token + _DEMOTED_SHARE * demoted))
            given = min(most, -(-(wanted - pages) * demoted // (token - demoted)))
            if pages - given > chunk // PAGE:  # a chunk is packed at once
                pages, cold = pages - given, given * token // demoted
        elif pages + SPARE_PAGES > chunk // PAGE:
            held = PAGE * ((pages + SPARE_PAGES) * token + exact_pages(pages + SPARE_PAGES, chunk) * exact)
            left = int(free_memory(device) * _MEMORY_SHARE) - _window_bytes(config, model, chunk) - held
            cold = max(0, left // (PAGE * demoted))
        cold = min(cold, wanted - pages, _DEMOTED_SHARE * pages)
    tokens = capacity if not cold else (pages + cold) * PAGE
    window = _window_pages(split, chunk) if split else 0
    return KvSizes(tokens, pages + SPARE_PAGES, exact_pages(pages + SPARE_PAGES, chunk), cold, window)


def free_memory(device: str) -> int:
    """Bytes that could still be allocated."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available


def peak_memory_bytes() -> int:
    """The most memory that this process has held so far."""
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset
    import resource  # not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
