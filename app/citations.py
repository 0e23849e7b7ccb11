"""Which page says so: quotes of an answer checked, every other sentence attributed, against the pages that were read.

The result always quotes the page's own text. Status:
  attributed  the app itself found the passage that supports the sentence, by the words that both use
  verified    the answer quoted this and the page has the same words (case, punctuation and line breaks aside)
  near        the answer quoted this and the page has almost the same words
  not_found   the answer quoted, or named a page for, something that no page says; quote is then the answer's text
A wrong page in the answer is repaired. Parsing is tolerant: [p. 12], (page 12), [D1 p12], 第12页, src/a.py:12, [12].
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from app.page_index import CANDIDATE_PAGES, PageIndex, PageSource, page_index
from app.words import is_dense, sentences, stem, term_set, terms, tokens

Status = Literal["attributed", "verified", "near", "not_found"]

SUPPORT = 0.5  # share of a sentence's weight that a passage must hold
NEAR = 0.7  # likeness of word sequences (0 to 1) that counts as near
ASKS = 0.1  # off for a passage that ends in a question: the sentence after it says more
QUESTION_WEIGHT = 0.5  # of the question's words, which only help to choose between passages
READ = 0.15  # for a passage that the model read word for word, beside others of the same page that it did not see


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
    index = page_index(tuple(pages))
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
    index = page_index(tuple(pages))
    hinted = index.named(None, str(page_hint)) if page_hint is not None else []
    return _verify(quote, hinted, index)


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


def _cite_sentence(sentence: str, index: PageIndex, asked: _Asked) -> list[Citation]:
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


def _hints(sentence: str, index: PageIndex) -> tuple[list[int], bool]:
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


def _support(sentence: str, index: PageIndex, asked: _Asked, hinted: Iterable[int]) -> Citation | None:
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


def _telling(matched: Iterable[str], weights: dict[str, float], index: PageIndex) -> bool:
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


def _verify(quote: str, hinted: Sequence[int], index: PageIndex) -> Citation:
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


def _pages_with(quote: str, index: PageIndex) -> list[int]:
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


def _nearest(quote: list[str], places: Iterable[int], index: PageIndex) -> Citation | None:
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
