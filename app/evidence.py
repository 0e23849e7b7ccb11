"""Where the model looked while it answered: attention of KV pages as shares of the documents' pages.

The engine tells with each token how much attention each KV page drew in the step that chose it. A KV page's least
in any step of the answer is taken off first: so much it draws whatever is being written. Then the sums over the answer
and over each of its sentences are laid over the prompt, and what lies on a document's page is that page's; a KV page on
the border of two is divided by tokens. The first KV page (the sink), the prompt's end and all that is no document do
not count. Shares are of what remains, so they compare across pages and documents. Where a model looked is not why it
answered so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from app.ledger import Span
from app.words import sentences

if TYPE_CHECKING:
    import numpy as np

KV_PAGE = 64  # tokens
RECENT = 64  # tokens at the prompt's end (the question) that do not count, with all of their KV pages
SENTENCE_PAGES = 12  # kept of a sentence
LABELLED = 40  # of an answer's pages keep the label that is printed on them
LEAST = 0.0005  # a share below is not kept


@dataclass(frozen=True, slots=True)
class Looked:
    """One step: where in the generated text its token begins, and float32 [KV pages], what each of them drew."""

    at: int
    mass: np.ndarray


@dataclass(frozen=True, slots=True)
class DocumentLook:
    """Of one document: the numbers of its pages in the prompt, each page's share (0 to 1) of what all pages of all
    documents drew, and the printed labels of pages that drew most, where they differ from the number."""

    document_id: str
    document: str
    pages: tuple[int, ...]
    shares: tuple[float, ...]
    labels: Mapping[int, str]

    def __post_init__(self) -> None:
        if len(self.pages) != len(self.shares):
            raise ValueError(f"shares: got {len(self.shares)}, need one for each of {len(self.pages)} pages")


@dataclass(frozen=True, slots=True)
class SentenceLook:
    """One sentence of the answer, text[start:end]. `pages`: those that drew most, most first: place of the document in
    `Evidence.documents`, page, share; none where the steps of the sentence drew nothing of their own."""

    start: int
    end: int
    pages: tuple[tuple[int, int, float], ...]


@dataclass(frozen=True, slots=True)
class PageShare:
    """A page and its share of the attention. `page` counts from 1."""

    document_id: str
    document: str
    page: int
    label: str
    share: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where the model looked in one answer; `documents` in the order of the prompt, `sentences` all of the answer's."""

    documents: tuple[DocumentLook, ...]
    sentences: tuple[SentenceLook, ...]

    def top(self, count: int) -> tuple[PageShare, ...]:
        """The pages that drew most over the whole answer, most first."""
        shares = (
            PageShare(d.document_id, d.document, page, d.labels.get(page, ""), share)
            for d in self.documents
            for page, share in zip(d.pages, d.shares, strict=True)
            if share >= LEAST
        )
        return tuple(sorted(shares, key=lambda found: -found.share)[:count])

    def top_of(self, sentence: SentenceLook, count: int) -> tuple[PageShare, ...]:
        """The same for one of `sentences`."""
        found = []
        for place, page, share in sentence.pages[:count]:
            document = self.documents[place]
            label = document.labels.get(page, "")
            found.append(PageShare(document.document_id, document.document, page, label, share))
        return tuple(found)

    def without(self, document_id: str) -> Evidence | None:
        """None if it tells of this document: shares of the others alone would mislead."""
        return None if any(document.document_id == document_id for document in self.documents) else self

    def to_dict(self) -> dict[str, Any]:
        """For JSON; shares as whole ten-thousandths."""
        return {
            "documents": [
                {
                    "id": d.document_id,
                    "name": d.document,
                    "pages": _runs(d.pages),
                    "shares": [round(share * 10_000) for share in d.shares],
                    "labels": {str(page): label for page, label in d.labels.items()},
                }
                for d in self.documents
            ],
            "sentences": [
                [s.start, s.end, [[place, page, round(share * 10_000)] for place, page, share in s.pages]]
                for s in self.sentences
            ],
        }


def read_evidence(stored: Any) -> Evidence | None:
    """What `Evidence.to_dict` made; None for nothing, and for what is no evidence."""
    try:
        documents = tuple(
            DocumentLook(
                str(d["id"]),
                str(d["name"]),
                tuple(page for first, last in d["pages"] for page in range(int(first), int(last) + 1)),
                tuple(int(share) / 10_000 for share in d["shares"]),
                {int(page): str(label) for page, label in d["labels"].items()},
            )
            for d in stored["documents"]
        )
        found = tuple(
            SentenceLook(
                int(start),
                int(end),
                tuple((int(place), int(page), int(share) / 10_000) for place, page, share in pages),
            )
            for start, end, pages in stored["sentences"]
        )
    except (TypeError, KeyError, ValueError, AttributeError):
        return None
    known = all(0 <= place < len(documents) for sentence in found for place, _, _ in sentence.pages)
    return Evidence(documents, found) if documents and known else None


