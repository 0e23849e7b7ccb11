"""Gates in files: our own small JSON, and the folders that DuoAttention publishes.

Ours: {version, model_fingerprint, method, seed, steps, sink, recent, wide_key_layers, gates}. `gates` has a row for
each layer and a number from 0 to 1 for each KV head. Version 1 had no `wide_key_layers`; it is read as having none.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from engine.config import check_layers
from engine.errors import EngineError
from engine.patterns import streaming_heads

VERSION = 2
METHODS = ("trained", "quick", "imported")
SLACK = 0.1  # DuoAttention's files may hold gates so far outside 0 to 1, which its training leaves; they are clipped
LARGEST_FILE = 4 << 20

Gates = tuple[tuple[float, ...], ...]


class GateFileError(EngineError):
    """A file of gates is missing, damaged, or belongs to another model."""


class GatesMissingError(EngineError, ValueError):
    """A share of the KV heads shall stream, and no gates say which."""

    def __init__(self, ratio: float) -> None:
        super().__init__(
            f"streaming_ratio: got {ratio}, need gates of this model to choose the heads by.",
            "Make them with `unabridged calibrate MODEL`, or unset streaming_ratio.",
        )


@dataclass(frozen=True, slots=True)
class HeadGates:
    """Gates of a model, the layers whose keys need 8 bits, and where they come from.

    `method`: trained (DuoAttention's way), quick (attention mass) or imported. `seed`, `steps`: of the calibration, 0
    where there was none. `sink`, `recent`: tokens that a streaming head was taken to read. `gates`: [layers][kv_heads].
    `wide_key_layers`: ascending, for EngineConfig.
    """

    model_fingerprint: str
    method: str
    seed: int
    steps: int
    sink: int
    recent: int
    gates: Gates
    wide_key_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        ok = isinstance(self.model_fingerprint, str) and len(self.model_fingerprint) > 0
        _need(ok, "model_fingerprint", self.model_fingerprint, "a model's fingerprint")
        _need(self.method in METHODS, "method", self.method, "one of " + ", ".join(METHODS))
        for field in ("seed", "steps", "sink", "recent"):
            value = getattr(self, field)
            _need(_whole(value), field, value, "a whole number from 0")
        check_gates(self.gates)
        check_layers("wide_key_layers", self.wide_key_layers, len(self.gates))

    def streaming(self, ratio: float | None = None) -> torch.Tensor:
        """bool [layers, kv_heads]: the heads that stream; `ratio` as in `streaming_heads`."""
        return streaming_heads(torch.tensor(self.gates), ratio)

    @property
    def streaming_share(self) -> float:
        """The share of KV heads whose gate lets them stream."""
        return float(self.streaming().float().mean())


def check_gates(gates: object, layers: int | None = None, kv_heads: int | None = None) -> None:
    """ValueError unless `gates` has `layers` rows of `kv_heads` numbers from 0 to 1; None takes any number."""
    need = f"{layers or 'some'} layers of {kv_heads or 'some'} KV heads, each a number from 0 to 1"
    if not isinstance(gates, tuple | list) or not gates or not all(isinstance(row, tuple | list) for row in gates):
        raise ValueError(f"gates: got {type(gates).__name__}, need {need}")
    widths = sorted({len(row) for row in gates})
    ok = len(widths) == 1 and widths[0] > 0 and layers in (None, len(gates)) and kv_heads in (None, widths[0])
    if not ok:
        raise ValueError(f"gates: got {len(gates)} layers of {' or '.join(map(str, widths))} KV heads, need {need}")
    for index, row in enumerate(gates):
        for value in row:
            if not _number(value) or not 0 <= value <= 1:
                raise ValueError(f"gates: got {value!r} in layer {index}, need {need}")


def as_rows(gates: torch.Tensor) -> Gates:
    """float [layers, kv_heads] -> rows, rounded to the four digits that files hold."""
    return tuple(tuple(round(value, 4) for value in row) for row in gates.double().tolist())


def write_gates(path: Path, gates: HeadGates) -> None:
    """Write the file, whole or not at all."""
    facts: dict[str, Any] = {"version": VERSION} | asdict(gates)
    lists = [facts.pop(name) for name in ("wide_key_layers", "gates")]
    head = json.dumps(facts, indent=1).removesuffix("\n}")
    wide, rows = json.dumps(lists[0]), ",\n  ".join(map(json.dumps, lists[1]))
    part = path.with_name(path.name + ".part")
    text = f'{head},\n "wide_key_layers": {wide},\n "gates": [\n  {rows}\n ]\n}}\n'
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def read_gates(path: Path, fingerprint: str | None = None) -> HeadGates:
    """The gates in a file. GateFileError: damaged, of a later version, or of a model other than `fingerprint`."""
    try:
        found = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise _damaged(path, "it does not hold readable JSON") from error
    if not isinstance(found, dict):
        raise _damaged(path, "it does not hold a JSON object")
    version = found.pop("version", None)
    if not _whole(version) or not 1 <= version <= VERSION:
        raise GateFileError(
            f"{path.name} has version {version!r} of the gate format, this program reads 1 to {VERSION}.",
            "Calibrate the model again.",
        )
    if version == 1:
        found.setdefault("wide_key_layers", [])
    fields = set(HeadGates.__dataclass_fields__)
    if set(found) != fields:
        odd = ", ".join(sorted(set(found) ^ fields))
        raise _damaged(path, f"fields are missing or unknown ({odd})")
    gates, wide = found.pop("gates"), found.pop("wide_key_layers")
    try:
        check_gates(gates)
        rows = tuple(tuple(float(value) for value in row) for row in gates)
        made = HeadGates(**found, gates=rows, wide_key_layers=tuple(wide) if isinstance(wide, list) else wide)
    except ValueError as error:
        raise _damaged(path, str(error)) from error
    if fingerprint is not None and made.model_fingerprint != fingerprint:
        raise GateFileError(
            f"The gates in {path.name} belong to another model (its fingerprint begins with "
            f"{made.model_fingerprint[:12]}, this model's with {fingerprint[:12]}).",
            "Calibrate this model itself.",
        )
    return made


def read_duo_attention(folder: Path, fingerprint: str, layers: int, kv_heads: int) -> HeadGates:
    """A folder with `full_attention_heads.tsv` and `config.json`, as gates of the model `fingerprint`.

    Column j of row i is KV head j of layer i. Nothing in the folder says which model it was made for: only its shape is
    compared. GateFileError for a folder that lacks a file, holds something else, or has another shape.
    """
    table, config = folder / "full_attention_heads.tsv", folder / "config.json"
    rows = [_row(table, number, line) for number, line in enumerate(_text(table).splitlines(), 1) if line.strip()]
    widths = sorted({len(row) for row in rows})
    if not rows or widths != [kv_heads] or len(rows) != layers:
        got = f"{len(rows)} layers of {' or '.join(map(str, widths))} KV heads" if rows else "no gates"
        raise GateFileError(
            f"{table.name} holds {got}, but the model has {layers} layers of {kv_heads} KV heads.",
            "Choose the folder that was made for this model.",
        )
    sink, recent = _windows(config)
    return HeadGates(fingerprint, "imported", 0, 0, sink, recent, as_rows(torch.tensor(rows).clamp(0, 1)))


def _row(path: Path, number: int, line: str) -> list[float]:
    row = []
    for text in line.split("\t"):
        try:
            value = float(text)
        except ValueError:
            raise _damaged(path, f"line {number} holds {text.strip()[:20]!r} where a number should stand") from None
        if not -SLACK <= value <= 1 + SLACK:  # NaN too
            raise _damaged(path, f"line {number} holds {value}, a gate lies between 0 and 1")
        row.append(value)
    return row


def _windows(path: Path) -> tuple[int, int]:
    try:
        config: Any = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise _damaged(path, "it does not hold readable JSON") from error
    sizes: Sequence[Any] = [config.get(k) if isinstance(config, dict) else None for k in ("sink_size", "recent_size")]
    for name, value in zip(("sink_size", "recent_size"), sizes):
        if not _whole(value):
            raise _damaged(path, f"{name} is {value!r}, it should be a number of tokens")
    return sizes[0], sizes[1]


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise _damaged(path, f"it is larger than {LARGEST_FILE >> 20} MB")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _damaged(path, "it is not text") from error
    except OSError as error:
        raise GateFileError(f"{path} cannot be read: {error.strerror or error}.", "Check the path.") from error


def _damaged(path: Path, why: str) -> GateFileError:
    return GateFileError(f"{path.name} is damaged: {why}.", "Get it again, or calibrate the model.")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _need(ok: bool, field: str, got: object, need: str) -> None:
    if not ok:
        raise ValueError(f"{field}: got {got!r}, need {need}")
