"""Weight products and the small fused kernels on a CUDA card: checked against float64, then timed.

python tests/measure/linear_kernel.py [--out FILE.json]

Times are of CUDA graphs that launch once for each of several copies of the weights, more than the last cache holds;
medians of replays, with all variants of a shape in turns. Prints the tables last.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from kernels.append_kv.reference import append_kv
from kernels.append_kv.triton import rope_append
from kernels.kv_codec.rotation import hadamard
from kernels.linear import Fp8Weight, fp8, int4, pack_fp8, pack_int4_groups
from kernels.linear.triton import Tile, choose_tile, matvec
from kernels.linear.triton_convert import quantize_rows
from kernels.rms_norm import reference as rms_norm
from kernels.rms_norm.triton import add_rms_norm
from kernels.rope.reference import rope
from kernels.swiglu.triton import swiglu

SHAPES = {
    "qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336), "head": (128256, 4096),
}  # fmt: skip
SMALL = [(960, 576), (576, 576), (3072, 576), (576, 1536), (49152, 576)]
TILES = {
    "2x4": Tile(2, 4, 1), "2x4 stream": Tile(2, 4, 1, streamed=True), "4x2": Tile(4, 2, 1),
    "2x2 2 warps": Tile(2, 2, 2), "4x1 4 warps": Tile(4, 1, 4), "1x8": Tile(1, 8, 1),
}  # fmt: skip
CACHE_BYTES = 250e6  # of copies: several times the last cache
DEVICE = torch.device("cuda")
BF16 = torch.bfloat16
Calls = list[Callable[[], object]]


def error(got: torch.Tensor, exact: torch.Tensor) -> float:
    return float((got.double() - exact).norm() / exact.norm())


def capture(calls: Calls) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        calls[0]()
        calls[-1]()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def times(variants: dict[str, Calls], replays: int = 9, least: int = 20) -> dict[str, float]:
    """Microseconds of one call of each variant, all replayed in turns."""
    graphs = {}
    for name, calls in variants.items():
        calls = calls * -(-least // len(calls))
        graphs[name] = (capture(calls), len(calls))
    samples = {name: [] for name in graphs}
    for turn in range(replays + 2):
        for name, (graph, count) in graphs.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            if turn > 1:
                samples[name].append(start.elapsed_time(end) * 1e3 / count)
    return {name: statistics.median(values) for name, values in samples.items()}


def random_fp8(outs: int, inner: int) -> Fp8Weight:
    codes = torch.randint(0, 256, (outs, inner), dtype=torch.uint8, device=DEVICE)
    codes[(codes & 127) == 127] = 0  # NaN
    return Fp8Weight(codes.view(torch.float8_e4m3fn), torch.rand(outs, device=DEVICE) * 1e-3)


def check_matvec(failed: list[str]) -> None:
    for outs, inner in [*SMALL, *SHAPES.values()]:
        w, x, bias = (
            random_fp8(outs, inner),
            torch.randn(8, inner, device=DEVICE).to(BF16),
            torch.randn(outs, device=DEVICE),
        )
        exact = torch.cat([x.double() @ part.double().T for part in w.codes.split(16384)], 1) * w.scales.double()
        gate, up = (exact + bias).chunk(2, 1)
        cases = {
            "plain": (matvec(x, w.codes, w.scales, None), exact),
            "bias": (matvec(x, w.codes, w.scales, bias), exact + bias),
            "gated": (matvec(x, w.codes, w.scales, bias, gated=True), gate * gate.sigmoid() * up),
        }
        for name, (got, right) in cases.items():
            if not error(got, right) < 0.003:
                failed.append(f"matvec {name} {outs}x{inner}: error {error(got, right):.4f}")
        ours = partial(matvec, weight=w.codes, scales=w.scales, bias=None)
        every = cases["plain"][0]
        for rows in (1, 2, 3, 4, 5, 8):
            for part in (slice(0, rows), slice(8 - rows, 8)):
                if not torch.equal(ours(x[part]), every[part]):
                    failed.append(f"matvec {outs}x{inner}: rows {part} depend on their neighbours")
        if not all(torch.equal(ours(x), every) for _ in range(20)):
            failed.append(f"matvec {outs}x{inner}: not the same on every repeat")
    w, x = random_fp8(4096, 4096), torch.randn(8, 4096, device=DEVICE).to(BF16)
    for name, tile in TILES.items():
        ours = partial(matvec, weight=w.codes, scales=w.scales, bias=None, tile=tile)
        if not error(ours(x), (x.double() @ w.codes.double().T) * w.scales.double()) < 0.003:
            failed.append(f"matvec tile {name}: wrong")
        if not all(torch.equal(ours(x[i : i + 1]), ours(x)[i : i + 1]) for i in (0, 7)):
            failed.append(f"matvec tile {name}: rows depend on their neighbours")
    weight = torch.randn(4096, 4096, device=DEVICE).to(BF16)
    if not error(matvec(x, weight, None, None), x.double() @ weight.double().T) < 0.003:
        failed.append("matvec bfloat16: wrong")


def check_many_rows(failed: list[str]) -> None:
    if not fp8.fp8_product_is_available(DEVICE):
        failed.append("fp8: torch's product with a scale for each row is missing or wrong")
    for outs, inner in [(960, 576), (4096, 14336)]:
        weight = torch.randn(outs, inner, device=DEVICE)
        w, w4 = pack_fp8(weight, torch.randn(outs, device=DEVICE)), pack_int4_groups(weight, 64)
        weight4 = int4.unpack_int4_groups(w4, 0, outs)
        codes, scales_and_zeros = int4.quantize_groups(weight, 64)
        scales, zeros = (part.T.repeat_interleave(64, 1) for part in scales_and_zeros.float().unbind(2))
        if not error(weight4, ((codes.float() - 8) * scales + zeros).double()) < 0.004:
            failed.append(f"int4 {outs}x{inner}: unpacking is wrong")
        if not error(weight4, weight.double()) < 0.12:
            failed.append(f"int4 {outs}x{inner}: packing is wrong")
        for rows in (1, 9, 16, 17, 1000):
            x = torch.randn(rows, inner, device=DEVICE).to(BF16)
            exact = x.double() @ (w.codes.double() * w.scales.double()[:, None]).T + w.bias.double()
            if not error(fp8.fp8_linear(x, w), exact) < 0.04:
                failed.append(f"fp8 {rows} rows {outs}x{inner}: error {error(fp8.fp8_linear(x, w), exact):.4f}")
            got, exact = int4.int4_group_linear(x, w4), x.double() @ weight4.double().T
            if not error(got, exact) < 0.01:
                failed.append(f"int4 {rows} rows {outs}x{inner}: error {error(got, exact):.4f}")


def append_inputs(tokens: int, heads: int, kv_heads: int, dim: int) -> tuple:
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * dim, device=DEVICE).to(BF16)
    angles = torch.rand(tokens, dim // 2, device=DEVICE) * 100
    cos, sin = angles.cos(), angles.sin()
    keys, values = torch.full((2, kv_heads, tokens + 64, dim), float("nan"), dtype=BF16, device=DEVICE)
    slots = torch.randperm(tokens + 64, device=DEVICE)[:tokens]
    norms = [torch.rand(dim, device=DEVICE) + 0.5 for _ in range(2)]
    return qkv, *norms, 1e-6, torch.cat((cos, cos), 1), torch.cat((-sin, sin), 1), keys, values, slots, True, heads


def check_elementwise(failed: list[str]) -> None:
    for tokens, d in [(1, 576), (16, 4096), (4096, 4096), (100, 8192)]:
        x, delta = torch.randn(tokens, d, device=DEVICE), torch.randn(tokens, d, device=DEVICE).to(BF16)
        weight = torch.rand(d, device=DEVICE)
        total, normed = add_rms_norm(x, delta, weight, 1e-5, BF16)
        exact = rms_norm.rms_norm((x + delta).double(), weight, 1e-5)
        if not torch.equal(total, x + delta) or not error(normed, exact.double()) < 0.003:
            failed.append(f"add_rms_norm {tokens}x{d}: wrong")
        gate, up = delta.double().chunk(2, 1)
        if not error(swiglu(delta), gate * gate.sigmoid() * up) < 0.003:
            failed.append(f"swiglu {tokens}x{d}: wrong")
    for tokens in (1, 8, 300):
        for heads, kv_heads, dim in ((32, 8, 128), (9, 3, 64), (8, 2, 80), (7, 1, 96), (4, 1, 256)):
            given = append_inputs(tokens, heads, kv_heads, dim)
            qkv, q_norm, k_norm, eps, cos, sin, keys, values, slots, _, _ = given
            q = rope_append(*given)
            parts = qkv.unflatten(1, (-1, dim)).split((heads, kv_heads, kv_heads), 1)
            exact_q = rope(rms_norm.rms_norm(parts[0], q_norm, eps), cos, sin)
            exact_k = rope(rms_norm.rms_norm(parts[1], k_norm, eps), cos, sin)
            plain = torch.full((2, *keys.shape), float("nan"), device=DEVICE)
            append_kv(*plain, [(slot, 1) for slot in slots.tolist()], exact_k, hadamard(parts[2]))
            for name, got, exact in (("q", q, exact_q), ("k", keys, plain[0]), ("v", values, plain[1])):
                same = torch.equal(got.isnan(), exact.isnan())
                if not same or not error(got.nan_to_num(), exact.nan_to_num().double()) < 0.003:
                    failed.append(f"rope_append {tokens} tokens {heads}/{kv_heads}x{dim}: {name} is wrong")


def read_bandwidth() -> float:
    """Bytes a second, the better of a sum and a copy."""
    big = torch.empty(1 << 29, dtype=torch.float32, device=DEVICE).uniform_()
    half = big[: 1 << 28], big[1 << 28 :]
    took = times({"sum": [big.sum], "copy": [lambda: half[1].copy_(half[0])]}, replays=5, least=2)
    return big.nbytes / min(took.values()) * 1e6


def then_swiglu(product: Callable[[], torch.Tensor]) -> torch.Tensor:
    return swiglu(product())


def few_rows(bandwidth: float, results: list[dict]) -> list[str]:
    lines = [f"few rows, microseconds (GB/s, share of {bandwidth / 1e9:.0f})"]
    for shape, (outs, inner) in SHAPES.items():
        copies = max(2, int(CACHE_BYTES // (outs * inner)))
        ws = [random_fp8(outs, inner) for _ in range(copies)]
        dense = [torch.randn(outs, inner, dtype=BF16, device=DEVICE) for _ in range(max(2, copies // 2))]
        packed = [pack_int4_groups(dense[i % len(dense)]) for i in range(copies * 2 if outs < 1e5 else 2)]
        x = torch.randn(8, inner, device=DEVICE).to(BF16)

        def ours(rows: int, tile: Tile | None = None, gated: bool = False, ws=ws, x=x) -> Calls:
            return [partial(matvec, x[:rows], w.codes, w.scales, None, gated, tile) for w in ws]

        one = {f"fp8 {name}": ours(1, tile) for name, tile in TILES.items()}
        for rows in (1, 8):
            one[f"cuBLAS bf16 t={rows}"] = [partial(torch.mm, x[:rows], w.t()) for w in dense]
            one[f"int4 t={rows}"] = [partial(int4.int4_group_linear, x[:rows], w) for w in packed]
        for rows in (2, 4, 8):
            one[f"fp8 t={rows}"] = ours(rows)
        one["fp8 t=8 in one program"] = ours(8, Tile(2, 2, 1, rows=8))
        one["bf16 own t=1"] = [partial(matvec, x[:1], w, None, None) for w in dense]
        if shape == "gate_up":
            one["fp8 gated t=1"] = ours(1, gated=True)
            one["fp8 then swiglu t=1"] = [partial(then_swiglu, call) for call in ours(1)]
        for name, us in times(one).items():
            element = 2 if "bf16" in name else 0.5 if "int4" in name else 1
            moved = outs * inner * element / us * 1e6
            results.append({"what": "few rows", "shape": shape, "variant": name, "us": us, "gb_s": moved / 1e9})
            lines.append(f"{shape:8} {name:24} {us:8.1f} us {moved / 1e9:6.0f} GB/s {moved / bandwidth:6.1%}")
        del ws, dense, packed, one
        torch.cuda.empty_cache()
    return lines


def many_rows(results: list[dict]) -> list[str]:
    tokens, lines = 4096, ["4096 rows, TFLOP/s"]
    for shape, (outs, inner) in list(SHAPES.items())[:-1]:
        w, dense = random_fp8(outs, inner), torch.randn(outs, inner, dtype=BF16, device=DEVICE)
        w4, x = pack_int4_groups(dense), torch.randn(tokens, inner, device=DEVICE).to(BF16)
        codes, scales = quantize_rows(x)

        scaled = {
            fast: partial(torch.ops.aten._scaled_mm, codes, w.codes.t(), scales, w.scales[None], None, None, BF16, fast)
            for fast in (False, True)
        }
        calls = {
            "bf16": [partial(torch.mm, x, dense.t())],
            "fp8 exact": [scaled[False]],
            "fp8 fast": [scaled[True]],
            "quantize": [partial(quantize_rows, x)],
            "int4": [partial(int4.int4_group_linear, x, w4)],
        }
        took = times(calls, replays=5, least=4)
        exact = x[:64].double() @ (w.codes.double() * w.scales.double()[:, None]).T
        wrong = {fast: error(call()[:64], exact) for fast, call in scaled.items()}
        flops = 2 * tokens * outs * inner
        for name, us in took.items():
            results.append({"what": "many rows", "shape": shape, "variant": name, "us": us, "tflops": flops / us / 1e6})
        rates = "  ".join(f"{name} {flops / us / 1e6:.0f}" for name, us in took.items() if name != "quantize")
        errors = f"error exact {wrong[False]:.4f} fast {wrong[True]:.4f}"
        lines.append(f"{shape:8} {rates}  quantize {took['quantize']:.0f} us  {errors}")
    return lines


def small_kernels(results: list[dict]) -> list[str]:
    lines = ["small kernels, microseconds at 1, 8 and 4096 tokens"]
    rows: dict[str, list[float]] = {}
    for tokens in (1, 8, 4096):
        x, delta = torch.randn(tokens, 4096, device=DEVICE), torch.randn(tokens, 4096, device=DEVICE).to(BF16)
        weight, gate_up = torch.rand(4096, device=DEVICE), torch.randn(tokens, 28672, device=DEVICE).to(BF16)
        given, wide = append_inputs(tokens, 32, 8, 128), torch.randn(tokens, 14336, device=DEVICE).to(BF16)
        plain = (given[0], None, None, *given[3:9], False, 32)
        calls = {
            "add_rms_norm 4096": [partial(add_rms_norm, x, delta, weight, 1e-5, BF16)],
            "swiglu 14336": [partial(swiglu, gate_up)],
            "rope_append 32/8x128": [partial(rope_append, *plain)],
            "  with norms and rotation": [partial(rope_append, *given)],
            "quantize_rows 14336": [partial(quantize_rows, wide)],
            "float32 + 1, 4096": [partial(torch.add, x, 1)],
        }
        for name, us in times(calls, replays=7, least=4 if tokens > 8 else 40).items():
            rows.setdefault(name, []).append(us)
            results.append({"what": "small", "tokens": tokens, "variant": name, "us": us})
    return lines + [f"{name:28} " + " ".join(f"{us:8.1f}" for us in values) for name, values in rows.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    torch.manual_seed(time.time_ns() % 2**31)
    failed: list[str] = []
    results: list[dict] = []
    lines: list[str] = []
    for step in (
        lambda: check_elementwise(failed),
        lambda: check_matvec(failed),
        lambda: check_many_rows(failed),
        lambda: lines.extend(small_kernels(results)),
        lambda: lines.extend(few_rows(read_bandwidth(), results)),
        lambda: lines.extend(many_rows(results)),
    ):
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        print(f"{time.perf_counter() - start:.1f} s", flush=True)
    if out:
        out.write_text(json.dumps({"card": torch.cuda.get_device_name(), "failed": failed, "rows": results}, indent=1))
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; tile for 4096: {choose_tile(4096, 4096)}")
    print(*lines, sep="\n")
    print("FAILED:" if failed else "all checks passed", *failed, sep="\n")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
