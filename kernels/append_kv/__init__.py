"""Writing new keys and values into their slots of the paged cache."""

from kernels.append_kv.reference import append_kv

__all__ = ["append_kv"]
