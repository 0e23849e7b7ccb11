"""Products and norms of decoder layers in a row, as a decode step launches them, by how programs are cut and overlap.

python3 tests/measure/chain_kernel.py [--apart] [--out FILE.json]

Layers of Llama-3-8B in fp8, one row, no attention between them. Each product's tile is varied by itself, then the best
of each together; with --apart kernels do not overlap in any of these. Microseconds a layer, of replayed graphs over
more layers than the last cache holds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from kernels import card
from kernels.linear.triton import Tile, choose_tile, matvec
from kernels.rms_norm.triton import add_rms_norm
from tests.measure.linear_kernel import random_fp8, read_bandwidth, times

SHAPES = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
WIDE = [Tile(2, 4, 1), Tile(2, 8, 1), Tile(1, 8, 1), Tile(2, 4, 2), Tile(2, 2, 2), Tile(4, 2, 1), Tile(1, 4, 2)]
TILES = {
    "qkv": WIDE,
    "o": [*WIDE, Tile(2, 2, 4), Tile(1, 2, 4)],
    "gate_up": [Tile(4, 2, 1), Tile(2, 4, 1), Tile(2, 8, 1), Tile(4, 4, 1), Tile(4, 2, 2), Tile(2, 4, 2)],
    "down": [Tile(2, 2, 2), Tile(2, 7, 1), Tile(1, 7, 2), Tile(2, 7, 2), Tile(2, 1, 4), Tile(1, 7, 4), Tile(4, 2, 2)],
}
LAYERS = 4
DEVICE = torch.device("cuda")
BF16 = torch.bfloat16
BYTES = sum(outs * inner for outs, inner in SHAPES.values())


def chosen(name: str) -> Tile:
    return choose_tile(*SHAPES[name])


class Layers:
    def __init__(self, count: int) -> None:
        self.weights = [{name: random_fp8(*shape) for name, shape in SHAPES.items()} for _ in range(count)]
        self.norm = torch.rand(4096, device=DEVICE)
        self.x, self.seen = torch.randn(1, 4096, device=DEVICE), torch.randn(1, 4096, device=DEVICE).to(BF16)

    def run(self, tiles: dict[str, Tile], one: int) -> tuple[torch.Tensor, torch.Tensor]:
        """One layer; attention's output is made up."""

        def product(x: torch.Tensor, name: str) -> torch.Tensor:
            w = self.weights[one][name]
            return matvec(x, w.codes, w.scales, None, name == "gate_up", tiles.get(name) or chosen(name))

        x, normed = add_rms_norm(self.x, self.seen, self.norm, 1e-5, BF16)
        qkv = product(normed, "qkv")
        x, normed = add_rms_norm(x, product(self.seen, "o"), self.norm, 1e-5, BF16)
        return qkv, product(product(normed, "gate_up"), "down")

    def calls(self, tiles: dict[str, Tile]) -> list[Callable[[], object]]:
        return [partial(self.run, tiles, one) for one in range(len(self.weights))]


def compile_one(job: tuple[str, Tile, bool]) -> None:
    """In a process of its own: the kernel lands in Triton's cache on disk."""
    name, tile, overlap = job
    card.let_kernels_overlap(overlap)
    w = random_fp8(*SHAPES[name])
    matvec(torch.randn(1, SHAPES[name][1], device=DEVICE).to(BF16), w.codes, w.scales, None, name == "gate_up", tile)
    torch.cuda.synchronize()


def compile_all(overlap: bool) -> None:
    jobs = [(name, tile, overlap) for name, tiles in TILES.items() for tile in tiles]
    jobs += [(name, chosen(name), either) for name in SHAPES for either in (False, True)]
    with ProcessPoolExecutor(int(os.environ.get("COMPILERS", 14)), mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_one, dict.fromkeys(jobs)))


def check(layers: Layers, tiles: dict[str, Tile], right: tuple[torch.Tensor, ...]) -> str:
    """Other tiles sum in another order; without other tiles the bits are the same."""
    got = layers.run(tiles, 0)
    torch.cuda.synchronize()
    if not tiles:
        return "" if all(torch.equal(a, b) for a, b in zip(got, right)) else "other bits"
    errors = [float((a.double() - b.double()).norm() / b.double().norm()) for a, b in zip(got, right)]
    return "" if max(errors) < 0.02 else f"error {max(errors):.4f}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--apart", action="store_true", help="vary tiles without overlapping")
    parser.add_argument("--compile", action="store_true", help="compile only, for a later run")
    args = parser.parse_args()
    started = time.monotonic()
    compile_all(not args.apart)
    print(f"compiled after {time.monotonic() - started:.0f} s", flush=True)
    if args.compile:
        return
    torch.manual_seed(3)
    layers, faults = Layers(LAYERS), []
    limit = read_bandwidth()
    card.let_kernels_overlap(False)
    right = layers.run({}, 0)
    found = {"apart": times({"apart": layers.calls({})})["apart"]}
    card.let_kernels_overlap(not args.apart)
    usual = "apart" if args.apart else "overlap"
    variants: dict[str, dict[str, Tile]] = {usual: {}}
    for name, tiles in TILES.items():
        for tile in tiles:
            if tile != chosen(name):
                variants[f"{name} {tile.outs},{tile.steps},{tile.warps}"] = {name: tile}
    for label, tiles in variants.items():
        wrong = check(layers, tiles, right)
        faults += [f"{label}: {wrong}"] if wrong else []
    for _ in range(20):
        wrong = check(layers, {}, right)
        faults += [f"repeat: {wrong}"] if wrong else []
    found |= times({label: layers.calls(tiles) for label, tiles in variants.items()}, replays=7)
    best = {}
    for name in SHAPES:
        labels = [label for label in variants if label.startswith(f"{name} ")]
        label = min([*labels, usual], key=lambda label: found[label])
        if label != usual:
            best[name] = variants[label][name]
    together = dict(best)
    wrong = check(layers, together, right)
    faults += [f"best together: {wrong}"] if wrong and together else []
    found |= times({"best together": layers.calls(together), f"{usual} again": layers.calls({})}, replays=9)
    streamed = {name: replace(together.get(name) or chosen(name), streamed=True) for name in SHAPES}
    found |= times({"best, streamed": layers.calls(streamed)})
    print(
        f"{torch.cuda.get_device_name()}: reading {limit / 1e12:.2f} TB/s; {BYTES / limit * 1e6:.1f} us a layer at best"
    )
    for label, us in found.items():
        print(f"{label:18} {us:7.1f} us a layer  {BYTES / us * 1e6 / limit:6.1%}")
    print("best:", {name: f"{t.outs},{t.steps},{t.warps}" for name, t in best.items()})
    print(
        "FAILED: " + "; ".join(faults[:6]) if faults else "all checks passed", f"({time.monotonic() - started:.0f} s)"
    )
    if args.out:
        args.out.write_text(json.dumps(found, indent=1))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
