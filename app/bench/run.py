"""Goes through lengths, formats and modes, and says for each figure what share of the card's limit it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from app.bench.decode import TpotRow, measure_tpot
from app.bench.limits import Limits, measure_limits
from app.bench.plan import WEIGHT_BYTES, BenchPlan
from app.bench.prefill import TtftRow, measure_ttft
from engine.kv_memory import bytes_per_token
from engine.profiles import prefill_chunk_tokens
from engine.random_weights import SHAPES, random_decoder
from engine.weights.names import tensor_shapes

if TYPE_CHECKING:
    from engine.config import ModelConfig
    from engine.model import Decoder
    from engine.patterns import Sparsity


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `share_of_limit`: of what reading memory (tpot) or multiplying (ttft) allows; above 1 means that
    less was read or multiplied than dense attention needs."""

    what: str
    mode: str
    format: str
    length: int
    value: float
    unit: str
    share_of_limit: float
    pages_read: float
    kernels: int | None = None
    device_ms: float | None = None
    peak_gib: float | None = None


def measure(
    plan: BenchPlan, progress: Callable[[str], None], sparsity: Sparsity | None = None
) -> tuple[Limits, Iterator[Row]]:
    """The card's limits, and the rows as they are measured."""
    device = torch.device("cuda")
    progress("Measuring the card")
    limits, model = measure_limits(device), SHAPES[plan.shape]
    progress("Making random weights")
    decoder = random_decoder(model, plan.weights, device)
    return limits, _rows(plan, model, decoder, limits, progress, sparsity)


def _rows(
    plan: BenchPlan,
    model: ModelConfig,
    decoder: Decoder,
    limits: Limits,
    progress: Callable[[str], None],
    sparsity: Sparsity | None,
) -> Iterator[Row]:
    for length in plan.lengths:
        for name in plan.formats:
            if "tpot" in plan.what:
                progress(f"Time per token: {length} tokens of {name}")
                for row in measure_tpot(decoder, name, length, list(plan.modes), sparsity):
                    yield _tpot(row, plan, model, limits)
                torch.cuda.empty_cache()
            if "ttft" in plan.what:
                for mode in plan.modes:
                    progress(f"First token: {length} tokens of {name}, {mode}")
                    chunk = plan.chunk or prefill_chunk_tokens(model, "cuda")
                    yield _ttft(measure_ttft(decoder, name, length, mode, chunk, sparsity), model, limits)
                    torch.cuda.empty_cache()


def _tpot(row: TpotRow, plan: BenchPlan, model: ModelConfig, limits: Limits) -> Row:
    matrices = _matrices(model) - model.vocab_size * model.hidden_size  # the embedding gives one row
    read = matrices * WEIGHT_BYTES[plan.weights] + row.read_share * row.length * bytes_per_token(model, row.kv_format)
    least = 1000 * read / limits.read
    return Row(
        "tpot", row.mode, row.kv_format, row.length, row.tpot_ms, "ms", least / row.tpot_ms, row.read_share,
        row.kernels, row.step_ms,
    )  # fmt: skip


def _ttft(row: TtftRow, model: ModelConfig, limits: Limits) -> Row:
    matrices = _matrices(model) - 2 * model.vocab_size * model.hidden_size  # logits of one token are wanted
    attention = 2 * model.layers * model.heads * model.head_dim * row.length**2
    least = (2 * matrices * row.length + attention) / limits.multiply
    return Row(
        "ttft", row.mode, row.kv_format, row.length, row.ttft_s, "s", least / row.ttft_s, row.read_share,
        peak_gib=row.peak_gib,
    )  # fmt: skip


def _matrices(model: ModelConfig) -> int:
    return sum(prod(shape) for shape in tensor_shapes(model).values())


def as_table(rows: Sequence[Row]) -> list[list[str]]:
    """Cells, with a head line."""
    head = ["WHAT", "MODE", "KV", "LENGTH", "VALUE", "OF LIMIT", "PAGES READ", "KERNELS", "ON DEVICE", "PEAK"]
    return [head] + [
        [
            row.what,
            row.mode,
            row.format,
            str(row.length),
            f"{row.value:.3f} {row.unit}",
            f"{100 * row.share_of_limit:.0f} %",
            f"{100 * row.pages_read:.1f} %",
            "-" if row.kernels is None else str(row.kernels),
            "-" if row.device_ms is None else f"{row.device_ms:.3f} ms",
            "-" if row.peak_gib is None else f"{row.peak_gib:.1f} GiB",
        ]
        for row in rows
    ]


def as_json(plan: BenchPlan, device: str, limits: Limits, rows: Sequence[Row]) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "device": device,
        "shape": plan.shape,
        "weights": plan.weights,
        "limits": {"read_bytes_per_s": limits.read, "bf16_flop_per_s": limits.multiply},
        "rows": [asdict(row) for row in rows],
    }
