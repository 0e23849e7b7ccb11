"""All tasks by name, in the order in which they are run and shown."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from app.errors import WrongUse
from app.evaluate import lists, reading, repository, retrieval
from app.evaluate.sample import Task

AGREEMENT_TOKENS = 128

TASKS = {
    task.name: task
    for task in (
        Task("needle", "one registry number hidden in prose", retrieval.needle, 16, has_depth=True),
        Task("multi_key", "one of many such numbers", retrieval.multi_key, 16, has_depth=True),
        Task("multi_value", "all four numbers of one key", retrieval.multi_value, 64),
        Task("multi_query", "the numbers of four keys at once", retrieval.multi_query, 64),
        Task("variables", "variables that get a value from each other", lists.variable_tracking, 48),
        Task("common_words", "the ten most common words of a list", lists.common_words, 64),
        Task("frequent_words", "the three most frequent coined words", lists.frequent_words, 24),
        Task("facts", "a fact about one person among many", reading.facts_qa, 16, has_depth=True),
        Task("two_hop", "two facts, one behind the other", reading.two_hop, 16),
        Task("summary", "five planted key points", reading.summary, 96),
        Task("repository", "call a function that is defined far above", repository.repository, 32, has_depth=True),
        Task("arithmetic", "add two stated numbers", reading.arithmetic, 40),
        Task("multi_turn", "the third of three questions", reading.multi_turn, 16, has_depth=True),
        Task("perplexity", "how well a held text is foreseen", reading.held_text, 0, kind="perplexity"),
        Task(
            "agreement",
            f"greedy agreement with dense, {AGREEMENT_TOKENS} tokens",
            reading.free_answer,
            AGREEMENT_TOKENS,
            kind="agreement",
        ),
    )
}


def choose_tasks(names: Sequence[str]) -> tuple[Task, ...]:
    """The tasks of these names, "all" for every one. Raises WrongUse that names the nearest."""
    if "all" in names:
        return tuple(TASKS.values())
    for name in names:
        if name not in TASKS:
            near = difflib.get_close_matches(name, TASKS, n=1, cutoff=0.0)[0]
            raise WrongUse(f"There is no task {name!r}; the nearest is {near!r}.", f"Tasks: all, {', '.join(TASKS)}.")
    return tuple(task for name, task in TASKS.items() if name in names)
