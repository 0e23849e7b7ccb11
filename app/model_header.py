"""What a model file says about itself, read from its header alone: no torch, no weights, a few milliseconds.

The engine checks a model in full when it loads it; this is for lists, labels and the first decision on how to read.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from app.errors import BadInput

_MOST_BYTES = 256 * 2**20  # a header past this is not a header
# GGUF value types 0 to 12 but for 8 (text) and 9 (array): their struct codes, in the order of the format's list.
_SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd"))
_TEXT, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class ModelHeader:
    """family: the model's architecture name; parameters: weights counted from tensor shapes; context: tokens."""

    family: str
    parameters: int
    context: int
    license: str
    size: int


def read_header(path: Path) -> ModelHeader:
    """Header of a GGUF file or of a folder in Hugging Face layout. Raises BadInput, also for a file cut short."""
    try:
        return _read_folder(path) if path.is_dir() else _read_gguf(path)
    except FileNotFoundError as error:
        missing = Path(error.filename or path)
        raise BadInput(f"There is no model at {missing}.", "`unabridged models list` shows what is here.") from None
    except OSError as error:
        raise BadInput(
            f"The model {path} cannot be read: {error.strerror or error}.", "Check its permissions."
        ) from None
    except KeyError as error:
        raise BadInput(f"The model {path.name} does not say its {error}.", "Choose another model.") from None
    except (EOFError, struct.error, UnicodeDecodeError, ValueError, TypeError) as error:
        raise BadInput(
            f"The model {path.name} is damaged or cut short: {error}.", "Fetch it again with `unabridged models get`."
        ) from None


def _read_gguf(path: Path) -> ModelHeader:
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise BadInput(f"{path.name} is not a GGUF model.", "Give a .gguf file or a folder in Hugging Face layout.")
        version, tensors, keys = _unpack(file, "<IQQ")
        if version not in (2, 3) or tensors > 10**6 or keys > 10**6:
            raise ValueError(f"GGUF version {version} with {tensors} tensors")
        values: dict[str, Any] = {}
        for _ in range(keys):
            name = _text(file, size)
            values[name] = _value(file, _unpack(file, "<I")[0], size)
        parameters = last = 0
        for _ in range(tensors):
            _text(file, size)
            (dimensions,) = _unpack(file, "<I")
            if dimensions > 8:
                raise ValueError(f"a tensor of {dimensions} dimensions")
            *shape, _type, offset = _unpack(file, f"<{dimensions}QIQ")
            parameters += math.prod(shape)
            last = max(last, offset)
        if file.tell() + last > size:
            raise EOFError(f"it holds {size} bytes, its header speaks of more than {file.tell() + last}")
    family = str(values.get("general.architecture", ""))
    context = int(values.get(f"{family}.context_length", 0))
    return ModelHeader(family, parameters, context, str(values.get("general.license", "")), size)


def _unpack(file: BinaryIO, layout: str) -> tuple[Any, ...]:
    data = file.read(struct.calcsize(layout))
    if len(data) < struct.calcsize(layout):
        raise EOFError("the file ends inside its header")
    return struct.unpack(layout, data)


def _text(file: BinaryIO, most: int) -> str:
    (length,) = _unpack(file, "<Q")
    if length > most:
        raise EOFError("the file ends inside its header")
    return file.read(length).decode("utf-8")


def _value(file: BinaryIO, kind: int, most: int) -> Any:
    """One value; arrays (vocabularies) are stepped over and come back as None."""
    if kind in _SCALARS:
        return _unpack(file, "<" + _SCALARS[kind])[0]
    if kind == _TEXT:
        return _text(file, most)
    if kind != _ARRAY:
        raise ValueError(f"value type {kind} is not known")
    item, count = _unpack(file, "<IQ")
    if item in _SCALARS:
        file.seek(count * struct.calcsize(_SCALARS[item]), 1)
    elif item == _TEXT:
        for _ in range(count):
            (length,) = _unpack(file, "<Q")
            file.seek(min(length, most), 1)
    else:
        raise ValueError(f"array of type {item} is not known")
    return None


def _read_folder(path: Path) -> ModelHeader:
    config: Mapping[str, Any] = json.loads((path / "config.json").read_text(encoding="utf-8"))
    weights = sorted(path.glob("*.safetensors"))
    if not weights:
        raise BadInput(f"{path} holds no .safetensors weights.", "Give a folder in Hugging Face layout or a GGUF file.")
    parameters = sum(_safetensors_parameters(file) for file in weights)
    size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    return ModelHeader(str(config["model_type"]), parameters, int(config["max_position_embeddings"]), "", size)


def _safetensors_parameters(path: Path) -> int:
    size = path.stat().st_size
    with path.open("rb") as file:
        (length,) = _unpack(file, "<Q")
        if length > min(size, _MOST_BYTES):
            raise EOFError("the file ends inside its header")
        header = json.loads(file.read(length))
    tensors = [entry for name, entry in header.items() if name != "__metadata__"]
    end = max((entry["data_offsets"][1] for entry in tensors), default=0)
    if 8 + length + end > size:
        raise EOFError(f"{path.name} holds {size} bytes, its header speaks of {8 + length + end}")
    return sum(math.prod(entry["shape"]) for entry in tensors)
