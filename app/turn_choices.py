"""What a turn goes by: how answers are sampled, how documents are read, what an answer's row has stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.plan import choose_reading
from app.turn import Passage, Reading

if TYPE_CHECKING:
    from app.wiring import App
    from engine import Sampling

READINGS = ("auto", "passages", "whole", "parts")
DEMO_REPETITION_PENALTY = 1.1
"""Measured with the 135M model on ten real questions: six answers ended in a loop without it, none with it."""


def sampling_of(app: App) -> Sampling:
    """As the settings say; the demo model gets its own repetition penalty unless the settings name one."""
    from engine import Sampling

    settings = app.settings
    penalty = settings.repetition_penalty
    if app.model.is_demo and settings.origin("repetition_penalty") == "default":
        penalty = DEMO_REPETITION_PENALTY
    return Sampling(
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        min_p=settings.min_p,
        repetition_penalty=penalty,
        seed=settings.seed,
        max_tokens=settings.max_answer_tokens,
    )


def reading_for(app: App, conversation_id: str, wanted: str) -> Reading:
    """How a question is read that is asked now."""
    has_documents = bool(app.library.documents(conversation_id))
    return choose_reading(wanted, app.settings.reading, app.model.parameters, has_documents)


def passages_from(details: dict[str, Any]) -> tuple[Passage, ...]:
    """The passages that an answer's message has stored."""
    return tuple(Passage(**row) for row in details.get("passages", ()))
