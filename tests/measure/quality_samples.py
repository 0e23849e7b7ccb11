"""The samples of the quality table as token ids, made once and shared by all rows: making one takes longer than reading
it on a card.

    python3 tests/measure/quality_samples.py --model FILE --file dist/samples.npz --counts needle:400,all:100

Every document ends at the same token, `DOCUMENT_END`, so that a card can record the reading of a document once and play
it for all of them: what is missing to that is prose, put before the document's own text, that begins in the middle of a
sentence as pages of a book do.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from app.evaluate.prompts import EvalPage, Prompts
from app.evaluate.prose import Prose
from app.evaluate.run import make_sample
from app.evaluate.sample import Question, Sample
from app.evaluate.tasks import TASKS, choose_tasks
from app.prompts import DocumentText, document_head

DOCUMENT_END = 7040
_FEWER_DONE_AT = 0.75
_MARK = "[Page 1]\n"
_EMPTY = DocumentText("sample", "document.txt", 1, (EvalPage(""),))
_WORD = re.compile(r"\s*\S+|\s+$")


class FittedPrompts(Prompts):
    """Prompts whose documents can be made to end at token `end` exactly."""

    def __init__(self, face, parameters: int, end: int) -> None:  # type: ignore[no-untyped-def]
        super().__init__(face, parameters)
        self._word_tokens = lru_cache(maxsize=None)(lambda word: len(self._encode(word)))
        self.count = self._count_words  # fitting a document counts the same words again and again
        self._end = end
        self._document_tokens = 0
        self._head_tokens = sum(len(self._encode(text)) for text in (document_head(_EMPTY), _MARK))
        prose, text = Prose(Random("filler")), ""
        while self.count(text) < end // 4:
            text += f"{next(prose)} "
        self._filler = tuple(self._encode(f"{text.strip()}\n\n"))

    def fitted(self, document: str, question: Question) -> list[int]:
        """The ids of `first`, with prose before a document that is a little too short."""
        ids, end = self.first(document, question)
        missing = self._end - end
        if not 0 <= missing < len(self._filler):
            raise ValueError(f"document: ends at token {end}, need {self._end} or a little less")
        at = end - self._document_tokens + self._head_tokens
        return [*ids[:at], *self._filler[len(self._filler) - missing :], *ids[at:]]

    def _document_ids(self, document: DocumentText) -> tuple[int, ...]:
        ids = super()._document_ids(document)
        self._document_tokens = len(ids)
        return ids

    def _count_words(self, text: str) -> int:
        """The number of tokens, as far as no token reaches over the beginning of a word."""
        return sum(map(self._word_tokens, _WORD.findall(text)))


@dataclass(frozen=True, slots=True)
class StoredSample:
    """`ids`: the first prompt. `sample.document` is only its name. `followups`: by question, what follows the answer of
    the one before. `answers`: the right ones."""

    task: str
    index: int
    ids: list[int]
    sample: Sample
    followups: tuple[tuple[int, ...], ...]
    answers: tuple[tuple[int, ...], ...]


class StoredPrompts:
    """What `Asker` wants of prompts, from stored samples. One sample at a time."""

    def __init__(self, end: int) -> None:
        self._end = end
        self.current: StoredSample | None = None

    def first(self, document: str, question: Question) -> tuple[list[int], int]:
        return list(self._stored().ids), self._end

    def later(self, ids: list[int], answer: Sequence[int], question: Question) -> list[int]:
        return [*ids, *answer, *self._stored().followups[self._number(question)]]

    def answer(self, question: Question) -> tuple[int, ...]:
        return self._stored().answers[self._number(question)]

    def _number(self, question: Question) -> int:
        return next(i for i, known in enumerate(self._stored().sample.questions) if known is question)

    def _stored(self) -> StoredSample:
        if self.current is None:
            raise RuntimeError("current: got no sample, need one")
        return self.current


def make(prompts: FittedPrompts, seed: int, task_name: str, index: int, end: int) -> StoredSample:
    """Sample `index` of a task. With room for the question in the document's stead it always ends before `end`."""
    task = TASKS[task_name]
    sample = make_sample(seed, task, end + task.answer_tokens, index, prompts)
    ids = prompts.fitted(sample.document, sample.questions[0])
    later = [tuple(prompts.later([], (), question)) for question in sample.questions]
    answers = tuple(prompts.answer(question) for question in sample.questions)
    named = Sample(f"{task_name}/{index}", sample.questions, (), sample.depth)
    return StoredSample(task_name, index, ids, named, tuple(later), answers)


