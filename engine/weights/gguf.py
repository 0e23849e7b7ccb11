"""A model in one GGUF file: weights dequantized by the `gguf` package, or handed on as the codes of the file."""

from collections.abc import MutableMapping
from pathlib import Path

import numpy as np
import torch

from engine.errors import ModelFileError, UnsupportedModelError
from engine.weights.gguf_config import AGAIN, parse_metadata
from engine.weights.gguf_header import GgufTensor, read_gguf_header
from engine.weights.names import gguf_name, tensor_shapes
from engine.weights.source import GroupQuantized, ModelSource, TokenizerSource

GROUP = 32
ROPE_FACTORS = "rope_freqs.weight"


class GgufFile(ModelSource):
    """A validated GGUF file, mapped until `close`."""

    def __init__(self, path: Path, fingerprints: MutableMapping[str, str] | None = None) -> None:
        super().__init__(fingerprints)
        header = read_gguf_header(path)
        # Copy-on-write: torch wants writable memory, the file itself is never written.
        self._bytes: np.memmap | None = np.memmap(path, mode="c", dtype=np.uint8)
        stored = dict(header.tensors)
        factors = stored.pop(ROPE_FACTORS, None)
        self.config = parse_metadata(
            header.metadata, tuple(stored), None if factors is None else self._floats(factors, path.name), path.name
        )
        self._stored = self._match(stored, path.name)
        self.names = tuple(self._stored)
        self.files = (path,)
        template = header.metadata.get("tokenizer.chat_template")
        self.tokenizer_source = TokenizerSource(
            name=path.name,
            gguf={key: value for key, value in header.metadata.items() if key.startswith("tokenizer.")},
            chat_template=template if isinstance(template, str) else None,
            eos_ids=self.config.eos_ids,
            bos_id=self.config.bos_id,
        )

    def _match(self, stored: dict[str, GgufTensor], name: str) -> dict[str, GgufTensor]:
        """Exactly the tensors that the metadata calls for, by our names."""
        matched = {}
        if self.config.layers > len(stored):
            raise ModelFileError(f"{name} states {self.config.layers} layers and has {len(stored)} tensors.", AGAIN)
        for ours, shape in tensor_shapes(self.config).items():
            tensor = stored.pop(gguf_name(ours), None)
            if tensor is None:
                raise ModelFileError(f"{gguf_name(ours)} is missing from {name}.", AGAIN)
            if tensor.shape != shape:
                raise ModelFileError(
                    f"{gguf_name(ours)} of {name} has shape {list(tensor.shape)}, "
                    f"its metadata calls for {list(shape)}.",
                    AGAIN,
                )
            matched[ours] = tensor
        if stored:
            raise UnsupportedModelError(
                f"{name} has a weight {min(stored)[:80]!r} that no supported model has.",
                "Choose a Llama, SmolLM2, Mistral, Qwen2, Qwen2.5 or Qwen3 model without adapters.",
            )
        return matched

    def _floats(self, tensor: GgufTensor, name: str) -> list[float]:
        """A small float32 vector."""
        if tensor.type != "F32" or len(tensor.shape) != 1 or tensor.shape[0] > 4096:
            raise ModelFileError(f"{tensor.name} of {name} is not a short list of numbers.", AGAIN)
        return self._data(tensor).view(np.float32).tolist()

    def _data(self, tensor: GgufTensor) -> np.ndarray:
        """The tensor's bytes, uint8, mapped."""
        if self._bytes is None:
            raise ValueError("The model file is closed.")
        return self._bytes[tensor.offset : tensor.offset + tensor.size].view(np.ndarray)

    def tensor(self, name: str) -> torch.Tensor:
        stored = self._stored[name]
        data = self._data(stored)
        if stored.offset % 4 and stored.type in ("F32", "F16", "BF16"):
            data = data.copy()
        if stored.type == "F32":
            weight = torch.from_numpy(data.view(np.float32))
        elif stored.type == "F16":
            weight = torch.from_numpy(data.view(np.float16))
        elif stored.type == "BF16":
            weight = torch.from_numpy(data.view(np.int16)).view(torch.bfloat16)
        else:
            weight = torch.from_numpy(_dequantize(data.reshape(stored.shape[0], -1), stored.type))
        return self._engine_order(name, weight.reshape(stored.shape))

    def quantized(self, name: str) -> GroupQuantized | None:
        stored = self._stored[name]
        if stored.type not in ("Q4_0", "Q4_1", "Q8_0"):
            return None
        rows, columns = stored.shape
        blocks = self._data(stored).reshape(rows, columns // GROUP, -1)
        scales = _half(blocks, 0)
        if stored.type == "Q8_0":
            codes, minimums, bits = blocks[:, :, 2:].view(np.int8), np.zeros_like(scales), 8
        else:
            bits = 4
            minimums = _half(blocks, 2) if stored.type == "Q4_1" else -8 * scales
            packed = blocks[:, :, 4:] if stored.type == "Q4_1" else blocks[:, :, 2:]
            codes = np.concatenate([packed & 15, packed >> 4], axis=2)
        parts = (
            torch.from_numpy(np.ascontiguousarray(part)) for part in (codes.reshape(rows, columns), scales, minimums)
        )
        return GroupQuantized(*(self._engine_order(name, part) for part in parts), bits=bits, group_size=GROUP)

    def _engine_order(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """GGUF keeps the llama architecture's Q and K rows interleaved for RoPE; the engine wants halves."""
        part = name.rpartition(".")[2]
        if self.config.family != "llama" or part not in ("q", "k"):
            return weight
        heads = self.config.heads if part == "q" else self.config.kv_heads
        return weight.unflatten(0, (heads, self.config.head_dim // 2, 2)).transpose(1, 2).flatten(0, 2)

    def close(self) -> None:
        self._bytes = None


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """The float16 at byte `at` of each block, as float32 [rows, blocks]."""
    return np.ascontiguousarray(blocks[:, :, at : at + 2]).view(np.float16)[:, :, 0].astype(np.float32)


def _dequantize(data: np.ndarray, type_name: str) -> np.ndarray:
    """float32 [rows, cols] from uint8 [rows, bytes]."""
    import gguf

    kind = gguf.GGMLQuantizationType[type_name]
    return gguf.quants.dequantize(np.ascontiguousarray(data), kind)
