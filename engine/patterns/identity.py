"""A text that tells a pattern or scorer from every other one, the same in every run of the program."""

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum

import torch

from engine.patterns.errors import PatternError


def identity(thing: object, name: str, version: int | str) -> str:
    """`name@version(field=value, ...)`. PatternError if a field's value has no text of its own."""
    if is_dataclass(thing):
        values = {entry.name: getattr(thing, entry.name) for entry in fields(thing) if not entry.name.startswith("_")}
    else:
        values = dict(sorted(getattr(thing, "__dict__", {}).items()))
    inside = ", ".join(f"{field}={_text(value, name, field)}" for field, value in values.items())
    return f"{name}@{version}({inside})"


def _text(value: object, name: str, field: str) -> str:
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value)
    if isinstance(value, Enum):
        return str(value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(_text(item, name, field) for item in value)}]"
    if isinstance(value, Mapping):
        items = sorted((_text(key, name, field), _text(item, name, field)) for key, item in value.items())
        return f"{{{', '.join(f'{key}: {item}' for key, item in items)}}}"
    if isinstance(value, torch.Tensor):
        data = value.detach().cpu().contiguous()
        digest = hashlib.sha256(data.flatten().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}:{digest}"
    key = getattr(value, "key", None)
    if isinstance(key, str):
        return key
    raise PatternError(
        name,
        f"{field} is a {type(value).__name__}, which has no text that is the same in every run.",
        "KV pages are kept under such texts: use numbers, texts and tensors, or give the class a `key`.",
    )
