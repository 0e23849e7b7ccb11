"""The figures of a benchmark, as a table for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

from app.bench.plan import BenchPlan

if TYPE_CHECKING:
    from app.bench.limits import Limits

OURS = "unabridged"
FAILED = "FAILED:"  # how the note of a row begins whose part failed


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `value` is None where `note` says why there is none.

    `share_of_limit`: of what reading memory (tpot), multiplying (ttft) or reading the file (restore) allows; above 1
    means that less was read or multiplied than dense attention needs. `compiles`: kernels compiled or loaded and graphs
    recorded while it was measured. `by`: who computed. gb_per_s: of a snapshot's file.
    """

    what: str
    mode: str
    format: str
    length: int
    value: float | None
    unit: str
    share_of_limit: float | None = None
    pages_read: float | None = None
    kernels: int | None = None
    device_ms: float | None = None
    peak_gib: float | None = None
    compiles: int | None = None
    gb_per_s: float | None = None
    by: str = OURS
    note: str = ""


_HEAD = [
    "WHAT", "BY", "MODE", "KV", "LENGTH", "VALUE", "OF LIMIT", "PAGES READ", "KERNELS", "ON DEVICE", "PEAK", "COMPILES",
    "NOTE",
]  # fmt: skip


def as_table(rows: Sequence[Row]) -> list[list[str]]:
    """Cells, with a head line."""
    return [_HEAD] + [
        [
            row.what,
            row.by,
            row.mode,
            row.format,
            str(row.length),
            _said(row.value, "{:.3f} " + row.unit),
            _said(None if row.share_of_limit is None else 100 * row.share_of_limit, "{:.0f} %"),
            _said(None if row.pages_read is None else 100 * row.pages_read, "{:.1f} %"),
            _said(row.kernels, "{}"),
            _said(row.device_ms, "{:.3f} ms"),
            _said(row.peak_gib, "{:.1f} GiB"),
            _said(row.compiles, "{}"),
            row.note or "-",
        ]
        for row in rows
    ]


def as_line(row: Row) -> str:
    """For people who wait: a figure as soon as it is measured."""
    head, cells = as_table([row])
    said = [f"{name.lower()} {cell}" for name, cell in zip(head, cells) if name not in _HEAD[:6] and cell != "-"]
    return ", ".join([" ".join(cells[:6]), *said])


def as_json(plan: BenchPlan, device: str, limits: Limits, rows: Iterable[Row]) -> dict[str, Any]:
    return {
        "date": date.today().isoformat(),
        "device": device,
        "shape": plan.shape,
        "weights": plan.weights,
        "wide_key_layers": plan.wide_key_layers,
        "limits": {"read_bytes_per_s": limits.read, "bf16_flop_per_s": limits.multiply},
        "rows": [asdict(row) for row in rows],
    }


def first_token(rows: Iterable[Row], mode: str, kv_format: str, length: int) -> float | None:
    """Our own seconds to the first token, if they were measured before."""
    for row in rows:
        if (row.what, row.by, row.mode, row.format, row.length) == ("ttft", OURS, mode, kv_format, length):
            return row.value
    return None


def _said(value: float | None, how: str) -> str:
    return "-" if value is None else how.format(value)
