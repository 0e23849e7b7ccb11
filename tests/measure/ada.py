"""`--profile ada` on a larger card: the largest context of a shape that fits, and its speed there.

python3 tests/measure/ada.py [--shapes llama-3-8b,qwen3-4b] [--seconds 60] [--compile] [--out ada.json]

Everything is the profile's own: memory cap (24 GB with 1.5 GB kept by the desktop), formats, kernels configured for
99 KB of shared memory. Weights and KV are random. The context is estimated before anything is loaded, as `unabridged
doctor` does; then the engine's cache is allocated, filled, and used: a chunk of a prompt at its end in `balanced` and
in `exact`, and 64 decode steps in each. Where memory runs out a smaller context is tried. --compile: only compiles, for
later runs.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from app.bench.context import filled
from app.bench.decode import STEPS, timed_steps
from engine.attention import AttentionPlan
from engine.cache import PAGE, KvCache, Sequence
from engine.config import EngineConfig, ModelConfig
from engine.cuda.graph_decode import GraphDecoder
from engine.fit import weight_bytes, workspace_bytes, workspace_bytes_per_token
from engine.kv_memory import SCORERS, bytes_per_token
from engine.machine import look
from engine.model import Decoder
from engine.patterns import AttentionPolicy, Sparsity
from engine.prefill import prefill_chunk
from engine.profile_rules import Profile, choose_profile
from engine.profiles import KvSizes, estimated_context, free_memory, kv_sizes, prefill_chunk_tokens, put_in_force
from engine.random_weights import SHAPES, random_decoder

WANTED = 320 * 1024
GIB = 2**30
MODES = ("balanced", "exact")
SMALLER = (1.0, 0.99, 0.98, 0.97, 0.94, 0.88)  # of the estimate, in turn
LEFT = 2 * (STEPS + 8)  # tokens for the decode steps


def say(**facts: object) -> None:
    print(" ".join(f"{name}={value}" for name, value in facts.items()), flush=True)


class Shape:
    """One shape under the profile: what was estimated, and what came of it."""

    def __init__(self, name: str, profile: Profile, until: float) -> None:
        self.name, self.profile, self.until = name, profile, until
        self.model: ModelConfig = SHAPES[name]
        self.chunk = prefill_chunk_tokens(self.model, profile.device, profile.largest_chunk)
        self.config = EngineConfig(
            Path("random"),
            kv_format=profile.kv_format,  # type: ignore[arg-type]
            prefill_chunk=self.chunk,
            device=profile.device,
            profile="ada",
        )
        self.token = bytes_per_token(self.model, profile.kv_format)
        self.estimate = estimated_context(self.config, profile, self.model, SCORERS)
        self.found: dict[str, Any] = {
            "shape": name, "estimate": self.estimate, "weights": profile.weights, "kv": profile.kv_format,
            "kv_bytes_per_token": self.token, "memory_limit": profile.memory_limit, "chunk": self.chunk,
        }  # fmt: skip

    def weights(self) -> Decoder:
        began = time.monotonic()
        decoder = random_decoder(self.model, self.profile.weights, torch.device(self.profile.device))
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        expected = weight_bytes(self.model, self.profile.weights) / GIB
        held = torch.cuda.memory_allocated() / GIB
        self.found |= {"weights_s": time.monotonic() - began, "weights_gib": held, "weights_gib_estimated": expected}
        say(shape=self.name, weights_s=f"{time.monotonic() - began:.1f}", gib=f"{held:.2f}", estimate=f"{expected:.2f}")
        return decoder

    def sizes(self, share: float) -> tuple[int, KvSizes]:
        """(context, pages) as the engine divides what is free now."""
        context = int(self.estimate * share) // PAGE * PAGE
        model, device = replace(self.model, native_context=context), self.profile.device
        sizes = kv_sizes(self.config, model, context, device, SCORERS, int(free_memory(device) * share))
        return min(context, sizes.tokens // PAGE * PAGE), sizes

    def run(self, decoder: Decoder, share: float, compile_only: bool) -> None:
        """Everything with one context. OutOfMemoryError where it does not fit."""
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        context, sizes = self.sizes(share)
        began = time.monotonic()
        cache = KvCache(
            self.model, self.profile.kv_format, sizes.pages, sizes.exact, self.profile.device, SCORERS, sizes.cold
        )
        graphs = GraphDecoder(decoder, cache, SCORERS[0], context)
        graphs.capture()
        self.found |= {"context": context, "capacity": sizes.tokens, "ready_s": time.monotonic() - began}
        say(shape=self.name, context=context, capacity=sizes.tokens, ready_s=f"{self.found['ready_s']:.1f}", **memory())
        if compile_only:
            return
        began = time.monotonic()
        before = (context - LEFT - len(MODES) * self.chunk) // PAGE * PAGE
        sequence = filled(cache, before)
        torch.cuda.synchronize()
        say(shape=self.name, filled=before, pages=len(sequence.table), seconds=f"{time.monotonic() - began:.2f}")
        for mode in MODES:
            self.step(f"chunk {mode}", lambda mode=mode: self.read_chunk(decoder, cache, sequence, mode, context))
        for mode in MODES:
            self.step(f"decode {mode}", lambda mode=mode: self.decode(graphs, cache, sequence, mode, context))
        peak = torch.cuda.max_memory_reserved()
        estimated = (
            weight_bytes(self.model, self.profile.weights)
            + sizes.tokens * self.token
            + workspace_bytes(self.model, self.chunk)
            + context * workspace_bytes_per_token(self.model)
        )
        self.found |= {
            "tokens": sequence.length, "peak_allocated": torch.cuda.max_memory_allocated(), "peak_reserved": peak,
            "peak_estimated": estimated,
        }  # fmt: skip
        say(
            shape=self.name, tokens=sequence.length, needed=WANTED, enough=sequence.length >= WANTED,
            estimated_gib=f"{estimated / GIB:.2f}", limit_gib=f"{self.profile.memory_limit / GIB:.2f}", **memory(),
        )  # fmt: skip

    def step(self, what: str, run: Callable[[], dict[str, Any]]) -> None:
        """One part; out of memory goes up, anything else is told and the next part runs."""
        if time.monotonic() > self.until:
            say(shape=self.name, not_run_for_lack_of_time=what)
            self.found.setdefault("not_run", []).append(what)
            return
        try:
            self.found[what] = run()
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            self.found.setdefault("faults", []).append(f"{what}: {type(error).__name__}: {error}")
            traceback.print_exc(file=sys.stdout)
        else:
            say(shape=self.name, part=what.replace(" ", "_"), **{k: rounded(v) for k, v in self.found[what].items()})

    def read_chunk(
        self, decoder: Decoder, cache: KvCache, sequence: Sequence, mode: str, context: int
    ) -> dict[str, Any]:
        """The next chunk of a prompt, over all that is there."""
        policy = AttentionPolicy(mode, Sparsity(), self.model.layers)
        plan = AttentionPlan(policy, policy)
        cache.prepare(sequence, sequence.length + self.chunk, context)
        began = time.monotonic()
        prefill_chunk(decoder, cache, sequence, [1] * self.chunk, lambda: None, plan)
        torch.cuda.synchronize()
        return {"seconds": time.monotonic() - began, "pages_read": plan.counts.reading.share, **memory()}

    def decode(
        self, graphs: GraphDecoder, cache: KvCache, sequence: Sequence, mode: str, context: int
    ) -> dict[str, Any]:
        cache.prepare(sequence, sequence.length + STEPS + 8, context)
        policy = AttentionPolicy(mode, Sparsity(), self.model.layers)
        row = timed_steps(graphs, sequence, policy, self.profile.kv_format)
        return asdict(row) | memory()


def rounded(value: object) -> object:
    return f"{value:.4g}" if isinstance(value, float) else value


def memory() -> dict[str, str]:
    """GiB, by torch's own count."""
    return {
        "peak_gib": f"{torch.cuda.max_memory_allocated() / GIB:.2f}",
        "reserved_gib": f"{torch.cuda.max_memory_reserved() / GIB:.2f}",
    }


