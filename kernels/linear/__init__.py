"""Matrix products with dense or packed weights."""

from kernels.linear.fp8 import Fp8Weight, fp8_product_is_available, pack_fp8
from kernels.linear.gated import gate_up_swiglu
from kernels.linear.int4 import Int4GroupWeight, pack_int4_groups
from kernels.linear.nibbles import NibbleWeight, pack_nibbles
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
    "Fp8Weight",
    "Int4GroupWeight",
    "Int4Weight",
    "Int8Weight",
    "NibbleWeight",
    "Weight",
    "activation_dtype",
    "fp8_product_is_available",
    "gate_up_swiglu",
    "int4_is_available",
    "int8_is_available",
    "linear",
    "pack_fp8",
    "pack_int4",
    "pack_int4_groups",
    "pack_int8",
    "pack_nibbles",
]
