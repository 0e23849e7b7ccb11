"""What commands share: flags made from the settings' schema, opening the app, printing, and progress on a terminal."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from app import environment
from app.setting_rules import switch
from app.settings import KEYS, Settings, load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.wiring import App

SETTING_FLAGS = tuple(key for key in KEYS if key != "reading")  # reading has flags of its own: --whole, --passages


def add_setting_flags(parser: argparse.ArgumentParser, keys: Iterable[str] = SETTING_FLAGS) -> None:
    """One flag per setting, named and explained by the schema; the value is checked when settings are loaded."""
    group = parser.add_argument_group("settings", "for this run only; `unabridged settings` shows what holds now")
    for key in keys:
        known = KEYS[key]
        if known.parse is switch:
            how = argparse.BooleanOptionalAction
            group.add_argument(known.flag, dest=f"setting:{key}", action=how, default=None, help=known.meaning)
            continue
        group.add_argument(known.flag, dest=f"setting:{key}", metavar="VALUE", help=known.meaning.replace("%", "%%"))


def add_json_flag(parser: argparse.ArgumentParser, *, of_action: bool = False) -> None:
    """of_action: the command above has the flag and its default too, and what it was given stays."""
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON for programs")
    if not of_action:
        parser.set_defaults(json=False)


def settings_from(args: argparse.Namespace, **more: object) -> Settings:
    """Settings with this command's flags on top; `more` are further keys that flags of other names decide."""
    flags = {name.removeprefix("setting:"): value for name, value in vars(args).items() if name.startswith("setting:")}
    return load_settings(flags | more, data_dir=Path(args.data_dir) if args.data_dir else None)


def asks_for_evidence(settings: Settings) -> bool:
    """Whether --evidence was given, not only left on by default."""
    return settings.evidence and settings.origin("evidence").startswith("flag")


@contextmanager
def opened(settings: Settings, *, page: bool = False) -> Iterator[App]:
    """The app with this data folder locked; closed again whatever happens. page: as `App.open` says."""
    environment.clean()
    from app.wiring import App

    app = App.open(settings, page=page)
    try:
        yield app
    finally:
        app.close()


def print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False), flush=True)


def print_table(rows: Iterable[Iterable[object]]) -> None:
    """Left-aligned columns; the last one is not padded."""
    table = [[str(cell) for cell in row] for row in rows]
    if not table:
        return
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row, widths[:-1])]
        print("  ".join([*cells, row[-1]]).rstrip())


class StatusLine:
    """One line on stderr that is written over; silent unless stderr is a terminal."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._shown = 0
        self.active = self._stream.isatty()

    def _move(self, text: str) -> None:
        getattr(self._stream, "write_raw", self._stream.write)(text)

    def show(self, text: str) -> None:
        if self.active and text:
            self._move("\r")
            self._stream.write(text.ljust(self._shown))
            self._stream.flush()
            self._shown = len(text)

    def clear(self) -> None:
        if self.active and self._shown:
            self._move("\r" + " " * self._shown + "\r")
            self._stream.flush()
            self._shown = 0


def byte_progress(line: StatusLine, what: str) -> Callable[[int, int], None]:
    """progress(done, total) in bytes, as a status line."""
    from app.units import format_size

    def progress(done: int, total: int) -> None:
        share = f" ({done * 100 // total} %)" if total else ""
        line.show(f"{what}: {format_size(done)} of {format_size(total)}{share}")

    return progress


def confirm(question: str) -> bool:
    """True for a yes typed on a terminal; False without one."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
