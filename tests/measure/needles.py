"""Needle retrieval of the starter model, our engine beside transformers on the same token ids.

    python tests/measure/needles.py --model FILE.gguf --text essay.txt [--lengths 1000,4000,7000] [--peer]

Five needles a cell (length x depth). A prompt is the ChatML skeleton with the essay, a needle sentence at the given
depth and a question; greedy, 24 tokens. The score is the share of answers that contain the needle's number. `--peer`
gives the same ids to transformers (float32, SDPA, the same RoPE base). Prints a table and, last, one JSON object.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

CITIES = ["Lisbon", "Helsinki", "Nairobi", "Toronto", "Hanoi"]
NUMBERS = [48213, 77031, 15964, 92608, 36475]
DEPTHS = (0.1, 0.5, 0.9)


def prompts(tokenizer, essay: str, length: int) -> Iterator[tuple[float, int, list[int]]]:
    """Yields (depth, index of the needle, token ids); `length` counts the whole prompt to within a sentence."""
    body = tokenizer.encode(essay)
    for depth in DEPTHS:
        for index, (city, number) in enumerate(zip(CITIES, NUMBERS, strict=True)):
            needle = tokenizer.encode(f" The secret number of the {city} archive is {number}.")
            head = tokenizer.encode_skeleton(
                "<|im_start|>system\nYou are a helpful AI assistant.<|im_end|>\n<|im_start|>user\n"
            )
            tail = tokenizer.encode(f"\n\nWhat is the secret number of the {city} archive?")
            end = tokenizer.encode_skeleton("<|im_end|>\n<|im_start|>assistant\n")
            room = length - len(head) - len(needle) - len(tail) - len(end)
            offset = index * 97
            filler = body[offset : offset + room]
            if len(filler) < room:
                raise SystemExit(f"the essay is too short: {len(body)} tokens")
            cut = sentence_end(tokenizer, filler, int(room * depth))
            yield depth, index, head + filler[:cut] + needle + filler[cut:] + tail + end


def sentence_end(tokenizer, ids: list[int], near: int) -> int:
    """The first position at or after `near` that follows a full stop."""
    for position in range(near, len(ids)):
        if tokenizer.decode([ids[position - 1]]).rstrip().endswith("."):
            return position
    return near


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--lengths", default="1000,4000,7000")
    parser.add_argument("--base-times", type=float, default=4.0, help="RoPE base multiplied by this (1: as trained)")
    parser.add_argument("--yarn", type=float, default=1.0, help="YaRN by this factor over the trained 8192 tokens")
    parser.add_argument("--kv-format", default="bf16")
    parser.add_argument("--decode-weights", default="auto")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--peer-device", default="cpu")
    args = parser.parse_args()

    from engine import Engine, EngineConfig, RopeScaling, Sampling

    factor = args.base_times ** ((64 - 2) / 64)
    scaling = RopeScaling(kind="ntk", factor=factor) if args.base_times != 1 else None
    if args.yarn != 1:
        scaling = RopeScaling(kind="yarn", factor=args.yarn, original_context=8192)
    lengths = [int(n) for n in args.lengths.split(",")]
    config = EngineConfig(
        model=args.model,
        context=max(12288, max(lengths) + 64),
        rope_scaling=scaling,
        kv_format=args.kv_format,
        decode_weights=args.decode_weights,
        device=args.device,
    )
    engine = Engine.load(config)
    peer = load_peer(args.model, args.base_times, args.peer_device) if args.peer else None
    essay = args.text.read_text()
    rows = []
    for length in lengths:
        for depth, index, ids in prompts(engine.tokenizer, essay, length):
            started = time.perf_counter()
            text, reused = "", 0
            for event in engine.generate(ids, Sampling(max_tokens=24), conversation=f"{length}-{depth}-{index}"):
                text += getattr(event, "text", "")
                if hasattr(event, "stats"):
                    reused = event.stats.reused_tokens
            row = {"length": length, "depth": depth, "needle": index, "ours": str(NUMBERS[index]) in text}
            row |= {"ours_s": time.perf_counter() - started, "reused": reused, "text": text}
            engine.unload(f"{length}-{depth}-{index}")
            if peer is not None:
                started = time.perf_counter()
                peer_text = engine.tokenizer.decode(peer(ids))
                row |= {
                    "peer": str(NUMBERS[index]) in peer_text,
                    "peer_s": time.perf_counter() - started,
                    "peer_text": peer_text,
                }
            rows.append(row)
            print({k: v for k, v in row.items() if k != "peer_text"}, flush=True)
    print("length depth ours peer")
    for length in lengths:
        for depth in DEPTHS:
            cell = [r for r in rows if r["length"] == length and r["depth"] == depth]
            print(length, depth, sum(r["ours"] for r in cell), sum(r.get("peer", False) for r in cell) if peer else "-")
    print(
        json.dumps(
            {"ours": sum(r["ours"] for r in rows), "peer": sum(r.get("peer", False) for r in rows), "of": len(rows)}
        )
    )


def load_peer(path: Path, base_times: float, device: str):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    config = model.config
    config.rope_parameters = {"rope_type": "default", "rope_theta": config.rope_parameters["rope_theta"] * base_times}
    rotary = type(model.model.rotary_emb)(config)
    model.model.rotary_emb = rotary
    model.to(device)

    def generate(ids: list[int]) -> list[int]:
        with torch.inference_mode():
            out = model.generate(
                torch.tensor([ids], device=device),
                attention_mask=torch.ones(1, len(ids), device=device),
                max_new_tokens=24,
                do_sample=False,
            )
        return out[0, len(ids) :].tolist()

    return generate


if __name__ == "__main__":
    main()
