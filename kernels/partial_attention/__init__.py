"""Attention over a part of the keys, and the merge of such parts."""

from kernels.partial_attention.reference import merge_attention, partial_attention

__all__ = ["merge_attention", "partial_attention"]
