"""One engine for each KV format, set up as the app would for this model and these settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from app.errors import as_app_error

if TYPE_CHECKING:
    from app.evaluate.measure import Way
    from app.models import ModelInfo
    from app.settings import Settings
    from engine import Engine


def engine_loader(settings: Settings, model: ModelInfo) -> Callable[[Way], Engine]:
    """Way -> engine. ValueError for a KV format that the engine does not know, AppError for what goes wrong later."""

    def load(way: Way) -> Engine:
        from engine import Engine, EngineConfig

        config = EngineConfig(
            model=model.path,
            context=settings.context or (model.context if model.is_demo else None),
            rope_scaling=model.rope_scaling,
            kv_format=way.format,  # pyright: ignore[reportArgumentType]  # EngineConfig checks it
            decode_weights=settings.decode_weights,  # pyright: ignore[reportArgumentType]
            prefill_chunk=settings.prefill_chunk,
            threads=settings.threads,
        )
        try:
            return Engine.load(config)
        except Exception as error:
            raise as_app_error(error) from error

    return load
