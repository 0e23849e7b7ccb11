"""The full quality table on a card: the suite of `unabridged eval`, shared out over processes and streams.

    python3 tests/measure/quality_samples.py --model FILE --file dist/quality_samples.npz     (once, on any machine)
    python3 tests/measure/quality.py --model FILE --samples dist/quality_samples.npz --out DIR --seconds 540

A process has some of the rows, and a thread of it an engine and a CUDA stream for each of these. All rows take the same
samples in the same order, none runs far ahead of another, and the table is made of the samples that every row has, so
that what has been measured when time is up covers all rows alike. `--before` adds the records of an earlier run, whose
samples are not taken again.

The rows: formats in `exact`; `balanced` and `fast` with budgets scaled to the length, with gates and without, with mean
and deviation and with bounds; sparse prefill alone. How it is made fast: docs/quality.md.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import quality_samples
from quality_work import Job, work

from app.evaluate.measure import Measured, PagesRead, Way
from app.evaluate.report import AVERAGE, as_json, as_table, summarize
from app.evaluate.run import Plan, Record, Results
from app.evaluate.tasks import choose_tasks

BALANCED, FAST = 2048, 1024
DENSE = Way("exact", "bf16")
GATED = Way("balanced", "bf16", "balanced", BALANCED)
WITHOUT_GATES = replace(GATED, gates=False)
WAYS = (
    DENSE,
    *(Way("exact", name) for name in ("fp8", "k8v4", "k4v4", "k3v3", "k2v2")),
    GATED,
    WITHOUT_GATES,
    Way("balanced", "bf16", "balanced", BALANCED, "mean_std", False),
    Way("balanced", "bf16", "balanced", BALANCED, "min_max", False),
    Way("fast", "bf16", "fast", FAST),
    Way("fast", "bf16", "fast", FAST, None, False),
    Way("exact", "bf16", "balanced", BALANCED, None, False),
    Way("balanced", "k4v4", "balanced", BALANCED),
)
SHOWN = (AVERAGE, "multi_turn")


def read_records(path: Path) -> list[Record]:
    """Of a file that `merge` has written."""
    records = []
    with gzip.open(path, "rt") as file:
        for line in file:
            found = json.loads(line)
            measured = found["measured"] | {"pages": PagesRead(**found["measured"]["pages"])}
            measured |= {name: tuple(measured[name]) for name in ("turn_scores", "answers")}
            records.append(Record(**found | {"way": Way(**found["way"]), "measured": Measured(**measured)}))
    return records


def in_common(records: list[Record]) -> list[Record]:
    """The records of samples that every way in `records` has."""
    by_way: dict[Way, set[tuple[str, int]]] = {}
    for record in records:
        by_way.setdefault(record.way, set()).add((record.task, record.index))
    common = set.intersection(*by_way.values()) if by_way else set()
    return [record for record in records if (record.task, record.index) in common]


def merge(args: argparse.Namespace, parts: list[Path], length: int) -> None:
    """Records of all processes -> records.jsonl.gz, table.txt, results.json, and the table on stdout."""
    own = args.out / "records.jsonl.gz"
    with gzip.open(own, "wt") as file:
        for path in (*parts, *args.before):
            with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as lines:
                file.writelines(lines)
    records = read_records(own)
    kept = in_common(records)
    ways = tuple(way for way in WAYS if any(record.way == way for record in records))
    plan = Plan((length,), choose_tasks(["all"]), 0, tuple((way,) for way in ways), DENSE)
    rows = summarize(Results(plan, kept))
    without = [replace(record, way=DENSE) for record in kept if record.way == WITHOUT_GATES]
    streaming = [record for record in kept if record.way == GATED]
    gates = summarize(Results(replace(plan, groups=((DENSE,), (GATED,))), [*without, *streaming]))
    head, *table = as_table(rows)
    lines = ["\t".join(head), *("\t".join(cells) for cells in table)]
    lines += ["", "balanced with gates against balanced without:"]
    lines += ["\t".join(cells) for cells in as_table([row for row in gates if row.way == GATED])[1:]]
    (args.out / "table.txt").write_text("\n".join(lines) + "\n")
    (args.out / "results.json").write_text(json.dumps(as_json(Results(plan, kept), rows, args.model.name)))
    print(f"{len(records)} records, {len(kept)} of samples that all {len(ways)} rows have")
    shown = (
        lines if args.full else [line for line in lines if not line or any(name in line for name in (*SHOWN, "MODE"))]
    )
    print("\n".join(shown), flush=True)


def start_mps(folder: Path) -> bool:
    """NVIDIA's service that lets kernels of several processes overlap, for this run alone; whether it works here."""
    os.environ["CUDA_MPS_PIPE_DIRECTORY"] = os.environ["CUDA_MPS_LOG_DIRECTORY"] = str(folder)
    try:
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True, timeout=20)
        probe = "import torch; torch.zeros(1, device='cuda').item()"
        subprocess.run([sys.executable, "-c", probe], check=True, timeout=90)
        return True
    except (OSError, subprocess.SubprocessError) as error:
        print(f"Processes take turns on the card: MPS does not start here ({error})", flush=True)
        stop_mps()
        del os.environ["CUDA_MPS_PIPE_DIRECTORY"], os.environ["CUDA_MPS_LOG_DIRECTORY"]
        return False


