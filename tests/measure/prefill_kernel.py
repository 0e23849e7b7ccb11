"""Checks and times the Triton prefill attention kernel on this card, against torch's attention in the same run.

python tests/measure/prefill_kernel.py [--variants own,...] [--heads 32 --kv-heads 8 --dim 128]

Times are medians by device events. TFLOP/s count 4 x dim for each (query head, query, key) that is attended to.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from kernels.block_index import PAGE, from_mask
from kernels.prefill_attention import triton as kernel

VARIANTS = {
    "128x64 w4 s2 tma": kernel.Config(128, 64, 4, 2, True),
    "128x128 w8 s2 tma": kernel.Config(128, 128, 8, 2, True),
    "128x64 w8 s3 tma": kernel.Config(128, 64, 8, 3, True),
    "128x64 w8 s2 tma r128": kernel.Config(128, 64, 8, 2, True, 128),
    "64x64 w4 s2 tma": kernel.Config(64, 64, 4, 2, True),
    "128x128 w8 s2": kernel.Config(128, 128, 8, 2),
    "128x64 w8 s3": kernel.Config(128, 64, 8, 3),
}
CHUNK, BLOCK, LISTED = 8192, 128, 144


def milliseconds(run: Callable[[], object], repeats: int = 7) -> float:
    run()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for first, last in events:
        first.record()
        run()
        last.record()
    torch.cuda.synchronize()
    return sorted(first.elapsed_time(last) for first, last in events)[repeats // 2]


class Inputs:
    def __init__(self, arguments: argparse.Namespace, tokens: int, length: int) -> None:
        heads, self.kv_heads, dim = arguments.heads, arguments.kv_heads, arguments.dim
        make = {"device": "cuda", "dtype": torch.bfloat16}
        self.q = torch.randn(tokens, heads, dim, **make) * 1.5
        self.k, self.v = (torch.randn(self.kv_heads, length, dim, **make) for _ in range(2))
        self.scale, self.start, self.length = dim**-0.5, length - tokens, length
        self.position = torch.arange(self.start, length, device="cuda")
        self.pair = 4 * dim * heads

    def dense_flops(self) -> float:
        return self.pair * float((self.position + 1).sum())

    def lists(self, listed: int | None) -> tuple[torch.Tensor, float]:
        """(bool [kv_heads, blocks, pages], floating point operations): the first page, 16 before the block, the others
        at random; all with `listed` None."""
        first = torch.arange(self.start - self.start % BLOCK, self.length, BLOCK, device="cuda").clamp(min=self.start)
        own, pages = first // PAGE, -(-self.length // PAGE)
        page = torch.arange(pages, device="cuda")
        before = (page < own[:, None]).expand(self.kv_heads, -1, -1)
        if listed is None:
            chosen = before
        else:
            rank = torch.rand(before.shape, device="cuda")
            rank[:, page >= own[:, None] - 16] = 2
            rank[..., 0] = 2
            rank[~before] = -1
            chosen = torch.zeros_like(before).scatter_(2, rank.topk(min(listed, pages)).indices, True) & before
        block = self.position // BLOCK - self.start // BLOCK
        own_keys = self.position + 1 - own[block] * PAGE
        keys = chosen.sum(2).double().mean(0)[block] * PAGE + own_keys
        return chosen, self.pair * float(keys.sum())

    def run(self, mask: torch.Tensor | None, config: kernel.Config | None) -> Callable[[], torch.Tensor]:
        index = None if mask is None else from_mask(mask)
        out = torch.full_like(self.q, torch.nan)
        return lambda: kernel.prefill_attention(
            self.q, self.k, self.v, index, self.scale, BLOCK, out=out, config=config
        )

    def error(self, got: torch.Tensor, mask: torch.Tensor | None, rows: int = 24) -> float:
        """Of some queries, the chunk's last ones among them, against float64: norm of the difference, relative."""
        row = torch.linspace(0, len(self.q) - 1, min(rows, len(self.q)), device="cuda").long()
        position, group = self.position[row], self.q.shape[1] // self.kv_heads
        key = torch.arange(self.length, device="cuda")
        seen = (key <= position[:, None]).expand(self.kv_heads, -1, -1)
        if mask is not None:
            first = (position // BLOCK * BLOCK).clamp(min=self.start)
            listed = mask[:, position // BLOCK - self.start // BLOCK].repeat_interleave(PAGE, 2)[..., : self.length]
            seen = seen & (listed | (key // PAGE >= first[:, None] // PAGE))
        q = self.q[row].double().unflatten(1, (self.kv_heads, group)).permute(1, 2, 0, 3)
        scores = q @ self.k.double()[:, None].transpose(-1, -2) * self.scale
        weights = scores.masked_fill_(~seen[:, None], -torch.inf).softmax(-1)
        expected = (weights @ self.v.double()[:, None]).permute(2, 0, 1, 3).flatten(1, 2)
        assert not got.isnan().any()
        return float((got[row].double() - expected).norm() / expected.norm())

    def torch_dense(self, backend: SDPBackend) -> Callable[[], torch.Tensor]:
        """Flash sees the whole as causal, cuDNN the past and the chunk apart, without the cost of merging them."""
        q, k, v = self.q.transpose(0, 1)[None], self.k[None], self.v[None]
        options = {"scale": self.scale, "enable_gqa": True}

        def flash() -> torch.Tensor:
            bias = causal_lower_right(q.shape[2], k.shape[2])
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q, k, v, bias, **options)[0].transpose(0, 1)

        def apart() -> torch.Tensor:
            own, past = slice(self.start, None), slice(0, self.start)
            with sdpa_kernel(backend):
                scaled_dot_product_attention(q, k[:, :, past], v[:, :, past], **options)
                return scaled_dot_product_attention(q, k[:, :, own], v[:, :, own], is_causal=True, **options)

        return flash if backend == SDPBackend.FLASH_ATTENTION else apart


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", default="", help="names separated by commas, 'own' is the card's; default: all")
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=75, help="no further variant is begun after that")
    arguments = parser.parse_args()
    began = time.perf_counter()
    torch.manual_seed(0)
    own = kernel.configuration(torch.cuda.get_device_capability(), arguments.dim, 2)
    variants = {"own": own, **VARIANTS}
    if arguments.variants:
        variants = {name: variants[name] for name in arguments.variants.split(",")}

    small, middle, large = (Inputs(arguments, *n) for n in ((300, 1333), (CHUNK, 2**15), (CHUNK, 2**17)))
    cases = {
        "dense 32k": (middle, None, middle.dense_flops()),
        "dense 128k": (large, None, large.dense_flops()),
        f"{LISTED} at 128k": (large, *large.lists(LISTED)),
        "all at 32k": (middle, *middle.lists(None)),
    }
    small_mask = small.lists(10)[0]
    rows: list[tuple[str, list[str]]] = []

    for name, backend in (("torch flash", SDPBackend.FLASH_ATTENTION), ("torch cuDNN", SDPBackend.CUDNN_ATTENTION)):
        cells, error = [], ""
        for inputs in (middle, large):
            try:
                run = inputs.torch_dense(backend)
                cells.append(f"{inputs.dense_flops() / milliseconds(run) / 1e9:.0f}")
                if backend == SDPBackend.FLASH_ATTENTION:
                    error = f"{inputs.error(run(), None):.1e}"
            except Exception as problem:
                print(name, "failed:", type(problem).__name__, str(problem)[:300])
                cells.append("-")
        rows.append((name, [*cells, "-", "-", error, ""]))

    for name, config in variants.items():
        if time.perf_counter() - began > arguments.seconds:
            print("no time left for", name)
            continue
        before = time.perf_counter()
        try:
            errors = [small.error(small.run(mask, config)(), mask, 300) for mask in (None, small_mask)]
            built = time.perf_counter() - before
            cells = []
            for inputs, mask, flops in cases.values():
                run = inputs.run(mask, config)
                cells.append(f"{flops / milliseconds(run) / 1e9:.0f}")
                errors.append(inputs.error(run(), mask))
            rows.append((name, [*cells, f"{max(errors):.1e}", f"{built:.1f}"]))
        except Exception as problem:
            print(name, "failed:", type(problem).__name__, str(problem)[:500])
            rows.append((name, ["failed"]))
        torch.cuda.synchronize()

    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}; TFLOP/s of a chunk of {CHUNK} tokens, bf16")
    heads = [*cases, "worst error", "compile s"]
    print(f"{'':24}", *(f"{head:>{max(len(head), 8)}}" for head in heads))
    for name, cells in rows:
        print(f"{name:24}", *(f"{cell:>{max(len(head), 8)}}" for head, cell in zip(heads, cells)))
    print(f"own: {own}; {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
