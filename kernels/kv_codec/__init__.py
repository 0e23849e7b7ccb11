"""Packing KV pages into fewer bits and back, and the summaries that selectors keep of them."""

from kernels.kv_codec.coarse import coarse_keys, logical_statistics
from kernels.kv_codec.formats import FORMATS, PackedFormat, PackedPages, bytes_per_page, empty_pages, layer_format
from kernels.kv_codec.reference import pack_pages, requantize_values, unpack_page_keys, unpack_page_values
from kernels.kv_codec.rotation import hadamard
from kernels.kv_codec.summaries import bounds, summarize

__all__ = [
    "FORMATS",
    "PackedFormat",
    "PackedPages",
    "bounds",
    "bytes_per_page",
    "coarse_keys",
    "empty_pages",
    "hadamard",
    "layer_format",
    "logical_statistics",
    "pack_pages",
    "requantize_values",
    "summarize",
    "unpack_page_keys",
    "unpack_page_values",
]
