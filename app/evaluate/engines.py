"""The engine of a row: KV format and sparsity as the row says, the rest as the app would have it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from app.errors import as_app_error
from app.wiring import engine_config, sparsity_of

if TYPE_CHECKING:
    from app.evaluate.measure import Way
    from app.models import ModelInfo
    from app.settings import Settings
    from engine import Engine


def engine_loader(
    settings: Settings,
    model: ModelInfo,
    device: str = "cpu",
    reading_budget: int | None = None,
) -> Callable[[Way], Engine]:
    """Way -> engine. ValueError for a format, budget, scorer or device that cannot be, AppError for what fails later.

    `device`: as torch names it. `reading_budget`: tokens that a query block of the prompt reads. All else about
    sparsity is as the settings have it, also a budget or scorer that the way leaves open.
    """

    def load(way: Way) -> Engine:
        from engine import Engine, Sparsity

        chosen = {"budget": way.budget, "score": way.scorer, "reading_budget": reading_budget}
        chosen = {key: value for key, value in chosen.items() if value is not None}
        # An engine that is asked densely alone keeps all KV of all heads, whatever share of them streams otherwise.
        sparsity = replace(sparsity_of(settings), **chosen) if way.sparse else Sparsity()
        # EngineConfig checks the format.
        profile = settings.profile if device != "cpu" else "auto"
        here = replace(settings, device=device, profile=profile)
        config = replace(engine_config(here, model), kv_format=way.format, sparsity=sparsity)  # pyright: ignore[reportArgumentType]
        config = config if way.gates else replace(config, gates=None)
        try:
            return Engine.load(config)
        except ValueError:
            raise
        except Exception as error:
            raise as_app_error(error) from error

    return load
