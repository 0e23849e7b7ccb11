"""Where a decode step and a prefill chunk spend their time on a card: kernels by their share, launches, and waits.

python3 tests/measure/profile_card.py [--shape llama-3-8b] [--weights fp8] [--format bf16] [--length 131072]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch.profiler import ProfilerActivity, profile

from app.bench.context import filled, make_cache
from engine.attention import AttentionPlan
from engine.cuda.graph_decode import GraphDecoder
from engine.kv_memory import SCORERS
from engine.patterns import AttentionPolicy, Sparsity
from engine.prefill import prefill_chunk
from engine.random_weights import SHAPES, random_decoder


def shown(title: str, run: Callable[[], object], most: int = 22) -> None:
    run()
    torch.cuda.synchronize()
    started = time.perf_counter()
    run()
    launched = time.perf_counter() - started
    torch.cuda.synchronize()
    spent = time.perf_counter() - started
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        run()
        torch.cuda.synchronize()
    times: dict[str, list[float]] = defaultdict(list)
    for event in profiled.events() or ():
        if event.device_time_total and not event.name.startswith("cuda"):
            times[event.name].append(event.device_time_total)
    total, count = sum(map(sum, times.values())), sum(map(len, times.values()))
    print(f"{title}: {1000 * spent:.2f} ms, launched in {1000 * launched:.2f}, {total / 1000:.2f} in {count} kernels")
    for name, found in sorted(times.items(), key=lambda item: -sum(item[1]))[:most]:
        print(f"  {sum(found) / 1000:9.3f} ms {len(found):5d} x {sum(found) / len(found):8.1f} us  {name[:100]}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="llama-3-8b")
    parser.add_argument("--weights", default="fp8")
    parser.add_argument("--format", default="bf16")
    parser.add_argument("--length", type=int, default=131072)
    parser.add_argument("--chunk", type=int, default=8192)
    args = parser.parse_args()
    model, device = SHAPES[args.shape], torch.device("cuda")
    decoder = random_decoder(model, args.weights, device)
    room = args.length + args.chunk + 64
    cache = make_cache(model, args.format, room, device, args.chunk)
    graphs = GraphDecoder(decoder, cache, SCORERS[0], room)
    graphs.capture()
    sequence = filled(cache, args.length)
    for mode in ("exact", "balanced"):
        policy = AttentionPolicy(mode, Sparsity(), model.layers)
        cache.prepare(sequence, sequence.length + 8)
        plan = AttentionPlan(answering=policy)
        shown(f"decode, {mode}, {args.length}", lambda plan=plan: graphs.step(sequence, 1, plan), 16)
    graphs = None
    policy = AttentionPolicy("balanced", Sparsity(), model.layers)
    chunk = [1] * args.chunk

    def one_chunk() -> None:
        fork = cache.fork(sequence, args.length - args.length % 64)
        cache.prepare(fork, fork.length + args.chunk)
        prefill_chunk(decoder, cache, fork, chunk, lambda: None, AttentionPlan(policy, policy, 1 << 40))
        cache.free(fork)

    shown(f"prefill chunk, balanced, at {args.length}", one_chunk, 40)


if __name__ == "__main__":
    main()
