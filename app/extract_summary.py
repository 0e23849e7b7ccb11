"""Central sentences of whole documents, picked by their words and with no model (centroid method, MEAD).

Each sentence is a vector of word weights (frequency times rarity over sentences); those nearest to the sum of all are
what the document is most about. The text is cut into as many equal stretches as sentences are wanted and each gives
one, so that the choice covers a document from its first to its last page. Works on scripts without spaces through
pairs of characters.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from app.citations import PageSource
from app.turn import Passage
from app.words import is_dense, sentences, terms, tokens

FEWEST_TERMS, FEWEST_WORDS = 4, 6
MOST_CHARACTERS = 420
REPEATED_ON = 3  # pages; what stands on more of them is a running line
ALIKE = 0.6  # cosine from which two sentences say the same
CENTROID_TERMS = 200
_LEADERS = re.compile(r"\.{4,}|(?:\. ){4,}|_{4,}|…{2,}")


@dataclass(frozen=True, slots=True)
class _Sentence:
    source: int  # place in the pages given
    text: str
    start: int  # characters before it, over all pages of its document
    vector: dict[str, float]
    norm: float


def central_sentences(
    pages: Sequence[PageSource], count: int, *, stopped: Callable[[], bool] = lambda: False
) -> tuple[Passage, ...]:
    """About `count` sentences of these pages in reading order, each with its page; fewer where there are fewer.

    Several documents share the count by their length, each getting at least one. score: likeness to the centre, 0 to 1.
    stopped: looked at once a page; what comes back then is empty.
    """
    by_document: dict[str, list[PageSource]] = {}
    for page in pages:
        by_document.setdefault(page.document_id, []).append(page)
    total = sum(len(page.text) for page in pages) or 1
    found: list[Passage] = []
    for own in by_document.values():
        share = sum(len(page.text) for page in own) / total
        found += _of_one(own, max(1, round(count * share)), stopped)
        if stopped():
            return ()
    return tuple(found)


def _of_one(pages: Sequence[PageSource], count: int, stopped: Callable[[], bool]) -> list[Passage]:
    candidates = _candidates(pages, stopped)
    if not candidates:
        return []
    held = Counter(term for sentence in candidates for term in sentence.vector)
    weighted = [_weighted(sentence, held, len(candidates)) for sentence in candidates]
    centre = _centre(weighted)
    length = candidates[-1].start + 1
    chosen: list[tuple[float, _Sentence]] = []
    for stretch in _stretches(weighted, length, count):
        ranked = sorted(((_cosine(s.vector, s.norm, *centre), -s.start, s) for s in stretch), key=lambda r: r[:2])
        for score, _, sentence in reversed(ranked):
            if all(_cosine(sentence.vector, sentence.norm, o.vector, o.norm) < ALIKE for _, o in chosen):
                chosen.append((score, sentence))
                break
    return [_passage(pages[sentence.source], sentence.text, score) for score, sentence in chosen]


def _candidates(pages: Sequence[PageSource], stopped: Callable[[], bool]) -> list[_Sentence]:
    """Sentences that say something: no headings, tables of contents, running lines or crumbs."""
    raw: list[tuple[int, str, int]] = []
    before = 0
    for place, page in enumerate(pages):
        if stopped():
            return []
        raw += [(place, page.text[start:end], before + start) for start, end in sentences(page.text)]
        before += len(page.text)
    seen_on: dict[str, set[int]] = {}
    for place, text, _ in raw:
        seen_on.setdefault(" ".join(text.split()).casefold(), set()).add(place)
    kept = []
    for place, text, start in raw:
        if not _says_something(text) or len(seen_on[" ".join(text.split()).casefold()]) > REPEATED_ON:
            continue
        vector = {term: float(number) for term, number in Counter(terms(text)).items()}
        if len(vector) >= FEWEST_TERMS:
            kept.append(_Sentence(place, text, start, vector, 0.0))
    return kept


def _says_something(text: str) -> bool:
    flat = " ".join(text.split())
    if len(flat) > MOST_CHARACTERS or _LEADERS.search(flat):
        return False
    words = [word for word, _, _ in tokens(flat)]
    if len(words) < FEWEST_WORDS:
        return False
    letters = sum(unicodedata.category(c).startswith("L") for c in flat)
    visible = sum(not c.isspace() for c in flat)
    ended = flat.rstrip("\"'”’»)]」』）").endswith((".", "!", "?", "。", "！", "？", "｡", ":", "：", "…"))
    dense = sum(is_dense(word) for word in words) > len(words) / 2
    return letters >= 0.65 * visible and (ended or (dense and len(words) >= 12))


def _weighted(sentence: _Sentence, held: Counter[str], total: int) -> _Sentence:
    vector = {term: n * math.log(1 + total / held[term]) for term, n in sentence.vector.items()}
    return _Sentence(sentence.source, sentence.text, sentence.start, vector, _norm(vector))


def _centre(found: Iterable[_Sentence]) -> tuple[dict[str, float], float]:
    total: dict[str, float] = {}
    for sentence in found:
        for term, weight in sentence.vector.items():
            total[term] = total.get(term, 0.0) + weight
    centre = dict(sorted(total.items(), key=lambda item: -item[1])[:CENTROID_TERMS])
    return centre, _norm(centre)


def _stretches(found: Sequence[_Sentence], length: int, count: int) -> list[list[_Sentence]]:
    stretches: list[list[_Sentence]] = [[] for _ in range(max(1, count))]
    for sentence in found:
        stretches[min(count - 1, sentence.start * count // length)].append(sentence)
    return stretches


def _norm(vector: dict[str, float]) -> float:
    return math.sqrt(sum(weight * weight for weight in vector.values())) or 1.0


def _cosine(one: dict[str, float], norm: float, other: dict[str, float], other_norm: float) -> float:
    small, large = (one, other) if len(one) <= len(other) else (other, one)
    return sum(weight * large.get(term, 0.0) for term, weight in small.items()) / (norm * other_norm)


def _passage(page: PageSource, text: str, score: float) -> Passage:
    return Passage(page.document_id, page.document, page.page, page.label, text.strip(), score)
