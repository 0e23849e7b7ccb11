"""Attention of a chunk of new tokens to the past and to themselves."""

from kernels.prefill_attention.reference import prefill_attention

__all__ = ["prefill_attention"]
