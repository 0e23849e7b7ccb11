"""What of a conversation's stored messages belongs to its next prompt, and what of them is shown."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from app.ledger import PastTurn, Resolve, read_record, unpack_ids

if TYPE_CHECKING:
    from storage import Message

TITLE_LENGTH = 60


def visible(messages: Sequence[Message]) -> list[Message]:
    """Without answers that a later attempt has replaced."""
    return [message for message in messages if not message.details.get("replaced")]


def past_turns(
    messages: Sequence[Message], before: Message, model: str, resolve: Resolve, attached: Collection[str]
) -> list[PastTurn]:
    """The answered questions before message `before`, oldest first; failed, empty and replaced answers are left out.

    A turn that read a document which is no longer attached has no record: the prompt is made anew without its text.
    """
    questions = {message.id: message for message in messages if message.role == "user" and message.index < before.index}
    answers: dict[str, Message] = {}
    for message in visible(messages):
        question_id = message.details.get("question")
        if message.role == "assistant" and question_id in questions and message.text and message.state != "failed":
            answers[question_id] = message
    turns = []
    for question_id, question in questions.items():
        answer = answers.get(question_id)
        if answer is None:
            continue
        # It was stored with the question once, where a later attempt overwrote it.
        stored = answer.details.get("prompt") or question.details.get("prompt")
        record = None
        if stored and stored["model"] == model and _documents_of(stored, answer) <= set(attached):
            record = read_record(stored, resolve)
        ids = answer.details.get("answer_ids")
        turns.append(
            PastTurn(
                question.text, answer.text, record, unpack_ids(ids["ids"]) if ids and ids["model"] == model else None
            )
        )
    return turns


def _documents_of(stored: Mapping[str, Any], answer: Message) -> set[str]:
    """Documents that the turn's prompt took text from; `stored` is its record."""
    parts = stored["parts"]
    passages = answer.details.get("passages", ())
    return {part["document"] for part in parts if "document" in part} | {p["document_id"] for p in passages}


def title_of(question: str) -> str:
    """A conversation's title from its first question: its first line, cut at a word where the script has words."""
    line = " ".join(question.strip().splitlines()[0].split()) if question.strip() else ""
    if len(line) <= TITLE_LENGTH:
        return line
    cut = line[:TITLE_LENGTH]
    if " " in cut[TITLE_LENGTH // 2 :]:
        cut = cut[: cut.rindex(" ")]
    return cut.rstrip(" ,;:") + "…"
