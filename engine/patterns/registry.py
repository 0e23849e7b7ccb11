"""Patterns by name: those registered in this process, and those that installed packages bring.

A package brings one by an entry point in the group `unabridged.patterns`: the name of the pattern, and a `Pattern` or
something to be called without arguments that gives one. Names of ours are never taken over.
"""

import difflib
import importlib.metadata
import re

from engine.patterns.errors import PatternError, need
from engine.patterns.pattern import Pattern

ENTRY_POINTS = "unabridged.patterns"
MODES = ("exact", "balanced", "fast")
RESERVED = frozenset({*MODES, "auto", "dense"})

_registered: dict[str, Pattern] = {}


def register(name: str, pattern: Pattern) -> None:
    """Make `pattern` known as `name`; an earlier one that was registered under this name is replaced.

    ValueError if the name is one of ours or not made of small letters, digits, `-`, `_` and `.`.
    """
    ok = isinstance(name, str) and re.fullmatch(r"[a-z0-9][a-z0-9_.-]*", name) is not None
    need(ok, "name", name, "small letters, digits, '-', '_' and '.'")
    need(name not in RESERVED, "name", name, f"another one: {', '.join(sorted(RESERVED))} are built in")
    need(isinstance(pattern, Pattern), "pattern", pattern, "a Pattern; wrap a scorer: TopPages(4096, score=...)")
    _registered[name] = pattern


def unregister(name: str) -> None:
    """Forget what was registered under `name`, if anything was."""
    _registered.pop(name, None)


def pattern_names() -> list[str]:
    """All names that `named_pattern` knows, sorted. Loads no package."""
    return sorted({*_registered, *_entry_points()})


def named_pattern(name: str) -> Pattern:
    """The pattern registered or installed as `name`. PatternError if there is none, or it cannot be loaded."""
    if name in _registered:
        return _registered[name]
    found = _entry_points().get(name)
    if found is None:
        known = [*MODES, *pattern_names()]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Known are {', '.join(known)}."
        raise PatternError(name, "no attention pattern or mode has this name.", hint)
    if len(found) > 1:
        packages = " and ".join(sorted(_package(point) for point in found))
        raise PatternError(name, f"{packages} both bring a pattern of this name.", "Remove one of the packages.")
    return _load(name, found[0])


def _load(name: str, point: importlib.metadata.EntryPoint) -> Pattern:
    try:
        loaded = point.load()
        pattern = loaded if isinstance(loaded, Pattern) else loaded()
    except Exception as error:
        raise PatternError(
            name,
            f"{_package(point)} failed to load it with {type(error).__name__}: {error}.",
            "Update or remove that package.",
        ) from error
    if not isinstance(pattern, Pattern):
        got = type(pattern).__name__
        raise PatternError(
            name, f"{_package(point)} gives an object of type {got}, not a Pattern.", "Update or remove that package."
        )
    return pattern


def _entry_points() -> dict[str, list[importlib.metadata.EntryPoint]]:
    found: dict[str, list[importlib.metadata.EntryPoint]] = {}
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        if point.name not in RESERVED and point not in found.setdefault(point.name, []):
            found[point.name].append(point)
    return found


def _package(point: importlib.metadata.EntryPoint) -> str:
    return f"package {point.dist.name}" if point.dist is not None else point.value
