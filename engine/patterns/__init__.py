"""The pattern language: which KV pages each query block attends to. Kernels execute the lists that it makes."""

from engine.patterns.combine import PerHead, PerLayer
from engine.patterns.context import BlockContext, QueryBlocks, decode_queries, sample_queries, tail_start
from engine.patterns.errors import PatternError
from engine.patterns.measure import Kept, kept_attention
from engine.patterns.pattern import Pattern, Union
from engine.patterns.policy import AttentionPolicy, Sparsity, streaming_heads
from engine.patterns.registry import named_pattern, pattern_names, register, unregister
from engine.patterns.scorer import AccumulatedMass, CoarseKeys, MeanStd, MinMax, Scorer, resolve_scorer, summary_layout
from engine.patterns.static import Dense, DenseUpTo, GlobalTokens, QuestionTail, Sinks, SlidingWindow, Streaming
from engine.patterns.top_pages import TopPages

__all__ = [
    "AccumulatedMass",
    "AttentionPolicy",
    "BlockContext",
    "CoarseKeys",
    "Dense",
    "DenseUpTo",
    "GlobalTokens",
    "Kept",
    "MeanStd",
    "MinMax",
    "Pattern",
    "PatternError",
    "PerHead",
    "PerLayer",
    "QueryBlocks",
    "QuestionTail",
    "Scorer",
    "Sinks",
    "SlidingWindow",
    "Sparsity",
    "Streaming",
    "TopPages",
    "Union",
    "decode_queries",
    "kept_attention",
    "named_pattern",
    "pattern_names",
    "register",
    "resolve_scorer",
    "sample_queries",
    "streaming_heads",
    "summary_layout",
    "tail_start",
    "unregister",
]
