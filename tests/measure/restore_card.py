"""Restoring 128k tokens of a Llama-3-8B shape on a card: k4v4 and fp8, cold and warm, beside a plain read and prefill.

Two calls, so that other things may run beside the first one; what was measured is printed as it comes, a table last.
`prepare`: the snapshots are written (by the app's own store, with its own settings) while prefill's kernels are
compiled. `measure`: prefill alone, then restoring alone.

python3 tests/measure/restore_card.py prepare --folder /tmp/restore [--formats k4v4,fp8] [--write-seconds 80]
python3 tests/measure/restore_card.py measure --folder /tmp/restore
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

import engine.prefix as prefix
import engine.row_loader as row_loader
import storage.kvcache as kvcache
from app.bench.context import make_cache
from app.bench.prefill import measure_ttft
from app.bench.restore import Reader, Written, write_random
from engine.profiles import prefill_chunk_tokens
from engine.random_weights import SHAPES, random_decoder

MODES = ("exact", "balanced")


def say(text: str) -> None:
    print(f"{time.perf_counter() - STARTED:6.1f} s  {text}", flush=True)


STARTED = time.perf_counter()


def write(args: argparse.Namespace) -> None:
    """One format: written once, told in `folder`/format.json."""
    place = args.folder / args.formats[0]
    place.mkdir(parents=True)
    cache = make_cache(SHAPES[args.shape], args.formats[0], args.length, torch.device(args.device))
    written = write_random(cache, args.length, place, args.write_seconds)
    (args.folder / f"{args.formats[0]}.json").write_text(json.dumps(asdict(written)))
    size = written.file_bytes / 1e9
    say(
        f"{args.formats[0]}: {written.tokens} tokens, {size:.2f} GB stored in {written.seconds:.1f} s, "
        f"{size / written.seconds:.2f} GB/s (WAL, synchronous NORMAL, commits of 64 MB, checkpointed)"
    )


def prefill(args: argparse.Namespace) -> None:
    """Seconds to the first token, with random weights: `folder`/prefill.json, by mode."""
    shape, found = SHAPES[args.shape], {}
    decoder = random_decoder(shape, "fp8", torch.device(args.device))
    for mode in MODES:
        row = measure_ttft(decoder, args.formats[0], args.length, mode, prefill_chunk_tokens(shape, args.device))
        found[mode] = row.ttft_s
        say(f"{args.formats[0]}, {mode}: first token after {row.ttft_s:.2f} s, {row.read_share:.1%} of pages read, "
            f"{row.compiles} compiled meanwhile")  # fmt: skip
        (args.folder / "prefill.json").write_text(json.dumps(found))


class Times:
    """Seconds that each part takes, by its name, added up over all threads."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._lock = threading.Lock()
        self._undo: list[Callable[[], None]] = []

    def watch(self, holder: Any, name: str, called: str) -> None:
        own = getattr(holder, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return own(*args, **kwargs)
            finally:
                with self._lock:
                    self.seconds[called] += time.perf_counter() - started

        setattr(holder, name, timed)
        self._undo.append(lambda: setattr(holder, name, own))

    def stop(self) -> None:
        for undo in self._undo:
            undo()


def parts(reader: Reader) -> None:
    """One warm restore with a clock on each part; those of the reading threads add up over all of them."""
    times = Times()
    times.watch(kvcache, "fetch", "threads: SQLite")
    times.watch(kvcache, "checksum", "threads: row's checksum")
    times.watch(row_loader, "open_payload", "threads: payload's header")
    times.watch(row_loader.Batch, "_load", "threads: all of a row")
    times.watch(prefix, "fit", "main: check against the prompt")
    times.watch(prefix, "adopt", "main: take pages")
    times.watch(prefix, "write", "main: begin upload, launch placing")
    times.watch(row_loader.ToCard, "wait", "main: wait for the upload before")
    times.watch(row_loader.ToCard, "host", "main: pinned memory")
    try:
        seconds = reader.restore()
    finally:
        times.stop()
    say(f"parts of a warm restore that took {seconds:.2f} s with clocks, {row_loader.reading_threads()} threads:")
    for name, spent in sorted(times.seconds.items()):
        print(f"          {name:42s} {spent:7.2f} s", flush=True)


def read(args: argparse.Namespace) -> None:
    told = args.folder / "prefill.json"
    read_in = json.loads(told.read_text()) if told.exists() else {}
    table = []
    for name in args.formats:
        found = args.folder / f"{name}.json"
        if not found.exists():
            say(f"{name}: nothing was stored")
            continue
        facts = json.loads(found.read_text())
        written = Written(**facts | {"samples": {int(at): text for at, text in facts["samples"].items()}})
        cache = make_cache(SHAPES[args.shape], name, args.length, torch.device(args.device))
        reader = Reader(cache, written)
        say(f"{name}: the first rows, with compiling and pinning: {reader.warm_up():.2f} s")
        for state in ("cold", "warm", "warm"):
            row = reader.measure(state)
            share, size = row.gb_per_s / row.plain_gb_per_s, row.file_bytes / 1e9
            line = f"{name:5s} {state} {row.length:7d} tokens {size:6.2f} GB: {row.seconds:6.2f} s, "
            line += f"{row.gb_per_s:6.2f} GB/s, plain read {row.plain_gb_per_s:6.2f} GB/s ({share:4.0%}), "
            line += f"{row.in_memory:4.0%} in memory before, stored in {row.write_s:.0f} s"
            for mode, seconds in read_in.items():
                line += f", {seconds * row.length / args.length / row.seconds:.1f} x {mode} prefill"
            table.append(line)
            say(table[-1])
        parts(reader)
        del cache, reader
        torch.cuda.empty_cache()
        shutil.rmtree(args.folder / name)
    print("\n" + "\n".join(table), flush=True)


def start(args: argparse.Namespace, stage: str, formats: str, length: int) -> subprocess.Popen[bytes]:
    """A stage in a process of its own."""
    given = ["--shape", args.shape, "--device", args.device, "--folder", str(args.folder)]
    given += ["--formats", formats, "--length", str(length), "--write-seconds", str(args.write_seconds)]
    return subprocess.Popen([sys.executable, __file__, stage, *given])


def prepare(args: argparse.Namespace) -> None:
    shutil.rmtree(args.folder, ignore_errors=True)
    args.folder.mkdir(parents=True)
    started = [start(args, "write", name, args.length) for name in args.formats]
    if args.prefill and args.device != "cpu":
        started.append(start(args, "prefill", args.formats[0], 8192))
    for process in started:
        process.wait()
    say("written and compiled")


def measure(args: argparse.Namespace) -> None:
    (args.folder / "prefill.json").unlink(missing_ok=True)
    if args.prefill and args.device != "cpu":
        start(args, "prefill", args.formats[0], args.length).wait()
    start(args, "read", ",".join(args.formats), args.length).wait()
    shutil.rmtree(args.folder)


def main() -> None:
    parser = argparse.ArgumentParser()
    stages = {"prepare": prepare, "measure": measure, "write": write, "prefill": prefill, "read": read}
    parser.add_argument("stage", choices=stages)
    parser.add_argument("--folder", type=Path, required=True, help="emptied by prepare, removed by measure")
    parser.add_argument("--shape", default="llama-3-8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--length", type=int, default=131072)
    parser.add_argument("--formats", type=lambda text: text.split(","), default=["k4v4", "fp8"])
    parser.add_argument("--write-seconds", type=float, default=80.0, help="what is not stored by then is left out")
    parser.add_argument("--no-prefill", dest="prefill", action="store_false", help="leave out what it is compared with")
    args = parser.parse_args()
    stages[args.stage](args)


if __name__ == "__main__":
    main()
