"""An answer's sentences, each with where it stands: quotes and named pages checked, everything else attributed."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from app.citations.citation import Citation, Status, line_label, lines_of
from app.citations.claims import Claim, Claims, claims_of, says_nothing_else, without_claims
from app.citations.index import PageIndex, PageSource, page_index
from app.citations.quotes import look_up
from app.citations.support import Asked, Passage, support
from app.words import is_dense, sentences, term_set, tokens

_QUOTED = re.compile(
    r"“([^“”]+)”|„([^„“”]+)[“”]|«([^«»]+)»|「([^「」]+)」|『([^『』]+)』|(?<!\w)[\"＂]([^\"＂]+)[\"＂](?!\w)|‘([^‘]{12,}?)’(?!\w)"
)
_BLOCK_QUOTE = re.compile(r"^[ \t]*>[ \t]?(.*)$", re.MULTILINE)
_FENCE = re.compile(r"^[ \t]*(?:```|~~~).*?(?:^[ \t]*(?:```|~~~)[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)


def attribute(
    answer: str,
    pages: Sequence[PageSource],
    question: str = "",
    read: Sequence[str] = (),
    documents: Sequence[str] = (),
) -> list[Citation]:
    """Citations in the order of the answer, each passage once. A sentence that no page supports gets none.

    The question is optional: its words help to choose among passages when the answer is short ("At 9:30."), and a bare
    "Yes." rests on them alone. read: the texts that the model was given where those were not the pages in full.
    documents: ids in the conversation's order, for answers that write D2; else the order of the pages.
    """
    if not pages or not answer.strip():
        return []
    index = page_index(tuple(pages))
    asked = Asked({term: index.weight(term) for term in term_set(question)}, tuple(read))
    claims = claims_of(answer, index, documents or index.documents)
    found: list[Citation] = []
    for part in _parts(answer, claims):
        for citation in _cite(part, answer, index, asked):
            found.append(replace(citation, places=(part.place,)))
    return _merged(found)


def verify(quote: str, page_hint: int | str | None, pages: Sequence[PageSource]) -> Citation:
    """Look a quote up: on the hinted page (its number or its label) first, then on all others."""
    index = page_index(tuple(pages))
    places = tuple(index.named(None, str(page_hint))) if page_hint is not None else ()
    hint = [Claim(0, 0, f"p. {page_hint}", places, True)] if page_hint is not None else []
    return _verify(quote, hint, index)


def recheck(citation: Citation, pages: Sequence[PageSource]) -> Citation:
    """A quote that was not found, looked up again among more pages; what the answer named stays with it."""
    if citation.status != "not_found":
        return citation
    index = page_index(tuple(pages))
    places = [n for n, p in enumerate(index.pages) if (p.document_id, p.page) == (citation.document_id, citation.page)]
    written = citation.said or (f"p. {citation.label or citation.page}" if citation.page else "")
    claims = [Claim(0, 0, written, tuple(places), True)] if written else []
    again = _verify(citation.quote, claims, index)
    return citation if again.status == "not_found" else replace(again, places=citation.places)


@dataclass(frozen=True, slots=True)
class _Part:
    """A sentence, a block quote or code at [start, end) of the answer; place: where its mark stands."""

    start: int
    end: int
    place: int
    claims: tuple[Claim, ...]
    kind: str = "sentence"


def _parts(answer: str, claims: Claims) -> Iterator[_Part]:
    begin = 0
    for fence in _FENCE.finditer(answer):
        yield from _sentences(answer, begin, fence.start(), claims)
        begin = fence.end()
        yield _Part(fence.start(), begin, begin, (), "code")
    yield from _sentences(answer, begin, len(answer), claims)


def _sentences(answer: str, begin: int, end: int, claims: Claims) -> Iterator[_Part]:
    """Sentences with their claims. What only names places, behind a sentence on its line, belongs to that sentence."""
    spans: list[tuple[int, int]] = []
    inside = [(claim.start - begin, claim.end - begin) for claim in claims.within(begin, end)]
    for start, stop in _whole_quotes(answer[begin:end], inside):
        start, stop = begin + start, begin + stop
        if claims.in_note(start, stop):
            continue
        own = claims.within(start, stop)
        same_line = bool(spans) and "\n" not in answer[spans[-1][1] : start]
        if own and same_line and says_nothing_else(answer[start:stop], start, own):
            spans[-1] = (spans[-1][0], stop)
            continue
        if own and same_line and own[0].start == start and own[0].firm:
            spans[-1] = (spans[-1][0], own[0].end)
            start = own[0].end
            while start < stop and answer[start] in " \t.,;。":
                start += 1
        if answer[start:stop].strip():
            spans.append((start, stop))
    for start, stop in spans:
        kind = "block" if answer[start:stop].lstrip().startswith(">") else "sentence"
        yield _Part(start, stop, _mark_place(answer, start, stop), tuple(claims.within(start, stop)), kind)


def _mark_place(answer: str, start: int, stop: int) -> int:
    """Behind the sentence, but inside a table's cell."""
    text = answer[start:stop].rstrip()
    while text.endswith("|"):
        text = text[:-1].rstrip()
    return start + len(text) if text else stop


