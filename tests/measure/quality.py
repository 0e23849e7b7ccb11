"""The full quality table on a card: the suite of `unabridged eval`, shared out over processes.

    python3 tests/measure/quality.py --model FILE --out DIR --processes 8 --seconds 540

Every process keeps one engine for each group of rows and takes every n-th sample, so that what has been measured when
time is up covers all rows alike. The rows: formats in `exact`; `balanced` and `fast` with budgets scaled to the length,
with gates and without, with mean and deviation and with bounds; sparse prefill alone.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from app.evaluate.measure import Asker, Measured, PagesRead, Way
from app.evaluate.prompts import Prompts
from app.evaluate.report import as_json, as_table, summarize
from app.evaluate.run import Plan, Record, Results, _one, make_sample
from app.evaluate.tasks import choose_tasks
from app.model_face import open_face
from app.models import Models
from engine import Engine, EngineConfig, Sparsity
from engine.cache import KvCache
from engine.gates import read_gates
from engine.load import LoadedModel, kept_scorers, load_model, make_graphs
from engine.profiles import kv_sizes

GATES = Path(__file__).resolve().parents[2] / "app/gates/starter.json"
BALANCED, FAST = 2048, 1024
DENSE = Way("exact", "bf16")
WAYS = (
    DENSE,
    *(Way("exact", name) for name in ("fp8", "k8v4", "k4v4", "k3v3", "k2v2")),
    Way("balanced", "bf16", "balanced", BALANCED),
    Way("balanced", "bf16", "balanced", BALANCED, None, False),
    Way("balanced", "bf16", "balanced", BALANCED, "mean_std", False),
    Way("balanced", "bf16", "balanced", BALANCED, "min_max", False),
    Way("fast", "bf16", "fast", FAST),
    Way("fast", "bf16", "fast", FAST, None, False),
    Way("exact", "bf16", "balanced", BALANCED, None, False),
    Way("balanced", "k4v4", "balanced", BALANCED),
)
PREFILL_BUDGET = 2048  # read by a query block in the row of sparse prefill alone


def config_for(way: Way, args: argparse.Namespace) -> EngineConfig:
    sparsity = Sparsity()
    if way.sparse:
        sparsity = Sparsity(
            budget=way.budget,
            crossover=0,
            ratio=0.0,
            score=way.scorer or "coarse_keys",
            reading_budget=PREFILL_BUDGET if way.mode == "exact" else None,
        )
    gates = tuple(map(tuple, read_gates(GATES).gates)) if way.gates and way.sparse else None
    room = args.length + 512
    return EngineConfig(
        model=args.model,
        context=room,
        kv_format=way.format,  # pyright: ignore[reportArgumentType]
        device=args.device,
        gates=gates,
        sparsity=sparsity,
        kv_capacity_tokens=2 * room + 2048,
        prefill_chunk=args.chunk,
        decode_weights="auto" if args.device == "cpu" else "bf16",
    )


def engine_for(way: Way, args: argparse.Namespace, first: LoadedModel) -> Engine:
    """With the weights of `first`, which all rows share, and a cache of its own."""
    config, model = config_for(way, args), first.decoder.config
    scorers, device = kept_scorers(config), first.profile.device
    sizes = kv_sizes(config, model, first.context, device, scorers)
    cache = KvCache(model, config.kv_format, sizes.pages, sizes.exact, device, scorers, sizes.cold)
    graphs = None
    if device != "cpu":
        graphs = make_graphs(first.decoder, cache, config, first.context, lambda share: None)
    return Engine(config, replace(first, cache=cache, capacity=sizes.tokens, scorers=scorers, graphs=graphs))


def work(number: int, args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    deadline, started = args.deadline, time.time()
    model = Models(args.out / "models").resolve(str(args.model))
    prompts, tasks = Prompts(open_face(model, None), model.parameters), choose_tasks(args.tasks.split(","))
    ways = [way for way in WAYS if args.ways == "all" or str(way) in args.ways.split(";")]
    plan = Plan((args.length,), tasks, args.samples, ((DENSE,),), DENSE, args.seed)
    first = load_model(config_for(DENSE, args), lambda step, share: None)
    turned = number * len(ways) // args.processes  # each compiles something else first
    engines = {way: engine_for(way, args, first) for way in (*ways[turned:], *ways[:turned])}
    askers = [(way, Asker(engines[way], prompts)) for way in ways]
    dense_ids: dict[tuple[int, int], list[int]] = {}
    print(f"process {number}: {len(engines)} engines after {time.time() - started:.0f} s", flush=True)
    with (args.out / f"records-{number}.jsonl").open("w") as file:
        for index in range(number, args.samples, args.processes):
            for task in tasks:
                if index >= args.few and task.name in args.rare.split(","):
                    continue
                sample = make_sample(args.seed, task, args.length, index, prompts)
                for way, asker in askers:
                    if time.time() > deadline:
                        return
                    before = time.time()
                    measured = _one(asker, sample, task, way, plan, dense_ids, (args.length, index))
                    asker.forget()
                    if measured is None:
                        continue
                    record = asdict(Record(way, args.length, task.name, index, sample.depth, measured))
                    file.write(json.dumps(record | {"seconds": time.time() - before}) + "\n")
            file.flush()


def merge(args: argparse.Namespace) -> None:
    """records-*.jsonl -> table on stdout, results.json and table.txt."""
    plan = Plan((args.length,), choose_tasks(args.tasks.split(",")), args.samples, tuple((w,) for w in WAYS), DENSE)
    results = Results(plan)
    for path in sorted(args.out.glob("records-*.jsonl")):
        for line in path.read_text().splitlines():
            found = json.loads(line)
            measured = found.pop("measured")
            found.pop("seconds")
            measured["pages"] = PagesRead(**measured["pages"])
            for name in ("turn_scores", "answers"):
                measured[name] = tuple(measured[name])
            results.records.append(Record(**found | {"way": Way(**found["way"]), "measured": Measured(**measured)}))
    rows = summarize(results)
    without = [replace(r, way=DENSE) for r in results.records if r.way == WAYS[7]]
    streaming = [r for r in results.records if r.way == WAYS[6]]
    own = Results(replace(plan, groups=((DENSE,), (WAYS[6],))), [*without, *streaming])
    text = "\n".join("\t".join(cells) for cells in as_table(rows))
    text += "\n\nbalanced with gates against balanced without:\n"
    text += "\n".join("\t".join(cells) for cells in as_table([r for r in summarize(own) if r.way == WAYS[6]]))
    (args.out / "table.txt").write_text(text + "\n")
    (args.out / "results.json").write_text(json.dumps(as_json(results, rows, args.model.name)))
    print(
        text if args.full else "\n".join(line for line in text.splitlines() if "average" in line or "against" in line)
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument("--length", type=int, default=7168)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--few", type=int, default=20, help="samples of the tasks in --rare")
    parser.add_argument("--rare", default="", help="tasks that the model cannot do: few samples, to show it")
    parser.add_argument("--tasks", default="all")
    parser.add_argument("--ways", default="all", help="rows as the table names them, with ; between them")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--chunk", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--merge", action="store_true", help="only make the table of what was measured")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    args.deadline = time.time() + args.seconds
    if not args.merge:
        context = multiprocessing.get_context("spawn")
        workers = [context.Process(target=work, args=(number, args)) for number in range(args.processes)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    merge(args)


if __name__ == "__main__":
    main()
