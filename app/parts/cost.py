"""What a reading in parts cost, all passes together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from app.turn import Reading, TurnStats

if TYPE_CHECKING:
    from app.wiring import App
    from engine import GenerationStats


def no_cost(app: App, reading: Reading, read_by: str) -> TurnStats:
    """Of an answer that no model wrote."""
    engine = app.engine_service.loaded()
    return TurnStats(
        prompt_tokens=0,
        reused_tokens=0,
        restored_tokens=0,
        computed_tokens=0,
        ttft_s=0.0,
        tpot_ms=0.0,
        output_tokens=0,
        finish_reason="stop",
        kv_pages_read_share=1.0,
        peak_memory_bytes=0,
        profile=engine.profile.name,
        model=app.model.name,
        kv_format=engine.kv_format,
        mode=app.settings.mode,
        reading=reading,
        read_by=read_by,
    )


def total_cost(last: TurnStats, spent: Sequence[GenerationStats], before_s: float) -> TurnStats:
    """The last pass with the windows' tokens added. before_s: seconds before the last pass, part of ttft_s."""
    return replace(
        last,
        prompt_tokens=last.prompt_tokens + sum(stats.prompt_tokens for stats in spent),
        reused_tokens=last.reused_tokens + sum(stats.reused_tokens for stats in spent),
        restored_tokens=last.restored_tokens + sum(stats.restored_tokens for stats in spent),
        computed_tokens=last.computed_tokens + sum(stats.computed_tokens for stats in spent),
        output_tokens=last.output_tokens + sum(stats.output_tokens for stats in spent),
        peak_memory_bytes=max([last.peak_memory_bytes, *(stats.peak_memory_bytes for stats in spent)]),
        ttft_s=last.ttft_s + before_s,
    )
