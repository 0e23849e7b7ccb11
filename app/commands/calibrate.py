"""`unabridged calibrate MODEL`: which KV heads of a model can do without the middle of a text?"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app import environment
from app.commands.common import StatusLine, add_json_flag, add_setting_flags, print_json, print_table, settings_from
from app.errors import BadInput, WrongUse

if TYPE_CHECKING:
    from app.gates import GateStore
    from app.models import ModelInfo
    from app.settings import Settings
    from engine.gates import HeadGates

STEPS = 120
SAMPLES = 16  # texts that training draws from
QUICK_SAMPLES = 4
_DESCRIPTION = """\
Finds the KV heads that never look far back and may stream: in balanced and fast they read the start of a text and its
newest part alone; exact uses none. It also finds the layers whose keys lose most in few bits: KV formats with keys
below 8 bits keep 8 in those. The result is stored for this model and used from the next start on.
"""


def add_parser(commands: Any, everywhere: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "calibrate", parents=[everywhere], help="find the KV heads of a model that may stream", description=_DESCRIPTION
    )
    parser.add_argument("name", nargs="?", metavar="MODEL", help="its name, folder or GGUF file; by default the chosen")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", action="store_true", help="judge heads by their attention, without training")
    how.add_argument("--keys", action="store_true", help="only find the layers that need 8-bit keys; gates stay")
    how.add_argument("--import", dest="imported", metavar="PATH", help="a folder of DuoAttention, or a file of gates")
    how.add_argument("--show", action="store_true", help="show the gates in use, calibrate nothing")
    parser.add_argument("--steps", default=STEPS, type=int, metavar="N", help=f"of training ({STEPS})")
    parser.add_argument("--seed", default=0, type=int, metavar="N", help="other texts for another number (0)")
    add_json_flag(parser)
    add_setting_flags(parser, ("threads",))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    environment.clean()
    from app.gates import GateStore
    from app.models import Models
    from app.paths import Paths

    if args.steps < 10:
        raise WrongUse(f"--steps: got {args.steps}, need at least 10.", f"{STEPS} are usual.")
    if args.seed < 0:
        raise WrongUse(f"--seed: got {args.seed}, need a whole number from 0.", "Leave it out for the usual texts.")
    settings = settings_from(args)
    paths = Paths(settings.data_dir) if args.show else Paths(settings.data_dir).prepare()
    model = Models(paths.models).resolve(args.name or settings.model)
    store = GateStore.of(settings.data_dir)
    if args.show:
        return _show(args, store, model)
    known = store.find_for(model) if args.keys else None
    if args.keys and known is None:
        raise WrongUse(f"{model.name} has no gates to keep.", f"unabridged calibrate {model.name}")
    started, line = time.monotonic(), StatusLine()
    try:
        if args.imported:
            gates = _with_known_layers(store, _imported(store, model, Path(args.imported).expanduser()))
        else:
            gates = _calibrated(args, settings, model, line, None if known is None else known[0])
    finally:
        line.clear()
    path = store.put(gates)
    _tell(args, model, gates, path, time.monotonic() - started)
    return 0


def _calibrated(
    args: argparse.Namespace, settings: Settings, model: ModelInfo, line: StatusLine, known: HeadGates | None
) -> HeadGates:
    """`known`: gates that stay, with other layers of 8-bit keys."""
    from app.gates.passkeys import make_samples
    from engine import EngineConfig
    from engine.gates import open_for_calibration

    clock, doing = time.monotonic(), ""

    def progress(what: str, share: float) -> None:
        nonlocal clock, doing
        if (now := _DOING.get(what, "Calibrating")) != doing:
            clock, doing = time.monotonic(), now
        spent = time.monotonic() - clock
        left = f", about {spent / share * (1 - share):.0f} s left" if share > 0.02 and what != "weights" else ""
        line.show(f"{doing}: {share:.0%}{left}")

    config = EngineConfig(
        model=model.path,
        context=settings.context or (model.context if model.is_demo else None),
        rope_scaling=model.rope_scaling,
        threads=settings.threads,
    )
    opened = open_for_calibration(config, progress)
    count = QUICK_SAMPLES if args.quick or args.keys else SAMPLES
    samples = make_samples(opened.tokenizer.encode, count, args.seed, opened.context)
    if known is not None:
        return replace(known, wide_key_layers=opened.wide_key_layers(samples, progress))
    if args.quick:
        return opened.quick(samples, args.seed, progress)
    return opened.train(samples, args.steps, args.seed, progress)


def _imported(store: GateStore, model: ModelInfo, path: Path) -> HeadGates:
    from engine.gates import GateFileError, check_gates, read_duo_attention, read_gates
    from engine.weights import open_model

    with open_model(model.path) as source:
        shape = source.config.layers, source.config.kv_heads
    fingerprint = store.fingerprint(model)
    try:
        if path.is_dir():
            return read_duo_attention(path, fingerprint, *shape)
        gates = read_gates(path, fingerprint)
        check_gates(gates.gates, *shape)
        return gates
    except GateFileError as error:
        raise BadInput(error.message, error.hint) from error


def _with_known_layers(store: GateStore, imported: HeadGates) -> HeadGates:
    """Gates from elsewhere that name no layers of 8-bit keys, with those that are known of this model."""
    from engine.gates import GateFileError

    if imported.wide_key_layers:
        return imported
    try:
        found = store.find(imported.model_fingerprint)
    except GateFileError as error:
        print(f"{error.message} It is replaced; layers of 8-bit keys in it are not taken over.", file=sys.stderr)
        return imported
    if found is None or not found[0].wide_key_layers:
        return imported
    wide = found[0].wide_key_layers
    print(f"No layers of 8-bit keys were imported; those known stay: {', '.join(map(str, wide))}.", file=sys.stderr)
    return replace(imported, wide_key_layers=wide)


def _show(args: argparse.Namespace, store: GateStore, model: ModelInfo) -> int:
    found = store.find_for(model)
    if found is None:
        raise WrongUse(f"{model.name} has no gates: no head streams.", f"unabridged calibrate {model.name}")
    _tell(args, model, *found)
    return 0


def _tell(
    args: argparse.Namespace, model: ModelInfo, gates: HeadGates, path: Path, seconds: float | None = None
) -> None:
    streaming = gates.streaming()
    heads, count = streaming.numel(), int(streaming.sum())
    if args.json:
        print_json(
            {
                "model": model.name,
                "model_fingerprint": gates.model_fingerprint,
                "method": gates.method,
                "seed": gates.seed,
                "steps": gates.steps,
                "sink": gates.sink,
                "recent": gates.recent,
                "kv_heads": heads,
                "streaming_heads": count,
                "streaming_share": gates.streaming_share,
                "gates": gates.gates,
                "wide_key_layers": gates.wide_key_layers,
                "path": str(path),
                "seconds": None if seconds is None else round(seconds, 1),
            }
        )
        return
    took = "" if seconds is None else f" in {seconds:.0f} s"
    print(f"{model.name}: {count} of {heads} KV heads may stream ({count / heads:.0%}); {_HOW[gates.method]}{took}.")
    if args.show:
        marks = [["*" if head else " " for head in row] for row in streaming.tolist()]
        print_table(
            [
                ("LAYER", "GATES (* streams)"),
                *((i, "  ".join(f"{g:.2f}{m}" for g, m in zip(row, marks[i]))) for i, row in enumerate(gates.gates)),
            ]
        )
    wide = ", ".join(map(str, gates.wide_key_layers))
    print(f"In KV formats with keys below 8 bits these layers keep 8-bit keys: {wide or 'none'}.")
    print(f"Kept in {path}")
    if gates.method == "quick" and seconds is not None:
        print("These are a guess by attention alone; without --quick the gates are trained.", file=sys.stderr)


_DOING = {"weights": "Reading the weights", "keys": "Judging keys in few bits"}
_HOW = {"trained": "trained", "quick": "judged by attention", "imported": "imported"}
