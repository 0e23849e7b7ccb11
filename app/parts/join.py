"""From what was found in the parts to one prompt: findings side by side, condensed level by level while too long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.errors import DoesNotFit
from app.ledger import TurnRecord
from app.parts.ask import PART_ANSWER, Prompts
from app.prompts import PromptWriter, UserTurn
from app.tasks import CONDENSE, JOIN, Task, says_nothing

if TYPE_CHECKING:
    from app.jobs import Job
    from engine import GenerationStats

MOST_LEVELS = 8
Level = Callable[[int, float], None]
"""Told the level, from 1 on, and how much of it is done, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one part, or several that were condensed together, say; text carries its own marker with the pages.

    head: the marker of a condensed one begins like this part's. document: findings of two documents stay apart.
    """

    document: str
    first: str
    last: str
    text: str


@dataclass(frozen=True, slots=True)
class Joiner:
    """budget: tokens that the findings of one prompt may take."""

    prompts: Prompts
    writer: PromptWriter
    model: str
    task: Task
    question: str
    budget: int

    def prompt(self, findings: Sequence[Finding]) -> str:
        """What the last pass reads."""
        return f"{_text(findings)}{JOIN[self.task]}\n\n{self.question}"

    def condense(
        self, job: Job, findings: Sequence[Finding], level: Level, spent: list[GenerationStats]
    ) -> list[Finding] | None:
        """Findings that fit; None when it was stopped. DoesNotFit if they do not get short enough."""
        now = list(findings)
        for number in range(1, MOST_LEVELS + 1):
            if self._count(_text(now)) <= self.budget:
                return now
            groups = self._groups(now)
            shorter: list[Finding] = []
            for place, group in enumerate(groups):
                level(number, place / len(groups))
                done = self._condensed(job, group, spent)
                if done is None:
                    return None
                shorter += done
            now = shorter
        raise DoesNotFit(
            "What was found in the parts stays too long for one answer.",
            "Possible: a narrower question, fewer pages, a model with a larger context.",
            needed_tokens=self._count(_text(now)),
            available_tokens=self.budget,
            choices=("a narrower question", "fewer pages", "a model with a larger context"),
        )

    def _condensed(self, job: Job, group: Sequence[Finding], spent: list[GenerationStats]) -> list[Finding] | None:
        if len(group) == 1 and self._count(group[0].text) <= PART_ANSWER:
            return list(group)
        turn = UserTurn(f"{_text(group)}{CONDENSE}\n\n{self.question}")
        record = TurnRecord(self.model, True, self.writer.start(turn), self.writer.open_thinking)
        done = self.prompts.run(job, record, PART_ANSWER, lambda share: None)
        if done is None:
            return None
        text, stats = done
        spent.append(stats)
        if says_nothing(text):
            return []
        first, last = group[0], group[-1]
        head = first.first if len(group) == 1 else f"{first.first} to {last.last}"
        return [Finding(first.document, first.first, last.last, f"[{head}]\n{text}\n\n")]

    def _groups(self, findings: Sequence[Finding]) -> list[list[Finding]]:
        """Neighbours of one document that fit into one prompt together."""
        groups: list[list[Finding]] = []
        spent = 0
        for finding in findings:
            tokens = self._count(finding.text)
            if groups and groups[-1][-1].document == finding.document and spent + tokens <= self.budget:
                groups[-1].append(finding)
                spent += tokens
            else:
                groups.append([finding])
                spent = tokens
        return groups

    def _count(self, text: str) -> int:
        return len(self.writer.tokenizer.encode(text))


def _text(findings: Sequence[Finding]) -> str:
    return "".join(finding.text for finding in findings)
