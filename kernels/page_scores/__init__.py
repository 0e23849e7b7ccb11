"""How much a query block may want each KV page, judged by summaries of the page's keys."""

import torch

from kernels import cpu_jit, triton_jit
from kernels.page_scores import reference

__all__ = ["coarse_scores", "coarse_shares", "mean_std_scores", "min_max_scores"]

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


def coarse_scores(
    q: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor, factor: float
) -> torch.Tensor:
    """q float32 [kv_heads, blocks, rows, d], coarse keys (`kernels.kv_codec.coarse_keys`) of [kv_heads, pages] ->
    float32 scores of KV pages [kv_heads, blocks, pages].

    The logarithm of the weight that a row's softmax would give a page, were its keys the coarse ones: logsumexp over
    the page's tokens of factor * q . key. The largest over all rows counts.
    """
    if codes.shape[1] == 0:
        return q.new_empty(*q.shape[:2], 0)
    if q.shape[2] <= _FEW_ROWS and q.device.type == "cpu" and cpu_jit.available():
        from kernels.page_scores import cpu_coarse

        return cpu_coarse.coarse_scores(q.contiguous(), codes, scale, minimum, factor)
    return reference.coarse_scores(q, codes, scale, minimum, factor)


def coarse_shares(
    q: torch.Tensor,
    codes: torch.Tensor,
    scale: torch.Tensor,
    minimum: torch.Tensor,
    pages: torch.Tensor,
    allowed: torch.Tensor,
    factor: float,
) -> torch.Tensor:
    """q and coarse keys as for `coarse_scores`; pages int64 [kv_heads, blocks, listed], each at most once a list;
    allowed bool [blocks, pages] -> float32 [kv_heads, blocks, listed].

    The logarithm of the largest share of a row's softmax that a page would draw, were the keys the coarse ones and
    the row to attend to the listed pages that are allowed. -inf for the others; a page whose weights are no numbers
    gets infinity and takes nothing from the rest.
    """
    if _on_card(q, codes) and pages.shape[2]:
        from kernels.page_scores import triton_coarse_blocks

        return triton_coarse_blocks.coarse_shares(q, codes, scale, minimum, pages, allowed, factor)
    return reference.coarse_shares(q, codes, scale, minimum, pages, allowed, factor)


def _on_card(q: torch.Tensor, summary: torch.Tensor) -> bool:
    return triton_jit.available(q.device) and summary.shape[1] > 0


def _largest(q0: torch.Tensor, q1: torch.Tensor, summary0: torch.Tensor, summary1: torch.Tensor) -> torch.Tensor:
    if summary0.shape[1] == 0:  # nothing is complete yet
        return q0.new_empty(*q0.shape[:2], 0)
    if q0.shape[2] <= _FEW_ROWS and q0.device.type == "cpu" and summary0.dtype == torch.float16 and cpu_jit.available():
        from kernels.page_scores import cpu

        return cpu.largest(q0.contiguous(), q1.contiguous(), summary0, summary1)
    return reference.largest(q0, q1, summary0, summary1)
