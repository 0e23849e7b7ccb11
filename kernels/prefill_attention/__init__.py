"""Attention of a chunk of new tokens to the past and to themselves: dense, or to listed KV pages only."""

from kernels.prefill_attention.reference import prefill_attention
from kernels.prefill_attention.sparse import sparse_prefill_attention

__all__ = ["prefill_attention", "sparse_prefill_attention"]
