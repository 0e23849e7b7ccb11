"""Counts what must not happen during a question: kernels compiled, kernels put onto the card, CUDA graphs recorded.

Triton's own hooks are used, the same from 3.6 to 3.9. Nothing here uses Triton's autotuner, so it has no counter.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from triton import knobs


@dataclass(slots=True)
class Counts:
    """`compiled`: by Triton; `cached`: found in its folder instead; `loaded`: onto the card, which costs milliseconds
    even where nothing is compiled; `recorded`: CUDA graphs. `names`: of compiled, cached and loaded kernels, in order.
    """

    compiled: int = 0
    cached: int = 0
    loaded: int = 0
    recorded: int = 0
    names: list[str] = field(default_factory=list)

    @property
    def any(self) -> int:
        return self.compiled + self.cached + self.loaded + self.recorded

    def __str__(self) -> str:
        said = f"{self.compiled} compiled, {self.cached} from the cache, {self.loaded} loaded, {self.recorded} recorded"
        return f"{said} ({', '.join(dict.fromkeys(self.names))})" if self.names else said


@contextmanager
def counting() -> Iterator[Counts]:
    """Counts from here to the end of the block, in all threads of the process. May be nested."""
    counts, listener, begin = Counts(), knobs.compilation.listener, torch.cuda.CUDAGraph.capture_begin

    def compiled(*, src: Any, cache_hit: bool, **rest: Any) -> None:
        counts.names.append(src.name)
        if cache_hit:
            counts.cached += 1
        else:
            counts.compiled += 1
        if listener is not None:
            listener(src=src, cache_hit=cache_hit, **rest)

    def loaded(module: object, function: object, name: str, *rest: object) -> None:
        counts.names.append(name)
        counts.loaded += 1

    def recorded(graph: torch.cuda.CUDAGraph, *args: Any, **options: Any) -> None:
        counts.recorded += 1
        begin(graph, *args, **options)

    hook: Callable[..., None] = loaded
    knobs.compilation.listener = compiled  # pyright: ignore[reportAttributeAccessIssue]
    knobs.runtime.kernel_load_end_hook.add(hook)
    torch.cuda.CUDAGraph.capture_begin = recorded  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield counts
    finally:
        torch.cuda.CUDAGraph.capture_begin = begin
        knobs.runtime.kernel_load_end_hook.remove(hook)
        knobs.compilation.listener = listener
