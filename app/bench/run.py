"""Goes through lengths, formats and modes, and says for each figure what share of the card's limit it is."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from app.bench.decode import TpotRow, measure_tpot
from app.bench.limits import Limits, measure_limits
from app.bench.plan import WEIGHT_BYTES, BenchPlan
from app.bench.prefill import TtftRow, measure_ttft
from app.bench.restore import RestoreRow, measure_restore
from app.bench.rows import FAILED, Row, first_token
from app.bench.torch_attention import torch_tpot, torch_ttft
from app.bench.transformers_peer import PeerRow, is_installed, measure_transformers
from engine.kv_memory import bytes_per_token
from engine.profiles import prefill_chunk_tokens
from engine.random_weights import SHAPES, random_decoder
from engine.weights.names import tensor_shapes

if TYPE_CHECKING:
    from engine.config import ModelConfig
    from engine.model import Decoder
    from engine.patterns import Sparsity

log = logging.getLogger(__name__)
Progress = Callable[[str], None]
TORCH = "torch attention"


def measure(
    plan: BenchPlan, progress: Progress, sparsity: Sparsity | None = None, folder: Path | None = None
) -> tuple[Limits, Iterator[Row]]:
    """The card's limits, and the rows as they are measured. `folder`: where snapshots are written for a while."""
    progress("Measuring the card")
    limits = measure_limits(torch.device("cuda"))
    return limits, _rows(plan, limits, progress, sparsity, folder)


def _rows(
    plan: BenchPlan, limits: Limits, progress: Progress, sparsity: Sparsity | None, folder: Path | None
) -> Iterator[Row]:
    model, device, done = SHAPES[plan.shape], torch.device("cuda"), []
    chunk = plan.chunk or prefill_chunk_tokens(model, "cuda")
    if {"tpot", "ttft", "torch"} & set(plan.what):
        progress("Making random weights")
        decoder = random_decoder(model, plan.weights, device)
        for length in plan.lengths:
            for name in plan.formats:
                if "tpot" in plan.what:
                    yield from _told(
                        "tpot", name, length, _tpots(plan, model, decoder, limits, length, name, progress, sparsity)
                    )
                for mode in plan.modes if "ttft" in plan.what else ():
                    progress(f"First token: {length} tokens of {name}, {mode}")
                    part = _ttfts(plan, decoder, name, length, mode, chunk, sparsity, model, limits)
                    for row in _told("ttft", name, length, part):
                        done.append(row)
                        yield row
            if "torch" in plan.what:
                part = _torch_attention(plan, model, decoder, limits, length, chunk, progress)
                yield from _told("torch", "bf16", length, part)
        del decoder
    if "restore" in plan.what:
        for length in plan.lengths:
            for name in plan.formats:
                progress(f"Restoring: {length} tokens of {name}, written first")
                yield from _told(
                    "restore", name, length, _restores(plan, model, name, length, device, folder, done, progress)
                )
    if "transformers" in plan.what:
        yield from _told("transformers", "bf16", max(plan.lengths), _transformers(plan, model, limits, progress))


def _told(what: str, kv_format: str, length: int, part: Iterator[Row]) -> Iterator[Row]:
    """The rows of a part; where it fails a row that says so, and what comes after it is measured all the same."""
    gc.collect()
    torch.cuda.empty_cache()
    try:
        yield from part
    except Exception as error:
        log.exception("Measuring %s failed", what)
        said = str(error).splitlines()
        yield Row(what, "-", kv_format, length, None, "", note=f"{FAILED} {type(error).__name__}: {(said or [''])[0]}")


def _tpots(
    plan: BenchPlan,
    model: ModelConfig,
    decoder: Decoder,
    limits: Limits,
    length: int,
    kv_format: str,
    progress: Progress,
    sparsity: Sparsity | None,
) -> Iterator[Row]:
    progress(f"Time per token: {length} tokens of {kv_format}")
    for row in measure_tpot(decoder, kv_format, length, list(plan.modes), sparsity, plan.wide_key_layers):
        yield _tpot(row, plan, model, limits)


def _ttfts(
    plan: BenchPlan,
    decoder: Decoder,
    kv_format: str,
    length: int,
    mode: str,
    chunk: int,
    sparsity: Sparsity | None,
    model: ModelConfig,
    limits: Limits,
) -> Iterator[Row]:
    row = measure_ttft(decoder, kv_format, length, mode, chunk, sparsity, plan.wide_key_layers)
    yield _ttft(row, model, limits)


def _restores(
    plan: BenchPlan,
    model: ModelConfig,
    kv_format: str,
    length: int,
    device: torch.device,
    folder: Path | None,
    before: list[Row],
    progress: Progress,
) -> Iterator[Row]:
    for row in measure_restore(model, kv_format, length, device, folder, progress, plan.wide_key_layers):
        yield _restore(row, before)