def save(path: Path, samples: Sequence[StoredSample], facts: dict[str, object]) -> None:
    """Ids below 65,536 in one array, the rest as JSON; replaces the file as a whole."""
    ids = np.fromiter(chain.from_iterable(sample.ids for sample in samples), dtype=np.uint32)
    meta = [asdict(sample) | {"ids": len(sample.ids)} for sample in samples]
    text = np.frombuffer(json.dumps({"facts": facts, "samples": meta}).encode(), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part.npz")
    np.savez_compressed(part, ids=ids.astype(np.uint16 if not ids.size or ids.max() < 65536 else np.uint32), text=text)
    part.replace(path)


def load(path: Path) -> tuple[list[StoredSample], dict[str, object]]:
    """(samples in the order of the file, what was said of them all)."""
    with np.load(path) as stored:
        ids, found = stored["ids"].tolist(), json.loads(stored["text"].tobytes())
    samples, at = [], 0
    for meta in found["samples"]:
        inner = meta["sample"]
        questions = tuple(Question(**q | {"gold": tuple(q["gold"])}) for q in inner["questions"])
        sample = Sample(inner["document"], questions, (), inner["depth"])
        followups, answers = (tuple(map(tuple, meta[name])) for name in ("followups", "answers"))
        samples.append(
            StoredSample(meta["task"], meta["index"], ids[at : at + meta["ids"]], sample, followups, answers)
        )
        at += meta["ids"]
    return samples, found["facts"]


def order(counts: dict[str, int]) -> list[tuple[str, int]]:
    """(task, index) so that any leading part covers all tasks alike: those with the most samples in proportion, the
    others ahead of these, so that they are whole when `_FEWER_DONE_AT` of the rest is done."""
    most = max(counts.values(), default=0)
    places = [
        ((i + 0.5) / count * (1.0 if count == most else _FEWER_DONE_AT), name, i)
        for name, count in counts.items()
        for i in range(count)
    ]
    rank = {name: number for number, name in enumerate(TASKS)}
    return [(name, i) for _, name, i in sorted(places, key=lambda place: (place[0], rank[place[1]], place[2]))]


def read_counts(text: str) -> dict[str, int]:
    """ "needle:400,all:100" -> samples by task; what is named wins over "all"."""
    pairs = [part.partition(":")[::2] for part in text.split(",")]
    named = {name: int(count) for name, count in pairs}
    rest = named.pop("all", 0)
    tasks = choose_tasks(list(named) or ["all"]) if not rest else choose_tasks(["all"])
    return {task.name: named.get(task.name, rest) for task in tasks}


def main() -> None:
    from app.model_face import open_face
    from app.models import Models

    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--counts", default="needle:400,multi_key:400,all:100")
    parser.add_argument("--end", type=int, default=DOCUMENT_END)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    model = Models(args.file.parent).resolve(str(args.model))
    prompts = FittedPrompts(open_face(model, None), model.parameters, args.end)
    wanted, samples, started = order(read_counts(args.counts)), [], time.time()
    facts = {"end": args.end, "seed": args.seed, "model": args.model.name}
    known = {(s.task, s.index): s for s in load(args.file)[0]} if args.file.exists() else {}
    for number, (task, index) in enumerate(wanted):
        samples.append(known.get((task, index)) or make(prompts, args.seed, task, index, args.end))
        if number % 300 == 299 or number == len(wanted) - 1:
            save(args.file, samples, facts)
            print(f"{number + 1} of {len(wanted)} after {time.time() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
