"""`unabridged eval`: how much quality do sparse attention and small KV formats cost, task by task, against dense?"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from app import environment
from app.commands.common import StatusLine, add_json_flag, add_setting_flags, print_json, print_table, settings_from
from app.errors import DoesNotFit, WrongUse
from app.units import parse_length

if TYPE_CHECKING:
    from app.evaluate.run import Plan, Record, Results

SETTINGS = ("model", "device", "context", "prefill_chunk", "threads", "decode_weights")
INTERRUPTED = 130
_EXAMPLES = """\
unabridged eval --lengths 1k,4k --samples 20 --formats bf16,k8v4
unabridged eval --tasks needle --lengths 1k,2k,4k,8k --samples 25 --out needle
"""


def add_parser(commands: Any, everywhere: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "eval",
        parents=[everywhere],
        help="measure quality: sparse attention and KV formats against dense",
        description=_EXAMPLES,
    )
    parser.add_argument("--lengths", default="1k,4k", metavar="LIST", help="tokens of prompt and answer together")
    parser.add_argument("--tasks", default="all", metavar="LIST", help="tasks by name, or all")
    parser.add_argument("--samples", default=20, type=int, metavar="N", help="samples of each task and length")
    parser.add_argument("--modes", default="exact", metavar="LIST", help="how documents are read and answered")
    parser.add_argument("--formats", default="bf16,k8v4", metavar="LIST", help="KV formats")
    parser.add_argument("--decode-only", action="store_true", help="read densely once; modes differ in answering only")
    parser.add_argument("--seed", default=0, type=int, metavar="N", help="other samples for another number")
    parser.add_argument("--out", metavar="DIR", help="folder for results.json, samples.jsonl and PNG plots")
    add_json_flag(parser)
    add_setting_flags(parser, SETTINGS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    environment.clean()
    from app.evaluate.engines import engine_loader
    from app.evaluate.prompts import Prompts
    from app.evaluate.run import Results, measure
    from app.model_face import open_face
    from app.models import Models
    from app.paths import Paths

    settings = settings_from(args)
    plan = _plan(args)
    out = _folder(args.out)
    model = Models(Paths(settings.data_dir).models).resolve(settings.model)
    face = open_face(model, settings.context)
    if max(plan.lengths) > face.context:
        raise DoesNotFit(
            f"A length of {max(plan.lengths)} tokens does not fit: {face.name} holds {face.context}.",
            "Choose shorter --lengths.",
            needed_tokens=max(plan.lengths),
            available_tokens=face.context,
        )
    prompts, results, line = Prompts(face, model.parameters), Results(plan), StatusLine()
    log = (out / "samples.jsonl").open("w", encoding="utf-8") if out else None
    try:
        measure(plan, prompts, engine_loader(settings, model), results, line.show, lambda record: _log(log, record))
    except KeyboardInterrupt:
        if not results.records:
            raise
        results.partial = True
    finally:
        line.clear()
        if log:
            log.close()
    _tell(args, results, face.name, out)
    if results.partial:
        return INTERRUPTED
    return 1 if results.refused else 0


def _plan(args: argparse.Namespace) -> Plan:
    from app.evaluate.run import Plan, plan_ways
    from app.evaluate.tasks import choose_tasks

    if args.samples < 1:
        raise WrongUse(f"--samples: got {args.samples}, need at least 1.", "20 give a first look, 100 a result.")
    try:
        lengths = tuple(sorted({parse_length(text) for text in _list(args.lengths)}))
    except ValueError as error:
        raise WrongUse(f"--lengths: {error}.", "Write lengths such as 1k,4k or 2048.") from error
    modes, formats, tasks = _list(args.modes), _list(args.formats), _list(args.tasks)
    for flag, given in (("--lengths", lengths), ("--modes", modes), ("--formats", formats), ("--tasks", tasks)):
        if not given:
            raise WrongUse(f"{flag}: got nothing.", "Write names with commas between them.")
    ways, dense = plan_ways(modes, formats, ())
    return Plan(lengths, choose_tasks(tasks), args.samples, ways, dense, args.seed, args.decode_only)


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _folder(name: str | None) -> Path | None:
    """The folder for results, made before anything is measured."""
    if name is None:
        return None
    folder = Path(name).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WrongUse(f"--out: {folder} cannot be a folder ({error.strerror}).", "Choose another place.") from error
    return folder


def _log(file: TextIO | None, record: Record) -> None:
    """One line a measurement, written at once: what a long run has measured outlives it."""
    if file:
        file.write(json.dumps(asdict(record), ensure_ascii=False) + "\n")
        file.flush()


def _tell(args: argparse.Namespace, results: Results, model: str, out: Path | None) -> None:
    from app.evaluate.plots import write_plots
    from app.evaluate.report import as_json, as_table, summarize, words

    rows = summarize(results)
    found = as_json(results, rows, model)
    if out:
        text = json.dumps(found, ensure_ascii=False, indent=1)
        (out / "results.json").write_text(text + "\n", encoding="utf-8")
        write_plots(rows, results.bytes_per_token, out)
    if args.json:
        print_json(found)
    else:
        print_table(as_table(rows))
    for sentence in words(results, rows):
        print(sentence, file=sys.stderr)
