"""Weights packed for a card: fp8 per output channel, or 4 bits in groups. They serve prefill and decode alike."""

from collections.abc import Callable
from dataclasses import replace

import torch

from engine.linear import MATRICES
from engine.model import Decoder, LayerWeights
from kernels.linear import DenseWeight, Weight, pack_fp8, pack_int4_groups

INT4_GROUP = 128


def pack_for_card(dense: Decoder, name: str, progress: Callable[[float], None] = lambda share: None) -> Decoder:
    """`dense` with its matrices packed as `name`, "fp8" or "int4"; where 4 bits do not fit a matrix it is fp8."""
    layers = []
    for number, layer in enumerate(dense.layers):
        layers.append(pack_layer(layer, name))
        progress((number + 1) / len(dense.layers))
    return replace(dense, layers=layers, decode_layers=layers, head=pack_head(dense.head))


def pack_layer(layer: LayerWeights, name: str) -> LayerWeights:
    """One layer with its matrices packed."""
    return replace(layer, **{matrix: _pack(getattr(layer, matrix), name) for matrix in MATRICES})


def pack_head(head: Weight) -> Weight:
    """The output matrix, which is never narrower than 8 bits."""
    return _pack(head, "fp8")


def _pack(weight: Weight, name: str) -> Weight:
    if not isinstance(weight, DenseWeight):
        raise TypeError(f"weight: got {type(weight).__name__}, need DenseWeight")
    if name == "int4" and _fits_int4(weight.weight):
        return pack_int4_groups(weight.weight, INT4_GROUP, weight.bias)
    return pack_fp8(weight.weight, weight.bias)


def _fits_int4(weight: torch.Tensor) -> bool:
    """torch's layout needs whole blocks of 8 rows and whole groups of columns."""
    return weight.shape[0] % 8 == 0 and weight.shape[1] % INT4_GROUP == 0
