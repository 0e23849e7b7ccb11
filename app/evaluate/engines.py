"""The engine of a row: KV format and sparsity as the row says, the rest as the app would have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from app.errors import as_app_error
from app.gates import gates_for

if TYPE_CHECKING:
    from app.evaluate.measure import Way
    from app.models import ModelInfo
    from app.settings import Settings
    from engine import Engine


def engine_loader(
    settings: Settings,
    model: ModelInfo,
    device: str = "cpu",
    crossover: int | None = None,
    reading_budget: int | None = None,
) -> Callable[[Way], Engine]:
    """Way -> engine. ValueError for a format, budget, scorer or device that cannot be, AppError for what fails later.

    `device`: as torch names it. `crossover`: answers over fewer tokens are dense; `reading_budget`: tokens that a query
    block of the prompt reads.
    """

    def load(way: Way) -> Engine:
        from engine import Engine, EngineConfig
        from engine.patterns import Sparsity

        sparsity: dict[str, object] = {"budget": way.budget, "reading_budget": reading_budget}
        sparsity |= {} if crossover is None else {"crossover": crossover}
        sparsity |= {} if way.scorer is None else {"score": way.scorer}
        config = EngineConfig(
            model=model.path,
            context=settings.context or (model.context if model.is_demo else None),
            rope_scaling=model.rope_scaling,
            kv_format=way.format,  # pyright: ignore[reportArgumentType]  # EngineConfig checks it
            decode_weights=settings.decode_weights,  # pyright: ignore[reportArgumentType]
            prefill_chunk=settings.prefill_chunk,
            device=device,
            threads=settings.threads,
            sparsity=Sparsity(**sparsity),  # pyright: ignore[reportArgumentType]
            gates=gates_for(settings.data_dir, model),
        )
        try:
            return Engine.load(config)
        except ValueError:
            raise
        except Exception as error:
            raise as_app_error(error) from error

    return load
