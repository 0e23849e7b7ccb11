"""What every model file format offers to the engine: a config, tensors under our own names, and tokenizer data."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from engine.config import ModelConfig
from engine.weights.fingerprint import fingerprint_of

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class GroupQuantized:
    """A matrix as the file stores it: weight = codes * scales + minimums, where a scale and a minimum serve one group.

    `codes`: [rows, cols], uint8 for 4 bits (0 to 15), int8 for 8 bits. `scales`, `minimums`: float32
    [rows, cols / group_size]. Rows are in the engine's order.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    minimums: torch.Tensor
    bits: int
    group_size: int

    def dequantize(self) -> torch.Tensor:
        """The weight, float32 [rows, cols]."""
        groups = self.codes.float().unflatten(1, (-1, self.group_size))
        return (groups * self.scales[..., None] + self.minimums[..., None]).flatten(1)


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """Everything that a `Tokenizer` is made from; exactly one of `tokenizer_json` and `gguf` is given.

    `gguf`: the file's `tokenizer.*` metadata. `special_tokens`: names as chat templates know them ("bos_token", ...).
    """

    name: str
    tokenizer_json: bytes | None = None
    gguf: Mapping[str, Any] | None = None
    chat_template: str | None = None
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None


class ModelSource(ABC):
    """An opened, validated model. Tensors are read from the mapped files when they are asked for.

    `names` lists what `tensor` answers to: "embed", "norm", "lm_head" (absent when tied) and, per layer i,
    "layers.{i}." + attn_norm, q, k, v, o, q_bias, k_bias, v_bias, q_norm, k_norm, ffn_norm, gate, up, down.
    Rows of q and k are in the half-split order of RoPE, whatever the file's own order.
    """

    config: ModelConfig
    tokenizer_source: TokenizerSource
    names: Sequence[str]
    files: Sequence[Path]

    def __init__(self, fingerprints: MutableMapping[str, str] | None = None) -> None:
        self._fingerprints = fingerprints if fingerprints is not None else {}
        self._fingerprint: str | None = None

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over the contents of the weights, the config and the tokenizer; reads every byte once."""
        return self._fingerprint or self.read_fingerprint()

    def read_fingerprint(self, progress: Progress | None = None) -> str:
        """`fingerprint`, with `progress(file name, share done)` while it reads."""
        if self._fingerprint is None:
            self._fingerprint = fingerprint_of(self.files, self._fingerprints, progress)
        return self._fingerprint

    @abstractmethod
    def tensor(self, name: str) -> torch.Tensor:
        """A weight, [out, in] or [size], in the file's own float type, or float32 where the file is quantized.

        May share memory with the mapped file. KeyError for a name that is not in `names`.
        """

    def quantized(self, name: str) -> GroupQuantized | None:
        """The stored codes, where the file holds this matrix in groups of 4 or 8 bits; None otherwise."""
        if name not in self.names:
            raise KeyError(name)
        return None

    @abstractmethod
    def close(self) -> None:
        """Lets go of the files. Tensors handed out before stay valid."""

    def __enter__(self) -> "ModelSource":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
