"""Attention of one new token to all tokens of its sequence."""

from kernels.decode_attention.reference import SEGMENT, decode_attention, segments_are_independent

__all__ = ["SEGMENT", "decode_attention", "segments_are_independent"]
