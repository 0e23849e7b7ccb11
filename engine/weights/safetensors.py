"""A model folder in Hugging Face layout: config.json, tokenizer.json and one or more safetensors files.

Every header is checked against its file's size, and every tensor's name and shape against the config, before a weight
is read. Weights are memory-mapped by the safetensors library. Nothing is ever unpickled.
"""

import math
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import torch
from safetensors import safe_open

from engine.errors import ModelFileError, UnsupportedModelError
from engine.weights.hf_config import parse_config
from engine.weights.hf_tokenizer import read_tokenizer_files
from engine.weights.json_files import parse_object, read_object
from engine.weights.names import huggingface_name, tensor_shapes
from engine.weights.source import ModelSource

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
HEADER_LIMIT = 16 << 20
TENSOR_LIMIT = 20_000
ITEM_SIZES = {"F32": 4, "F16": 2, "BF16": 2}
AGAIN = "Get the file again; a complete one has the size that its source states."


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies: which file, and the shape its header states."""

    file: Path
    shape: tuple[int, ...]


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file; ModelFileError unless they fill the file exactly."""
    size = path.stat().st_size
    with path.open("rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
        if size < 8 or length > min(size - 8, HEADER_LIMIT):
            raise ModelFileError(f"{path.name} is cut short or is not a safetensors file.", AGAIN)
        header = parse_object(handle.read(length), path.name)
    header.pop("__metadata__", None)
    if len(header) > TENSOR_LIMIT:
        raise ModelFileError(f"{path.name} lists {len(header)} tensors, more than any model has.", AGAIN)
    spans: list[tuple[int, int]] = []
    tensors: dict[str, StoredTensor] = {}
    for name, entry in header.items():
        start, end, shape = read_entry(name, entry, path)
        spans.append((start, end))
        tensors[name] = StoredTensor(path, shape)
    position = 0
    for start, end in sorted(spans):
        if start != position:
            raise ModelFileError(f"{path.name} has overlapping tensors or holes between them.", AGAIN)
        position = end
    if 8 + length + position != size:
        raise ModelFileError(
            f"{path.name} should have {8 + length + position} bytes by its own header, and has {size}.", AGAIN
        )
    return tensors


def read_entry(name: str, entry: Any, path: Path) -> tuple[int, int, tuple[int, ...]]:
    """One tensor's first byte, end and shape, relative to the data; the sizes agree with each other."""
    broken = ModelFileError(f"{path.name} describes its tensor {name[:80]!r} in an impossible way.", AGAIN)
    if not isinstance(entry, Mapping):
        raise broken
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not _sizes(shape, 8) or not _sizes(offsets, 2):
        raise broken
    if dtype not in ITEM_SIZES:
        raise UnsupportedModelError(
            f"{path.name} stores {name[:80]!r} as {str(dtype)[:20]}.", "Supported are F32, F16 and BF16."
        )
    if len(offsets) != 2 or offsets[1] - offsets[0] != math.prod(shape) * ITEM_SIZES[dtype]:
        raise broken
    return offsets[0], offsets[1], tuple(shape)


def _sizes(value: object, most: int) -> TypeGuard[list[int]]:
    """Whether this is a list of at most so many whole numbers from 0 up."""
    return isinstance(value, list) and len(value) <= most and all(type(item) is int and item >= 0 for item in value)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, by its index where it has one."""
    index = folder / INDEX
    if not index.is_file():
        if (folder / SINGLE).is_file():
            return [folder / SINGLE]
        pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt*"))
        reason = "only pickled weights, which can run code when they are opened" if pickled else "no weights"
        raise ModelFileError(
            f"The folder {folder.name} has {reason}.", f"Get the model's {SINGLE} files into the folder."
        )
    listed = read_object(index).get("weight_map")
    if not isinstance(listed, dict) or not listed or not all(isinstance(file, str) for file in listed.values()):
        raise ModelFileError(f"{INDEX} in {folder.name} lists no files.", AGAIN)
    files = []
    for file in sorted(set(listed.values())):
        if Path(file).name != file or "\\" in file or not file.endswith(".safetensors"):
            raise ModelFileError(f"{INDEX} names {file[:80]!r}, which is not a safetensors file beside it.", AGAIN)
        if not (folder / file).is_file():
            raise ModelFileError(f"{file} is missing from the folder {folder.name}.", "Get the missing file.")
        files.append(folder / file)
    return files


class HuggingFaceFolder(ModelSource):
    """A validated folder; safetensors files stay mapped until `close`."""

    def __init__(self, folder: Path, fingerprints: MutableMapping[str, str] | None = None) -> None:
        super().__init__(fingerprints)
        if not (folder / "config.json").is_file():
            raise ModelFileError(
                f"The folder {folder.name} has no config.json.", "Give a model's folder, or the path of a GGUF file."
            )
        generation = folder / "generation_config.json"
        self.config = parse_config(
            read_object(folder / "config.json"), read_object(generation) if generation.is_file() else {}, folder.name
        )
        weights = weight_files(folder)
        stored: dict[str, StoredTensor] = {}
        for file in weights:
            for name, tensor in read_header(file).items():
                if name in stored:
                    raise ModelFileError(f"{name} is in {stored[name].file.name} and again in {file.name}.", AGAIN)
                stored[name] = tensor
        self._stored = self._match(stored, folder.name)
        self.names = tuple(self._stored)
        self.tokenizer_source = read_tokenizer_files(folder, self.config)
        self.files = (folder / "config.json", folder / "tokenizer.json", *weights)
        self._opened: dict[Path, Any] = {}

    def _match(self, stored: Mapping[str, StoredTensor], name: str) -> dict[str, StoredTensor]:
        """Exactly the tensors that the config calls for, by our names."""
        matched = {}
        if self.config.layers > len(stored):
            raise ModelFileError(f"{name} states {self.config.layers} layers and has {len(stored)} tensors.", AGAIN)
        for ours, shape in tensor_shapes(self.config).items():
            theirs = huggingface_name(ours)
            if theirs not in stored:
                raise ModelFileError(f"{theirs} is missing from the weights of {name}.", AGAIN)
            if stored[theirs].shape != shape:
                raise ModelFileError(
                    f"{theirs} of {name} has shape {list(stored[theirs].shape)}, its config calls for {list(shape)}.",
                    AGAIN,
                )
            matched[ours] = stored[theirs]
        used = {huggingface_name(ours) for ours in matched}
        for extra in stored:
            inert = extra.endswith(".rotary_emb.inv_freq") or (extra == "lm_head.weight" and "lm_head" not in matched)
            if extra not in used and not inert:
                raise UnsupportedModelError(
                    f"{name} has a weight {extra[:80]!r} that no supported model has.",
                    "Choose a Llama, SmolLM2, Mistral, Qwen2, Qwen2.5 or Qwen3 model without adapters.",
                )
        return matched

    def tensor(self, name: str) -> torch.Tensor:
        file = self._stored[name].file
        if file not in self._opened:
            self._opened[file] = safe_open(file, framework="pt")  # pyright: ignore[reportCallIssue]
        return self._opened[file].get_tensor(huggingface_name(name))

    def close(self) -> None:
        self._opened.clear()
