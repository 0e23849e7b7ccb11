"""Packing KV pages into fewer bits and back."""

from kernels.kv_codec.reference import (
    PackedKeys,
    PackedValues,
    hadamard,
    pack_keys,
    pack_values,
    unpack_keys,
    unpack_values,
)

__all__ = ["PackedKeys", "PackedValues", "hadamard", "pack_keys", "pack_values", "unpack_keys", "unpack_values"]
