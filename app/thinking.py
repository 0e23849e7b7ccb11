"""Thinking apart from the answer: models with a thinking switch write `<think>...</think>` before what they say."""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"


def split_thinking(text: str, *, already_open: bool = False, complete: bool = False) -> tuple[str, str]:
    """(thinking, answer) of a text, which may still be growing unless `complete`.

    already_open: the prompt ended inside a thinking block. While a tag at the very beginning is incomplete, both parts
    are empty, so that no half tag is ever shown.
    """
    body = text.lstrip()
    if body.startswith(OPEN):
        body = body[len(OPEN) :]
    elif not complete and not already_open and body and OPEN.startswith(body):
        return "", ""
    elif not already_open:
        return "", text
    thinking, closed, answer = body.partition(CLOSE)
    if not closed:
        return (thinking if complete else _without_partial_close(thinking)).strip(), ""
    return thinking.strip(), answer.lstrip()


def ends_in_thinking(skeleton_text: str) -> bool:
    """Whether the template's generation prompt leaves a thinking block open."""
    return skeleton_text.rfind(OPEN) > skeleton_text.rfind(CLOSE)


def _without_partial_close(text: str) -> str:
    for length in range(min(len(CLOSE) - 1, len(text)), 0, -1):
        if text.endswith(CLOSE[:length]):
            return text[:-length]
    return text
