"""Decode attention on this card: checked against float64, then timed against the read bandwidth of the same run.

    python3 tests/measure/decode_kernel.py [--formats bf16,fp8,k4v4] [--lengths 8k,32k,128k] [--variants 5]

Times are medians of CUDA graph replays over several sets of KV pages, more than the second-level cache holds. Rows:
format, tokens held (or pages listed / held), configuration (warps, stages, programs for each multiprocessor, those for
short lists), microseconds for a layer's two launches, reading those pages as a share of what the bandwidth allows, and
bf16's best time over this one; `split` is the first launch alone, by the
default configuration. Several processes compile the kernels beforehand.
"""

import argparse
import json
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from kernels.block_index import PageLists
from kernels.decode_attention import PAGE, PagedKv
from kernels.decode_attention import triton as launching
from kernels.decode_attention.triton import DecodeConfig, configuration, make_scratch, paged_decode
from kernels.kv_codec import (
    FORMATS,
    PackedPages,
    bytes_per_page,
    empty_pages,
    hadamard,
    pack_pages,
    unpack_page_keys,
    unpack_page_values,
)

VARIANTS = {  # besides the default, from `configuration`: what differs
    "exact": [{"programs": 3, "most": 3}, {"warps": 4}],
    "16": [{"programs": 3}, {"programs": 5, "most": 5}],
    "fewer": [{"most": 9}, {"most": 8}, {"programs": 7, "most": 8}],
}
FEWEST = {"k3v3": 2, "k2v2": 1}  # so many of these are tried at most
SPLIT_ALONE = ("4k", "8k", "16k")
TRIED = ("8k", "128k")  # all variants at these lengths; the best at the others
SELECTED = (64, 2048)  # pages of a list, of the sequence
LEAST_SETS, SETS_BYTES = 2, 400 << 20
CHANGED: list[str] = []


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--formats", default="bf16,fp8,k8v4,k4v4,k3v3,k2v2")
    parser.add_argument("--lengths", default="8k,32k,128k,512k", help="those to time")
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--group", type=int, default=4)
    parser.add_argument("--d", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=1)
    parser.add_argument("--mass", action="store_true")
    parser.add_argument("--variants", type=int, default=8, help="configurations tried for each format")
    parser.add_argument("--compile", action="store_true", help="compile only, for a later run")
    parser.add_argument("--seconds", type=float, default=80, help="stop starting new rows after so long")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def tokens_of(text: str) -> int:
    return int(text[:-1]) * 1024 if text.endswith("k") else int(text)


def variants(name: str, d: int, count: int) -> list[DecodeConfig]:
    fmt = FORMATS.get(name)
    bits = (fmt.key_bits, fmt.value_bits) if fmt else (0, 0)
    major, minor = torch.cuda.get_device_capability()
    default = configuration(major * 10 + minor, *bits, d)
    family = "exact" if fmt is None else "16" if sum(bits) == 16 else "fewer"
    others = [replace(default, **each) for each in VARIANTS[family]]
    others = [config for config in others if config != default]
    return [default, *others[: min(count, FEWEST.get(name, count))]]


