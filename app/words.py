"""Words and sentences of any language, with their places in the text: what citations are matched by.

Scripts that write no spaces between words (Chinese, Japanese, Korean, Thai, ...) are cut into characters for exact
matching and into pairs of characters for overlap.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

_DENSE = (
    "\u0e00-\u0eff\u1780-\u17ff"  # Thai, Lao, Khmer
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U0003ffff"
)
_NUMBER = r"\d+(?:[.,:]\d+)*"
_WORD = rf"[^\W\d_{_DENSE}]+(?:['’][^\W\d_{_DENSE}]+)?"
_TERM = re.compile(rf"[{_DENSE}]+|{_NUMBER}|{_WORD}")
# where exact wording counts, so do signs: -5 is not 5, and $5 is not €5
_TOKEN = re.compile(rf"[{_DENSE}]|(?:(?<![\w)\]])[-−])?{_NUMBER}|{_WORD}|[€£¥₹￥￡%％‰]|[$＄](?=\s?\d)")
_UNSEEN = re.compile("[\u00ad\u200b-\u200d\u2060\ufeff]")
_DENSE_ONLY = re.compile(rf"[{_DENSE}]+")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_ZERO_CENTS = re.compile(r"(?<=\d)[.,]00?$")

# a sentence ends at . ! ? before a blank, at the marks of scripts without blanks, and at an empty line
_SENTENCE_END = re.compile(
    r"(?:(?<=[.!?])|(?<=…)(?=\s+[^\W\da-zß-ÿ]))[\"'”’»)\]]*(?=\s)"
    r"|[。！？｡][」』）”’]*"
    r"|(?=\n[ \t]*\n)|\n(?=[ \t]{0,40}(?:[-*•▪·]|\d{1,3}[.)])\s)"
)
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\[【（])(?:[A-Za-z]|[A-Za-z]\.[A-Za-z]|Mr|Mrs|Ms|Dr|Prof|St|No|Nr|Nos|Fig|Eq|Sec|Ch|Vol|pp?|ca|cf|vs|etc|al|"
    r"approx|Inc|Ltd|Co|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec|bzw|usw|z\.B|d\.h|Abb|Bd|Art)\.$"
)

STOP_WORDS = frozenset(
    word
    for line in (
        "a about after all also an and any are as at be been before being between both but by can could did do",
        "does during each for from had has have he her here his how i if in into is it its itself may might more",
        "most must my no nor not of off on once only or other our out over own same shall she should so some such",
        "than that the their them then there these they this those through to too under until up upon very was we",
        "were what when where which while who whom whose why will with would yes you your answer based document",
        "documents found following given information mentioned page pages passage passages provided question said",
        "says section state stated states text according der die das den dem des ein eine einer eines einem einen",
        "und oder ist sind war im auf mit von zu zum zur für bei nicht le la les un une du et ou est sont dans sur",
        "avec pour par ne pas que qui el los las una y o es son en con por para del al se",
    )
    for word in line.split()
)


@lru_cache(maxsize=100_000)
def fold(word: str) -> str:
    """The form under which words are equal: width and ligatures unified, no case; 1,250.00 is 1250."""
    word = unicodedata.normalize("NFKC", word).casefold().replace("’", "'").replace("−", "-")
    if word.lstrip("-")[:1].isdigit():
        return _ZERO_CENTS.sub("", _THOUSANDS.sub("", word))
    return "%" if word == "percent" else word


@lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    """A folded word without the commonest endings of English: enough that "opens" meets "open"."""
    word = fold(word).removesuffix("'s")
    for ending in ("ing", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            word = word.removesuffix(ending)
            break
    return word.removesuffix("e") if len(word) > 3 else word


@lru_cache(maxsize=200_000)
def _terms_of(word: str) -> tuple[str, ...]:
    folded = fold(word)
    if is_dense(word):
        return tuple(folded[place : place + 2] for place in range(max(1, len(folded) - 1)))
    if word[0].isdigit():
        return (folded,)
    return () if folded in STOP_WORDS else (stem(word),)


def terms(text: str) -> list[str]:
    """Stems, numbers and pairs of dense characters, in order; stop words are left out."""
    return [term for word in _TERM.findall(text) for term in _terms_of(word)]


def term_set(text: str) -> frozenset[str]:
    """The same without order and repeats, faster."""
    return frozenset(term for word in set(_TERM.findall(text)) for term in _terms_of(word))


def tokens(text: str) -> list[tuple[str, int, int]]:
    """All words, numbers and dense characters as (folded, start, end), and the signs of amounts (€, $ %).

    Other punctuation, spacing and what cannot be seen (soft hyphens, marks of width zero) do not count.
    """
    if _UNSEEN.search(text):
        return _tokens_of_seen(text)
    return [(fold(match[0]), match.start(), match.end()) for match in _TOKEN.finditer(text)]


def _tokens_of_seen(text: str) -> list[tuple[str, int, int]]:
    """The same where marks that cannot be seen stand inside words."""
    places = [place for place, char in enumerate(text) if not _UNSEEN.match(char)]
    seen = "".join(text[place] for place in places)
    return [(fold(m[0]), places[m.start()], places[m.end() - 1] + 1) for m in _TOKEN.finditer(seen)]


def is_dense(word: str) -> bool:
    """Whether it is written in a script without spaces."""
    return _DENSE_ONLY.fullmatch(word) is not None


def sentences(text: str) -> Iterator[tuple[int, int]]:
    """(start, end) of each sentence, list item or paragraph, without the blanks around it."""
    start = 0
    for match in _SENTENCE_END.finditer(text):
        end = match.end()
        if text[end - 1 : end] == "." and _ABBREVIATION.search(text[max(start, end - 12) : end]):
            continue
        yield from _trimmed(text, start, end)
        start = end
    yield from _trimmed(text, start, len(text))


def _trimmed(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    part = text[start:end]
    if part.strip():
        yield start + len(part) - len(part.lstrip()), end - (len(part) - len(part.rstrip()))
