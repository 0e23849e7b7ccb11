"""A benchmark's figures as a picture: time per token and time to the first one, by length."""

from __future__ import annotations

from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from app.errors import AppError

PANELS = {"tpot": "ms per token", "ttft": "seconds to the first token", "restore": "seconds to restore"}


def can_draw() -> bool:
    return find_spec("matplotlib") is not None


def lines(found: dict[str, Any], what: str) -> dict[str, list[tuple[int, float]]]:
    """By the name of each line its (length, value), in order; figures that were not measured are left out."""
    made: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in found["rows"]:
        if row["what"] == what and row["value"] is not None:
            made[f"{row['by']}, {row['mode']}, {row['format']}"].append((row["length"], row["value"]))
    return {name: sorted(points) for name, points in made.items()}


def draw(found: dict[str, Any], file: Path) -> None:
    """`found`: what bench.json holds. AppError where matplotlib is missing, or there is nothing to draw."""
    if not can_draw():
        raise AppError("matplotlib, which draws the picture, is not installed.", "`pip install matplotlib`.")
    panels = [what for what in PANELS if lines(found, what)]
    if not panels:
        raise AppError("There is no figure to draw.", "Measure tpot, ttft or restore first.")
    import matplotlib.figure  # pyright: ignore[reportMissingImports]

    figure = matplotlib.figure.Figure(figsize=(6 * len(panels), 4.5), layout="constrained")
    figure.suptitle(f"{found['shape']}, {found['weights']}, {found['device']}, {found['date']}")
    for axes, what in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
        for name, points in lines(found, what).items():
            axes.plot(*zip(*points), marker="o", label=name)
        axes.set_xscale("log", base=2)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("tokens of context")
        axes.set_ylabel(PANELS[what])
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(file, dpi=150)
