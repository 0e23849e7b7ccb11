"""`unabridged eval`: how much quality do sparse attention and small KV formats cost, task by task, against dense?"""

from __future__ import annotations

import argparse
import json
import re
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
    from app.settings import Settings

SPARSITY = tuple(
    f"sparsity.{name}" for name in ("crossover", "ratio", "streaming_ratio", "logical_pages", "reuse_interval")
)
"""Settings that hold for all sparse rows; budget and score are columns of the table."""
SETTINGS = ("model", "context", "prefill_chunk", "threads", "decode_weights", *SPARSITY)
_EXAMPLES = """\
unabridged eval --lengths 1k,4k --samples 20 --formats bf16,k8v4
unabridged eval --lengths 7k --modes exact,balanced --budget 2k --crossover 0
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
    parser.add_argument(
        "--budget", default="", metavar="LIST", help="tokens attended by sparse modes; several are rows"
    )
    parser.add_argument(
        "--scorer", default="", metavar="LIST", help="how sparse modes choose KV pages, such as min_max"
    )
    parser.add_argument("--reading-budget", metavar="N", help="tokens read by each query block of the prompt")
    parser.add_argument("--decode-only", action="store_true", help="read densely, once; sparse modes only answer")
    parser.add_argument("--prefill-only", action="store_true", help="answer densely; sparse modes only read")
    parser.add_argument("--without-gates", action="store_true", help="sparse modes also with no head streaming")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu, or a device of torch such as cuda")
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
    plan, reading_budget = _plan(args, settings), _amount("--reading-budget", args.reading_budget)
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
    prompts, results, line = (
        Prompts(face, model.parameters),
        Results(plan, sparsity=_sparsity(settings, reading_budget)),
        StatusLine(),
    )
    _note_settings(results, settings)
    log = (out / "samples.jsonl").open("w", encoding="utf-8") if out else None
    load = engine_loader(settings, model, args.device, reading_budget)
    try:
        measure(plan, prompts, load, results, line.show, lambda record: _log(log, record))
    except BaseException:  # Ctrl-C, or an engine that gave up: what has been measured is told all the same
        line.clear()
        results.partial = True
        if results.records:
            _tell(args, results, face.name, out)
        raise
    finally:
        line.clear()
        if log:
            log.close()
    _tell(args, results, face.name, out)
    return 1 if results.refused else 0


def _plan(args: argparse.Namespace, settings: Settings) -> Plan:
    from app.evaluate.run import Part, Plan, plan_ways
    from app.evaluate.tasks import choose_tasks

    if not re.fullmatch(r"cpu|cuda(:\d+)?", args.device):
        raise WrongUse(f"--device: there is no device {args.device!r}.", "Use cpu, cuda or cuda:N.")
    if args.samples < 1:
        raise WrongUse(f"--samples: got {args.samples}, need at least 1.", "20 give a first look, 100 a result.")
    lengths = tuple(sorted(set(_tokens("--lengths", args.lengths))))
    modes, formats, tasks = _list(args.modes), _list(args.formats), _list(args.tasks)
    for flag, given in (("--lengths", lengths), ("--modes", modes), ("--formats", formats), ("--tasks", tasks)):
        if not given:
            raise WrongUse(f"{flag}: got nothing.", "Write names with commas between them.")
    asked: dict[Part, bool] = {"decode": args.decode_only, "prefill": args.prefill_only}
    parts: list[Part] = [part for part, wanted in asked.items() if wanted]
    budgets, scorers = _tokens("--budget", args.budget), _list(args.scorer)
    if not budgets and settings.sparsity_budget is not None:
        budgets = [settings.sparsity_budget]
    if not scorers and settings.origin("sparsity.score") != "default":
        scorers = [settings.sparsity_score]
    gates = (True, False) if args.without_gates else (True,)
    apart = settings.sparsity_streaming_ratio is not None  # then the engine may keep less than `exact` reads
    groups, dense = plan_ways(modes, formats, budgets, scorers, parts or ["both"], apart, gates)
    return Plan(lengths, choose_tasks(tasks), args.samples, groups, dense, args.seed)


def _sparsity(settings: Settings, reading_budget: int | None) -> dict[str, Any]:
    """What all sparse rows have in common; None where the mode decides."""
    common = {key.removeprefix("sparsity."): settings.value(key) for key in SPARSITY}
    return common | {"reading_budget": reading_budget}


def _note_settings(results: Results, settings: Settings) -> None:
    """What the user set once, elsewhere, must not change a table unseen."""
    for key in SPARSITY:
        origin = settings.origin(key)
        if origin != "default" and not origin.startswith("flag"):
            results.note(f"{key} is {settings.value(key)} in all sparse rows, from {origin}.")


def _tokens(flag: str, text: str) -> list[int]:
    try:
        return [parse_length(part) for part in _list(text)]
    except ValueError as error:
        raise WrongUse(f"{flag}: {error}.", "Write tokens such as 2048 or 1k,4k.") from error


def _amount(flag: str, text: str | None) -> int | None:
    return _tokens(flag, text)[0] if text and _list(text) else None


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
