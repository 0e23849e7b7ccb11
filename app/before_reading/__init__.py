"""What is known before documents are read: tokens of each file, time and memory, whether it fits, what would."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from app.before_reading.choice import Source, chosen_tokens, room, sources, stored_choice
from app.before_reading.estimate import Estimate, estimate, kv_bytes_per_token
from app.before_reading.suggestions import Suggestion, suggest
from app.changes.versions import MAP
from app.pages import PageChoice, choice_as_text, format_pages

if TYPE_CHECKING:
    from app.wiring import App


@dataclass(frozen=True, slots=True)
class ReadingPlan:
    """tokens: of what is chosen; all_tokens: of everything. room: what documents may take of the context."""

    sources: tuple[Source, ...]
    choice: PageChoice | None
    tokens: int
    all_tokens: int
    room: int
    context: int
    estimate: Estimate
    bytes_per_token: int
    suggestions: tuple[Suggestion, ...]

    @property
    def fits(self) -> bool:
        return self.tokens <= self.room


def reading_plan(
    app: App,
    conversation_id: str,
    *,
    choice: PageChoice | None = None,
    question: str = "",
    propose: Literal["always", "never", "unfitting"] = "unfitting",
) -> ReadingPlan:
    """For the documents of a conversation. choice: what is to be read, else what was chosen in the conversation.

    propose: whether there are suggestions, by default where not everything fits. WrongUse for a page that is not there.
    """
    found = sources(app, conversation_id)
    chosen = choice if choice is not None else stored_choice(app, conversation_id)
    texts = [source for source in found if source.document.kind != MAP]  # a map repeats what is in them
    tokens, everything, space = chosen_tokens(found, chosen), chosen_tokens(texts, None), room(app)
    wanted = propose == "always" or (propose == "unfitting" and everything > space)
    return ReadingPlan(
        sources=tuple(found),
        choice=chosen,
        tokens=tokens,
        all_tokens=everything,
        room=space,
        context=app.context,
        estimate=estimate(app, tokens),
        bytes_per_token=kv_bytes_per_token(app),
        suggestions=tuple(suggest(app, conversation_id, texts, question, space)) if wanted else (),
    )


def plan_object(plan: ReadingPlan, model: str) -> dict[str, Any]:
    """The JSON object of `ask --plan --json`. running: tokens of the document up to and with this item."""
    documents = []
    for source in plan.sources:
        running = source.around
        items = []
        for item in source.items:
            running += item.tokens
            pages = format_pages(item.pages)
            items.append({"name": item.name, "pages": pages, "tokens": item.tokens, "running": running})
        document = source.document
        documents.append(
            {
                "id": document.id,
                "document": document.name,
                "kind": document.kind,
                "pages": document.pages,
                "tokens": source.tokens,
                "items": items,
            }
        )
    return {
        "model": model,
        "context": plan.context,
        "room": plan.room,
        "tokens": plan.tokens,
        "all_tokens": plan.all_tokens,
        "fits": plan.fits,
        "seconds": round(plan.estimate.seconds, 2),
        "measured": plan.estimate.measured,
        "memory_bytes": plan.estimate.memory_bytes,
        "bytes_per_token": plan.bytes_per_token,
        "chosen": choice_as_text(plan.choice),
        "documents": documents,
        "suggestions": [
            {"kind": s.kind, "tokens": s.tokens, "pages": choice_as_text(s.choice), "text": s.text}
            for s in plan.suggestions
        ],
    }
