"""Checks and times the Triton page selector and KV codec on this card.

python3 tests/measure/selector_kernel.py [--variants] [--codec]

One layer of 8 KV heads, 4 query heads each, head_dim 128. Times are those of replayed CUDA graphs over several sets of
inputs, together larger than the card's cache, divided by the launches. GB/s count each byte read or written once.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from kernels.block_index import PAGE, PageLists
from kernels.decode_attention.paged import PagedKv
from kernels.kv_codec import (
    FORMATS,
    PackedPages,
    bounds,
    bytes_per_page,
    coarse_keys,
    empty_pages,
    pack_pages,
    requantize_values,
    summarize,
)
from kernels.kv_codec.reference import unpack_page_keys, unpack_page_values
from kernels.kv_codec.triton import pack_into, summarize_into, unpack_into
from kernels.page_scores import coarse_scores, mean_std_scores, min_max_scores, reference
from kernels.page_scores import triton as statistic_scoring
from kernels.page_scores import triton_coarse as coarse_scoring
from kernels.page_selection import triton as selection
from kernels.page_selection.reference import select_pages

HEADS, GROUP, D, LOGICAL = 8, 4, 128, 4
SINK, RECENT = 64, 256
LENGTHS = (8192, 32768, 131072, 524288)
CACHE = 200 << 20
SELECT_VARIANTS = [
    selection.Config(chunk, digit, warps)
    for chunk, digit, warps in (
        (1024, 3, 8), (2048, 3, 16), (2048, 2, 16), (4096, 1, 16), (8192, 1, 16), (8192, 1, 32),
    )
]  # fmt: skip
COARSE_VARIANTS = [
    coarse_scoring.Config(*each)
    for each in ((8, 396, 4, 168, 1), (8, 396, 4, 168, 2), (8, 396, 4, 168, 3), (8, 264, 4, None, 3))
]
FAILED: list[str] = []


def microseconds(launches: list[Callable[[], object]], repeats: int = 9) -> float:
    """Of one launch: the median over replays of a graph of all of them."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for launch in launches[:2]:
            launch()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    graph.replay()
    for first, last in events:
        first.record()
        graph.replay()
        last.record()
    torch.cuda.synchronize()
    return sorted(first.elapsed_time(last) for first, last in events)[repeats // 2] * 1000 / len(launches)


def expect(ok: bool, what: str) -> None:
    if not ok:
        FAILED.append(what)
        print("FAILED", what)


def number(value: int) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.int32, device="cuda")