class Sets:
    """KV of several sequences of one format in common pools, pages scattered; sink and the newest three exact."""

    def __init__(self, name: str, args: argparse.Namespace, length: int) -> None:
        self.name, self.args, self.length = name, args, length
        fmt, d, heads = FORMATS.get(name), args.d, args.kv_heads
        self.pages = -(-length // PAGE)
        self.page_bytes = bytes_per_page(fmt, d) if fmt else 2 * PAGE * d * 2
        held = self.page_bytes * self.pages * heads
        self.count = max(LEAST_SETS, min(32, -(-SETS_BYTES // held)))
        places = torch.randperm(self.count * self.pages, device="cuda").int().view(self.count, self.pages)
        exact = [0, *range(max(1, self.pages - 3), self.pages)]
        slots = (self.count * len(exact) if fmt else self.count * self.pages) * PAGE
        keys, values = (torch.randn(heads, slots, d, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        self.exact_pages = len(exact)
        if fmt is None:
            self.tables, self.kv = places, PagedKv(keys, values)
        else:
            self.tables = ~places
            self.tables[:, exact] = torch.arange(self.count * len(exact), device="cuda").int().view(self.count, -1)
            packed = empty_pages(fmt, (heads, self.count * self.pages), d, "cuda")
            for part in packed:
                if part.dtype == torch.uint8:
                    part.random_(0, 120 if fmt.float8 else 256)
                else:
                    part.uniform_(0.5, 1.0).mul_(0.03)
            self.kv = PagedKv(keys, values, packed, fmt)
        self.q = torch.randn(args.tokens, heads * args.group, d, device="cuda", dtype=torch.bfloat16)
        self.out = torch.zeros_like(self.q)
        self.scratch = make_scratch(args.tokens, heads * args.group, heads, d, self.pages, "cuda", args.mass)
        self.mass = torch.empty(heads, self.pages, device="cuda") if args.mass else None
        self.tokens = torch.tensor([length], dtype=torch.int32, device="cuda")

    def lists(self, listed: int) -> list[PageLists]:
        """For each set: sink, the newest three and others at random, for each KV head its own."""
        made, heads = [], self.args.kv_heads
        for _ in range(self.count):
            score = torch.rand(heads, self.pages, device="cuda")
            score[:, [0, -1, -2, -3]] = 2
            pages = score.topk(listed).indices.sort().values.int().flatten()
            starts = torch.arange(heads, device="cuda", dtype=torch.int32) * listed
            made.append(PageLists(starts, starts + listed, pages))
        return made

    def run(self, number: int, lists: PageLists | None, config: DecodeConfig) -> None:
        paged_decode(
            self.q, self.kv, self.tables[number], lists, self.tokens, self.args.d**-0.5, self.out, self.scratch,
            self.mass, config,
        )  # fmt: skip

    def bytes(self, listed: int | None) -> int:
        pages = self.pages if listed is None else listed
        exact = pages if self.name not in FORMATS else self.exact_pages
        return self.args.kv_heads * (
            exact * 2 * PAGE * self.args.d * 2 + (pages - exact) * (self.page_bytes if self.name in FORMATS else 0)
        )


def microseconds(call, calls: int) -> float:
    """Median over replays of a graph of `calls` calls; call(i) launches the i-th."""
    for i in range(3):
        call(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            call(i)
    times = []
    for _ in range(12):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / calls)
    return statistics.median(times[2:])


def measure(sets: Sets, config: DecodeConfig, listed: int | None) -> float:
    lists = [None] * sets.count if listed is None else sets.lists(listed)
    calls = max(sets.count, 8)
    last = (calls - 1) % sets.count
    sets.run(last, lists[last], config)
    alone = sets.out.clone()
    took = microseconds(lambda i: sets.run(i % sets.count, lists[i % sets.count], config), calls)
    if not torch.equal(alone, sets.out):
        CHANGED.append(f"{sets.name} {sets.length} {shown(config)}: recorded differs from launched")
    return took


def bandwidth() -> float:
    """Bytes a second that a large reduction reads, or a copy moves, whichever is more."""
    x = torch.randn(1 << 30, device="cuda", dtype=torch.float32)
    y = torch.empty_like(x[: 1 << 29])
    total = x.numel() * 4
    reading = total / microseconds(lambda _: x.sum(), 2) * 1e6
    copying = total / microseconds(lambda _: y.copy_(x[: 1 << 29]), 2) * 1e6
    print(f"read {reading / 1e12:.2f} TB/s, copy {copying / 1e12:.2f} TB/s", flush=True)
    return max(reading, copying)


def error(name: str, args: argparse.Namespace, config: DecodeConfig, length: int = 3000) -> tuple[float, float]:
    """Relative RMS error of the output and of the masses against float64, from real packed pages."""
    fmt, d, heads, pages = FORMATS.get(name), args.d, args.kv_heads, -(-length // PAGE)
    keys, values = (torch.randn(heads, pages, PAGE, d, device="cuda") for _ in range(2))
    keys = (keys + 2 * torch.randn(heads, 1, 1, d, device="cuda")).bfloat16()
    values = values.bfloat16()
    table = torch.arange(pages, dtype=torch.int32, device="cuda")
    read = keys.double(), values.double()
    exact = keys.flatten(1, 2).clone(), values.flatten(1, 2).clone()
    for pool in exact:
        pool[:, length:] = torch.nan
    kv = PagedKv(*exact)
    if fmt is not None:
        packed: PackedPages = pack_pages(keys, values, fmt)
        kv = PagedKv(*exact, packed, fmt)
        inner = torch.arange(1, pages - 3, device="cuda")
        table[inner] = ~table[inner]
        read[0][:, inner] = unpack_page_keys(packed, fmt).double()[:, inner]
        read[1][:, inner] = unpack_page_values(packed, fmt).double()[:, inner]
    q = torch.randn(args.tokens, heads * args.group, d, device="cuda").bfloat16()
    k, v = (x.flatten(1, 2)[:, :length] for x in read)
    scores = q.double().unflatten(1, (heads, -1)).permute(1, 0, 2, 3) @ k[:, None].mT * d**-0.5
    hidden = torch.arange(length, device="cuda") > torch.arange(length - args.tokens, length, device="cuda")[:, None]
    weights = scores.masked_fill(hidden[:, None], -torch.inf).softmax(-1)
    want = (weights @ v[:, None]).permute(1, 0, 2, 3).flatten(1, 2)
    want = hadamard(want).double() if fmt else want
    drawn = torch.nn.functional.pad(weights.sum((1, 2)), (0, pages * PAGE - length)).unflatten(1, (-1, PAGE)).sum(-1)
    out, mass = torch.full_like(want, torch.nan, dtype=torch.float32), torch.full_like(drawn, torch.nan).float()
    scratch = make_scratch(args.tokens, heads * args.group, heads, d, pages, "cuda", True)
    on_device = torch.tensor([length], dtype=torch.int32, device="cuda")
    paged_decode(q, kv, table, None, on_device, d**-0.5, out, scratch, mass, config)
    first, masses, same = out.clone(), mass.clone(), True
    for _ in range(20):
        out.fill_(torch.nan)
        paged_decode(q, kv, table, None, on_device, d**-0.5, out, scratch, mass, config)
        same = same and torch.equal(out, first) and torch.equal(mass, masses)
    return (relative(out, want), relative(mass, drawn)) if same else (float("nan"), float("nan"))


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want).norm() / want.norm())


class _Nothing:
    """In place of a kernel that is not to be launched."""

    def __getitem__(self, grid: tuple[int, ...]):
        return lambda *arguments, **options: None


def split_alone(name: str, args: argparse.Namespace, config: DecodeConfig) -> str:
    merging, found = launching.merge_parts, []
    launching.merge_parts = _Nothing()
    try:
        for text in SPLIT_ALONE:
            found.append(f"{text} {measure(Sets(name, args, tokens_of(text)), config, None):.1f}")
    finally:
        launching.merge_parts = merging
    return f"{name:5} split {shown(config)}: " + "  ".join(found)


def compile_one(job: tuple[str, DecodeConfig, bool | None, argparse.Namespace]) -> None:
    """In a process of its own: the kernel lands in Triton's cache on disk."""
    name, config, listed, args = job
    if listed is None:
        error(name, args, config)
        return
    sets = Sets(name, args, 8192)
    sets.run(0, sets.lists(64)[0] if listed else None, config)
    torch.cuda.synchronize()


def compile_all(args: argparse.Namespace) -> int:
    jobs = []
    for name in args.formats.split(","):
        configs = variants(name, args.d, args.variants)
        jobs += [(name, config, listed, args) for config in configs for listed in (None, False, True)]
    with ProcessPoolExecutor(int(os.environ.get("COMPILERS", 14)), mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_one, jobs))
    return len(jobs)


def main() -> None:
    args, start = parse(), time.monotonic()
    torch.manual_seed(0)
    names = args.formats.split(",")
    print(f"{compile_all(args)} compiled, {time.monotonic() - start:.0f} s", flush=True)
    if args.compile:
        return
    start = time.monotonic()
    limit = bandwidth()
    rows, exact, faults, alone = [], {}, [], []
    for name in names:
        tried = variants(name, args.d, args.variants)
        for config in tried:
            for length in (3000, 8192, 20000):
                out, mass = error(name, args, config, length)
                if not (out < 2e-3 and mass < 5e-4):
                    faults.append(
                        f"{name} {shown(config)} {length}: error {out:.2e}, of masses {mass:.2e} (NaN: repeats)"
                    )
        best: DecodeConfig | None = None
        lengths = sorted(args.lengths.split(","), key=lambda text: (text not in TRIED, tokens_of(text)))
        for text in lengths:
            sets = Sets(name, args, tokens_of(text))
            if text not in TRIED and best is None:
                best = fairest([r for r in rows if r["format"] == name])
            for config in tried if text in TRIED else [best or tried[0]]:
                if time.monotonic() - start < args.seconds:
                    rows.append(row(sets, text, config, None, limit))
            del sets
        if time.monotonic() - start < args.seconds:
            alone.append(split_alone(name, args, tried[0]))
        sets = Sets(name, args, SELECTED[1] * PAGE)
        for config in tried:
            if time.monotonic() - start < args.seconds:
                rows.append(row(sets, "{}/{}".format(*SELECTED), config, SELECTED[0], limit))
        del sets
        torch.cuda.empty_cache()
    for r in rows:
        if r["format"] == "bf16":
            exact[r["what"]] = min(exact.get(r["what"], r["us"]), r["us"])
    if args.json:
        args.json.write_text(json.dumps([{**r, "config": str(r["config"])} for r in rows]))
    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}; d {args.d}, {args.kv_heads} KV heads, group {args.group}")
    print(f"{time.monotonic() - start:.0f} s in all; {limit / 1e12:.2f} TB/s is 100 %")
    print("us (share of reading) by configuration; behind the format how much faster its best is than bf16's")
    for key in dict.fromkeys((r["format"], r["what"]) for r in rows):
        found = [r for r in rows if (r["format"], r["what"]) == key]
        gain = exact.get(key[1], float("nan")) / min(r["us"] for r in found)
        each = "  ".join(f"{shown(r['config'])} {r['us']:.1f} ({r['share']:.0%})" for r in found)
        print(f"{key[0]:5} {key[1]:>7} x{gain:4.2f}: {each}")
    print("\n".join(alone))
    faults += CHANGED
    print("FAILED: " + "; ".join(faults) if faults else "all checks passed")
    sys.exit(bool(faults))


def shown(config: DecodeConfig) -> str:
    return f"{config.warps}.{config.stages}.{config.programs}.{config.most}"


def fairest(rows: list[dict]) -> DecodeConfig:
    """Whose times are shortest on the whole, each against the best of its length."""
    least = {r["what"]: min(o["us"] for o in rows if o["what"] == r["what"]) for r in rows}
    slower: dict[DecodeConfig, float] = {}
    for r in rows:
        slower[r["config"]] = slower.get(r["config"], 1.0) * r["us"] / least[r["what"]]
    return min(slower, key=lambda config: slower[config])


def row(sets: Sets, what: str, config: DecodeConfig, listed: int | None, limit: float) -> dict:
    us = measure(sets, config, listed)
    rate = sets.bytes(listed) / us * 1e6
    return {"format": sets.name, "what": what, "config": config, "us": us, "gbs": rate / 1e9, "share": rate / limit}


if __name__ == "__main__":
    main()
