"""Which page says so: quotes of an answer checked, every other sentence attributed, against the pages that were read.

The result always quotes the page's own text. Status:
  attributed  the app itself found the passage that supports the sentence, by the words that both use
  verified    the answer quoted this and the page has the same words (case, punctuation and line breaks aside)
  near        the answer quoted this and the page has almost the same words
  not_found   the answer quoted, or named a page for, something that no page says; quote is then the answer's text
A wrong page in the answer is repaired. Parsing is tolerant: [p. 12], (page 12), [D1 p12], 第12页, src/a.py:12, [12].
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Literal

from app.words import is_dense, sentences, stem, term_set, terms, tokens

Status = Literal["attributed", "verified", "near", "not_found"]

SUPPORT = 0.5  # share of a sentence's weight that a passage must hold
NEAR = 0.7  # likeness of word sequences (0 to 1) that counts as near
CANDIDATE_PAGES = 8
PASSAGE_CHARACTERS = 500
ASKS = 0.1  # off for a passage that ends in a question: the sentence after it says more
QUESTION_WEIGHT = 0.5  # of the question's words, which only help to choose between passages
READ = 0.15  # for a passage that the model read word for word, beside others of the same page that it did not see


@dataclass(frozen=True, slots=True)
class PageSource:
    """One page that the answer may rest on; page counts from 1 within its document."""

    document_id: str
    document: str
    page: int
    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Citation:
    """Where it stands. For not_found: the page that the answer named, else document_id "" and page 0."""

    document_id: str
    document: str
    page: int
    label: str
    quote: str
    status: Status


def attribute(answer: str, pages: Sequence[PageSource], question: str = "", read: Sequence[str] = ()) -> list[Citation]:
    """Citations in the order of the answer, each passage once. A sentence that no page supports gets none.

    The question is optional: its words help to choose among passages when the answer is short ("At 9:30."), and a bare
    "Yes." rests on them alone. read: the texts that the model was given where those were not the pages in full.
    """
    if not pages or not answer.strip():
        return []
    index = _index(tuple(pages))
    asked = _Asked({term: index.weight(term) for term in term_set(question)}, tuple(read))
    found: list[Citation] = []
    for number, piece in enumerate(answer.split("```")):
        if number % 2:  # code: what stands in double quotes there is no quotation
            supported = _support(piece, index, asked, ())
            found += [supported] if supported else []
            continue
        for start, end in _whole_quotes(piece, list(sentences(piece))):
            found.extend(_cite_sentence(piece[start:end], index, asked))
    return _without_repeats(found)


@dataclass(frozen=True, slots=True)
class _Asked:
    """weights: of the question's words. read: what the model was given where it did not get whole pages."""

    weights: dict[str, float]
    read: tuple[str, ...]

    def share(self, held: frozenset[str]) -> float:
        """How much of the question a passage with these terms holds, 0 to 1."""
        total = sum(self.weights.values())
        return sum(self.weights[term] for term in self.weights.keys() & held) / total if total else 0.0

    def was_read(self, text: str) -> bool:
        return any(text in given for given in self.read)


def verify(quote: str, page_hint: int | str | None, pages: Sequence[PageSource]) -> Citation:
    """Look a quote up: on the hinted page (its number or its label) first, then on all others."""
    index = _index(tuple(pages))
    hinted = index.named(None, str(page_hint)) if page_hint is not None else []
    return _verify(quote, hinted, index)


