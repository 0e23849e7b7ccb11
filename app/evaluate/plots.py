"""The results as pictures (PNG): needle by length and depth, quality against bytes per token and against pages read.

Drawn with Pillow, which the page's toolkit brings along anyway: three plain charts do not need a plotting library.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.evaluate.report import AVERAGE, Row
from app.evaluate.sample import DEPTHS

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

Colour = tuple[int, int, int]
INK, GREY, PALE, PAPER = (32, 36, 44), (110, 116, 128), (226, 229, 235), (255, 255, 255)
LOW, MIDDLE, HIGH = (178, 50, 60), (245, 224, 150), (42, 132, 96)
LINES: tuple[Colour, ...] = (
    (38, 94, 168),
    (204, 98, 30),
    (42, 132, 96),
    (140, 70, 150),
    (120, 120, 30),
    (20, 140, 150),
)
SCALE = 2  # drawn for screens of twice the usual density
CELL_W, CELL_H, LEFT, TOP = 64, 30, 84, 64
WIDTH, HEIGHT = 760, 460


@dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: float
    label: str


def write_plots(rows: Sequence[Row], bytes_per_token: dict[str, int], folder: Path) -> list[Path]:
    """PNG files in `folder`, which exists -> those that there was something to draw for."""
    written = []
    if any(row.task == "needle" and row.by_depth for row in rows):
        written.append(needle_map(rows, folder / "needle.png"))
    averages = [row for row in rows if row.task == AVERAGE]
    dense = [row for row in averages if not row.way.sparse]
    if dense:
        points = [(row, bytes_per_token[row.format], row.format) for row in dense]
        title = "Quality against KV bytes per token (mode exact)"
        written.append(charts({title: _by_length(points)}, "KV bytes per token", folder / "bytes.png"))
    if averages:
        panels = {}
        for name in dict.fromkeys(row.format for row in averages):
            mine = [row for row in averages if row.format == name]
            points = [(row, row.pages_read_share * row.length, row.way.policy) for row in mine]
            panels[f"Quality against tokens attended in decode, {name} KV"] = _by_length(points)
        written.append(charts(panels, "tokens attended (KV pages read)", folder / "budget.png"))
    return written


def _by_length(points: Sequence[tuple[Row, float, str]]) -> dict[str, list[Point]]:
    lengths = sorted({row.length for row, _, _ in points})
    return {
        f"{length} tokens": [Point(x, row.score, label) for row, x, label in points if row.length == length]
        for length in lengths
    }


def needle_map(rows: Sequence[Row], path: Path) -> Path:
    """For each way a grid: lengths across, depths down, colour and number are the mean score."""
    needles = [row for row in rows if row.task == "needle" and row.by_depth]
    ways = list(dict.fromkeys(row.way for row in needles))
    lengths = sorted({row.length for row in needles})
    panel = TOP + CELL_H * len(DEPTHS) + 46
    image, draw = _canvas(max(420, LEFT + CELL_W * len(lengths) + 30), panel * len(ways) + 10)
    for number, way in enumerate(ways):
        top = number * panel
        _text(draw, 16, top + 12, f"Needle: {way}", 17)
        _text(draw, 16, top + 38, "depth", 12, GREY)
        for column, length in enumerate(lengths):
            left = LEFT + column * CELL_W
            _text(draw, left + CELL_W / 2, top + TOP + CELL_H * len(DEPTHS) + 14, _short(length), 12, GREY, "mm")
            row = next((r for r in needles if r.way == way and r.length == length), None)
            for line, depth in enumerate(DEPTHS):
                score = row.by_depth.get(f"{depth:g}") if row else None
                y = top + TOP + line * CELL_H
                fill = PALE if score is None else _heat(score)
                _box(draw, left, y, left + CELL_W - 2, y + CELL_H - 2, fill)
                shown = "-" if score is None else f"{score:.0f}"
                _text(draw, left + CELL_W / 2 - 1, y + CELL_H / 2 - 1, shown, 13, _readable(fill), "mm")
        for line, depth in enumerate(DEPTHS):
            _text(draw, LEFT - 12, top + TOP + (line + 0.5) * CELL_H, f"{100 * depth:.0f} %", 12, GREY, "rm")
    image.save(path)
    return path


def charts(panels: dict[str, dict[str, list[Point]]], across: str, path: Path) -> Path:
    """One panel below the other, by title. In each, score (0 to 100) over x, a line of points for each series."""
    image, draw = _canvas(WIDTH, HEIGHT * len(panels))
    for number, (title, series) in enumerate(panels.items()):
        _chart(draw, HEIGHT * number, title, series, across)
    image.save(path)
    return path


def _chart(draw: ImageDraw, above: float, title: str, series: dict[str, list[Point]], across: str) -> None:
    left, top, right, bottom = 64, above + 72, WIDTH - 190, above + HEIGHT - 62
    highest = max(point.x for points in series.values() for point in points) or 1.0
    step = _nice(highest / 5)
    end = math.ceil(highest * 1.05 / step) * step
    _text(draw, 16, above + 14, title, 17)
    _text(draw, 16, above + 42, "mean score", 12, GREY)
    for score in range(0, 101, 20):
        y = bottom - (bottom - top) * score / 100
        _line(draw, [(left, y), (right, y)], PALE)
        _text(draw, left - 8, y, str(score), 12, GREY, "rm")
    for tick in range(round(end / step) + 1):
        x = left + (right - left) * tick * step / end
        _line(draw, [(x, bottom), (x, bottom + 5)], GREY)
        _text(draw, x, bottom + 9, f"{tick * step:g}", 12, GREY, "ma")
    _text(draw, (left + right) / 2, bottom + 40, across, 13, INK, "mm")
    labels: dict[tuple[str, float], float] = {}
    for number, (name, points) in enumerate(series.items()):
        colour = LINES[number % len(LINES)]
        places = [
            (left + (right - left) * p.x / end, bottom - (bottom - top) * p.y / 100, p.label)
            for p in sorted(points, key=lambda p: (p.x, p.y))
        ]
        _line(draw, [(x, y) for x, y, _ in places], colour, 2)
        for x, y, label in places:
            _dot(draw, x, y, colour)
            labels[label, x] = min(y, labels.get((label, x), y))
        _dot(draw, right + 24, top + 10 + 22 * number, colour)
        _text(draw, right + 36, top + 10 + 22 * number, name, 12, INK, "lm")
    for (label, x), y in labels.items():  # once for points that lie above each other
        _text(draw, x, y - 8, label, 11, INK, "md")


def _canvas(width: float, height: float):
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (round(width * SCALE), round(height * SCALE)), PAPER)
    return image, ImageDraw.Draw(image)


def _text(draw: ImageDraw, x: float, y: float, text: str, size: int, colour: Colour = INK, anchor: str = "la") -> None:
    from PIL import ImageFont

    draw.text((x * SCALE, y * SCALE), text, fill=colour, font=ImageFont.load_default(size * SCALE), anchor=anchor)


def _line(draw: ImageDraw, places: Sequence[tuple[float, float]], colour: Colour, width: int = 1) -> None:
    if len(places) > 1:
        draw.line([(x * SCALE, y * SCALE) for x, y in places], fill=colour, width=width * SCALE)


def _box(draw: ImageDraw, left: float, top: float, right: float, bottom: float, colour: Colour) -> None:
    draw.rectangle((left * SCALE, top * SCALE, right * SCALE, bottom * SCALE), fill=colour)


def _dot(draw: ImageDraw, x: float, y: float, colour: Colour, radius: float = 4) -> None:
    draw.ellipse([(x - radius) * SCALE, (y - radius) * SCALE, (x + radius) * SCALE, (y + radius) * SCALE], fill=colour)


def _heat(score: float) -> Colour:
    """Red at 0, yellow at 50, green at 100."""
    low, high, share = (LOW, MIDDLE, score / 50) if score < 50 else (MIDDLE, HIGH, score / 50 - 1)
    r, g, b = (round(a + (z - a) * share) for a, z in zip(low, high))
    return r, g, b


def _readable(on: Colour) -> Colour:
    return PAPER if 0.3 * on[0] + 0.59 * on[1] + 0.11 * on[2] < 140 else INK


def _short(length: int) -> str:
    return f"{length // 1024}k" if length % 1024 == 0 else str(length)


def _nice(rough: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50, ..."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
