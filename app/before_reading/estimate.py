"""How long reading takes and what memory it needs, before it is done: measured on this machine, or a stated guess."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage import ReadingSpeed

if TYPE_CHECKING:
    from app.wiring import App
    from engine import Engine, EngineConfig

LEAST_MEASURED = 64
"""Tokens; a shorter read says nothing about speed."""
GUESSED_OPERATIONS = {"ada": 5e13, "ampere-dc": 1e14, "hopper": 2.5e14, "blackwell": 2.5e14}
"""Operations a second that a prefill makes, where nothing was measured yet; a CPU: so many for each core."""
GUESSED_PER_CORE = 3e10


@dataclass(frozen=True, slots=True)
class Estimate:
    """Reading `tokens` more tokens. measured: by what this machine took before with this model; else it is a guess."""

    tokens: int
    seconds: float
    measured: bool
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of reading: `each` for every token, `growth` more for every token that stands before it."""

    each: float
    growth: float
    measured: bool

    def seconds(self, first: int, last: int) -> float:
        """From position `first` of a prompt to before `last`."""
        return self.each * (last - first) + self.growth * (last * last - first * first) / 2


def pace_of(speeds: Sequence[ReadingSpeed], guess: float) -> Pace:
    """Least squares over what was measured, newest first; guess: seconds a token, where nothing was."""
    rows = [(s.last - s.first, (s.last * s.last - s.first * s.first) / 2, s.seconds) for s in speeds]
    if not rows:
        return Pace(guess, 0.0, False)
    # Each row is weighed by 1/tokens, so that a long read does not outweigh all others.
    aa = sum(a * a / a for a, _, _ in rows)
    ab = sum(a * b / a for a, b, _ in rows)
    bb = sum(b * b / a for a, b, _ in rows)
    at = sum(a * t / a for a, _, t in rows)
    bt = sum(b * t / a for a, b, t in rows)
    only = at / aa
    determinant = aa * bb - ab * ab
    if len(rows) >= 3 and determinant > 1e-3 * aa * bb:
        each, growth = (at * bb - bt * ab) / determinant, (aa * bt - ab * at) / determinant
        if each > 0 and growth > 0:
            return Pace(each, growth, True)
    return Pace(only, 0.0, True)


def pace(app: App) -> Pace:
    """Of this model on this machine with these settings."""
    model = app.face().fingerprint
    return pace_of(app.library.reading_speeds(model, speed_key(app)), _guess(app))


def estimate(app: App, tokens: int, before: int = 0, known: Pace | None = None) -> Estimate:
    """Reading `tokens` tokens that stand behind `before` others, which are in memory already."""
    known = known or pace(app)
    return Estimate(tokens, known.seconds(before, before + tokens), known.measured, tokens * kv_bytes_per_token(app))


def remember_speed(app: App, engine: Engine, first: int, last: int, seconds: float) -> None:
    """After a prefill that computed the tokens from `first` to `last`."""
    if last - first >= LEAST_MEASURED and seconds > 0:
        key = _key(engine.profile.name, engine.kv_format, app.settings.mode)
        app.library.add_reading_speed(app.face().fingerprint, key, ReadingSpeed(first, last, seconds))


def speed_key(app: App) -> str:
    engine = app.engine_service.engine
    if engine is not None:
        return _key(engine.profile.name, engine.kv_format, app.settings.mode)
    config = _engine_config(app)
    return _key(app.profile, config.kv_format, app.settings.mode)


def kv_bytes_per_token(app: App) -> int:
    """What the engine says once it is loaded, the same sum from the model's shapes before that."""
    engine = app.engine_service.engine
    return engine.kv_bytes_per_token if engine is not None else _bytes_from_shapes(app)


def _key(profile: str, kv_format: str, mode: str) -> str:
    return f"{profile} {kv_format} {mode}"


def _guess(app: App) -> float:
    """Two operations for each weight and token, on a machine of this profile."""
    profile = app.profile
    per_second = GUESSED_OPERATIONS.get(profile, GUESSED_PER_CORE * (os.cpu_count() or 1))
    return 2 * app.model.parameters / per_second


_shapes: dict[tuple[str, str, tuple[int, ...]], int] = {}


def _bytes_from_shapes(app: App) -> int:
    from engine.kv_memory import bytes_per_token
    from engine.load import kept_scorers
    from engine.weights import open_model

    config = _engine_config(app)
    key = (str(config.model), config.kv_format, config.wide_key_layers)
    if key not in _shapes:
        with open_model(config.model) as source:
            _shapes[key] = bytes_per_token(
                source.config, config.kv_format, kept_scorers(config), wide=config.wide_key_layers
            )
    return _shapes[key]


def _engine_config(app: App) -> EngineConfig:
    from app.wiring import engine_config

    return engine_config(app.settings, app.model)