def largest(shape: Shape, compile_only: bool) -> None:
    decoder = shape.weights()
    for share in SMALLER:
        try:
            shape.run(decoder, share, compile_only)
            return
        except torch.cuda.OutOfMemoryError as error:
            said = str(error).splitlines()[0]
            say(shape=shape.name, share=share, **memory())
            print(said, flush=True)
            shape.found.setdefault("did_not_fit", []).append({"share": share, "said": said})
        # The traceback of what is caught holds the cache; behind the handler it is gone.
    shape.found.setdefault("faults", []).append("no context of those tried fits")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="llama-3-8b,qwen3-4b")
    parser.add_argument("--seconds", type=float, default=60, help="for each shape; no part is begun after that")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    profile = choose_profile(look("auto"), "ada")
    put_in_force(profile)
    say(
        profile=profile.name, weights=profile.weights, kv=profile.kv_format, kernels_for=profile.capability,
        shared_memory=profile.shared_memory, limit_gib=f"{profile.memory_limit / GIB:.2f}",
    )  # fmt: skip
    print(profile.reason, flush=True)
    results = []
    for name in args.shapes.split(","):
        found: dict[str, Any] = {"shape": name}
        try:
            shape = Shape(name, profile, time.monotonic() + args.seconds)
            found = shape.found
            say(shape=name, estimated_context=shape.estimate, needed=WANTED, kv_bytes_per_token=shape.token)
            largest(shape, args.compile)
        except Exception as error:
            traceback.print_exc(file=sys.stdout)
            found.setdefault("faults", []).append(f"{type(error).__name__}: {error}")
        results.append(found)
        torch.cuda.empty_cache()
        if args.out:
            args.out.write_text(json.dumps(results, indent=1, default=str))
    if args.compile:
        return
    print(f"{torch.cuda.get_device_name()} as {profile.name}: {profile.weights} weights, {profile.kv_format} KV")
    for row in results:
        tokens = row.get("tokens", 0)
        said = f"{row['shape']}: {tokens:,} tokens ran of {row.get('estimate', 0):,} estimated"
        said += f" ({'enough' if tokens >= WANTED else 'TOO FEW'}; {WANTED:,} wanted)"
        for mode in MODES:
            if part := row.get(f"decode {mode}"):
                said += f"; {mode} {part['tpot_ms']:.2f} ms a token, {100 * part['read_share']:.1f} % of pages"
        if "peak_reserved" in row:
            said += f"; memory {row['peak_reserved'] / GIB:.2f} GiB, estimated {row['peak_estimated'] / GIB:.2f}"
        print(said + (f"; FAILED: {row['faults']}" if row.get("faults") else ""), flush=True)
    faults = any(row.get("faults") or row.get("tokens", 0) < WANTED for row in results)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