def gather_evidence(
    steps: Sequence[Looked],
    spans: Sequence[Span],
    prompt_tokens: int,
    text: str,
    shown: str,
    names: Mapping[str, str],
    labels: Mapping[tuple[str, int], str],
) -> Evidence | None:
    """None without pages of documents in the prompt, and where nothing of them counts.

    `spans`: the tokens of each document page in the prompt. `text`: all that was generated, `shown` its end, which is
    the answer. `names` by document id, `labels` by (document id, page).
    """
    known = [span for span in spans if span.document in names]
    if not text.endswith(shown):
        return None
    begin = len(text) - len(shown)
    ends = list(sentences(shown))
    if not known or not any(step.at >= begin for step in steps):
        return None
    drawn = _page_sums(_grouped(steps, begin, ends, prompt_tokens), known)
    total = drawn.sum(1, keepdims=True)
    if not total[0] > 0:
        return None
    shares = drawn / total.clip(min=1e-12)
    documents = _documents(known, shares[0], names, labels)
    places = {d.document_id: place for place, d in enumerate(documents)}
    of_sentences = tuple(
        SentenceLook(start, end, _most(row, known, places)) for (start, end), row in zip(ends, shares[1:], strict=True)
    )
    return Evidence(documents, of_sentences)


def _grouped(steps: Sequence[Looked], begin: int, ends: Sequence[tuple[int, int]], prompt_tokens: int) -> np.ndarray:
    """float64 [1 + sentences, KV pages]: what each KV page drew over the answer and over each sentence."""
    import numpy as np

    pages = max(len(step.mass) for step in steps)
    floor = np.full(pages, np.inf)
    for step in steps:
        np.minimum(floor[: len(step.mass)], step.mass, out=floor[: len(step.mass)])
    if len(steps) == 1:
        floor[:] = 0.0
    rows = np.zeros((1 + len(ends), pages))
    for step in steps:
        at = step.at - begin
        if at < 0:
            continue  # thinking is no part of the answer
        excess = step.mass - floor[: len(step.mass)]
        rows[0, : len(excess)] += excess
        for number, (start, end) in enumerate(ends, 1):
            if start <= at < end or (at < start and (number == 1 or at >= ends[number - 2][1])):
                rows[number, : len(excess)] += excess  # blanks before a sentence are its own
                break
    rows[:, :1] = 0.0
    rows[:, max(0, prompt_tokens - RECENT) // KV_PAGE :] = 0.0
    return rows


def _page_sums(rows: np.ndarray, spans: Sequence[Span]) -> np.ndarray:
    """rows [n, KV pages] -> [n, spans]: KV pages spread evenly over their tokens, summed over each span's."""
    import numpy as np

    edges = np.arange(rows.shape[1] + 1) * KV_PAGE
    starts, stops = [span.start for span in spans], [span.end for span in spans]
    sums = np.zeros((len(rows), len(spans)))
    for number, row in enumerate(rows):
        below = np.concatenate([[0.0], np.cumsum(row)])
        sums[number] = np.interp(stops, edges, below) - np.interp(starts, edges, below)
    return sums.clip(min=0.0)


def _documents(
    spans: Sequence[Span], shares: np.ndarray, names: Mapping[str, str], labels: Mapping[tuple[str, int], str]
) -> tuple[DocumentLook, ...]:
    """One entry a document, in the order of the prompt, its pages ascending; a page that stands there twice adds up."""
    found: dict[str, dict[int, float]] = {}
    for span, share in zip(spans, shares, strict=True):
        pages = found.setdefault(span.document, {})
        pages[span.page] = pages.get(span.page, 0.0) + float(share)
    everywhere = [(share, document, page) for document, pages in found.items() for page, share in pages.items()]
    labelled = {(document, page) for _, document, page in sorted(everywhere, reverse=True)[:LABELLED]}
    looks = []
    for document, pages in found.items():
        numbers = tuple(sorted(pages))
        printed = {page: labels.get((document, page), "") for page in numbers if (document, page) in labelled}
        printed = {page: label for page, label in printed.items() if label and label != str(page)}
        looks.append(DocumentLook(document, names[document], numbers, tuple(pages[n] for n in numbers), printed))
    return tuple(looks)


def _most(shares: np.ndarray, spans: Sequence[Span], places: Mapping[str, int]) -> tuple[tuple[int, int, float], ...]:
    pages: dict[tuple[int, int], float] = {}
    for span, share in zip(spans, shares, strict=True):
        key = (places[span.document], span.page)
        pages[key] = pages.get(key, 0.0) + float(share)
    most = sorted(pages.items(), key=lambda item: -item[1])[:SENTENCE_PAGES]
    return tuple((place, page, share) for (place, page), share in most if share >= LEAST)


def _runs(pages: Iterable[int]) -> list[list[int]]:
    """Ascending numbers as [first, last] of each unbroken run."""
    runs: list[list[int]] = []
    for page in pages:
        if runs and page == runs[-1][1] + 1:
            runs[-1][1] = page
        else:
            runs.append([page, page])
    return runs
