"""The card that kernels are configured for: the one there is, or a smaller one that it stands in for."""

from functools import lru_cache

import torch

_emulated: tuple[int, int] | None = None
_overlap = True  # a step of an 8B model at 8k on an H200: 2.82 ms without, 2.68 with


def emulate(capability: tuple[int, int] | None) -> None:
    """From now on, in this process, choose configurations as for cards of this compute capability; None: as they are.

    Kernels that were launched before, and graphs that were recorded, stay as they are.
    """
    global _emulated
    _emulated = capability


def let_kernels_overlap(wanted: bool) -> None:
    """Whether kernels launched or recorded from now on, in this process, may start before the one ahead has ended."""
    global _overlap
    _overlap = wanted


def overlap_is_wanted() -> bool:
    return _overlap


def capability(device: torch.device) -> tuple[int, int]:
    """The compute capability (major, minor) to configure kernels for; (0, 0) for a CPU."""
    if device.type != "cuda":
        return 0, 0
    return _emulated or _own(device)


@lru_cache
def _own(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)
