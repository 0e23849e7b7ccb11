"""Samples as token ids, through the model's chat template as the app does it: contents never become control tokens."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from itertools import chain
from typing import TYPE_CHECKING

from app.evaluate.sample import Count, Question
from app.prompts import (
    DocumentText,
    PromptWriter,
    UserTurn,
    document_foot,
    document_head,
    is_small,
    page_text,
    system_text,
)
from app.skeleton import render_skeleton, template_variables

if TYPE_CHECKING:
    from app.model_face import ModelFace

_ANY_DAY = date(2026, 1, 1)  # the same prompt on every day
_JOINTS = 4  # tokens that encoding a question with its marker may add to encoding it alone


@dataclass(frozen=True, slots=True)
class EvalPage:
    """The one page of a generated document."""

    text: str
    index: int = 1
    label: str = ""


class Prompts:
    """For one model; answers begin with their question's lead, after any thinking block has been closed."""

    def __init__(self, face: ModelFace, parameters: int) -> None:
        skeleton = render_skeleton(face.template, template_variables(_ANY_DAY, thinking=False), _ANY_DAY, face.name)
        self._encode = face.tokenizer.encode
        self._writer = PromptWriter(
            face.tokenizer, skeleton, system_text(parameters), self._document_ids, is_small(parameters)
        )
        self.count: Count = face.tokenizer.count

    def around(self, turns: int) -> int:
        """Tokens that a prompt of `turns` questions has beside the sample's own texts, at most."""
        blank = Question("x", "", (), "")
        first, _ = self.first("x", blank)
        later = len(self.later(first, (), blank)) - len(first)
        return len(first) + (turns - 1) * later + turns * _JOINTS

    def first(self, document: str, question: Question) -> tuple[list[int], int]:
        """(ids up to the end of the question's lead, how many of them end with the document)."""
        text = DocumentText("sample", "document.txt", 1, (EvalPage(document),))
        parts = self._writer.start(UserTurn(question.text, (text,)))
        ids = list(chain.from_iterable(part.ids for part in parts))
        return [*ids, *self._writer.answer(question.lead)], len(ids) - len(parts[-1].ids)

    def later(self, ids: list[int], answer: tuple[int, ...], question: Question) -> list[int]:
        """`ids` of a prompt, its answer, and the next question with its lead."""
        parts = self._writer.go_on(UserTurn(question.text))
        return [*ids, *answer, *chain.from_iterable(part.ids for part in parts), *self._writer.answer(question.lead)]

    def answer(self, question: Question) -> tuple[int, ...]:
        """The right answer, as it follows the lead."""
        return tuple(self._encode(question.answer))

    def _document_ids(self, document: DocumentText) -> tuple[int, ...]:
        (page,) = document.pages
        return tuple(chain(*map(self._encode, (document_head(document), page_text(page), document_foot(document)))))
