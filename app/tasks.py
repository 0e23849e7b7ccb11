"""Kinds of question that are about a whole text: summarize, list all, compare. And what a model is told for each.

A kind is recognised by the rule below, which anyone can read, or chosen (`--task`, a button). Everything else is a
"question".
"""

from __future__ import annotations

import re
from typing import Literal

Task = Literal["question", "summarize", "list", "compare"]
TASKS: tuple[Task, ...] = ("question", "summarize", "list", "compare")

_POLITE = r"^\W*(?:please[, ]+|(?:can|could|would|will) you (?:please )?|i(?:'d| would) like you to )?"
_PATTERNS: tuple[tuple[Task, str], ...] = (
    # English: a request at the beginning.
    (
        "compare",
        _POLITE + r"(?:compare|contrast)\b|^\W*(?:what are|list|show|name) (?:all )?(?:the )?(?:main )?"
        r"(?:differences?|similarities) (?:between|of)\b",
    ),
    (
        "summarize",
        _POLITE + r"(?:summari[sz]e|sum up|give (?:me |us )?(?:a |an )?(?:\w+ ){0,2}(?:summary|overview)"
        r"|write (?:a |an )?(?:\w+ ){0,2}summary|tl;?dr)\b|^\W*(?:what is|what's) (?:this|the) "
        r"(?:document|text|paper|book|file|report|manual) about\W*$|^\W*(?:summary|abstract|overview)\W*$",
    ),
    (
        "list",
        _POLITE + r"(?:list|enumerate|name|give (?:me |us )?(?:a |the )?(?:full |complete )?list of|find|collect)\s+"
        r"(?:all|every|each|any and all)\b|" + _POLITE + r"(?:list|enumerate)\s+the\b",
    ),
    # Chinese, Japanese, Korean: the word anywhere in a short request.
    (
        "compare",
        r"^.{0,24}(?:比较|比較|对比|對比|비교|(?:区别|差异|違い|차이(?:점)?).{0,6}(?:是什么|有哪些|何|무엇)).{0,16}$",
    ),
    ("summarize", r"^.{0,24}(?:总结|總結|概括|摘要|概述|要約|まとめて|요약).{0,16}$"),
    (
        "list",
        r"^.{0,4}(?:列出|列举|列舉)|^.{0,40}(?:(?:列挙|リストアップ|一覧に)(?:して|せよ)|나열|목록을).{0,12}$",
    ),
)
_RULES: tuple[tuple[Task, re.Pattern[str]], ...] = tuple(
    (task, re.compile(pattern, re.IGNORECASE)) for task, pattern in _PATTERNS
)


def recognise(question: str, documents: int) -> Task:
    """The kind of a question that is asked about so many documents; comparing takes at least two."""
    flat = " ".join(question.split())
    for task, rule in _RULES:
        if rule.search(flat) and (task != "compare" or documents >= 2):
            return task
    return "question"


NOTHING = "NOTHING"
_PART = "This is one part of a longer document."
_NONE = f"If nothing in this part serves, write only: {NOTHING}"

WINDOW = {
    "question": f"{_PART} Copy from it, word for word, the sentences that help to answer the question: each on a line "
    f'of its own, in double quotes, followed by its page, as in "..." (page 3). Copy at most five. {_NONE}',
    "summarize": f"{_PART} Do the task for this part alone: at most eight sentences on what it says, each followed by "
    f"its page, as in (page 3). Keep names, figures and conditions. {_NONE}",
    "list": f"{_PART} Do the task for this part alone: each item on a line that begins with a dash, followed by its "
    f"page, as in (page 3). Leave no item out and add none of your own. {_NONE}",
    "compare": f"{_PART} Several documents are to be compared. Write down what this part says on the subjects of the "
    "comparison: at most eight sentences with names, figures and conditions, each followed by its page, as in (page 3)."
    f" {_NONE}",
}
"""After a window's text: what to do with it."""

WHOLE = {
    "summarize": "The summary should cover the whole text, from its beginning to its end, and give for each statement "
    "its page, as in (page 3).",
    "list": "Each item on a line that begins with a dash, followed by its page, as in (page 3). Go through the whole "
    "text; leave no item out.",
    "compare": "First what the documents have in common, then each difference on a line that begins with a dash. Name "
    "for each statement the document and its page, as in (name, page 3), of every document that it is about.",
}
"""After the question where the whole text is read at once."""

JOIN = {
    "question": "Above are sentences from all parts of the text, with their pages; the markers are not part of it. "
    "Answer the question from them. Say which page each fact comes from, as in (page 3).",
    "summarize": "Above is what each part of the text says, in order. Do the task for the whole text: one connected "
    "text, without repeats, that keeps the pages, as in (page 3).",
    "list": "Above are the items of all parts. Write them as one list.",
    "compare": "Above is what each document says. Do the task: first what they have in common, then each difference "
    "on a line that begins with a dash. Name for each statement the document and its page, as in (name, page 3), of "
    "every document that it is about.",
}
"""After the findings of all parts."""

CONDENSE = (
    "Above is what consecutive parts of a text say. Write it shorter, at most ten sentences, in order, and keep names, "
    "figures and pages, as in (page 3). It serves this task:"
)
"""After findings that are too many for one last pass: a level in between."""

SMALL_JOIN = {
    "summarize": "What is this text about?",
    "list": "",
    "compare": "What is the difference between these texts?",
}
"""What a small model is asked in place of a task that it cannot do; "" where the question itself serves."""


def says_nothing(answer: str) -> bool:
    """Whether a window's answer is that there is nothing."""
    bare = re.sub(r"[\W_]+", " ", answer).strip().casefold()
    return not bare or bare == NOTHING.casefold() or (bare.startswith(f"{NOTHING.casefold()} ") and len(bare) < 60)