def _torch_attention(
    plan: BenchPlan, model: ModelConfig, decoder: Decoder, limits: Limits, length: int, chunk: int, progress: Progress
) -> Iterator[Row]:
    progress(f"Torch's attention in our engine: {length} tokens")
    spent = torch_tpot(decoder, length)
    share = _least_step(plan, model, limits, length, "bf16", 1.0) / spent
    yield Row("tpot", "exact", "bf16", length, spent, "ms", share, 1.0, device_ms=spent, by=TORCH, note="device alone")
    torch.cuda.empty_cache()
    row = torch_ttft(decoder, length, chunk)
    torch.cuda.empty_cache()
    share = _least_prompt(model, limits, length) / row.ttft_s
    yield Row(
        "ttft", "exact", "bf16", length, row.ttft_s, "s", share, 1.0, peak_gib=row.peak_gib, compiles=row.compiles,
        by=TORCH,
    )  # fmt: skip


def _transformers(plan: BenchPlan, model: ModelConfig, limits: Limits, progress: Progress) -> Iterator[Row]:
    name = "transformers"
    if not is_installed():
        yield Row("ttft", "exact", "bf16", max(plan.lengths), None, "s", by=name, note="not installed")
        return
    for row in measure_transformers(model, plan.lengths, plan.peer_seconds, progress, torch.device("cuda")):
        yield from _peer(row, plan, model, limits, name)


def _peer(row: PeerRow, plan: BenchPlan, model: ModelConfig, limits: Limits, name: str) -> Iterator[Row]:
    note = row.note or "bf16 weights"
    share = None if row.ttft_s is None else _least_prompt(model, limits, row.length) / row.ttft_s
    yield Row(
        "ttft", "exact", "bf16", row.length, row.ttft_s, "s", share, 1.0, peak_gib=row.peak_gib, by=name, note=note
    )
    least = _least_step(replace(plan, weights="bf16"), model, limits, row.length, "bf16", 1.0)
    share = None if row.tpot_ms is None else least / row.tpot_ms
    yield Row("tpot", "exact", "bf16", row.length, row.tpot_ms, "ms", share, 1.0, by=name, note=note)


def _tpot(row: TpotRow, plan: BenchPlan, model: ModelConfig, limits: Limits) -> Row:
    least = _least_step(plan, model, limits, row.length, row.kv_format, row.read_share)
    return Row(
        "tpot", row.mode, row.kv_format, row.length, row.tpot_ms, "ms", least / row.tpot_ms, row.read_share,
        row.kernels, row.step_ms, compiles=row.compiles,
    )  # fmt: skip


def _ttft(row: TtftRow, model: ModelConfig, limits: Limits) -> Row:
    return Row(
        "ttft", row.mode, row.kv_format, row.length, row.ttft_s, "s",
        _least_prompt(model, limits, row.length) / row.ttft_s, row.read_share, peak_gib=row.peak_gib,
        compiles=row.compiles,
    )  # fmt: skip


def _restore(row: RestoreRow, before: list[Row]) -> Row:
    said = f"{row.file_bytes / 1e9:.2f} GB; plain read {row.plain_gb_per_s:.2f} GB/s; written in {row.write_s:.1f} s"
    for mode in ("exact", "balanced"):
        seconds = first_token(before, mode, row.kv_format, row.length)
        if seconds is not None:
            said += f"; {seconds / row.seconds:.1f} x sooner than {mode} reads it"
    return Row(
        "restore", row.state, row.kv_format, row.length, row.seconds, "s", row.gb_per_s / row.plain_gb_per_s,
        gb_per_s=row.gb_per_s, note=f"{row.gb_per_s:.2f} GB/s of {said}",
    )  # fmt: skip


def _least_step(
    plan: BenchPlan, model: ModelConfig, limits: Limits, length: int, kv_format: str, read_share: float
) -> float:
    """Milliseconds that reading the weights and so much of the KV takes."""
    matrices = _matrices(model) - model.vocab_size * model.hidden_size  # the embedding gives one row
    token = bytes_per_token(model, kv_format, wide=plan.wide_key_layers)
    read = matrices * WEIGHT_BYTES[plan.weights] + read_share * length * token
    return 1000 * read / limits.read


def _least_prompt(model: ModelConfig, limits: Limits, length: int) -> float:
    """Seconds that the products of a prompt and its dense attention take."""
    matrices = _matrices(model) - 2 * model.vocab_size * model.hidden_size  # logits of one token are wanted
    attention = 2 * model.layers * model.heads * model.head_dim * length**2
    return (2 * matrices * length + attention) / limits.multiply


def _matrices(model: ModelConfig) -> int:
    return sum(prod(shape) for shape in tensor_shapes(model).values())
