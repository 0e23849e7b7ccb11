"""Choosing the KV pages with the highest scores."""

from kernels.page_selection.reference import select_pages

__all__ = ["select_pages"]
