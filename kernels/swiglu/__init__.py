"""The gated activation of the feed-forward block."""

from kernels.swiglu.reference import swiglu

__all__ = ["swiglu"]
