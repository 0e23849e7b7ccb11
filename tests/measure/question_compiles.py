"""What is compiled, loaded onto the card or recorded during a question: it must be nothing. And how long a start takes.

python3 tests/measure/question_compiles.py [--model models/starter.gguf] [--profile auto] [--context 24k] [--out FILE]

Loads the starter model in a new process as the app does, with an empty cache for compiled kernels, asks questions of
several lengths in `balanced` and `exact`, greedily and sampled, and goes on in one conversation; then the same in
another new process, whose kernels come from that cache. A context of 24k is more than the starter is good for: it is so
long that `balanced` selects pages.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from app.units import parse_length

ROOT = Path(__file__).resolve().parents[2]
LENGTHS = (100, 3000, 9000, 20000)
ANSWER = 80  # tokens, so that KV pages become complete
MOST_SECONDS = {"first": 90, "again": 10}  # from load to ready


def tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def texts() -> str:
    files = [
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "docs" / "decisions").glob("*")),
    ]
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def child(args: argparse.Namespace) -> None:
    """One process: a line of JSON for the start, one for each question."""
    began = time.perf_counter()
    from engine import Done, Engine, EngineConfig, RopeScaling, Sampling, Token
    from engine.cuda.counters import counting
    from engine.machine import look
    from engine.profile_rules import choose_profile
    from engine.rope import ntk_factor

    imported = time.perf_counter()
    profile = choose_profile(look("auto"), args.profile)
    context = parse_length(args.context)
    config = EngineConfig(
        model=args.model,
        context=context,
        rope_scaling=RopeScaling(kind="ntk", factor=ntk_factor(2.0, 64)),
        device=profile.device,
        profile=args.profile,
        kv_format=args.format or profile.kv_format,  # type: ignore[arg-type]
        evidence=True,
    )
    with counting() as counts:
        engine = Engine.load(config)
    ready = time.perf_counter()
    tell(
        event="ready", seconds=ready - imported, import_s=imported - began, counts=str(counts),
        weights=engine.decode_weights, kv=engine.kv_format, recorded=engine.graphs is not None, profile=profile.name,
    )  # fmt: skip
    ids = engine.tokenizer.encode(texts()[: 6 * max(LENGTHS)])
    for mode in ("balanced", "exact"):
        for tokens in LENGTHS:
            if tokens + 2 * ANSWER + 64 > min(context, len(ids)):
                continue
            prompt, name = ids[:tokens], f"{mode} {tokens}"
            # A second question in the same conversation, then one whose tokens are drawn.
            for kind, sampling in (
                ("asked", Sampling(max_tokens=ANSWER)),
                ("asked on", Sampling(max_tokens=16)),
                ("drawn", Sampling(max_tokens=16, temperature=0.7, top_p=0.9, seed=1)),
            ):
                answer: list[int] = []
                stats = None
                try:
                    with counting() as counts:
                        for event in engine.generate(prompt, sampling, conversation=name, mode=mode, reading=mode):
                            if isinstance(event, Token):
                                answer.append(event.id)
                            elif isinstance(event, Done):
                                stats = event.stats
                except Exception as error:
                    tell(event="failed", question=f"{name} {kind}", error=f"{type(error).__name__}: {error}")
                    traceback.print_exc(file=sys.stderr)
                    continue
                if stats is None:
                    tell(event="failed", question=f"{name} {kind}", error="no end")
                    continue
                tell(
                    event="question", question=f"{name} {kind}", any=counts.any, counts=str(counts),
                    ttft_s=stats.ttft_s, tpot_ms=stats.tpot_ms, tokens=stats.output_tokens,
                    pages_read=stats.kv_pages_read_share, computed=stats.computed_tokens,
                )  # fmt: skip
                prompt = [*prompt, *answer, *ids[:20]]
            engine.unload(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "starter.gguf")
    parser.add_argument("--profile", default="auto")
    parser.add_argument("--format", default="")
    parser.add_argument("--context", default="24k")
    parser.add_argument("--seconds", type=float, default=130, help="for each of the two processes")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args)
        return
    lines: list[dict[str, Any]] = []
    failed = False
    with tempfile.TemporaryDirectory(prefix="unabridged-compiled-") as folder:
        for start in MOST_SECONDS:
            command = [sys.executable, __file__, "--child", "--model", str(args.model), "--profile", args.profile]
            command += ["--context", args.context, "--format", args.format]
            environment = os.environ | {"TRITON_CACHE_DIR": folder, "PYTHONUNBUFFERED": "1"}
            failed |= not run(start, command, environment, args.seconds, lines)
            if args.out:
                args.out.write_text(json.dumps(lines, indent=1))
    asked = [line for line in lines if line["event"] == "question"]
    during = sum(line["any"] for line in asked)
    for line in asked:
        if line["any"]:
            print(f"{line['start']}, {line['question']}: {line['counts'][:300]}")
    print(f"{len(asked)} questions, {during} compiled, loaded or recorded during them", flush=True)
    for start, most in MOST_SECONDS.items():
        for line in lines:
            if line["event"] == "ready" and line["start"] == start:
                slow = line["seconds"] > most
                failed |= slow
                print(
                    f"ready {start}: {line['seconds']:.1f} s (at most {most}{', TOO SLOW' if slow else ''}), "
                    f"{line['import_s']:.1f} s of imports before it; {line['counts'].split(' (')[0]}",
                    flush=True,
                )
    sys.exit(bool(failed or during or not asked))


def run(start: str, command: list[str], environment: dict[str, str], seconds: float, lines: list[dict]) -> bool:
    """Prints and keeps what a process tells, as it tells it -> whether it ended well."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        for text in process.stdout or ():
            print(f"{start}: {text}", end="", flush=True)
            if text.startswith("{"):
                lines.append(json.loads(text) | {"start": start})
        timer.cancel()
    if process.returncode:
        print(f"{start}: ended with {process.returncode}, or was stopped after {seconds:.0f} s", flush=True)
    return process.returncode == 0 and not any(line["event"] == "failed" for line in lines)


if __name__ == "__main__":
    main()