class Selector:
    """Inputs of one length, in as many sets as fill the cache; half of the pages are exact, half packed."""

    def __init__(self, length: int, spare: float = 1.0) -> None:
        self.tokens, self.pages, self.known = length, -(-length // PAGE), (length - 1) // PAGE
        self.capacity = int(self.pages * spare)
        self.bytes = self.known * HEADS * LOGICAL * D * 4
        sets = max(3, min(48, CACHE // self.bytes + 1))
        rows = torch.randperm(2 * self.capacity)[: self.capacity]
        self.table = torch.where(rows < self.capacity, rows, self.capacity - 1 - rows).int().cuda()
        shape = HEADS, 2 * self.capacity, LOGICAL, D
        self.sets = [
            (
                torch.randn(HEADS * GROUP, D, device="cuda").bfloat16(),
                torch.randn(shape, dtype=torch.half, device="cuda"),
                torch.rand(shape, dtype=torch.half, device="cuda"),
                torch.full((HEADS, self.capacity), float("nan"), device="cuda"),
            )
            for _ in range(sets)
        ]
        budget = max(4096, length // 32) // PAGE
        self.length, self.budget, self.count = number(length), number(budget), budget
        self.streaming = torch.zeros(HEADS, dtype=torch.uint8, device="cuda")
        rows = torch.zeros(HEADS, dtype=torch.int32, device="cuda")
        self.lists = PageLists(rows, rows.clone(), torch.zeros(HEADS * self.capacity, dtype=torch.int32, device="cuda"))

    def score(self, part: int, config: statistic_scoring.Config | None = None) -> None:
        q, mean, std, scores = self.sets[part]
        arguments = (
            q,
            mean,
            std,
            "mean_std",
            self.table,
            self.capacity,
            self.length,
            self.budget,
            self.streaming,
            scores,
        )
        statistic_scoring.score_pages(*arguments, config)

    def select(self, part: int, config: selection.Config | None = None) -> None:
        selection.select_page_lists(
            self.sets[part][3], self.length, self.budget, SINK, RECENT, self.streaming, self.lists, config
        )

    def same_lists(self, pages: torch.Tensor) -> bool:
        """Whether the lists are those that `pages` holds."""
        spans = zip(self.lists.starts.tolist(), self.lists.ends.tolist())
        return all(torch.equal(self.lists.pages[a:b], pages[a:b]) for a, b in spans)

    def check(self) -> None:
        q, mean, std, scores = self.sets[0]
        self.score(0)
        self.select(0)
        first = scores[:, : self.known].clone()
        rows = torch.where(self.table >= 0, self.table, self.capacity + ~self.table)[: self.known].long()
        q = q.double().view(HEADS, GROUP, D)
        mean, std = (x[:, rows].double().flatten(1, 2).mT for x in (mean, std))
        exact = (q @ mean + q.abs() @ std).amax(1).unflatten(1, (self.known, LOGICAL)).amax(2)
        error = float((first.double() - exact).norm() / exact.norm())
        expect(error < 2e-6, f"scores at {self.tokens}: error {error:.1e}")
        page = torch.arange(self.pages)
        forced = (page < 1) | (page >= (self.tokens - RECENT) // PAGE) | (page >= self.known)
        everything = torch.ones(1, self.pages, dtype=torch.bool)
        mask = select_pages(first.cpu()[:, None], forced[None], everything, self.count)
        best = select_pages(exact.float().cpu()[:, None], forced[None], everything, self.count)
        for head in range(HEADS):
            got = self.lists.pages[self.lists.starts[head] : self.lists.ends[head]].cpu()
            expect(got.tolist() == mask[head, 0].nonzero()[:, 0].tolist(), f"list of head {head} at {self.tokens}")
            recall = float(best[head, 0, got.long()].float().mean())
            expect(recall > 0.999, f"recall {recall:.4f} of head {head} at {self.tokens}")
        for _ in range(10):
            self.score(0)
            expect(torch.equal(scores[:, : self.known], first), f"scores at {self.tokens} differ between runs")


def time_selector(variants: bool) -> list[str]:
    table = [
        "mean and deviation",
        "tokens    scores us   GB/s  selection us  both us   selection of half the capacity, us",
    ]
    tried = []
    for length in LENGTHS:
        one = Selector(length)
        one.check()
        parts = range(len(one.sets))
        scores = microseconds([partial(one.score, part) for part in parts])
        selected = microseconds([partial(one.select, part) for part in parts])
        together = microseconds([partial(step, part) for part in parts for step in (one.score, one.select)]) * 2
        if variants and length > 8192:
            one.select(0)
            for config in SELECT_VARIANTS:
                before = one.lists.pages.clone()
                one.select(0, config)
                expect(one.same_lists(before), f"lists at {length} by {config}")
            took = {
                config: microseconds([partial(one.select, part, config) for part in parts])
                for config in SELECT_VARIANTS
            }
            chosen = (f"{c.chunk},{c.digit},{c.num_warps} {us:.1f}" for c, us in took.items())
            tried.append(f"{length:7} selection, us: " + "; ".join(chosen))
        one = Selector(length, 2.0)
        parts = range(len(one.sets))
        for part in parts:
            one.score(part)
        wider = microseconds([partial(one.select, part) for part in parts])
        speed = one.bytes / scores / 1e3
        table.append(f"{length:7}  {scores:9.1f}  {speed:5.0f}  {selected:12.1f}  {together:7.1f}   {wider:7.1f}")
    return table + tried


class CoarseSelector:
    """As `Selector`, of coarse keys; codes are random."""

    def __init__(self, length: int) -> None:
        self.known, self.capacity = (length - 1) // PAGE, -(-length // PAGE)
        self.bytes = self.known * HEADS * (PAGE * D // 4 + 4 * D)
        rows = torch.randperm(2 * self.capacity)[: self.capacity]
        self.table = torch.where(rows < self.capacity, rows, self.capacity - 1 - rows).int().cuda()
        self.length, self.budget = number(length), number(max(4096, length // 32) // PAGE)
        self.streaming = torch.zeros(HEADS, dtype=torch.uint8, device="cuda")
        shape = HEADS, 2 * self.capacity
        self.sets = [
            (
                torch.randn(HEADS * GROUP, D, device="cuda").bfloat16(),
                torch.randint(0, 256, (*shape, PAGE, D // 4), dtype=torch.uint8, device="cuda"),
                torch.rand(*shape, D, dtype=torch.half, device="cuda"),
                torch.randn(*shape, D, dtype=torch.half, device="cuda"),
                torch.full((HEADS, self.capacity), float("nan"), device="cuda"),
            )
            for _ in range(max(3, min(48, CACHE // self.bytes + 1)))
        ]

    def score(self, part: int, config: coarse_scoring.Config | None = None) -> None:
        *inputs, scores = self.sets[part]
        coarse_scoring.score_pages_by_coarse_keys(
            *inputs, D**-0.5, self.table, self.capacity, self.length, self.budget, self.streaming, scores, config
        )

    def check(self, config: coarse_scoring.Config) -> bool:
        q, *summary, scores = self.sets[0]
        scores.fill_(float("nan"))
        self.score(0, config)
        first = scores[:, : self.known].clone()
        some = torch.randperm(self.known)[:256].cuda()
        rows = torch.where(self.table >= 0, self.table, self.capacity + ~self.table)[some].long()
        query = q.float().view(HEADS, 1, GROUP, D)
        exact = reference.coarse_scores(query, *(x[:, rows] for x in summary), D**-0.5)[:, 0]
        error = float((first[:, some] - exact).norm() / exact.norm())
        good = bool(first.isfinite().all()) and error < 1e-3
        expect(good, f"coarse scores of {self.known} pages by {config}: error {error:.1e}")
        for _ in range(10):
            self.score(0, config)
            expect(torch.equal(scores[:, : self.known], first), f"coarse scores of {self.known} pages differ: {config}")
        return good


def time_coarse() -> list[str]:
    table = [f"{'coarse scores, us (GB/s)':38}" + "".join(f"{length // 1024:>10}k    " for length in LENGTHS)]
    shown = "pages {0.pages}, programs {0.programs}, {0.num_warps} warps, {0.stages} stages"
    lines = {config: f"{shown.format(config):40} " for config in COARSE_VARIANTS}
    for length in LENGTHS:
        one = CoarseSelector(length)
        for config in COARSE_VARIANTS:
            if not one.check(config):
                lines[config] += "          wrong"
                continue
            took = microseconds([partial(one.score, part, config) for part in range(len(one.sets))])
            lines[config] += f"{took:8.1f} ({one.bytes / took / 1e3:4.0f})"
    return [*table, *lines.values()]


def compile_one(number: int) -> None:
    """In a process of its own: the kernel lands in Triton's cache on disk."""
    coarse, one = len(COARSE_VARIANTS), Selector(8192)
    if number < coarse:
        CoarseSelector(8192).score(0, COARSE_VARIANTS[number])
    elif number < coarse + len(SELECT_VARIANTS):
        one.select(0, SELECT_VARIANTS[number - coarse])
    else:
        one.score(0)
        one.select(0)
    torch.cuda.synchronize()


def compile_all() -> None:
    count = len(COARSE_VARIANTS) + len(SELECT_VARIANTS) + 1
    with ProcessPoolExecutor(int(os.environ.get("COMPILERS", 14)), mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_one, range(count)))


def recall(device: str, pages: int = 512, chosen: int = 32) -> list[str]:
    """Of the pages with the largest logsumexp of scale * q . key, the share that each summary finds.

    Keys have an offset in each channel, a few channels of ten times the size, and neighbours alike."""
    size = torch.ones(D, device=device)
    size[torch.randperm(D)[:4]] = 10
    keys = torch.randn(HEADS, pages * PAGE, D, device=device)
    for at in range(1, 4):  # neighbours share noise
        keys += 0.7**at * keys.roll(at, 1)
    keys = ((keys + 2 * torch.randn(HEADS, 1, D, device=device)) * size).unflatten(1, (-1, PAGE))
    q = torch.randn(HEADS, 1, GROUP, D, device=device) * 2 / size.sqrt()
    logits = torch.einsum("hbrd,hptd->hrpt", q, keys) * D**-0.5
    true = logits.logsumexp(3).amax(1).topk(chosen).indices
    found = {
        "mean_std": mean_std_scores(q, *summarize(keys)),
        "min_max": min_max_scores(q, *bounds(keys)),
        "coarse keys": coarse_scores(q, *coarse_keys(keys), D**-0.5),
    }
    lines = [f"share of the {chosen} best of {pages} pages found:"]
    for name, scores in found.items():
        got = scores[:, 0].topk(chosen).indices
        share = (got[:, :, None] == true[:, None, :]).any(2).float().mean()
        lines.append(f"  {name:12} {float(share):.3f}")
    return lines


def check_codec(name: str, keys: torch.Tensor, values: torch.Tensor) -> None:
    """A few pages against the reference on the CPU; the pools hold some of everything."""
    fmt, some = FORMATS[name], [5, 0, 9]
    packed = empty_pages(fmt, (HEADS, 8), D, "cuda")
    target = torch.tensor([2, 7, 0], device="cuda")
    pack_into(keys, values, torch.tensor(some, device="cuda"), packed, fmt, target)
    pages = [x.unflatten(1, (-1, PAGE))[:, some].cpu() for x in (keys, values)]
    expected = pack_pages(pages[0], pages[1], fmt)
    for field, part, other in zip(expected._fields, packed, expected):
        expect(torch.equal(part[:, target].cpu(), other), f"{name}: packed {field}")
    cold, cold_format = None, None
    if not fmt.float8 and fmt.value_bits > 2:
        cold, cold_format = requantize_values(expected, fmt, 2)
        cold = PackedPages(*(part.cuda().contiguous() for part in cold))
    places = [~2, 3, ~7, ~0] + ([] if cold is None else [~8, ~10])
    kv = PagedKv(keys, values, packed, fmt, cold, cold_format)
    table = torch.tensor(places, dtype=torch.int32, device="cuda")
    for dtype in (torch.bfloat16, torch.float32):
        out = torch.full((2, HEADS, len(places) * PAGE, D), float("nan"), dtype=dtype, device="cuda")
        unpack_into(kv, table, len(places), out[0], out[1])
        got = out.unflatten(2, (-1, PAGE)).cpu()
        read = [(unpack_page_keys(expected, fmt), unpack_page_values(expected, fmt), (0, 2, 3), (0, 1, 2))]
        if cold is not None and cold_format is not None:
            there = PackedPages(*(part.cpu() for part in cold))
            parts = unpack_page_keys(there, cold_format), unpack_page_values(there, cold_format)
            read.append((*parts, (4, 5), (0, 2)))
        for own_keys, own_values, at, of in read:
            for half, x in enumerate((own_keys, own_values)):
                expect(torch.equal(got[half][:, at], x[:, of].to(dtype)), f"{name}: unpacked to {dtype}, places {at}")
        for half, x in enumerate((keys, values)):
            expect(torch.equal(got[half][:, 1], x[:, 3 * PAGE : 4 * PAGE].cpu().to(dtype)), f"{name}: an exact page")


def time_codec() -> list[str]:
    pages, sets = 32768 // PAGE, 3
    shape = HEADS, pages * PAGE, D
    pools = [
        [(torch.randn(shape, device="cuda") * torch.randn(D, device="cuda").exp()).bfloat16() for _ in range(2)]
        for _ in range(sets)
    ]
    number = torch.randperm(pages, device="cuda")
    exact = sum(x.nbytes for x in pools[0])
    table = ["format   pack us  GB/s    unpack us  GB/s   (32k tokens, bf16 pools and workspace)"]
    for name, fmt in FORMATS.items():
        check_codec(name, *pools[0])
        packed = [empty_pages(fmt, (HEADS, pages), D, "cuda") for _ in range(sets)]
        moved = exact + HEADS * pages * bytes_per_page(fmt, D)
        pack = microseconds([partial(pack_into, *pool, number, into, fmt, number) for pool, into in zip(pools, packed)])
        out = [torch.empty_like(x) for x in pools[0]]
        places = (-1 - number).int()
        kvs = [PagedKv(*pool, pages_of, fmt) for pool, pages_of in zip(pools, packed)]
        unpack = microseconds([partial(unpack_into, kv, places, pages, *out) for kv in kvs])
        table.append(f"{name:6}  {pack:8.1f}  {moved / pack / 1e3:5.0f}  {unpack:9.1f}  {moved / unpack / 1e3:5.0f}")
    mean, std = (torch.empty(HEADS, pages, LOGICAL, D, dtype=torch.half, device="cuda") for _ in range(2))
    made = microseconds([partial(summarize_into, pool[0], number, mean, std) for pool in pools])
    for got, expected in zip((mean, std), summarize(pools[-1][0].unflatten(1, (-1, PAGE))[:, :8].cpu())):
        close = torch.isclose(got[:, :8].cpu().float(), expected.float(), rtol=2**-10, atol=2**-14)
        expect(bool(close.all()), "summaries")
    moved = pools[0][0].nbytes + 2 * mean.nbytes
    table.append(f"summarize {made:6.1f}  {moved / made / 1e3:5.0f}")
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--variants", action="store_true", help="time other configurations of the selector as well")
    parser.add_argument("--compile", action="store_true", help="compile only, for a later run")
    parser.add_argument("--codec", action="store_true", help="the KV codec as well")
    arguments = parser.parse_args()
    if arguments.variants or arguments.compile:
        compile_all()
        if arguments.compile:
            return 0
    torch.manual_seed(1)
    started = time.time()
    large = torch.randn(1 << 28, device="cuda")
    other = torch.empty_like(large)
    copied = microseconds([partial(other.copy_, large)] * 3)
    lines = [f"copy {2 * large.nbytes / copied / 1e3:.0f} GB/s on {torch.cuda.get_device_name()}"]
    del large, other
    with torch.inference_mode():
        lines += time_selector(arguments.variants)
        lines += time_coarse()
        if arguments.codec:
            lines += time_codec() + recall("cuda")
    print("\n".join(lines))
    print(f"{'FAILED: ' + '; '.join(FAILED[:5]) if FAILED else 'all checks passed'} in {time.time() - started:.0f} s")
    return bool(FAILED)


if __name__ == "__main__":
    sys.exit(main())