def _whole_quotes(text: str, claims: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sentences, joined where one quotation, block quote or claim runs through several of them."""
    quoted = [match.span() for match in _QUOTED.finditer(text) if "\n\n" not in match[0]]
    blocks = list(_BLOCK_QUOTE.finditer(text))
    for place, line in enumerate(blocks):
        if place and text[blocks[place - 1].end() : line.start()] == "\n":
            quoted[-1] = (quoted[-1][0], line.end())
        else:
            quoted.append(line.span())
    quoted += claims
    quoted.sort()
    reach = list(accumulate((end for _, end in quoted), max))  # how far this one and those before it go
    joined: list[tuple[int, int]] = []
    for start, end in sentences(text):
        before = bisect_left(quoted, (joined[-1][1],)) if joined else 0  # those that begin before that sentence's end
        if before and start < reach[before - 1]:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _cite(part: _Part, answer: str, index: PageIndex, asked: Asked) -> list[Citation]:
    text = answer[part.start : part.end]
    if part.kind == "code":  # what stands in double quotes there is no quotation
        found = support(text, index, asked, ())
        return [_supported(found, index, ())] if found else []
    if part.kind == "block":
        lines = " ".join(match[1] for match in _BLOCK_QUOTE.finditer(text))
        checked = _verify(without_claims(lines, 0, ()), part.claims, index)
        if checked.status != "not_found":
            return [checked]
    quotes = [match for match in _QUOTED.finditer(text) if _long_enough(next(filter(None, match.groups())))]
    if quotes:
        return [_quoted(match, part, _claims_for(part, quotes, number), index) for number, match in enumerate(quotes)]
    bare = without_claims(text, part.start, part.claims)
    firm = any(claim.firm for claim in part.claims)
    checked = _verify(bare, part.claims, index) if firm and _long_enough(bare) else None
    if checked and checked.status != "not_found":
        return [checked]
    found = support(bare, index, asked, [place for claim in part.claims for place in claim.places])
    if found:
        return [_supported(found, index, part.claims)]
    return [checked] if checked else []


def _quoted(match: re.Match[str], part: _Part, claims: Sequence[Claim], index: PageIndex) -> Citation:
    """What stands between the quotation marks: without page numbers that the answer wrote in there, unless the page
    has them too ("see page 36")."""
    group = next(number for number, value in enumerate(match.groups(), 1) if value)
    start, end = (part.start + place for place in match.span(group))
    inside = [claim for claim in part.claims if claim.firm and start <= claim.start < end]
    if inside:
        outside = [claim for claim in claims if not start <= claim.start < end]
        whole = _verify(match[group], outside, index)
        if whole.status == "verified":
            return whole
    return _verify(without_claims(match[group], start, inside), claims, index)


def _claims_for(part: _Part, quotes: Sequence[re.Match[str]], number: int) -> tuple[Claim, ...]:
    """The claims behind a quote and before the next one; else those before it; else all of the sentence."""
    begin = part.start + quotes[number].start()
    end = part.start + quotes[number + 1].start() if number + 1 < len(quotes) else part.end
    before = part.start + quotes[number - 1].end() if number else part.start
    behind = tuple(claim for claim in part.claims if begin <= claim.start < end)
    if len(quotes) == 1 or not part.claims:
        return part.claims
    return behind or tuple(claim for claim in part.claims if before <= claim.start < begin) or part.claims


def _long_enough(quote: str) -> bool:
    """Four words, or six characters of a script without spaces: shorter quotation marks only set a word off."""
    words = [word for word, _, _ in tokens(quote)]
    dense = sum(1 for word in words if is_dense(word))
    return dense >= 6 or len(words) >= 4


def _verify(quote: str, claims: Sequence[Claim], index: PageIndex) -> Citation:
    hinted = list(dict.fromkeys(place for claim in claims for place in claim.places))
    found = look_up(quote, hinted, index)
    if found is None:
        page = index.pages[hinted[0]] if hinted else None
        said = "" if page else _written(claims)
        quote = quote.strip()
        if page is None:
            return Citation("", "", 0, "", quote, "not_found", said=said)
        return Citation(page.document_id, page.document, page.page, page.label, quote, "not_found", named=True)
    on = {found.place, found.next_place} - {None}
    page = index.pages[found.place]
    if found.next_place is None:
        return _citation(page, found.start, found.end, found.status, claims, on)
    after = index.pages[found.next_place]
    first = _citation(page, found.start, len(page.text), found.status, claims, on)
    lines = line_label(after.label)
    return replace(
        first,
        quote=f"{first.quote}\n{after.text[: found.end].strip()}",
        last_page=after.page,
        last_line=lines_of(after.label, after.text, 0, found.end)[1] if lines else 0,
    )


def _supported(found: Passage, index: PageIndex, claims: Sequence[Claim]) -> Citation:
    return _citation(index.pages[found.place], found.start, found.end, "attributed", claims, {found.place})


def _citation(
    page: PageSource, start: int, end: int, status: Status, claims: Sequence[Claim], on: Iterable[int | None]
) -> Citation:
    """on: places of the pages where it stands, to compare with what the answer named."""
    text = page.text[start:end]
    start, end = start + len(text) - len(text.lstrip()), start + len(text.rstrip())
    first, last = lines_of(page.label, page.text, start, end)
    stands = set(on)
    named = any(
        stands.intersection(claim.places) and (not claim.first or (claim.first <= last and first <= claim.last))
        for claim in claims
    )
    return Citation(
        page.document_id,
        page.document,
        page.page,
        page.label,
        page.text[start:end],
        status,
        named=named,
        said="" if named else _written(claims),
        first_line=first,
        last_line=last,
    )


def _written(claims: Sequence[Claim]) -> str:
    return "; ".join(dict.fromkeys(claim.written for claim in claims))


def _merged(citations: list[Citation]) -> list[Citation]:
    """Each passage once, with every place that rests on it; a passage inside another of the same page counts as it."""
    kept: list[Citation] = []
    places: list[set[int]] = []
    of_page: dict[tuple[str, int, str, bool], list[int]] = defaultdict(list)
    known: dict[tuple[tuple[str, int, str, bool], str], int] = {}  # which one holds a quote that came before
    for citation in citations:
        key = (citation.document_id, citation.page, citation.said, citation.status == "not_found")
        number = known.get((key, citation.quote))
        if number is None:
            number = next((n for n in of_page[key] if citation.quote in kept[n].quote), len(kept))
            known[key, citation.quote] = number
        if number == len(kept):
            of_page[key].append(number)
            kept.append(citation)
            places.append(set(citation.places))
        else:
            places[number].update(citation.places)
            kept[number] = replace(kept[number], named=kept[number].named or citation.named)
    return [replace(one, places=tuple(sorted(found))) for one, found in zip(kept, places, strict=True)]
