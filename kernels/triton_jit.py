"""Whether Triton kernels run on a card: found out once, by running a small one."""

from functools import lru_cache

import torch


def available(device: torch.device) -> bool:
    """Whether tensors on `device` are computed with by Triton kernels."""
    return device.type == "cuda" and not unavailable_reason()


@lru_cache
def unavailable_reason() -> str:
    """Why Triton kernels cannot run on this machine's cards, or "" if they can."""
    if not torch.cuda.is_available():
        return "PyTorch sees no CUDA device"
    try:
        from kernels.triton_probe import probe
    except ImportError as error:
        return f"Triton cannot be imported: {error}"
    try:
        return probe()
    except Exception as error:  # a missing C compiler, driver or ptxas shows in as many ways as there are versions
        return f"Triton cannot compile here: {type(error).__name__}: {error}"
