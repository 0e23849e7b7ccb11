"""Compiles what the engine launches, for cards that are not here, and writes what ptxas made of it as a table.

    python -m tests.kernels.compile_cards [--matrix] [--cards 80,89] [--dims 128] [--only TEXT] [--out FILE]

Without --matrix: what the tests compile. In the table `168 / 24.5` stands for 168 registers of a thread and 24.5 KiB of
shared memory; spilled bytes of a thread come behind them, those inside loops said so.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

if __name__ == "__main__":
    os.environ.pop("TRITON_INTERPRET", None)  # read when a kernel is declared
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the cards are made up
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # what Triton does up to 3.9, without its warning

from tests.kernels.ahead_of_time import compile_source
from tests.kernels.card_cases import cases
from tests.kernels.card_plan import CARDS, MATRIX_DIMS, MATRIX_FORMATS, PLAN, REFUSED, in_matrix
from tests.kernels.fake_card import Launch, launches


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    d: int
    launch: Launch


@dataclass(frozen=True, slots=True)
class Row:
    """As `Compiled`, for one card. `descriptors`: its arguments that go through the tensor memory accelerator.
    `refused`: why it does not compile, or ""; the numbers are 0 where there is a reason."""

    name: str
    d: int
    capability: int
    descriptors: int
    registers: int = 0
    spilled: int = 0
    in_loops: int = 0
    shared: int = 0
    refused: str = ""


def jobs(matrix: bool, capabilities: list[int], dims: list[int], only: str) -> list[Job]:
    found = []
    for capability in capabilities:
        wanted = (*PLAN[capability], *REFUSED.get(capability, ()))
        for d in dims:
            for case in cases(d, MATRIX_FORMATS):
                if only not in case.name or not (in_matrix(case.name, d) if matrix else case.name in wanted):
                    continue
                launched = [one for one in launches(capability, case.call) if one.kernel.endswith(f".{case.kernel}")]
                if len(launched) != 1:
                    raise ValueError(f"{case.name}: launched {len(launched)} times, need {case.kernel} once")
                found.append(Job(case.name, d, launched[0]))
    return found


_jobs: list[Job] = []  # worker processes are forks and find it as it was then


def _compiled(number: int) -> Row:
    job = _jobs[number]
    launch = job.launch
    try:
        made = compile_source(launch.source, launch.capability, launch.options)
    except Exception as error:  # each of Triton's stages refuses in its own way
        return Row(job.name, job.d, launch.capability, launch.descriptors, refused=_reason(error))
    return Row(
        job.name, job.d, launch.capability, launch.descriptors, made.registers, made.spilled, made.in_loops, made.shared
    )  # fmt: skip


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "not supported" in line or "requires" in line.lower()]
    return f"{type(error).__name__}: {(telling or lines or [''])[0][:200]}"


def compile_all(all_jobs: list[Job], workers: int) -> list[Row]:
    """In processes of their own; each distinct kernel once."""
    first: dict[str, int] = {}
    for number, job in enumerate(all_jobs):
        first.setdefault(job.launch.key, number)
    _jobs[:] = all_jobs
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
        made = dict(zip(first, pool.map(_compiled, first.values())))
    rows = []
    for job in all_jobs:
        row = asdict(made[job.launch.key])
        rows.append(Row(**{**row, "name": job.name, "d": job.d}))
    return rows


def markdown(rows: list[Row]) -> str:
    """A table for each head_dim: a line for each kernel, a column for each card."""
    capabilities = sorted({row.capability for row in rows})
    parts = []
    for d in sorted({row.d for row in rows}, reverse=True):
        lines = [
            f"| head_dim {d} | " + " | ".join(f"sm_{capability}" for capability in capabilities) + " |",
            "| --- |" + " --- |" * len(capabilities),
        ]
        cells = {(row.name, row.capability): _cell(row) for row in rows if row.d == d}
        for name in dict.fromkeys(row.name for row in rows if row.d == d):
            lines.append(f"| {name} | " + " | ".join(cells.get((name, c), "") for c in capabilities) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _cell(row: Row) -> str:
    if row.refused:
        return "refused"
    shared = f"{row.shared / 1024:.1f}".removesuffix(".0")
    cell = f"{row.registers} / {shared}"
    if row.spilled:
        cell += f", {row.spilled} B spilled" + (f", {row.in_loops} x in loops" if row.in_loops else "")
    return cell


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--matrix", action="store_true")
    parser.add_argument("--cards", default=",".join(map(str, CARDS)))
    parser.add_argument("--dims", default="", help="head_dim; by default 128, and 64 in the matrix")
    parser.add_argument("--only", default="", metavar="TEXT", help="kernels whose names have it")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    began = time.monotonic()
    dims = list(map(int, asked.dims.split(","))) if asked.dims else list(MATRIX_DIMS[: 1 + asked.matrix])
    todo = jobs(asked.matrix, list(map(int, asked.cards.split(","))), dims, asked.only)
    rows = compile_all(todo, min(asked.workers, 16))
    distinct = len({job.launch.key for job in todo})
    if asked.json:
        asked.json.write_text(json.dumps({"compiles": distinct, "rows": [asdict(row) for row in rows]}))
    if asked.out:
        asked.out.write_text(markdown(rows))
    else:
        print(markdown(rows))
    print(f"{distinct} kernels in {time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
