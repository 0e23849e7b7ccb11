"""CPU speed of the starter model, engines in turn in one run, same token ids, same threads.

    python tests/measure/speed.py --model FILE.gguf --text essay.txt [--length 4096] [--threads 2] [--peers ...]

All engines are loaded first. Then each takes its turn, one round in this order and the next in the other, so that what
the machine does meanwhile hits all alike. TTFT is the time from the call to the first token; TPOT the mean time of the
next tokens. transformers runs in float32 with SDPA, llama.cpp (through llama-cpp-python; --llama-python names an
interpreter that has it) with the file's own weights. Prints medians, ratios, processor seconds up to the first token
and the packed decode's logit error against float32.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

LLAMA = """
import json, resource, sys, time
from llama_cpp import Llama
job = json.loads(sys.stdin.readline())
llama = Llama(model_path=job["model"], n_ctx=job["length"] + 128, n_threads=job["threads"],
              n_threads_batch=job["threads"], verbose=False, seed=0)
for _ in sys.stdin:
    llama.reset()
    cpu = time.process_time()
    start = time.perf_counter(); stamps = []
    for token in llama.generate(job["ids"], temp=0.0, reset=True):
        stamps.append(time.perf_counter())
        if len(stamps) == 1:
            cpu = time.process_time() - cpu
        if len(stamps) > job["tokens"]:
            break
    print(json.dumps([stamps[0] - start, (stamps[-1] - stamps[0]) / (len(stamps) - 1) * 1e3, cpu]), flush=True)
"""

Row = tuple[float, float, float]
"""TTFT in seconds, TPOT in milliseconds, processor seconds up to the first token."""


class Ours:
    def __init__(self, args, ids) -> None:
        from engine import Engine, EngineConfig

        self.args, self.ids, self.stats = args, ids, None
        self.engine = Engine.load(EngineConfig(model=args.model, context=args.length + 256, threads=args.threads))

    def round(self, number: int) -> Row:
        from engine import Sampling
        from engine.events import Token

        cpu, first = time.process_time(), None
        events = self.engine.generate(self.ids, Sampling(max_tokens=self.args.tokens + 1), conversation=str(number))
        for event in events:
            if first is None and isinstance(event, Token):
                first = time.process_time() - cpu
            self.stats = getattr(event, "stats", self.stats)
        self.engine.unload(str(number))
        if self.stats.reused_tokens:
            raise SystemExit("a prefix was re-used: the measurement is void")
        return self.stats.ttft_s, self.stats.tpot_ms, first

    def detail(self) -> dict:
        engine = self.engine
        found = {"decode_weights": engine.decode_weights, "logit_error": engine.decode_logit_error}
        return found | {name: getattr(self.stats, name) for name in ("output_tokens", "peak_memory_bytes")}


class Transformers:
    def __init__(self, args, ids) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(args.threads)
        self.args, self.ids = args, torch.tensor([ids])
        self.model = AutoModelForCausalLM.from_pretrained(
            args.model.parent, gguf_file=args.model.name, dtype=torch.float32
        ).eval()

    def round(self, number: int) -> Row:
        import torch
        from transformers import DynamicCache

        with torch.inference_mode():
            cache = DynamicCache()
            cpu, start = time.process_time(), time.perf_counter()
            out = self.model(self.ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            token = out.logits[:, -1:].argmax(-1)
            cpu, first = time.process_time() - cpu, time.perf_counter()
            for _ in range(self.args.tokens):
                out = self.model(token, past_key_values=cache, use_cache=True)
                token = out.logits[:, -1:].argmax(-1)
            return first - start, (time.perf_counter() - first) / self.args.tokens * 1e3, cpu


class Llama:
    def __init__(self, args, ids) -> None:
        command = [args.llama_python, "-c", LLAMA]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        job = {"model": str(args.model), "ids": ids, "length": args.length, "threads": args.threads}
        self._write(json.dumps(job | {"tokens": args.tokens}))

    def _write(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def round(self, number: int) -> Row:
        self._write("go")
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("llama.cpp did not run: its own words are above")
        return tuple(json.loads(line))


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
    wanted = {"transformers": Transformers, "llama.cpp": Llama}
    engines = {"ours": Ours(args, ids)}
    engines |= {name: make(args, ids) for name, make in wanted.items() if name[:5] in args.peers}
    table: dict[str, list[Row]] = {name: [] for name in engines}
    for number in range(args.rounds):
        for name in list(engines) if number % 2 == 0 else reversed(list(engines)):
            table[name].append(engines[name].round(number))
            print(f"round {number} {name}: TTFT {table[name][-1][0]:.2f} s", flush=True)
    print(f"{args.length} tokens, {args.threads} threads, median of {args.rounds}; {engines['ours'].detail()}")
    base = [statistics.median(column) for column in zip(*table["ours"], strict=True)]
    for name, rows in table.items():
        ttft, tpot, cpu = (statistics.median(column) for column in zip(*rows, strict=True))
        print(
            f"{name:14} TTFT {ttft:7.2f} s ({ttft / base[0]:5.2f} x ours), processor {cpu:6.2f} s ({cpu / base[2]:.2f})"
            f"  TPOT {tpot:7.1f} ms ({tpot / base[1]:5.2f} x ours)  {[tuple(round(x, 2) for x in row) for row in rows]}"
        )


if __name__ == "__main__":
    main()
