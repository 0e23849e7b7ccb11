"""Matrix products with dense or packed weights."""

from kernels.linear.reference import (
    INT4_GROUPS,
    DenseWeight,
    Int4Weight,
    Int8Weight,
    Weight,
    activation_dtype,
    int4_is_available,
    int8_is_available,
    linear,
    pack_int4,
    pack_int8,
)

__all__ = [
    "INT4_GROUPS",
    "DenseWeight",
    "Int4Weight",
    "Int8Weight",
    "Weight",
    "activation_dtype",
    "int4_is_available",
    "int8_is_available",
    "linear",
    "pack_int4",
    "pack_int8",
]
