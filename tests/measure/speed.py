"""CPU speed of the starter model, engines in turn in one run, same token ids, same threads.

    python tests/measure/speed.py --model FILE.gguf --text essay.txt [--length 4096] [--threads 2] [--peers ...]

TTFT is the time from the call to the first token; TPOT the mean time of the next tokens. transformers runs in float32
with SDPA, llama.cpp (through llama-cpp-python; --llama-python names an interpreter that has it) with the file's own
weights. Prints medians, ratios, and the packed decode's logit error against float32.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

LLAMA = """
import json, sys, time
from llama_cpp import Llama
job = json.load(sys.stdin)
llama = Llama(model_path=job["model"], n_ctx=job["length"] + 128, n_threads=job["threads"],
              n_threads_batch=job["threads"], verbose=False, seed=0)
times = []
for _ in range(job["rounds"]):
    llama.reset()
    start = time.perf_counter(); stamps = []
    for token in llama.generate(job["ids"], temp=0.0, reset=True):
        stamps.append(time.perf_counter())
        if len(stamps) > job["tokens"]:
            break
    times.append([stamps[0] - start, (stamps[-1] - stamps[0]) / (len(stamps) - 1) * 1e3])
print(json.dumps(times))
"""


def ours(args, ids) -> tuple[list[tuple[float, float]], dict]:
    from engine import Engine, EngineConfig, Sampling

    engine = Engine.load(EngineConfig(model=args.model, context=args.length + 256, threads=args.threads))
    results, stats = [], None
    for round_ in range(args.rounds):
        for event in engine.generate(ids, Sampling(max_tokens=args.tokens + 1), conversation=str(round_)):
            stats = getattr(event, "stats", stats)
        engine.unload(str(round_))
        if stats.reused_tokens:
            raise SystemExit("a prefix was re-used: the measurement is void")
        results.append((stats.ttft_s, stats.tpot_ms))
    detail = {
        "decode_weights": getattr(engine, "decode_weights", None),
        "logit_error": getattr(engine, "decode_logit_error", None),
    }
    detail |= {"output_tokens": stats.output_tokens, "peak_memory_bytes": stats.peak_memory_bytes}
    engine.close()
    return results, detail


def transformers_peer(args, ids) -> list[tuple[float, float]]:
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache

    torch.set_num_threads(args.threads)
    model = AutoModelForCausalLM.from_pretrained(
        args.model.parent, gguf_file=args.model.name, dtype=torch.float32
    ).eval()
    results = []
    with torch.inference_mode():
        for _ in range(args.rounds):
            cache = DynamicCache()
            start = time.perf_counter()
            out = model(torch.tensor([ids]), past_key_values=cache, use_cache=True, logits_to_keep=1)
            token = out.logits[:, -1:].argmax(-1)
            first = time.perf_counter()
            for _ in range(args.tokens):
                out = model(token, past_key_values=cache, use_cache=True)
                token = out.logits[:, -1:].argmax(-1)
            results.append((first - start, (time.perf_counter() - first) / args.tokens * 1e3))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", default="transformers,llama")
    parser.add_argument("--llama-python", default=sys.executable)
    args = parser.parse_args()

    from engine.tokenizer import Tokenizer
    from engine.weights import open_model

    source = open_model(args.model)
    ids = Tokenizer(source.tokenizer_source).encode(args.text.read_text())[: args.length]
    if len(ids) < args.length:
        raise SystemExit(f"the text has only {len(ids)} tokens")
    table, detail = {}, {}
    table["ours"], detail = ours(args, ids)
    if "transformers" in args.peers:
        table["transformers"] = transformers_peer(args, ids)
    if "llama" in args.peers:
        job = {"model": str(args.model), "ids": ids, "length": args.length, "threads": args.threads}
        job |= {"rounds": args.rounds, "tokens": args.tokens}
        done = subprocess.run([args.llama_python, "-c", LLAMA], input=json.dumps(job), capture_output=True, text=True)
        if done.returncode:
            print("llama.cpp did not run:", done.stderr.strip().splitlines()[-1:])
        else:
            table["llama.cpp"] = json.loads(done.stdout.strip().splitlines()[-1])
    base = [statistics.median(column) for column in zip(*table["ours"], strict=True)]
    print(f"{args.length} tokens, {args.threads} threads, median of {args.rounds}; {detail}")
    for name, rows in table.items():
        ttft, tpot = (statistics.median(column) for column in zip(*rows, strict=True))
        print(
            f"{name:14} TTFT {ttft:7.2f} s ({ttft / base[0]:5.2f} x ours)"
            f"  TPOT {tpot:7.1f} ms ({tpot / base[1]:5.2f} x ours)  {rows}"
        )


if __name__ == "__main__":
    main()