def stop_mps() -> None:
    try:
        subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"MPS was not stopped: {error}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--samples", type=Path, required=True, help="made by quality_samples.py")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=7)
    parser.add_argument("--threads", type=int, default=6, help="of each process; 1 on a CPU")
    parser.add_argument("--seconds", type=float, default=500, help="from start to the last sample")
    parser.add_argument("--counts", default="", help="fewer samples, as needle:20,all:5")
    parser.add_argument("--ways", default="all", help="rows as the table names them, with ; between them")
    parser.add_argument("--before", type=Path, nargs="*", default=[], help="records.jsonl.gz of earlier runs")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--chunk", type=int, default=1024)
    parser.add_argument("--ahead", type=int, default=24, help="samples that a process may be ahead of the slowest")
    parser.add_argument("--mps", action="store_true", help="let kernels of several processes overlap")
    parser.add_argument("--unrecorded", action="store_true", help="launch one by one what is recorded otherwise")
    parser.add_argument("--full", action="store_true", help="print every task")
    args = parser.parse_args()
    started = time.time()
    args.out.mkdir(parents=True, exist_ok=True)
    samples, facts = quality_samples.load(args.samples)
    if args.counts:
        wanted = set(quality_samples.order(quality_samples.read_counts(args.counts)))
        samples = [sample for sample in samples if (sample.task, sample.index) in wanted]
    rank = {key: place for place, key in enumerate(quality_samples.order(Counter(sample.task for sample in samples)))}
    samples.sort(key=lambda sample: rank[sample.task, sample.index])
    end = int(facts["end"])  # type: ignore[call-overload]
    known = {(str(r.way), r.task, r.index) for path in args.before for r in read_records(path)}
    ways = [way for way in WAYS if args.ways == "all" or str(way) in args.ways.split(";")]
    with tempfile.TemporaryDirectory() as folder:
        mps = args.mps and start_mps(Path(folder))
        processes = max(1, min(args.processes, len(ways)))
        context = multiprocessing.get_context("fork")  # what is imported is imported once; the card is not touched here
        places = context.Array("l", processes)
        print(
            f"{len(samples)} samples, {len(ways)} rows, ready to start after {time.time() - started:.0f} s", flush=True
        )
        workers, parts = [], []
        for number in range(processes):
            parts.append(Path(folder) / f"records-{number}.jsonl")
            job = Job(
                number, tuple(ways[number::processes]), DENSE, args.model, parts[-1], Path(folder), args.device,
                args.chunk, end, args.threads if args.device != "cpu" else 1, started + args.seconds, args.ahead,
                not args.unrecorded and args.device != "cpu", frozenset(known),
            )  # fmt: skip
            workers.append(context.Process(target=work, args=(job, samples, places)))
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if mps:
            stop_mps()
        failed = [number for number, worker in enumerate(workers) if worker.exitcode]
        merge(args, [part for part in parts if part.exists()], end)
    print(f"all in {time.time() - started:.0f} s", flush=True)
    if failed:
        sys.exit(f"processes {failed} failed, see above")


if __name__ == "__main__":
    main()
