"""Choosing the next token from logits."""

from kernels.sample.reference import filter_logits, penalize, sample

__all__ = ["filter_logits", "penalize", "sample"]
