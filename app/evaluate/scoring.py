"""From an answer to a score of 0 to 100. Case and runs of spaces do not matter, except in code."""

from __future__ import annotations

import re

from app.evaluate.sample import Question


def score_answer(question: Question, answer: str) -> float:
    """`answer`: what the model wrote after the question's lead.

    all: share of the gold texts that occur. any: whether one occurs. points: share of the key points of which every
    word occurs. line: whether the first line, lead included, is the gold line.
    """
    gold = question.gold
    if question.scoring == "line":
        lead = question.lead.rpartition("\n")[2]
        first = f"{lead}{answer}".strip().splitlines()[0] if f"{lead}{answer}".strip() else ""
        return 100.0 * (_code(first) in {_code(line) for line in gold})
    text = f"{_plain(answer)}"
    if question.scoring == "points":
        found = [all(_occurs(word, text) for word in point.split()) for point in gold]
    else:
        found = [_occurs(part, text) for part in gold]
    if question.scoring == "any":
        return 100.0 * any(found)
    return 100.0 * sum(found) / len(found)


def _occurs(part: str, text: str) -> bool:
    """As whole words: 14 is not in 145, and "oak" is not in "oaken"."""
    return re.search(rf"(?<!\w){re.escape(_plain(part))}(?!\w)", text) is not None


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def _code(line: str) -> str:
    """Without a comment, code marks and outer spaces."""
    return line.partition("#")[0].strip().strip("`").rstrip(";").strip()
