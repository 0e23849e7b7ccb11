"""What summing up where the model looks costs a decode step on the CPU, in alternation with steps that do not.

    python -m tests.measure.evidence_cost --model FILE.gguf [--tokens 4096] [--rounds 40] [--kv-format bf16]

The keys and values are random: how long a step takes does not depend on them. A round is two steps without and two
with; prints the median milliseconds of either, and the median of the rounds' own differences as a share.
"""

import argparse
import json
import statistics
import time
from pathlib import Path


def measure(model: Path, tokens: int = 4096, rounds: int = 40, kv_format: str = "bf16", threads: int | None = None):
    """Milliseconds of a step: medians and least ones. share: median of the rounds' differences, of a step without."""
    import torch

    from engine import Engine, EngineConfig
    from engine.attention import AttentionPlan
    from engine.cache import DECODE, Sequence
    from engine.decode import decode_token
    from engine.evidence import PageMass
    from kernels import cpu_jit

    config = EngineConfig(model, context=tokens + 4 * rounds + 64, kv_format=kv_format, threads=threads)  # type: ignore[arg-type]
    with Engine.load(config) as engine:
        cpu_jit.set_threads(engine.profile.threads)
        cache, sequence = engine.cache, Sequence()
        for layer in cache.memory.layers:
            layer.keys.normal_()
            layer.values.normal_()
        for end in range(512, tokens + 1, 512):  # in steps: pages that are old enough are packed on the way
            cache.prepare(sequence, end, tokens + 4 * rounds)
            cache.commit(sequence, [1] * (end - sequence.length), DECODE)
        weights = torch.ones(engine.model.layers, engine.model.kv_heads)
        weights[::2] = 0.0
        times: dict[bool, list[float]] = {False: [], True: []}
        for number in range(4 * rounds + 8):
            asked = number % 4 in (1, 2)  # without, with, with, without: what drifts cancels out
            plan = AttentionPlan(evidence=PageMass(weights) if asked else None)
            cache.prepare(sequence, sequence.length + 1)
            started = time.perf_counter()
            decode_token(engine.decoder, cache, sequence, 1, lambda: None, plan)
            if plan.evidence is not None:
                plan.evidence.take()
            if number >= 8:
                times[asked].append(1000 * (time.perf_counter() - started))
    off, on = times[False], times[True]
    pairs = [on[i] + on[i + 1] - off[i] - off[i + 1] for i in range(0, len(off), 2)]
    middle = statistics.median(off)
    least = {"least_without_ms": min(off), "least_with_ms": min(on)}  # what a busy machine cannot blur
    share = statistics.median(pairs) / 2 / middle
    return {"without_ms": middle, "with_ms": statistics.median(on), "share": share, **least}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--kv-format", default="bf16")
    args = parser.parse_args()
    print(json.dumps({"tokens": args.tokens} | measure(args.model, args.tokens, args.rounds, args.kv_format)))


if __name__ == "__main__":
    main()