class _PageIndex:
    """Pages with an inverted index from terms to pages, and each page's passages and tokens when they are needed."""

    def __init__(self, pages: tuple[PageSource, ...]) -> None:
        self.pages = pages
        self.documents = list(dict.fromkeys(page.document_id for page in pages))
        self.postings: dict[str, list[int]] = defaultdict(list)
        for place, page in enumerate(pages):
            for term in term_set(page.text):
                self.postings[term].append(place)
        self._passages: dict[int, list[_Passage]] = {}
        self._tokens: dict[int, list[tuple[str, int, int]]] = {}

    def weight(self, term: str) -> float:
        """How telling a term is: rare ones and numbers more."""
        rarity = math.log(1 + len(self.pages) / (len(self.postings.get(term, ())) or 0.5)) + 0.5
        return rarity * (2.0 if term[:1].isdigit() else 0.5 if is_dense(term) else 1.0)

    def best_pages(self, weights: dict[str, float], count: int = CANDIDATE_PAGES) -> list[int]:
        scores: Counter[int] = Counter()
        for term, weight in weights.items():
            for place in self.postings.get(term, ()):
                scores[place] += weight  # type: ignore[assignment]
        return [place for place, _ in sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:count]]

    def passages(self, place: int) -> list[_Passage]:
        if place not in self._passages:
            self._passages[place] = _passages(self.pages[place].text)
        return self._passages[place]

    def tokens(self, place: int) -> list[tuple[str, int, int]]:
        if place not in self._tokens:
            self._tokens[place] = tokens(self.pages[place].text)
        return self._tokens[place]

    def named(self, document: int | None, page: str) -> list[int]:
        """Places of the pages that are called so: by label first (what is printed), then by number."""
        known = self.documents[document - 1 : document] if document else self.documents
        inside = [place for place, source in enumerate(self.pages) if source.document_id in known]
        by_label = [place for place in inside if self.pages[place].label.casefold() == page.casefold()]
        by_number = [place for place in inside if str(self.pages[place].page) == page and place not in by_label]
        return by_label + by_number

    def with_line(self, path: str, line: int) -> list[int]:
        """Places of the pages whose label ("src/a.py:L1-80", or "L1-80" of the document a.py) covers the line."""
        found: list[int] = []
        for place, source in enumerate(self.pages):
            match = re.fullmatch(r"(?:(.*):)?L(\d+)(?:-(\d+))?", source.label)
            if match and int(match[2]) <= line <= int(match[3] or match[2]):
                own = match[1] or source.document
                if own == path or own.endswith("/" + path) or path.endswith("/" + own):
                    found.append(place)
        return found


_index = lru_cache(maxsize=2)(_PageIndex)  # a chat asks about the same pages again and again


@dataclass(frozen=True, slots=True)
class _Passage:
    """A sentence of a page, or a line of a table."""

    start: int
    end: int
    terms: frozenset[str]


_ENDED = re.compile(r"[.!?…:。！？][\"'”’»)\]」』）]*$")


def _passages(text: str) -> list[_Passage]:
    spans: list[tuple[int, int]] = []
    for start, end in sentences(text):
        block = text[start:end]
        is_table = block.count("\n") >= 2 and not _ENDED.search(block)
        if len(block) <= PASSAGE_CHARACTERS and not is_table:
            spans.append((start, end))
            continue
        place = start
        for line in block.split("\n"):
            if line.strip():
                spans.append((place, place + len(line)))
            place += len(line) + 1
    return [_Passage(start, end, term_set(text[start:end])) for start, end in spans]


_QUOTED = re.compile(r"“([^“”]+)”|„([^„“”]+)[“”]|«([^«»]+)»|「([^「」]+)」|『([^『』]+)』|(?<!\w)\"([^\"]+)\"(?!\w)")
_PAGE_NAME = r"(?P<page>[ivxlc]{1,7}|[A-Z]?-?\d{1,5})"
_MARKER = re.compile(
    r"[\[(【](?:D(?:oc(?:ument)?)?\.?\s*(?P<document>\d{1,3})\s*[,;:]?\s*)?(?:pages?|pp?|Seiten?|S)[.:]?\s*"
    + _PAGE_NAME
    + r"(?:\s*(?:[-–,;&]|and)\s*(?:pp?\.?\s*)?\d{1,5})*\s*[\])】]"
    r"|(?:\bon |\bsee |^)?\bpages? (?P<spoken>\d{1,5})\b|第\s*(?P<dense>\d{1,5})\s*[页頁ページ]+"
    r"|(?<!\w)\[(?P<bare>\d{1,5})\]"
    r"|(?P<path>[\w./-]{0,200}\w\.\w{1,8}):L?(?P<line>\d{1,7})(?:-L?\d+)?",
    re.IGNORECASE,
)
_ELLIPSIS = re.compile(r"\s*(?:\[?\.\.\.\]?|\[?…\]?)\s*")


