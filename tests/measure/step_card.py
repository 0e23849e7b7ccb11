"""One decode step of a named shape on this card, as it is recorded: with and without overlapping kernels, by variant.

python3 tests/measure/step_card.py [--lengths 8k,128k] [--formats bf16,fp8] [--compare apart,chain,small]

apart: no kernel overlaps; chain: those of norms and products do. As chain, but small: parts of attention over all pages
are merged by 64; large: those over lists by 128; at_once: coarse keys are not read ahead.

Random weights and KV. Logits of compared steps must be the same to the bit where only the launches differ. Times are of
replayed graphs, by the card's clock: no host is in them. One step "selects", that is makes its lists, another "reuses"
those of an earlier one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from app.bench.context import filled, make_cache
from engine.attention import AttentionPlan
from engine.cuda import graph_decode
from engine.cuda.graph_decode import GraphDecoder
from engine.kv_memory import SCORERS
from engine.patterns import AttentionPolicy, Sparsity
from engine.random_weights import SHAPES, random_decoder
from kernels import card
from kernels.decode_attention import triton as attending
from kernels.page_scores import triton_coarse as scoring

REPLAYS = 12


def tokens_of(text: str) -> int:
    return int(text[:-1]) * 1024 if text.endswith("k") else int(text)


def replayed(graph: torch.cuda.CUDAGraph) -> float:
    """Milliseconds, the median."""
    times = []
    for _ in range(REPLAYS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times[2:])


@dataclass(frozen=True, slots=True)
class Kind:
    """How steps are recorded: whether kernels overlap, and what is put in place of a module's names meanwhile.
    `same`: bits of what they compute."""

    name: str
    overlap: bool
    instead: tuple[tuple[ModuleType, str, Any], ...] = ()
    same: bool = True

    @contextmanager
    def recorded(self) -> Iterator[None]:
        before = card.overlap_is_wanted()
        kept = [(module, name, getattr(module, name)) for module, name, _ in self.instead]
        card.let_kernels_overlap(self.overlap)
        for module, name, value in self.instead:
            setattr(module, name, value)
        try:
            yield
        finally:
            card.let_kernels_overlap(before)
            for module, name, value in kept:
                setattr(module, name, value)


def kinds(names: str) -> list[Kind]:
    def at_once(config):
        return lambda *shape: replace(config(*shape), stages=1)

    known = {
        "apart": Kind("apart", False),
        "chain": Kind("chain", True),
        "small": Kind("small", True, ((attending, "_TILE_DENSE", 64),), same=False),
        "large": Kind("large", True, ((attending, "_TILE_LISTED", 128),), same=False),
        "at_once": Kind("at_once", True, ((scoring, "configuration", at_once(scoring.configuration)),)),
    }
    return [known[name] for name in names.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="llama-3-8b")
    parser.add_argument("--weights", default="fp8")
    parser.add_argument("--formats", default="bf16")
    parser.add_argument("--lengths", default="8k,128k,512k")
    parser.add_argument("--compare", default="apart,chain")
    parser.add_argument("--seconds", type=float, default=100, help="stop starting new rows after so long")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--logits", type=Path, help="logits of another tree's run to compare with; made if not there")
    args = parser.parse_args()
    torch.manual_seed(0)
    others: dict[str, torch.Tensor] = torch.load(args.logits) if args.logits and args.logits.exists() else {}
    found: dict[str, torch.Tensor] = {}
    started, model, device = time.monotonic(), SHAPES[args.shape], torch.device("cuda")
    decoder = random_decoder(model, args.weights, device)
    # What prefill launches is not timed here, so it need not be compiled.
    graph_decode.read_something = lambda *of: None  # type: ignore[assignment]
    rows: list[dict[str, Any]] = []
    faults: list[str] = []
    for text in args.lengths.split(","):
        for kv_format in args.formats.split(","):
            length = tokens_of(text)
            cache = make_cache(model, kv_format, length + 64, device)
            sequence = filled(cache, length)
            cache.prepare(sequence, length + 8)
            seen: dict[str, torch.Tensor] = {}
            for kind in kinds(args.compare):
                if time.monotonic() - started > args.seconds:
                    faults.append(f"not run for lack of time: {text} {kv_format} {kind.name}")
                    continue
                with kind.recorded():
                    graphs = GraphDecoder(decoder, cache, SCORERS[0], length + 64)
                    begun = time.monotonic()
                    graphs.capture()
                    captured = time.monotonic() - begun
                    row: dict[str, Any] = {
                        "length": text,
                        "format": kv_format,
                        "kind": kind.name,
                        "capture_s": captured,
                    }
                    for mode in ("exact", "balanced"):
                        plan = AttentionPlan(answering=AttentionPolicy(mode, Sparsity(), model.layers))
                        first = graphs.launch(sequence, 5, plan, sequence.length)
                        torch.cuda.synchronize()
                        logits = graphs._logits.clone()
                        row[mode] = replayed(graphs.recorded[first.variant])
                        again = graphs._logits.clone()
                        if not torch.equal(logits, again):
                            faults.append(f"{text} {kv_format} {kind.name} {mode}: repeats differ")
                        before = seen.setdefault(mode, logits)
                        found[f"{text} {kv_format} {mode}"] = before.cpu()
                        if (kind.same and not torch.equal(logits, before)) or not bool(logits.isfinite().all()):
                            faults.append(f"{text} {kv_format} {kind.name} {mode}: other logits than before")
                        if first.variant == ("select", "select"):
                            row["reuse"] = replayed(graphs.recorded["reuse", "reuse"])
                rows.append(row)
                print(row, flush=True)
                del graphs
            del cache, sequence
            torch.cuda.empty_cache()
    for what, logits in found.items():
        if what in others:
            off = float((logits - others[what]).norm() / others[what].norm())
            print(f"{what}: logits {off:.1e} from the other tree's")
    if args.logits and not others:
        torch.save(found, args.logits)
    print(f"{torch.cuda.get_device_name()}, {args.shape}, {args.weights}; {time.monotonic() - started:.0f} s")
    columns = f"{'exact':>7} {'selects':>8} {'reuses':>7} {'1 of 4':>7} {'1 of 8':>7} {'capture':>8}"
    print(f"{'tokens':>6} {'KV':5} {'kind':8} {columns}")
    for row in rows:
        made, used = row["balanced"], row.get("reuse", row["balanced"])
        print(
            f"{row['length']:>6} {row['format']:5} {row['kind']:8} {row['exact']:7.3f} {made:8.3f} {used:7.3f} "
            f"{(made + 3 * used) / 4:7.3f} {(made + 7 * used) / 8:7.3f} {row['capture_s']:6.1f} s"
        )
    print("FAILED: " + "; ".join(faults) if faults else "all checks passed")
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
