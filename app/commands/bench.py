"""`unabridged bench`: how fast is the engine on this card, at which length, and how far from what the card can give?"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app import environment
from app.commands.common import StatusLine, add_json_flag, print_json, print_table
from app.errors import AppError, WrongUse
from app.units import parse_length

if TYPE_CHECKING:
    from app.bench.plan import BenchPlan
    from app.bench.rows import Row

_DESCRIPTION = """\
Times decode and prefill on random weights of a named shape over random KV: speed does not depend on what is in them.
Each figure stands beside what the card was just measured to give, and beside the KV pages that were read for it.

unabridged bench --shape llama-3-8b --lengths 8k,128k
unabridged bench --shape qwen3-4b --weights int4 --formats k3v3 --lengths 32k,320k --what tpot
unabridged bench --what ttft,restore --formats k4v4,fp8 --lengths 32k
unabridged bench --what tpot,ttft,torch,transformers --lengths 8k,32k,128k --out results
unabridged bench --plot results/bench.json
"""


def add_parser(commands: Any, everywhere: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "bench", parents=[everywhere], help="measure speed on a graphics card", description=_DESCRIPTION
    )
    parser.add_argument("--shape", default="llama-3-8b", metavar="NAME", help="of the model (llama-3-8b)")
    parser.add_argument("--weights", default="fp8", metavar="NAME", help="bf16, fp8 or int4 (fp8)")
    parser.add_argument("--lengths", default="8k,32k,128k", metavar="LIST", help="tokens of context")
    parser.add_argument("--what", default="tpot,ttft", metavar="LIST", help="tpot, ttft, restore, torch, transformers")
    parser.add_argument("--modes", default="exact,balanced", metavar="LIST", help="exact, balanced, fast")
    parser.add_argument("--formats", default="bf16", metavar="LIST", help="KV formats")
    parser.add_argument("--wide-keys", default="", metavar="LIST", help="layers with 8-bit keys in any format (none)")
    parser.add_argument("--peer-seconds", default=60.0, type=float, metavar="N", help="for transformers, in all (60)")
    parser.add_argument("--out", metavar="DIR", help="folder for bench.json, bench.csv and bench.png")
    parser.add_argument("--plot", metavar="FILE", help="measure nothing: draw an earlier bench.json beside it")
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    environment.clean()
    if args.plot:
        return _plot(Path(args.plot).expanduser())
    from engine.machine import why_no_triton

    plan = _plan(args)
    if reason := why_no_triton():
        raise AppError(f"There is nothing to measure here: {reason}.", "It needs an NVIDIA card and Triton.")
    import torch

    from app.bench.plot import can_draw, draw
    from app.bench.rows import FAILED, as_json, as_line, as_table
    from app.bench.run import measure

    line, rows = StatusLine(), []
    folder = Path(args.out).expanduser() if args.out else None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    try:
        limits, measured = measure(plan, line.show, folder=folder)
        try:
            for row in measured:
                rows.append(row)
                line.clear()
                print(as_line(row), file=sys.stderr, flush=True)
                if folder is not None:  # what was measured stays, whatever ends this
                    _write(folder, as_json(plan, torch.cuda.get_device_name(), limits, rows), rows)
        finally:  # Ctrl-C, or a length that did not fit: what was measured before is told all the same
            line.clear()
            found = as_json(plan, torch.cuda.get_device_name(), limits, rows)
            if args.json:
                print_json(found)
            else:
                print_table(as_table(rows))
        if folder is not None and can_draw():
            draw(found, folder / "bench.png")
        elif folder is not None:
            file = folder / "bench.json"
            print(f"No picture, as matplotlib is missing; later: unabridged bench --plot {file}", file=sys.stderr)
    finally:
        line.clear()
    return int(any(row.note.startswith(FAILED) for row in rows))


def _plan(args: argparse.Namespace) -> BenchPlan:
    from app.bench.plan import BenchPlan

    try:
        return BenchPlan(
            args.shape, args.weights, tuple(map(parse_length, _list(args.lengths))), _list(args.what),
            _list(args.modes), _list(args.formats), peer_seconds=args.peer_seconds,
            wide_key_layers=_layers(args.wide_keys),
        )  # fmt: skip
    except ValueError as error:
        said = str(error)
        raise WrongUse(f"{said[0].upper()}{said[1:]}.", "`unabridged bench --help` shows how to use it.") from error


def _plot(file: Path) -> int:
    from app.bench.plot import draw

    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        picture = file.with_suffix(".png")
        draw(found, picture)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WrongUse(
            f"{file} is no result of `unabridged bench`: {error}.", "Give the bench.json of --out."
        ) from error
    print(picture)
    return 0


def _write(folder: Path, found: dict[str, Any], rows: list[Row]) -> None:
    from app.bench.rows import Row

    (folder / "bench.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    with (folder / "bench.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        writer.writerows(map(asdict, rows))


def _layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, _list(text)))
    except ValueError:
        raise ValueError(f"wide_key_layers: got {text!r}, need numbers of layers") from None


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
