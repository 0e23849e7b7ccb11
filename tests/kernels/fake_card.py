"""A card that is not here: launching on it records what Triton would compile, and runs nothing.

Tensors on it have shapes, strides and types but no memory (torch's fake tensors), so that a launcher takes the same
way as on the card itself, at real sizes. Only for processes without TRITON_INTERPRET and without a card of their own.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

MULTIPROCESSORS = {80: 108, 86: 82, 89: 128, 90: 132, 100: 148, 120: 170}
"""Compute capability to multiprocessors of an A100, RTX 3090, RTX 4090, H200, B200 and RTX 5090."""
_INDEX = {capability: index for index, capability in enumerate(MULTIPROCESSORS)}  # a device each: launchers keep facts
_ADDRESS = 1 << 40  # of every allocation: they are aligned


@dataclass(frozen=True, slots=True)
class Launch:
    """What Triton was about to compile for a launch."""

    kernel: str
    capability: int
    source: ASTSource
    options: dict[str, Any]

    @property
    def key(self) -> str:
        """The same for launches that share what is compiled."""
        source = self.source
        return repr((self.kernel, self.capability, source.signature, source.constants, source.attrs, self.options))

    @property
    def descriptors(self) -> int:
        """How many arguments go through the tensor memory accelerator."""
        return sum(str(kind).startswith("tensordesc") for kind in self.source.signature.values())


def launches(capability: int, call: Callable[[torch.device], object]) -> list[Launch]:
    """What `call`, given a card of this compute capability (90 for 9.0), launches on it, in order."""
    recorded: list[Launch] = []

    def record(self: Any, key, signature, device, constexprs, options, attrs, warmup) -> None:
        source = ASTSource(self, signature, constexprs, attrs)
        recorded.append(Launch(f"{self.module}.{self.__name__}", capability, source, dict(options.__dict__)))

    with _card(capability) as device, patch.object(JITFunction, "_do_compile", record), FakeTensorMode():
        call(device)
    return recorded


@contextmanager
def _card(capability: int) -> Iterator[torch.device]:
    """torch and Triton see this card alone. One numbered device for each compute capability."""
    index, (major, minor) = _INDEX[capability], divmod(capability, 10)
    properties = SimpleNamespace(multi_processor_count=MULTIPROCESSORS[capability], major=major, minor=minor)
    seen = SimpleNamespace(
        get_current_device=lambda: index,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: GPUTarget("cuda", capability, 32),
    )
    before = driver._active
    driver.set_active(seen)  # type: ignore[reportArgumentType]
    try:
        with (
            patch.object(torch.cuda, "get_device_capability", lambda device=None: (major, minor)),
            patch.object(torch.cuda, "get_device_properties", lambda device=None: properties),
            patch.object(FakeTensor, "data_ptr", lambda x: _ADDRESS + x.storage_offset() * x.element_size()),
            patch.object(FakeTensor, "__getitem__", _indexed),
        ):
            yield torch.device("cuda", index)
    finally:
        driver._active = before


def _indexed(x: torch.Tensor, at: Any) -> torch.Tensor:
    """x[at] for numbers and slices. torch's own asks for the device, which torch may have been built without."""
    dim = 0
    for one in at if isinstance(at, tuple) else (at,):
        if isinstance(one, slice):
            start, end, step = one.indices(x.shape[dim])
            assert step == 1
            x, dim = x.narrow(dim, start, max(0, end - start)), dim + 1
        else:
            x = x.select(dim, one)
    return x