def _cite_sentence(sentence: str, index: _PageIndex, asked: _Asked) -> list[Citation]:
    hinted, claimed = _hints(sentence, index)
    quotes = [next(filter(None, match.groups())) for match in _QUOTED.finditer(sentence)]
    quotes = [quote for quote in quotes if _long_enough(quote)]
    if quotes:
        return [_verify(quote, hinted, index) for quote in quotes]
    bare = re.sub(r"\s+(?=[.,;:!?]|$)|\s+(?=\s)", "", _MARKER.sub(" ", sentence))
    if claimed and _long_enough(bare):
        checked = _verify(bare, hinted, index)
        if checked.status != "not_found":
            return [checked]
        return [_support(bare, index, asked, hinted) or checked]
    supported = _support(bare, index, asked, hinted)
    return [supported] if supported else []


def _whole_quotes(answer: str, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sentences, joined where one quotation runs through several of them."""
    quoted = [match.span() for match in _QUOTED.finditer(answer) if "\n\n" not in match[0]]
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and any(a < joined[-1][1] and start < b for a, b in quoted):
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _hints(sentence: str, index: _PageIndex) -> tuple[list[int], bool]:
    """Places of the pages that the sentence names, and whether it names any in a citation's form."""
    places: list[int] = []
    claimed = False
    for match in _MARKER.finditer(sentence):
        if match["path"]:
            places += index.with_line(match["path"], int(match["line"]))
            continue
        named = index.named(
            int(match["document"]) if match["document"] else None,
            match["page"] or match["spoken"] or match["dense"] or match["bare"],
        )
        places += named
        claimed |= bool(match["page"] or match["dense"]) or (bool(match["bare"]) and bool(named))
    return list(dict.fromkeys(places)), claimed


def _long_enough(quote: str) -> bool:
    """Four words, or six characters of a script without spaces: shorter quotation marks only set a word off."""
    words = [word for word, _, _ in tokens(quote)]
    dense = sum(1 for word in words if is_dense(word))
    return dense >= 6 or len(words) >= 4


_YES_OR_NO = frozenset({"yes", "no", "ja", "nein", "oui", "non", "sí"})


def _support(sentence: str, index: _PageIndex, asked: _Asked, hinted: Iterable[int]) -> Citation | None:
    """The passage that holds most of what the sentence says, or None if none holds enough."""
    weights = {term: index.weight(term) for term in terms(sentence)}
    if not weights and any(word in _YES_OR_NO for word, _, _ in tokens(sentence)):
        weights = dict(asked.weights)  # it says what the question says
    for name in _names(sentence):
        if name in weights:
            weights[name] *= 1.5
    if not weights:
        return None
    total = sum(weights.values())
    numbers = {term for term in weights if term[:1].isdigit()}
    hints = set(hinted)
    best: tuple[float, int, int, int] | None = None  # score, -place, start, end
    for place in dict.fromkeys([*hints, *index.best_pages(_with_question(weights, asked))]):
        passages = index.passages(place)
        for number, passage in enumerate(passages):
            if weights.keys().isdisjoint(passage.terms):
                continue
            for size in (1, 2, 3):
                window = passages[number : number + size]
                held = frozenset().union(*(part.terms for part in window))
                matched = weights.keys() & held
                share = sum(weights[term] for term in matched) / total
                if numbers - held:
                    share *= 0.6  # a figure that the passage does not have is no support
                if share < SUPPORT or not _telling(matched, weights, index):
                    continue
                score = share - 0.06 * (size - 1) + QUESTION_WEIGHT * asked.share(held) + 0.1 * (place in hints)
                text = index.pages[place].text
                score += READ * asked.was_read(text[passage.start : passage.end])
                score -= ASKS * text[passage.start : window[-1].end].endswith(("?", "？"))
                if best is None or (score, -place) > best[:2]:
                    best = (score, -place, window[0].start, window[-1].end)
    if best is None:
        return None
    return _citation(index.pages[-best[1]], best[2], best[3], "attributed")


def _with_question(weights: dict[str, float], asked: _Asked) -> dict[str, float]:
    extra = {term: QUESTION_WEIGHT * weight for term, weight in asked.weights.items() if term not in weights}
    return weights | extra


def _telling(matched: Iterable[str], weights: dict[str, float], index: _PageIndex) -> bool:
    """Whether the shared terms say enough: two of them, or the only one that there is and it is rare."""
    shared = list(matched)
    if len(shared) >= 2:
        return True
    if len(weights) > 1:
        return False
    return len(index.postings.get(shared[0], ())) <= max(2, len(index.pages) // 10)


def _names(sentence: str) -> set[str]:
    """Stems of words with a capital that do not begin the sentence."""
    words = re.findall(r"[^\W\d_]+", sentence)
    return {stem(word) for word in words[1:] if word[0].isupper()}


def _verify(quote: str, hinted: Sequence[int], index: _PageIndex) -> Citation:
    pieces = [[word for word, _, _ in tokens(piece)] for piece in _ELLIPSIS.split(quote)]
    pieces = [piece for piece in pieces if piece]
    if pieces:
        order = dict.fromkeys([*hinted, *_pages_with(quote, index)])
        for place in order:
            span = _find_in_order(index.tokens(place), pieces)
            if span:
                return _citation(index.pages[place], *span, "verified")
        words = [word for piece in pieces for word in piece]
        near = _nearest(words, list(order)[: CANDIDATE_PAGES + len(hinted)], index)
        if near:
            return near
    if hinted:
        page = index.pages[hinted[0]]
        return Citation(page.document_id, page.document, page.page, page.label, quote.strip(), "not_found")
    return Citation("", "", 0, "", quote.strip(), "not_found")


def _pages_with(quote: str, index: _PageIndex) -> list[int]:
    """Pages worth a closer look: the ones that share most with the quote; all of them if it has only stop words."""
    weights = {term: index.weight(term) for term in terms(quote)}
    return index.best_pages(weights, 50) if weights else list(range(len(index.pages)))


def _find_in_order(page: list[tuple[str, int, int]], pieces: list[list[str]]) -> tuple[int, int] | None:
    """(start, end) in the page's text from the first to the last piece, if the page has them all in order."""
    words = [word for word, _, _ in page]
    place, first = 0, -1
    for piece in pieces:
        place = _find(words, piece, place)
        if place < 0:
            return None
        if first < 0:
            first = place
        place += len(piece)
    return page[first][1], page[place - 1][2]


def _find(words: list[str], piece: list[str], start: int) -> int:
    while True:
        try:
            start = words.index(piece[0], start)
        except ValueError:
            return -1
        if words[start : start + len(piece)] == piece:
            return start
        start += 1


def _nearest(quote: list[str], places: Iterable[int], index: _PageIndex) -> Citation | None:
    """The stretch of a page that is most like the quote, if it is near enough."""
    if len(quote) < 3:
        return None
    wanted = Counter(quote)
    best: tuple[float, int, int, int] | None = None
    for place in places:
        page = index.tokens(place)
        words = [word for word, _, _ in page]
        start = _densest(words, wanted, len(quote))
        low, high = max(0, start - len(quote) // 2), start + len(quote) + len(quote) // 2
        matcher = SequenceMatcher(None, words[low:high], quote, autojunk=False)
        blocks = [block for block in matcher.get_matching_blocks() if block.size]
        if not blocks:
            continue
        first, last = low + blocks[0].a, low + blocks[-1].a + blocks[-1].size
        likeness = 2 * sum(block.size for block in blocks) / (last - first + len(quote))
        if likeness >= NEAR and (best is None or likeness > best[0]):
            best = (likeness, place, page[first][1], page[last - 1][2])
    return _citation(index.pages[best[1]], best[2], best[3], "near") if best else None


def _densest(words: list[str], wanted: Counter[str], size: int) -> int:
    """Start of the run of `size` words that shares most words with the wanted ones; linear."""
    left = Counter(wanted)
    shared, best, best_start = 0, -1, 0
    for place, word in enumerate(words):
        if left[word] > 0:
            shared += 1
        left[word] -= 1
        if place >= size:
            old = words[place - size]
            left[old] += 1
            if left[old] > 0:
                shared -= 1
        if shared > best:
            best, best_start = shared, max(0, place - size + 1)
    return best_start


def _citation(page: PageSource, start: int, end: int, status: Status) -> Citation:
    return Citation(page.document_id, page.document, page.page, page.label, page.text[start:end].strip(), status)


def _without_repeats(citations: list[Citation]) -> list[Citation]:
    """Each passage once, where the answer first rests on it; a passage inside another of the same page counts as it."""
    kept: list[Citation] = []
    for citation in citations:
        same = (
            other
            for other in kept
            if (other.document_id, other.page) == (citation.document_id, citation.page)
            and (other.status == "not_found") == (citation.status == "not_found")
        )
        if not any(citation.quote in other.quote for other in same):
            kept.append(citation)
    return kept
