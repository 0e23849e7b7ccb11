"""Decides what one turn's prompt holds, and says no before any work when it does not fit. Nothing is cut silently.

The next prompt is the stored one plus the new turn. It is begun anew only where that is said: another model, a narrower
choice of pages, or a conversation that has outgrown the context. In the last case earlier passages (and, when answering
from passages, documents that were read whole) are left out, questions and answers stay, and the turn carries a warning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from app.errors import DoesNotFit
from app.ledger import Ledger, Pages, Part, PastTurn, TurnRecord, merge_pages, read_ledger
from app.pages import format_pages
from app.passages import condense, in_reading_order
from app.prompts import DocumentText, PromptWriter, UserTurn, is_small
from app.turn import Passage, Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SMALL_PASSAGES, SMALL_PASSAGE_TOKENS = 4, 250
LARGE_PASSAGES, LARGE_CONTEXT_SHARE = 8, 0.33


@dataclass(frozen=True, slots=True)
class Plan:
    """A prompt that fits. passages: those in it. shown: all pages whose text it holds in full."""

    ids: tuple[int, ...]
    record: TurnRecord
    reading: Reading
    passages: tuple[Passage, ...]
    shown: Pages
    checkpoint: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Room:
    """context: tokens of prompt and answer together; answer: those kept for the answer; parameters: of the model."""

    context: int
    answer: int
    parameters: int

    @property
    def prompt(self) -> int:
        return self.context - self.answer


class Planner:
    """Plans one turn: `writer` makes the ids, `model` is the fingerprint under which they are stored."""

    def __init__(self, writer: PromptWriter, model: str, room: Room, past: Sequence[PastTurn]) -> None:
        self.writer = writer
        self.model = model
        self.room = room
        self.past = past
        self.ledger = read_ledger(past, model)

    def plain(self, question: str) -> Plan:
        """A turn without documents."""
        turn = UserTurn(question)
        plan = self._append(turn, "none")
        if self._fits(plan):
            return plan
        plan = self._compact(turn, "none")
        if self.past and self._fits(plan):
            return plan
        raise self._too_long(len(plan.ids), "The conversation", ("a new conversation", "a shorter question"))

    def whole(self, question: str, documents: Sequence[DocumentText], *, chosen: bool = False) -> Plan:
        """A turn that reads documents whole: those not yet in the prompt are appended before the question.

        chosen: the pages were chosen for this question, so pages that the prompt already shows beyond them go.
        """
        if self.ledger is not None and not (chosen and self._shows_more_than(documents)):
            missing = self._missing(documents, self.ledger)
            plan = self._append(UserTurn(question, tuple(missing)), "whole")
            if self._fits(plan):
                return plan
        plan = self._begin(UserTurn(question), tuple(documents), "whole")
        if self._fits(plan):
            outgrown = self.ledger is not None and not chosen
            return replace(plan, warnings=(self._outgrown(),)) if outgrown else plan
        raise self._documents_too_long(question, documents, len(plan.ids))

    def passages(
        self,
        question: str,
        passages: Sequence[Passage],
        document_ids: Sequence[str],
        weights: Mapping[str, float] | None = None,
    ) -> Plan:
        """A turn that reads the best passages, as many as help a model of this size and as fit.

        weights: of the question's words (`app.passages.rarity`), by which a small model's sentences are chosen; without
        them the first sentences are.
        """
        used = len(self.ledger.ids) if self.ledger is not None else 0
        weights = weights or {}
        plan = self._with_passages(question, passages, document_ids, weights, used, self._append)
        if plan is not None:
            return plan
        if self.past:
            plan = self._with_passages(question, passages, document_ids, weights, 0, self._compact)
            if plan is not None:
                return plan
        shortest = self._compact(UserTurn(question, passages=tuple(passages[:1])), "passages")
        if self._fits(shortest):
            return shortest
        raise self._too_long(len(shortest.ids), "This question with its best passage", ("a new conversation",))

    def _with_passages(
        self,
        question: str,
        passages: Sequence[Passage],
        document_ids: Sequence[str],
        weights: Mapping[str, float],
        used: int,
        make: Callable[[UserTurn, Reading], Plan],
    ) -> Plan | None:
        """The plan with the most passages that help and fit, None when not even the best two of them fit."""
        small = is_small(self.room.parameters)
        room = self.room.prompt - used
        if small:
            encode = self.writer.tokenizer.encode
            budget = min(SMALL_PASSAGE_TOKENS, room)
            taken = list(condense(passages[:SMALL_PASSAGES], weights, budget, lambda text: len(encode(text))))
        else:
            taken = self._within(passages[:LARGE_PASSAGES], min(int(LARGE_CONTEXT_SHARE * self.room.context), room))
        least = min(2, len(taken))
        while len(taken) >= least:
            ordered = tuple(taken) if small else in_reading_order(taken, document_ids)
            turn = UserTurn(question, passages=ordered)
            plan = make(turn, "passages")
            if self._fits(plan):
                return plan
            if not taken:
                break
            taken.pop()
        return None

    def _within(self, passages: Sequence[Passage], budget: int) -> list[Passage]:
        """The first passages that take at most `budget` tokens, at least one of them."""
        taken: list[Passage] = []
        spent = 0
        for passage in passages:
            spent += len(self.writer.passages([passage]))
            if taken and spent > budget:
                break
            taken.append(passage)
        return taken

    def _append(self, turn: UserTurn, reading: Reading) -> Plan:
        """The stored prompt plus this turn; a prompt of its own when nothing usable is stored."""
        if self.ledger is None:
            return self._begin(turn, (), reading)
        return self._made(self.writer.go_on(turn), turn, reading, self.ledger)

    def _begin(self, turn: UserTurn, documents: tuple[DocumentText, ...], reading: Reading) -> Plan:
        """A new prompt: system text, `documents`, earlier questions and answers, this turn."""
        past = [(UserTurn(earlier.question), earlier.answer) for earlier in self.past]
        if past:
            past[0] = (replace(past[0][0], documents=documents), past[0][1])
        else:
            turn = replace(turn, documents=documents)
        return self._made(self.writer.start(turn, past), turn, reading, None)

    def _compact(self, turn: UserTurn, reading: Reading) -> Plan:
        """A new prompt without documents and earlier passages, and the warning that says so."""
        plan = self._begin(turn, (), reading)
        return replace(plan, warnings=(self._outgrown(),)) if self.ledger is not None else plan

    def _made(self, parts: tuple[Part, ...], turn: UserTurn, reading: Reading, before: Ledger | None) -> Plan:
        record = TurnRecord(self.model, before is None, parts, self.writer.open_thinking)
        earlier = before if before is not None else Ledger((), ())
        return Plan(
            ids=(*earlier.ids, *record.ids),
            record=record,
            reading=reading,
            passages=turn.passages,
            shown=merge_pages([*earlier.pages, *record.pages]),
            checkpoint=len(earlier.ids) + record.checkpoint if record.checkpoint else earlier.documents_end,
            warnings=(),
        )

    def _fits(self, plan: Plan) -> bool:
        return len(plan.ids) <= self.room.prompt

    def _missing(self, documents: Sequence[DocumentText], ledger: Ledger) -> list[DocumentText]:
        shown = {document: set(indices) for document, indices in ledger.pages}
        missing = []
        for document in documents:
            known = shown.get(document.id, set())
            pages = tuple(page for page in document.pages if page.index not in known)
            if pages:
                missing.append(replace(document, pages=pages))
        return missing

    def _shows_more_than(self, documents: Sequence[DocumentText]) -> bool:
        wanted = {document.id: {page.index for page in document.pages} for document in documents}
        shown = self.ledger.pages if self.ledger is not None else ()
        return any(set(indices) - wanted.get(document, set()) for document, indices in shown)

    def _outgrown(self) -> str:
        return (
            f"This conversation outgrew the model's context of {self.room.context:,} tokens: passages of earlier turns"
            " are no longer read, earlier questions and answers are."
        )

    def _too_long(self, needed: int, what: str, choices: tuple[str, ...]) -> DoesNotFit:
        return DoesNotFit(
            f"{what} takes {needed:,} tokens, and {self.room.prompt:,} fit beside the {self.room.answer:,} kept for the"
            f" answer (context: {self.room.context:,}).",
            f"Possible: {', '.join(choices)}.",
            needed_tokens=needed + self.room.answer,
            available_tokens=self.room.context,
            choices=choices,
        )

    def _documents_too_long(self, question: str, documents: Sequence[DocumentText], needed: int) -> DoesNotFit:
        choices = []
        fitting = self._first_pages_that_fit(question, documents)
        if fitting:
            choices.append(f"pages {format_pages(fitting)} of {documents[0].name}")
        choices.append("reading it in parts")
        choices.append("answering from the best passages")
        if self.past:
            choices.append("a new conversation")
        choices.append("a model with a larger context")
        count = sum(len(document.pages) for document in documents)
        names = documents[0].name if len(documents) == 1 else f"The {len(documents)} documents"
        what = f"{names} ({count} page{'' if count == 1 else 's'}) with this conversation"
        return self._too_long(needed, what, tuple(choices))

    def _first_pages_that_fit(self, question: str, documents: Sequence[DocumentText]) -> tuple[int, ...]:
        """The longest beginning of the first document that fits alone, by page numbers."""
        pages = documents[0].pages
        low, high = 0, len(pages)
        while low < high:  # bisection: at most 12 encodings even for 5,000 pages
            middle = (low + high + 1) // 2
            part = replace(documents[0], pages=pages[:middle])
            if self._fits(self._begin(UserTurn(question), (part,), "whole")):
                low = middle
            else:
                high = middle - 1
        return tuple(page.index for page in pages[:low])


def choose_reading(wanted: str, setting: str, parameters: int, has_documents: bool) -> Reading:
    """'auto' takes the setting; where that is 'auto' too, a model under 1B answers from passages."""
    if not has_documents:
        return "none"
    for choice in (wanted, setting):
        if choice == "whole":
            return "whole"
        if choice == "passages":
            return "passages"
        if choice == "parts":
            return "parts"
    return "passages" if is_small(parameters) else "whole"
