"""From token ids to token ids: model, KV cache, generation. Knows no files of users, no SQL, no user interface."""

from engine import openmp  # before anything imports torch
from engine.chat_template import ChatTemplate
from engine.config import EngineConfig, ModelConfig, RopeScaling, Sampling
from engine.engine import Engine
from engine.errors import (
    ChatTemplateError,
    DoesNotFitError,
    EngineError,
    ModelFileError,
    SnapshotMismatchError,
    UnsupportedModelError,
)
from engine.events import Checkpoint, Done, Event, GenerationStats, Prefilled, Reused, Score, Token
from engine.patterns import PatternError, Sparsity
from engine.rope import ntk_factor
from engine.snapshot import SnapshotBlock, SnapshotCheckpoint, SnapshotReader
from engine.tokenizer import Tokenizer

__all__ = [
    "ChatTemplate",
    "ChatTemplateError",
    "Checkpoint",
    "DoesNotFitError",
    "Done",
    "Engine",
    "EngineConfig",
    "EngineError",
    "Event",
    "GenerationStats",
    "ModelConfig",
    "ModelFileError",
    "PatternError",
    "Prefilled",
    "Reused",
    "RopeScaling",
    "Sampling",
    "Score",
    "SnapshotBlock",
    "SnapshotCheckpoint",
    "SnapshotMismatchError",
    "SnapshotReader",
    "Sparsity",
    "Token",
    "Tokenizer",
    "UnsupportedModelError",
    "ntk_factor",
    "openmp",
]
