"""What an answer says about where things stand: pages, lines and footnotes, in whatever way it was written.

Understood are [D1 p12], [p. 12; p. 14], (page 12), (manual.pdf, pp. 12-13), [Page 3, marked xii], 【12】, see page 12,
第12页, 12ページ, page 3 of manual.pdf, src/a.py:12-20, src/a.py#L12, lines 10-20 of src/a.py, and footnotes that say
one of these at the end of the answer.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from app.citations.index import PageIndex, Scope
from app.page_labels import file_page

Scopes = tuple[Scope, ...]
"""Documents and files in them that one name may mean; none for no name."""
LONGEST_PATH = 240  # characters before a page in which a file's name is looked for
MOST_PAGES = 40  # that one claim names; a longer range is no place

_NAME = r"(?:[A-Z]{0,2}-?\d{1,5}|[ivxlcdm]{1,7})(?![\w])"
_PAGE = (
    r"(?:\bpages?\b|\bpgs?\b\.?|\bpp?\.|\bpp?(?=\s?\d)|\bp(?=\s[ivxlcdm]+\b)|\bSeiten?\b|\bS\.|\bpáginas?\b"
    r"|\bpágs?\.)[.:]?"
)
_AND = r"\s*(?:[-–—~～至到]|,|;|&|\band\b|\bund\b|\bto\b|\bet\b|、)\s*"
_OTHER = rf"(?!(?:D|Doc|Document)\.?\s?\d{{1,3}}\b[\s,;:]*{_PAGE})"  # [D1 p3, D2 p9]
_NAMES = rf"{_NAME}(?:{_AND}{_OTHER}(?:{_PAGE}\s*)?{_NAME})*"
_PAGES = re.compile(
    rf"{_PAGE}\s*(?P<after>{_NAMES})|第\s*(?P<dense>\d{{1,5}}(?:\s*[-–—~～至到、,和]\s*\d{{1,5}})*)\s*(?:页|頁|ページ|쪽)"
    r"|(?P<before>\d{1,5}(?:\s*[-–—~～]\s*\d{1,5})?)\s*(?:ページ|頁|쪽|페이지)",
    re.IGNORECASE,
)
_DOCUMENT = re.compile(
    r"\b(?:D|Doc|Document|Source)\.?\s?#?(?P<number>\d{1,3})(?!\d)|文[档檔書书]\s?(?P<dense>\d{1,3})", re.IGNORECASE
)
_RANGE = r"L?(?P<{0}first>\d{{1,7}})(?:\s?[-–—]\s?L?(?P<{0}last>\d{{1,7}}))?"
_PATH = r"(?P<{0}path>[\w./\\-]{{0,200}}\w\.[A-Za-z]\w{{0,9}}|[\w./-]{{0,200}}(?:Makefile|Dockerfile))"
_LINES = re.compile(
    _PATH.format("a") + r"`?(?::|#)" + _RANGE.format("a")
    + r"|\blines?\s+" + _RANGE.format("b") + r"\s+(?:of|in|from)\s+(?:the\s+file\s+)?`?" + _PATH.format("b")
    + r"|" + _PATH.format("c") + r"`?[\s,(]{1,4}(?:at\s+|on\s+)?lines?\s+" + _RANGE.format("c"),
    re.IGNORECASE,
)  # fmt: skip
# where the name of a path ends in front of lines, and where a match of the second kind begins; none takes a character
_LINES_TAIL = re.compile(
    r"(?=(?P<path>\.[A-Za-z]\w{0,9}|Makefile|Dockerfile)`?(?:[:#]|[\s,(]{1,4}(?:at\s+|on\s+)?lines?\s+)L?\d)"
    r"|(?=\blines?\s+L?\d)",
    re.IGNORECASE,
)
_PATH_CHARACTER = re.compile(r"[\w./\\-]")
LONGEST_NAME = 201  # characters of `_PATH` before its ending
_BRACKETS = re.compile(r"(?<!\w)\[\^?([^\[\]\n]{1,200})\](?!\()|[(（]([^()（）\n]{1,200})[)）]|【([^【】\n]{1,200})】")
_BARE = re.compile(r"\s*\d{1,5}(?:\s*[-–,;]\s*\d{1,5})*\s*")
_SUPERSCRIPT = re.compile(r"(?<=[^\s\d])[⁰¹²³⁴-⁹]{1,3}")
_SMALL = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
_LEAD_WORDS = re.compile(
    r"\b(?:see|also|cf|source|sources|ref|reference|from|at|on|in|of|the|document|doc|file|marked|printed|labell?ed|as|"
    r"siehe|vgl|voir)\b|[\s,;:.&/`'\"“”«»*_†|。()\[\]-]+",
    re.IGNORECASE,
)
_FOOTNOTE = re.compile(
    r"^[ \t]*(?:\[\^?(?P<number>\d{1,3})\]:?|(?P<high>[⁰¹²³⁴-⁹]{1,3})|(?P<listed>\d{1,3})[.)])[ \t]*(?P<text>\S.*)$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Claim:
    """One place that the answer names, at [start, end) of its text.

    places: of the pages that it may mean. written: what it names, as it is shown to a person ("p. 3", "a.py:12-20").
    firm: it has the form of a citation, so that something must stand there. first, last: lines, else 0.
    """

    start: int
    end: int
    written: str
    places: tuple[int, ...]
    firm: bool
    first: int = 0
    last: int = 0


def _start_of(claim: Claim) -> int:
    return claim.start


@dataclass(slots=True)
class Claims:
    """All claims of one answer in order; notes: [start, end) of footnotes that only name places."""

    found: list[Claim] = field(default_factory=list)
    notes: list[tuple[int, int]] = field(default_factory=list)

    def within(self, start: int, end: int) -> list[Claim]:
        first = bisect_left(self.found, start, key=_start_of)
        return self.found[first : bisect_left(self.found, end, lo=first, key=_start_of)]

    def in_note(self, start: int, end: int) -> bool:
        """Whether [start, end) lies in a footnote that only names places."""
        before = bisect_right(self.notes, start, key=lambda note: note[0])
        return before > 0 and end <= self.notes[before - 1][1]


def claims_of(answer: str, index: PageIndex, documents: Sequence[str]) -> Claims:
    """documents: ids in the order in which "D1" counts them."""
    reader = _Reader(index, documents)
    claims = Claims()
    footnotes = _footnotes(answer, reader, claims)
    taken = bytearray(len(answer))  # 1 for each character of a claim

    def take(start: int, end: int) -> None:
        taken[start:end] = b"\1" * (end - start)

    def is_free(start: int, end: int) -> bool:
        return taken.find(1, start, end) < 0

    for note in claims.notes:
        take(*note)

    for match in _named_lines(answer):
        claim = reader.lines(match)
        if claim and is_free(*match.span()):
            claims.found.append(claim)
            take(*match.span())
    for match in _BRACKETS.finditer(answer):
        if not is_free(*match.span()):
            continue
        claim = reader.bracket(match, footnotes)
        if claim:
            claims.found.append(claim)
            take(*match.span())
    for match in _PAGES.finditer(answer):
        if is_free(*match.span()):
            claims.found.append(reader.spoken(match, answer))
            take(*match.span())
    for match in _SUPERSCRIPT.finditer(answer):
        noted = footnotes.get(match[0].translate(_SMALL))
        if noted and is_free(*match.span()):
            claims.found.append(Claim(*match.span(), noted.written, noted.places, True, noted.first, noted.last))
    claims.found.sort(key=lambda claim: claim.start)
    return claims


def _named_lines(answer: str) -> Iterator[re.Match[str]]:
    """What `_LINES.finditer` gives. A match is tried only where one may begin: `_LINES` alone would try a path at every
    letter of a long word."""
    behind = 0
    for tail in _LINES_TAIL.finditer(answer):
        first = last = tail.start()
        if tail["path"] is not None:
            while first > max(behind, last - LONGEST_NAME) and _PATH_CHARACTER.match(answer, first - 1):
                first -= 1
        for start in range(max(first, behind), last + 1):
            match = _LINES.match(answer, start)
            if match:
                behind = match.end()
                yield match
                break


def without_claims(text: str, start: int, claims: Sequence[Claim]) -> str:
    """text, which stands at `start` of the answer, without the claims in it and without the blanks that they leave."""
    parts, place = [], 0
    for claim in claims:
        parts.append(text[place : max(place, claim.start - start)])
        place = max(place, claim.end - start)
    bare = " ".join([*parts, text[place:]])
    return re.sub(r"\s+(?=[.,;:!?。！？]|$)|\s+(?=\s)|[(\[]\s*[)\]]", "", bare)


def says_nothing_else(text: str, start: int, claims: Sequence[Claim]) -> bool:
    """Whether a text, which stands at `start` of the answer, only names places: "on page 3."."""
    return len(_LEAD_WORDS.sub("", without_claims(text, start, claims))) <= 3


def _footnotes(answer: str, reader: _Reader, claims: Claims) -> dict[str, Claim]:
    """Claims by the number of the footnote that makes them. A numbered list is none, unless it only names places."""
    found: dict[str, Claim] = {}
    for match in _FOOTNOTE.finditer(answer):
        number = match["number"] or match["listed"] or match["high"].translate(_SMALL)
        start = match.start("text")
        inner = reader.inside(match["text"], start, start + len(match["text"]), strict=True)
        if inner and inner.firm and number not in found:
            found[number] = inner
            claims.notes.append(match.span())
    return found


@dataclass(frozen=True, slots=True)
class _Reader:
    index: PageIndex
    documents: Sequence[str]

    def lines(self, match: re.Match[str]) -> Claim | None:
        which = next(letter for letter in "abc" if match[f"{letter}path"])
        path = match[f"{which}path"].replace("\\", "/").removeprefix("./")
        first = int(match[f"{which}first"])
        last = max(first, int(match[f"{which}last"] or first))
        if not self.index.has_file(path):
            return self._file_pages(match, path, first, last)
        written = f"{path}:{first}" if first == last else f"{path}:{first}-{last}"
        places = tuple(self.index.with_lines(path, first, last))
        return Claim(match.start(), match.end(), written, places, True, first, last)

    def _file_pages(self, match: re.Match[str], path: str, first: int, last: int) -> Claim | None:
        """docs/manual.pdf:3 names a page where the file has pages and no lines."""
        scopes = tuple(scope for scope in self._called(path) if scope.path)
        if not scopes:
            return None
        names = _expand(f"{first}-{last}") if last > first else [str(first)]
        return Claim(match.start(), match.end(), _written(names), self._places(scopes, names), True)

    def bracket(self, match: re.Match[str], footnotes: dict[str, Claim]) -> Claim | None:
        """A citation in brackets; None for anything else that stands in brackets."""
        inside = next(filter(None, match.groups()))
        start, end = match.span()
        if match[2] is None and _BARE.fullmatch(inside):  # round brackets hold years and amounts
            numbers = _expand(inside)
            noted = [footnotes[number] for number in numbers if number in footnotes]
            if noted:
                places = tuple(dict.fromkeys(place for claim in noted for place in claim.places))
                return Claim(start, end, "; ".join(claim.written for claim in noted), places, True)
            places = self._places((), numbers)
            return Claim(start, end, f"[{inside.strip()}]", places, True) if places else None
        return self.inside(inside, start, end, strict=False)

    def inside(self, text: str, start: int, end: int, *, strict: bool) -> Claim | None:
        """What brackets or a footnote name. strict: None if they say something else too; else it is a spoken claim."""
        pages = list(_PAGES.finditer(text))
        if not pages:
            return None
        document, rest = self._document(_PAGES.sub(" ", text))
        places: list[int] = []
        written: list[str] = []
        last = 0
        for match in pages:
            own, _ = self._document(text[last : match.start()])  # [D1 p3, D2 p4]: each its own
            document, last = own or document, match.end()
            names = _names(match)
            places += self._places(document, names)
            written.append(_written(names))
        places = self._marked(text, places)
        left = _LEAD_WORDS.sub("", rest)
        firm = len(left) <= 3 or re.fullmatch(_NAME, left, re.IGNORECASE) is not None
        if strict and not firm:
            return None
        return Claim(start, end, "; ".join(written), tuple(dict.fromkeys(places)), firm)

    def _marked(self, text: str, places: list[int]) -> list[int]:
        """Our own markers name both: [Page 3, marked xii], [Page 40, marked docs/manual.pdf:p3]."""
        whole = re.search(r"\b(?:marked|printed)\s+(\S.*)$", text.rstrip(), re.IGNORECASE)
        if whole and file_page(whole[1]) and (exact := self.index.labelled(whole[1])):
            return exact
        label = re.search(rf"\b(?:marked|printed)\s+({_NAME})", text, re.IGNORECASE)
        exact = [place for place in places if label and self.index.pages[place].label.casefold() == label[1].casefold()]
        return exact or places

    def spoken(self, match: re.Match[str], answer: str) -> Claim:
        """A page named in the middle of a sentence, with the document before or behind it."""
        before = answer[max(0, match.start() - 30) : match.start()]
        behind = re.match(r"\s*(?:of|in|from)\s+(?:the\s+)?[`\"“*_]*([^\n]{1,80})", answer[match.end() :])
        document = self._by_number(before) if re.search(r"\d\W{0,3}$", before) else ()
        if not document and behind:
            document = self._by_name(behind[1])
        if not document:
            document = self._by_file_before(answer[max(0, match.start() - LONGEST_PATH) : match.start()])
        names = _names(match)
        firm = match["dense"] is not None
        return Claim(match.start(), match.end(), _written(names), self._places(document, names), firm)

    def _places(self, scopes: Scopes, names: Sequence[str]) -> tuple[int, ...]:
        found = (place for scope in scopes or (None,) for name in names for place in self.index.named(scope, name))
        return tuple(dict.fromkeys(found))

    def _called(self, name: str) -> Scopes:
        """All documents and files that may be called so: manual.pdf may lie in two folders."""
        folded = name.casefold()
        return tuple(scope for known, scope in self.index.names if known.casefold() == folded)

    def _document(self, text: str) -> tuple[Scopes, str]:
        """(what the text names, documents or files in one, the text without that name)."""
        match = _DOCUMENT.search(text)
        if match:
            return self._by_number(text), text[: match.start()] + " " + text[match.end() :]
        folded = text.casefold()
        for known, _ in self.index.names:
            if known.casefold() in folded and (
                found := re.search(rf"(?<!\w){re.escape(known)}(?!\w)", text, re.IGNORECASE)
            ):
                return self._called(known), text[: found.start()] + " " + text[found.end() :]
        return (), text

    def _by_number(self, text: str) -> Scopes:
        numbers = [int(match["number"] or match["dense"]) for match in _DOCUMENT.finditer(text)]
        if numbers and 1 <= numbers[-1] <= len(self.documents):
            return (Scope(self.documents[numbers[-1] - 1]),)
        return ()

    def _by_name(self, text: str) -> Scopes:
        """The documents or files whose name the text begins with."""
        folded = text.casefold()
        name = next((known for known, _ in self.index.names if folded.startswith(known.casefold())), "")
        return self._called(name) if name else ()

    def _by_file_before(self, text: str) -> Scopes:
        """The files of a folder whose name, with its ending, stands just before: "docs/manual.pdf:p3"."""
        folded = re.sub(r"[\s,:(`'\"*]+$", "", text).casefold()
        for known, scope in self.index.names:
            if scope.path and "." in known and folded.endswith(known.casefold()):
                begin = len(folded) - len(known)
                if begin == 0 or not (folded[begin - 1].isalnum() or folded[begin - 1] in "_."):
                    return tuple(scope for scope in self._called(known) if scope.path)
        return ()


def _names(match: re.Match[str]) -> list[str]:
    return _expand(re.sub(_PAGE, " ", match["after"] or match["dense"] or match["before"], flags=re.IGNORECASE))


def _expand(text: str) -> list[str]:
    """Page names of "3", "3-5", "3, 5 and 7", "xii"; of a long range its ends."""
    names: list[str] = []
    for match in re.finditer(
        rf"(?P<a>\d{{1,5}})\s*[-–—~～至到]\s*(?P<b>\d{{1,5}})(?!\w)|(?P<one>{_NAME})", text, re.IGNORECASE
    ):
        if match["one"]:
            names.append(match["one"])
            continue
        first, last = int(match["a"]), int(match["b"])
        if first < last < first + MOST_PAGES:
            names += [str(number) for number in range(first, last + 1)]
        else:
            names += [match["a"], match["b"]]
    return list(dict.fromkeys(names))[:MOST_PAGES]


def _written(names: Sequence[str]) -> str:
    """["3", "4", "5"] -> "pp. 3-5"."""
    numbers = [int(name) if name.isdigit() else None for name in names]
    if (
        len(names) > 2
        and None not in numbers
        and numbers == list(range(numbers[0] or 0, (numbers[0] or 0) + len(names)))
    ):
        return f"pp. {names[0]}-{names[-1]}"
    return f"{'p.' if len(names) == 1 else 'pp.'} {', '.join(names)}"
