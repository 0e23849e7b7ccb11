"""The chat template's own text, split from the contents it goes around.

A template is rendered with marker words as contents and cut at the markers. What remains between them (role headers,
end tokens, dates, thinking switches) is the skeleton: rendered once per conversation and model, stored, and from then
on only concatenated. So no later turn can change an earlier token, whatever the template does with history, and
contents are never part of a text in which control tokens are recognised.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import date, datetime
from typing import Any, Protocol

from app.errors import AppError

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SYSTEM, QUESTION, ANSWER, NEXT = "QXSYSTEMZ0QX", "QXQUESTIONZ1QX", "QXANSWERZ2QX", "QXNEXTZ3QX"


class Template(Protocol):
    """What engine.ChatTemplate offers."""

    def render(self, messages: list[dict], *, add_generation_prompt: bool, variables: dict) -> str: ...


@dataclass(frozen=True, slots=True)
class Skeleton:
    """Pieces of template text, in the order of a conversation.

    head, [system text], after_system, [first user text], open_answer, [answer], then for each later turn
    next_question, [user text], open_next_answer, [answer]. folded: the template knows no system role; the system text
    goes at the beginning of the first user text and after_system is the separator.
    """

    head: str
    after_system: str
    open_answer: str
    next_question: str
    open_next_answer: str
    folded: bool

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Skeleton:
        return cls(**json.loads(text))


def template_variables(today: date, *, thinking: bool) -> dict[str, Any]:
    """What templates ask for besides messages. The same for a conversation's whole life."""
    return {"date_string": today.strftime("%d %b %Y"), "enable_thinking": thinking, "thinking": thinking}


def render_skeleton(template: Template, variables: dict[str, Any], today: date, model: str) -> Skeleton:
    """Renders `template` once and cuts it at the markers.

    Errors: AppError naming the model when the template refuses a plain conversation or drops its contents.
    """
    variables = {**variables, "now": datetime(today.year, today.month, today.day)}

    def render(*messages: tuple[str, str]) -> str:
        rows = [{"role": role, "content": content} for role, content in messages]
        return template.render(rows, add_generation_prompt=True, variables=variables)

    with_system = _attempt(lambda: _cut(render(("system", SYSTEM), ("user", QUESTION)), SYSTEM, QUESTION))
    try:
        if with_system is None:
            head, open_answer = _cut(render(("user", QUESTION)), QUESTION)
            after_system = "\n\n"
        else:
            head, after_system, open_answer = with_system
        later = render(("user", QUESTION), ("assistant", ANSWER), ("user", NEXT))
        _, _, next_question, open_next_answer = _cut(later, QUESTION, ANSWER, NEXT)
    except Exception as error:  # a template is foreign code: whatever it raises means the same to the user
        raise AppError(
            f"The chat template of {model} refuses a plain conversation ({error}).", "Choose another model."
        ) from error
    return Skeleton(head, after_system, open_answer, next_question, open_next_answer, with_system is None)


def _attempt(cut: Any) -> tuple[str, ...] | None:
    try:
        return cut()
    except Exception:  # "System role not supported", or the marker is gone: fold the system text instead
        return None


def _cut(text: str, *markers: str) -> tuple[str, ...]:
    """The pieces of `text` between the markers, which must stand there once each and in this order."""
    pieces = []
    for marker in markers:
        if text.count(marker) != 1:
            raise ValueError("it does not keep each message once and in order")
        piece, text = text.split(marker)
        pieces.append(piece)
    return (*pieces, text)
