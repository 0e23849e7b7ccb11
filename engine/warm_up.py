"""Compiling all that numba compiles before the first question: it is deaf to Stop, so it must not happen during one."""

from itertools import product

import torch

from engine.cache import KvCache, Sequence
from engine.decode import decode_token
from engine.model import Decoder
from engine.patterns import BlockContext, CoarseKeys, MeanStd, QueryBlocks, TopPages, summary_layout
from kernels.block_index import PAGE

_PAGES = (16, 2048)  # page scores are computed by one thread for few pages and by all for many


@torch.inference_mode()
def compile_kernels(decoder: Decoder, kv_format: str) -> None:
    """One dense decode step, and the selection of pages for a short and a long sequence."""
    cache, sequence = KvCache(decoder.config, kv_format, 1, 1), Sequence()
    cache.prepare(sequence, 1)
    decode_token(decoder, cache, sequence, 0, lambda: None)
    model = decoder.config
    queries = torch.zeros(model.kv_heads, 1, model.heads // model.kv_heads, model.head_dim)
    for scorer, pages in product((CoarseKeys(), MeanStd()), _PAGES):
        summary = tuple(
            torch.zeros(model.kv_heads, pages, *shape, dtype=dtype)
            for shape, dtype in summary_layout(scorer, model.head_dim)
        )
        blocks = QueryBlocks.decode(pages * PAGE)
        TopPages(8 * PAGE, score=scorer).index(
            BlockContext(blocks, model.kv_heads, queries=queries, summaries={scorer.summary: summary})
        )
