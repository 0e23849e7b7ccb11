"""How much a query block may want each KV page, judged by summaries of the page's keys."""

import torch

from kernels import cpu_jit, triton_jit
from kernels.page_scores import reference

__all__ = ["mean_std_scores", "min_max_scores"]

_FEW_ROWS = 8  # a decode step; not counted over query blocks, so that their number does not change last bits


def mean_std_scores(q: torch.Tensor, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """q float32 [kv_heads, blocks, rows, d], mean and std [kv_heads, pages, logical, d] -> float32 scores of KV pages
    [kv_heads, blocks, pages].

    Score of a logical page: sum over d of q * mean + |q| * std. A KV page has the largest of its logical pages' scores
    over all rows. Rows are the query heads of the KV head, for as many query positions as are sampled.
    """
    if _on_card(q, mean):
        from kernels.page_scores import triton_blocks

        return triton_blocks.largest(q, mean, std, "mean_std")
    return _largest(q, q.abs(), mean, std)


def min_max_scores(q: torch.Tensor, minimum: torch.Tensor, maximum: torch.Tensor) -> torch.Tensor:
    """As `mean_std_scores`, with the upper bound of q times any key: sum over d of max(q * minimum, q * maximum)."""
    if _on_card(q, minimum):
        from kernels.page_scores import triton_blocks

        return triton_blocks.largest(q, minimum, maximum, "min_max")
    return _largest(q.clamp(max=0), q.clamp(min=0), minimum, maximum)


def _on_card(q: torch.Tensor, summary: torch.Tensor) -> bool:
    return triton_jit.available(q.device) and summary.shape[1] > 0


def _largest(q0: torch.Tensor, q1: torch.Tensor, summary0: torch.Tensor, summary1: torch.Tensor) -> torch.Tensor:
    if summary0.shape[1] == 0:  # nothing is complete yet
        return q0.new_empty(*q0.shape[:2], 0)
    if q0.shape[2] <= _FEW_ROWS and q0.device.type == "cpu" and summary0.dtype == torch.float16 and cpu_jit.available():
        from kernels.page_scores import cpu

        return cpu.largest(q0.contiguous(), q1.contiguous(), summary0, summary1)
    return reference.largest(q0, q1, summary0, summary1)
