"""Rotary position embedding of queries and keys."""

from kernels.rope.reference import rope

__all__ = ["rope"]
