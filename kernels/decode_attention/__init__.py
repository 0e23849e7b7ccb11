"""Attention of one new token to all tokens of its sequence."""

from kernels.decode_attention.reference import decode_attention

__all__ = ["decode_attention"]
