"""Stored KV pages into their places in many tensors: in torch one copy for each tensor, by Triton one launch."""

from kernels.place_pages.reference import PageRows, place_pages

__all__ = ["PageRows", "place_pages"]
