"""Where the gates of models are found: those calibrated here, in the data folder, else those that came with the app.

A file is found by the model's fingerprint, so a model keeps its gates under any name or path, and never gets another's.
"""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.errors import as_app_error
from app.paths import Paths

if TYPE_CHECKING:
    from app.models import ModelInfo
    from engine.gates import HeadGates

SHIPPED = Path(__file__).parent
FINGERPRINTS = "fingerprints"  # of models whose bytes were read before; no .json, so that it is no file of gates


@dataclass(frozen=True, slots=True)
class GateStore:
    """The gates kept in one folder, a file for each model."""

    folder: Path

    @classmethod
    def of(cls, data_dir: Path) -> GateStore:
        return cls(Paths(data_dir).gates)

    def place(self, fingerprint: str) -> Path:
        """Where the gates of a model are stored."""
        return self.folder / f"{fingerprint[:40]}.json"

    def put(self, gates: HeadGates) -> Path:
        """Stores gates; earlier ones of the same model are replaced."""
        from engine.gates import write_gates

        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.place(gates.model_fingerprint)
        write_gates(path, gates)
        return path

    def find(self, fingerprint: str) -> tuple[HeadGates, Path] | None:
        """The gates of a model and their file. A damaged file of this model is an error, never passed over."""
        from engine.gates import read_gates

        stored = self.place(fingerprint)
        if stored.exists():
            return read_gates(stored, fingerprint), stored
        came = ((read_gates(path), path) for path in shipped())
        return next(((gates, path) for gates, path in came if gates.model_fingerprint == fingerprint), None)

    def find_for(self, model: ModelInfo) -> tuple[HeadGates, Path] | None:
        """The same for a model, whose bytes are read only if any gates could be its own. Errors: AppError."""
        if not model.is_demo and not any(self.folder.glob("*.json")):
            return None
        try:
            return self.find(self.fingerprint(model))
        except Exception as error:
            raise as_app_error(error) from error

    def fingerprint(self, model: ModelInfo) -> str:
        """The model's fingerprint; a file seen before, of the same size and age, is not read again."""
        from engine.weights import open_model

        known = self._known()
        before = dict(known)
        with open_model(model.path, fingerprints=known) as source:
            found = source.fingerprint
        if known != before:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.folder / FINGERPRINTS).write_text(json.dumps(known, indent=1), encoding="utf-8")
        return found

    def _known(self) -> MutableMapping[str, str]:
        """Digests by path, size and time of change; damaged ones are made again."""
        try:
            known = json.loads((self.folder / FINGERPRINTS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        fits = isinstance(known, dict) and all(isinstance(v, str) for v in known.values())
        return known if fits else {}


def shipped() -> list[Path]:
    """The files of gates that come with the app."""
    return sorted(SHIPPED.glob("*.json"))


def calibrated(data_dir: Path, model: ModelInfo) -> dict[str, Any]:
    """What engine.EngineConfig takes of a model's calibration, by field; empty if there is none. Errors: AppError."""
    found = GateStore.of(data_dir).find_for(model)
    return {} if found is None else {"gates": found[0].gates, "wide_key_layers": found[0].wide_key_layers}
