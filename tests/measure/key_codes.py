"""What ways to choose codes of keys cost in attention, on a model's own keys and queries (decisions 0075 and 0108).

    python tests/measure/key_codes.py --model FILE --text FILE [--tokens 2048]

For each way: RMS error over RMS of the attention output, and RMS error of the scores under the exact softmax, without
what all tokens have in common. Layers without the first and last two; the sink and the newest quarter stay exact.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

import engine.attention
from engine.cache import PAGE, KvCache, Sequence
from engine.config import EngineConfig
from engine.linear import load_decoder
from engine.load import resolve_context
from engine.prefill import prefill_chunk
from engine.tokenizer import Tokenizer
from engine.weights import open_model
from kernels.kv_codec.reference import quantize, quantize_float8, quantize_float8_around

CHUNK, TOKENS = 512, 2  # dimensions of keys: [kv_heads, pages, 64, d]
Way = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""keys [kv_heads, pages, 64, d], covariance of queries [kv_heads, d, d] -> keys as decoded."""


def read(path: Path, text: str, tokens: int) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
    """-> by layer q [t, heads, d]; k and v [layers, kv_heads, t, d]."""
    with open_model(path) as source:
        _, rope = resolve_context(EngineConfig(path), source.config, "cpu")
        ids = Tokenizer(source.tokenizer_source).encode(text)[:tokens]
        decoder = load_decoder(source, rope, torch.float32, "cpu", lambda share: None)
    queries: list[list[torch.Tensor]] = [[] for _ in decoder.layers]
    attend = engine.attention.PrefillAttention.attend

    def watched(self: engine.attention.PrefillAttention, layer: int, q: torch.Tensor) -> torch.Tensor:
        queries[layer].append(q.clone())
        return attend(self, layer, q)

    engine.attention.PrefillAttention.attend = watched
    cache, sequence = KvCache(decoder.config, "f32", len(ids) // PAGE + 1, 0, "cpu", ()), Sequence()
    cache.prepare(sequence, len(ids))
    for first in range(0, len(ids), CHUNK):
        prefill_chunk(decoder, cache, sequence, ids[first : first + CHUNK], lambda: None, kv_only=False)
    kept = slice(sequence.table[0] * PAGE, sequence.table[0] * PAGE + len(ids))
    return [torch.cat(parts) for parts in queries], cache.memory.keys[:, :, kept], cache.memory.values[:, :, kept]


def plain(bits: int) -> Way:
    def way(keys: torch.Tensor, covariance: torch.Tensor) -> torch.Tensor:
        codes, scale, minimum = quantize(keys, TOKENS, bits)
        return codes * scale.unsqueeze(TOKENS).float() + minimum.unsqueeze(TOKENS).float()

    return way


def float8(keys: torch.Tensor, covariance: torch.Tensor) -> torch.Tensor:
    codes, scale, middle = quantize_float8_around(keys, TOKENS)
    numbers = codes.view(torch.float8_e4m3fn).float()
    return numbers * scale.unsqueeze(TOKENS).float() + middle.unsqueeze(TOKENS).float()


def float8_around_zero(keys: torch.Tensor, covariance: torch.Tensor) -> torch.Tensor:
    codes, scale = quantize_float8(keys, (TOKENS,))
    return codes.view(torch.float8_e4m3fn).float() * scale.float()


def on_grid(keys: torch.Tensor, inset: float, bits: int = 4) -> torch.Tensor:
    """On a grid that leaves out the share `inset` of the range at each end."""
    low, high, most = keys.amin(TOKENS, keepdim=True), keys.amax(TOKENS, keepdim=True), 2**bits - 1
    low, high = low + inset * (high - low), high - inset * (high - low)
    scale = ((high - low) / most).clamp_min(2.0**-20)
    return ((keys - low) / scale).round().clamp(0, most) * scale + low


def least_squares(keys: torch.Tensor, covariance: torch.Tensor) -> torch.Tensor:
    tried = torch.stack([on_grid(keys, inset) for inset in (0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1)])
    best = (tried - keys).square().sum(TOKENS + 1, keepdim=True).argmin(0, keepdim=True)
    return tried.gather(0, best.expand(1, *keys.shape))[0]


def groups(tokens: int) -> Way:
    def way(keys: torch.Tensor, covariance: torch.Tensor) -> torch.Tensor:
        parts = keys.unflatten(TOKENS, (-1, tokens)).flatten(1, 2)
        return plain(4)(parts, covariance).unflatten(1, (-1, PAGE // tokens)).flatten(TOKENS, TOKENS + 1)

    return way


def compensated(keys: torch.Tensor, covariance: torch.Tensor) -> torch.Tensor:
    """Channel after channel, each later one making up for the errors before it, as queries of `covariance` see them
    (GPTQ, Frantar et al. 2022, for weights)."""
    heads, d = covariance.shape[:2]
    damped = covariance + 0.01 * covariance.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] * torch.eye(d)
    order = damped.diagonal(dim1=1, dim2=2).argsort(descending=True)
    out = torch.empty_like(keys)
    for head in range(heads):
        at, rest = order[head], keys[head][..., order[head]].clone()
        upper = torch.linalg.cholesky(torch.linalg.inv(damped[head][at][:, at]), upper=True)
        low, high = rest.amin(1, keepdim=True), rest.amax(1, keepdim=True)
        scale = ((high - low) / 15).clamp_min(2.0**-20)
        for i in range(d):
            x = ((rest[..., i] - low[..., i]) / scale[..., i]).round().clamp(0, 15) * scale[..., i] + low[..., i]
            out[head][..., at[i]] = x
            rest[..., i + 1 :] -= ((rest[..., i] - x) / upper[i, i])[..., None] * upper[i, i + 1 :]
    return out


WAYS: dict[str, Way] = {
    "8 bits": plain(8),
    "fp8 around the middle": float8,
    "fp8 around zero": float8_around_zero,
    "4 bits": plain(4),
    "4 bits, inset 1/64": lambda keys, covariance: on_grid(keys, 1 / 64),
    "4 bits, inset 1/32 (centres)": lambda keys, covariance: on_grid(keys, 1 / 32),
    "4 bits, least squared error": least_squares,
    "4 bits, groups of 32": groups(32),
    "4 bits, groups of 16": groups(16),
    "4 bits, compensated": compensated,
}


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """q [kv_heads, queries, group, d] at positions `at` -> output, scores [kv_heads, queries, group, t]."""
    scores = torch.einsum("hqgd,hnd->hqgn", q, k) * q.shape[-1] ** -0.5
    scores = scores.masked_fill((torch.arange(k.shape[1]) > at[:, None])[:, None], -1e30)
    return torch.einsum("hqgn,hnd->hqgd", scores.softmax(-1), v), scores


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=2048)
    args = parser.parse_args()
    queries, keys, values = read(args.model, args.text.read_text(), args.tokens)
    layers, heads, length, _ = keys.shape
    begin, end = PAGE, length * 11 // 16 // PAGE * PAGE  # packed; queries stand in the last quarter
    at, earlier = torch.arange(length * 3 // 4, length, 4), torch.arange(length // 8, length * 5 // 8)
    sums = {name: torch.zeros(2, dtype=torch.float64) for name in WAYS}
    size = torch.zeros((), dtype=torch.float64)
    for layer in range(2, layers - 2):
        q = queries[layer].unflatten(1, (heads, -1)).permute(1, 0, 2, 3)
        other = q[:, earlier].flatten(1, 2).double()
        covariance = (other.mT @ other / other.shape[1]).float()
        exact, scores = attention(q[:, at], keys[layer], values[layer], at)
        size += exact.double().square().sum()
        weights = scores.softmax(-1)
        for name, way in WAYS.items():
            k = keys[layer].clone()
            k[:, begin:end] = way(k[:, begin:end].unflatten(1, (-1, PAGE)), covariance).flatten(1, 2)
            out, moved = attention(q[:, at], k, values[layer], at)
            moved = moved - scores
            moved = moved - (weights * moved).sum(-1, keepdim=True)
            sums[name][0] += (out - exact).double().square().sum()
            sums[name][1] += (weights * moved.square()).sum(-1).mean().double()
    for name, (output, score) in sums.items():
        print(
            f"{name:30s} output {float((output / size).sqrt()):.4f}  scores {float((score / (layers - 4)).sqrt()):.4f}"
        )


if __name__ == "__main__":
    main()
