"""How long until the first token: of a document read for the first time, and after a restart. And bytes on the disk.

python tests/measure/restart.py --model MODEL.gguf --tokens 7000 [--formats bf16,k8v4]
python tests/measure/restart.py --model MODEL.gguf --tokens 7000 --no-checkpoint
python tests/measure/restart.py --model MODEL.gguf --sizes

--no-checkpoint: nothing is kept of the document's end, so that re-use starts at a block.

Cold and restarted runs are processes of their own; each gives wall time and processor time from `generate` to the first
token, with the model loaded and its kernels compiled. Sizes need no model run: pages of its shape, filled with noise.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from engine import Done, Engine, EngineConfig, Sampling, Token
from engine.cache import PREFILL, KvCache, Sequence
from engine.kv_memory import bytes_per_token, kv_formats
from engine.snapshot import block_pages, export_rows
from engine.weights import open_model
from storage import SnapshotStore

QUOTA = 10**12
QUESTION = 40  # tokens behind the document, where the app has a checkpoint
TEXT = "The keeper of lamp {n} wrote {n} lines about the weather, the oil and the ships that passed before noon. "


def one_run(model: Path, folder: Path, tokens: int, kv_format: str, checkpoint: bool) -> dict[str, object]:
    with Engine.load(EngineConfig(model, kv_format=kv_format, threads=1)) as engine:  # type: ignore[arg-type]
        for _ in engine.generate(engine.tokenizer.encode(TEXT * 3), Sampling(max_tokens=2), conversation="warm"):
            pass
        engine.unload("warm")
        ids = engine.tokenizer.encode("".join(TEXT.format(n=n) for n in range(tokens // 15)))[:tokens]
        with SnapshotStore.open(folder, QUOTA) as store:
            result: dict[str, object] = {}
            wall, cpu, answer = time.perf_counter(), time.process_time(), []
            asks = {"conversation": "a", "checkpoints": [tokens - QUESTION] * checkpoint, "snapshots": store}
            for event in engine.generate(ids, Sampling(max_tokens=16), **asks):
                if isinstance(event, Token):
                    if not answer:
                        result |= {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
                    answer.append(event.id)
                elif isinstance(event, Done):
                    result |= {"restored": event.stats.restored_tokens, "computed": event.stats.computed_tokens}
            began = time.perf_counter()
            for kept in engine.kept_tokens("a"):
                store.put("a", engine.fingerprint, engine.export("a", kept))
            result |= {"answer": answer, "write_s": time.perf_counter() - began, "disk": store.stats().file_bytes}
            return result


def compare(model: Path, tokens: int, kv_format: str, checkpoint: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--model", str(model), "--tokens", str(tokens), "--formats", kv_format]
        command += [] if checkpoint else ["--no-checkpoint"]
        runs = []
        for _ in range(2):
            done = subprocess.run([*command, "--one", folder], capture_output=True, text=True, check=True)
            runs.append(json.loads(done.stdout.splitlines()[-1]))
    cold, warm = runs
    print(
        f"{kv_format}, {tokens} tokens: cold {cold['wall']:.2f} s ({cold['cpu']:.2f} s of processor), restarted "
        f"{warm['wall']:.3f} s ({warm['cpu']:.3f}); {cold['wall'] / warm['wall']:.1f} x, processor "
        f"{cold['cpu'] / warm['cpu']:.1f} x; restored {warm['restored']}, computed {warm['computed']}; "
        f"same tokens: {cold['answer'] == warm['answer']}",
        flush=True,
    )


def sizes(model: Path, tokens: int) -> None:
    with open_model(model) as source:
        shape = source.config
    print("format   bytes a token   rows, MB per 1,000 tokens   on disk, MB per 1,000 tokens")
    for kv_format in kv_formats():
        pages = -(-tokens // 64) + 8
        cache, sequence = KvCache(shape, kv_format, pages, pages), Sequence()
        cache.prepare(sequence, tokens)
        for first in range(0, tokens, 512):
            count = min(512, tokens - first)
            slots = cache.new_slots(sequence, count)
            for layer in range(shape.layers):
                noise = torch.randn(2, count, shape.kv_heads, shape.head_dim)
                cache.memory.write(layer, slots, noise[0], noise[1])
            cache.commit(sequence, range(first, first + count), PREFILL)
        each = bytes_per_token(shape, kv_format)
        with tempfile.TemporaryDirectory() as folder:
            with SnapshotStore.open(Path(folder), QUOTA) as store:
                rows = export_rows(cache, sequence, "0" * 64, block_pages(each), ())
                written = store.put("a", "0" * 64, rows)
            on_disk = sum(file.stat().st_size for file in Path(folder).iterdir())
        print(f"{kv_format:8} {each:13,} {written / tokens / 1e3:27.2f} {on_disk / tokens / 1e3:30.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=7000)
    parser.add_argument("--formats", default="bf16")
    parser.add_argument("--no-checkpoint", action="store_true")
    parser.add_argument("--sizes", action="store_true")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.sizes:
        sizes(args.model, args.tokens)
    elif args.one:
        print(json.dumps(one_run(args.model, args.one, args.tokens, args.formats, not args.no_checkpoint)))
    else:
        for kv_format in args.formats.split(","):
            compare(args.model, args.tokens, kv_format, not args.no_checkpoint)


if __name__ == "__main__":
    main()
