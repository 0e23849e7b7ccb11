"""How much a query block may want each KV page, judged by summaries of the page's keys."""

from kernels.page_scores.reference import mean_std_scores, min_max_scores

__all__ = ["mean_std_scores", "min_max_scores"]
