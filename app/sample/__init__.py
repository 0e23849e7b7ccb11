"""The sample document that a newcomer can try at once: the handbook of an invented museum, and three questions.

The text is ours; `make_sample.py` makes the PDF. Questions, the pages that answer them and the words that an
answer must hold are in sample.toml.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

SAMPLE_PDF = Path(__file__).with_name("harbour-museum-handbook.pdf")


@dataclass(frozen=True, slots=True)
class SampleQuestion:
    """A question, the page (from 1) that answers it, and a word or figure that the right answer holds."""

    question: str
    page: int
    answer: str


def _load() -> tuple[SampleQuestion, ...]:
    rows = tomllib.loads(Path(__file__).with_name("sample.toml").read_text(encoding="utf-8"))["questions"]
    return tuple(SampleQuestion(**row) for row in rows)


SAMPLE_QUESTIONS = _load()
QUESTIONS = tuple(row.question for row in SAMPLE_QUESTIONS)
