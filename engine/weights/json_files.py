"""JSON files of a model folder, read with a size limit and refused in plain words."""

import json
from pathlib import Path
from typing import Any

from engine.errors import ModelFileError

SIZE_LIMIT = 16 << 20


def read_limited(path: Path, limit: int = SIZE_LIMIT) -> bytes:
    """The bytes of a file of at most `limit` bytes."""
    if path.stat().st_size > limit:
        raise ModelFileError(f"{path.name} is larger than {limit >> 20} MB.", "Get the model's folder again.")
    return path.read_bytes()


def parse_object(data: bytes, name: str) -> dict[str, Any]:
    """A JSON object; ModelFileError for anything else. `name`: the file, for the message."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{name} is damaged: it does not hold readable JSON.", "Get the file again.") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{name} is damaged: it does not hold a JSON object.", "Get the file again.")
    return value


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    return parse_object(read_limited(path), path.name)
