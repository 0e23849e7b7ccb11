"""Products with 4-bit weights on the CPU: groups of 32 as files store them, activations rounded to 16 bits.

Weights stay as exact as in the file: scales and minima are kept in 16 bits, relative to the largest of their row. The
inner products are whole numbers, as in llama.cpp's kernels for such files, but with 16-bit activations in place of 8.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from kernels.cpu_jit import parallel_lock

GROUP = 32


@dataclass(frozen=True)
class NibbleWeight:
    """weight [out, in] = code * (scales * steps[:, 0]) + minimums * steps[:, 1], in groups of 32 along `in`.

    codes uint8 [out, in / 2]: byte n of a group's 16 holds entries n (low half) and n + 16. scales and minimums int16
    [out, in / 32], steps float32 [out, 2].
    """

    codes: torch.Tensor
    scales: torch.Tensor
    minimums: torch.Tensor
    steps: torch.Tensor
    bias: torch.Tensor | None = None

    @cached_property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """The same memory for the compiled kernel. Made once, not for each token."""
        return self.codes.numpy(), self.scales.numpy(), self.minimums.numpy(), self.steps.numpy()


def pack_nibbles(
    codes: torch.Tensor, scales: torch.Tensor, minimums: torch.Tensor, group: int, bias: torch.Tensor | None = None
) -> NibbleWeight:
    """codes [out, in] from 0 to 15; scales and minimums [out, in / group]: weight = code * scale + minimum."""
    if group % GROUP or codes.shape[1] % GROUP:
        raise ValueError(f"group: got {group} for rows of {codes.shape[1]}, need multiples of {GROUP}")
    low, high = codes.to(torch.uint8).unflatten(1, (-1, 2, GROUP // 2)).unbind(2)
    rounded = []
    for values in (scales, minimums):
        whole = values.float().repeat_interleave(group // GROUP, 1)
        step = (whole.abs().amax(1, keepdim=True) / 32767).clamp_min(1e-30)
        rounded.append(((whole / step).round_().to(torch.int16), step))
    (s, scale_step), (m, minimum_step) = rounded
    return NibbleWeight((low | high << 4).flatten(1), s, m, torch.cat((scale_step, minimum_step), 1), bias)


def nibble_linear(x: torch.Tensor, w: NibbleWeight) -> torch.Tensor:
    """x float32 [t, in] -> float32 [t, out], without the bias."""
    from kernels.linear import nibbles_cpu

    out = torch.empty(x.shape[0], w.codes.shape[0])
    with parallel_lock:
        nibbles_cpu.product(x.contiguous().numpy(), *w.arrays, out.numpy())
    return out
