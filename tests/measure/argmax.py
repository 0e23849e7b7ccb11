"""Does the card choose the tokens that float32 on the CPU chooses? In `exact`, over a text of this repository.

python3 tests/measure/argmax.py [--model models/starter.gguf] [--tokens 512] [--threads 4] [--out argmax.json]

The CPU reads all tokens at once, densely, from float32 weights into float32 KV. The card takes one recorded decode step
for each token of the text. Wherever the CPU's two best logits differ by more than 4 times the RMS logit error, both
must choose the same.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from engine.attention import EXACT, AttentionPlan
from engine.cache import PAGE, KvCache, Sequence
from engine.card_weights import pack_for_card
from engine.config import EngineConfig
from engine.kv_memory import SCORERS
from engine.linear import load_decoder
from engine.load import resolve_context
from engine.model import Decoder
from engine.prefill import prefill_chunk
from engine.tokenizer import Tokenizer
from engine.weights import open_model

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ("README.md", "docs/architecture.md", "docs/profiles.md")
MARGINS = 4  # times the RMS logit error
CASES = (("bf16", "bf16"), ("fp8", "bf16"), ("bf16", "k8v4"))  # weights, KV


@dataclass(frozen=True, slots=True)
class Agreement:
    """error: RMS of the difference of logits; ratio: over the RMS of the CPU's. sure: positions whose margin is larger
    than `MARGINS` errors, sure_alike: with the same argmax; alike: of all. wrong: (position, margin) of sure ones that
    differ."""

    positions: int
    ratio: float
    error: float
    sure: int
    sure_alike: int
    alike: int
    wrong: list[tuple[int, float]]


def compare(expected: torch.Tensor, got: torch.Tensor) -> Agreement:
    """Logits float32 [positions, vocab] each."""
    if not bool(got.isfinite().all()):
        raise ValueError("got: logits are not finite")
    difference = (got.double() - expected.double()).square().mean().sqrt()
    top = expected.topk(2, dim=1).values
    margin, same = top[:, 0] - top[:, 1], got.argmax(1) == expected.argmax(1)
    sure = margin > MARGINS * difference
    wrong = [(int(at), float(margin[at])) for at in (sure & ~same).nonzero()[:, 0]]
    return Agreement(
        expected.shape[0],
        float(difference / expected.double().square().mean().sqrt()),
        float(difference),
        int(sure.sum()),
        int((sure & same).sum()),
        int(same.sum()),
        wrong,
    )


def text_ids(tokenizer: Tokenizer, tokens: int) -> list[int]:
    text = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in TEXTS)
    ids = tokenizer.encode(text)[:tokens]
    if len(ids) < tokens:
        raise ValueError(f"tokens: got {tokens}, need at most {len(ids)}")
    return ids


def on_cpu(decoder: Decoder, ids: list[int]) -> torch.Tensor:
    """float32 [tokens, vocab]: the logits behind each token."""
    cache, sequence = KvCache(decoder.config, "f32", -(-len(ids) // PAGE)), Sequence()
    cache.prepare(sequence, len(ids))
    return decoder.logits(prefill_chunk(decoder, cache, sequence, ids, lambda: None, kv_only=False))


def on_card(decoder: Decoder, ids: list[int], kv_format: str) -> torch.Tensor:
    """The same by recorded decode steps, one a token; on the host."""
    from engine.cuda import graph_decode

    graph_decode.read_something = lambda *of: None  # type: ignore[assignment]  # prefill is not used here
    pages = -(-len(ids) // PAGE) + 8
    cache, sequence = KvCache(decoder.config, kv_format, pages, pages, str(decoder.embed.device)), Sequence()
    graphs = graph_decode.GraphDecoder(decoder, cache, SCORERS[0], pages * PAGE)
    began = time.monotonic()
    graphs.capture()
    print(f"  recorded after {time.monotonic() - began:.1f} s", flush=True)
    cache.prepare(sequence, len(ids))
    logits, plan = torch.empty(len(ids), decoder.config.vocab_size), AttentionPlan(answering=EXACT)
    for position, token in enumerate(ids):
        cache.prepare(sequence, position + 1, len(ids))
        logits[position] = graphs.step(sequence, token, plan).cpu()
    return logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "starter.gguf")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--threads", type=int, default=4, help="of the CPU's reference")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    config, began = EngineConfig(args.model), time.monotonic()
    with open_model(args.model) as source:
        ids = text_ids(Tokenizer(source.tokenizer_source), args.tokens)
        dense = load_decoder(source, resolve_context(config, source.config, "cpu")[1], torch.float32, "cpu")
        expected = on_cpu(dense, ids)
        print(f"CPU, float32: {len(ids)} tokens after {time.monotonic() - began:.1f} s", flush=True)
        del dense
        rope = resolve_context(config, source.config, args.device)[1]
        plain = load_decoder(source, rope, torch.bfloat16, args.device)
    found: dict[str, object] = {}
    failed = False
    for weights, kv_format in CASES:
        name = f"{weights} weights, {kv_format} KV"
        try:
            decoder = plain if weights == "bf16" else pack_for_card(plain, weights)
            result = compare(expected, on_card(decoder, ids, kv_format))
        except Exception as error:
            traceback.print_exc(file=sys.stdout)
            found[name], failed = f"{type(error).__name__}: {error}", True
            print(f"{name}: FAILED", flush=True)
            continue
        found[name] = asdict(result)
        bad = result.sure_alike < result.sure
        failed |= bad
        print(
            f"{name}: logit error {100 * result.ratio:.3f} % of the logits' RMS, {result.error:.4f}; of "
            f"{result.positions} positions {result.sure} have a margin above {MARGINS} x that, {result.sure_alike} of "
            f"these the same argmax{f', WRONG: {result.wrong[:5]}' if bad else ''}; of all {result.alike} "
            f"({100 * result.alike / result.positions:.1f} %)",
            flush=True,
        )
    if args.out:
        args.out.write_text(json.dumps(found, indent=1))
    sys.exit(failed)


if __name__ == "__main__":
    main()
