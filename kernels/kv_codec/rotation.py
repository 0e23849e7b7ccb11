"""The rotation that values are stored in: it spreads a single large entry over its whole group before quantization."""

from functools import lru_cache

import torch


@lru_cache
def _hadamard_matrix(size: int, device: torch.device) -> torch.Tensor:
    """Orthonormal and symmetric, [size, size] float32; size is a power of two."""
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return (matrix / size**0.5).to(device)


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """Rotate [..., d] in blocks of the largest power of two that divides d -> float32. Twice is the identity."""
    d = x.shape[-1]
    block = d & -d
    matrix = _hadamard_matrix(block, x.device)
    return (x.float().unflatten(-1, (d // block, block)) @ matrix).flatten(-2)
