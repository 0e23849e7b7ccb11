"""Quotes with a known verdict, made by rule from real pages: right, near, on the wrong page, invented.

The rules know nothing of the checker. Whether a made-up quote happens to stand on a page after all is decided by
comparing bare letters and digits.
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from app.citations import PageSource

Verdict = Literal["right", "near", "wrong_page", "invented"]


@dataclass(frozen=True, slots=True)
class Case:
    """An answer that holds one quote. page: place of the page that has it, -1 for none. said: place that it names."""

    verdict: Verdict
    kind: str
    answer: str
    quote: str
    page: int
    said: int


DENSE = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")
MARKERS = (
    "[p. {p}]", "(page {p})", "[D{d} p{p}]", "【p. {p}】", "(p.{p})", "[page {p}]", "(see page {p})", "({n}, page {p})",
    "on page {p}", "第{p}页", "[{n}, p. {p}]", "(Seite {p})",
)  # fmt: skip
MARKS = (('"', '"'), ("“", "”"), ("„", "“"), ("«", "»"), ("「", "」"))


def letters(text: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFKC", text).casefold() if c.isalnum())


def sentences_of(page: PageSource) -> list[str]:
    """Whole sentences of prose, of 8 to 40 words or 12 to 80 characters of CJK."""
    if DENSE.search(page.text):
        found = re.findall(r"[^。！？]+[。！？]", page.text.replace("\n", ""))
        return [s for s in found if 12 <= len(s) <= 80]
    found = re.findall(r"(?<=[.!?]\s)[A-Z][^.!?|`\"“”\[\]#*>{}<=_]{30,260}[a-z)]\.(?=\s)", page.text)
    return [s for s in found if 8 <= len(s.split()) <= 40 and "\n\n" not in s and "\n-" not in s and "http" not in s]


class Maker:
    """Makes cases from pages; the seed decides which."""

    def __init__(self, pages: Sequence[PageSource], seed: int) -> None:
        self.pages = pages
        self.random = random.Random(seed)
        self.bare = [letters(page.text) for page in pages]
        self.documents = list(dict.fromkeys(page.document_id for page in pages))
        self.sentences = [(place, s) for place, page in enumerate(pages) for s in sentences_of(page)]
        self.names = [
            (place, name) for place, s in self.sentences for name in re.findall(r"(?<=[a-z,] )[A-Z][a-z]{3,}\b", s)
        ]

    def cases(self) -> Iterator[Case]:
        for place, sentence in self.sentences:
            dense = DENSE.search(sentence) is not None
            alone = sum(letters(sentence) in bare for bare in self.bare) == 1
            if not alone:
                continue
            yield self._case("right", "plain", sentence, place, place)
            for kind, change in RIGHT.items():
                yield from self._changed("right", kind, change, sentence, place, dense, stands=True)
            yield self._case("wrong_page", "plain", sentence, place, self._elsewhere(place))
            for kind, change in (NEAR_DENSE if dense else NEAR).items():
                yield from self._changed("near", kind, change, sentence, place, dense)
                if self.random.random() < 0.25:
                    yield from self._changed("wrong_page", kind, change, sentence, place, dense)
            for kind, change in (INVENTED_DENSE if dense else INVENTED).items():
                yield from self._changed("invented", kind, change, sentence, place, dense)

    def _changed(
        self, verdict: Verdict, kind: str, change: Change, sentence: str, place: int, dense: bool, stands: bool = False
    ) -> Iterator[Case]:
        quote = change(self, sentence, place)
        if quote is None or (letters(quote) == letters(sentence)) != (stands and kind != "ellipsis"):
            return
        if not stands and any(letters(quote) in bare for bare in self.bare):
            return
        said = self._elsewhere(place) if verdict == "wrong_page" else place
        yield self._case(verdict, kind, quote, -1 if verdict == "invented" else place, said)

    def _case(self, verdict: Verdict, kind: str, quote: str, page: int, said: int) -> Case:
        source = self.pages[said]
        numbers = {"p": source.page, "d": self.documents.index(source.document_id) + 1, "n": source.document}
        elsewhere = page >= 0 and source.document_id != self.pages[page].document_id
        marker = self.random.choice([m for m in MARKERS if not elsewhere or "{d}" in m or "{n}" in m]).format(**numbers)
        left, right = self.random.choice(MARKS)
        pattern = self.random.choice(("It says {q} {m}.", "{m} it says {q}.", "According to the text, {q} {m}."))
        answer = pattern.format(q=left + quote + right, m=marker)
        return Case(verdict, kind, answer, quote, page, said)

    def _elsewhere(self, place: int) -> int:
        """A page of the same document that a reader would not take for this one."""
        own = self.pages[place]
        others = [
            n
            for n, page in enumerate(self.pages)
            if page.document_id == own.document_id and abs(n - place) > 1
            if own.label != str(page.page) and page.label != str(own.page)  # "page 7" may mean either
        ]
        return self.random.choice(others or [n for n in range(len(self.pages)) if n != place])


Change = Callable[[Maker, str, int], "str | None"]


def _words(maker: Maker, sentence: str, pattern: str) -> list[re.Match[str]]:
    found = list(re.finditer(pattern, sentence))
    maker.random.shuffle(found)
    return found


def _replaced(sentence: str, match: re.Match[str], new: str) -> str:
    return re.sub(r"\s+", " ", sentence[: match.start()] + new + sentence[match.end() :]).strip()


def typeset(_: Maker, sentence: str, __: int) -> str:
    """As a word processor sets it: curly apostrophes, dashes, ligatures, capitals, other spaces."""
    changed = sentence.replace("'", "’").replace(" - ", " – ").replace("fi", "ﬁ").replace("ff", "ﬀ")
    return (changed[0].lower() + changed[1:]).replace(" ", "\u00a0", 2).rstrip(".")


def hyphenated(maker: Maker, sentence: str, _: int) -> str | None:
    for match in _words(maker, sentence, r"(?<!\w)[a-z]{7,}(?!\w)"):
        return sentence[: match.start() + 4] + "-\n" + sentence[match.start() + 4 :]
    return None


def full_width(_: Maker, sentence: str, __: int) -> str:
    """Other punctuation and full-width figures, a break within the sentence."""
    wide = sentence.translate(str.maketrans("0123456789", "０１２３４５６７８９"))
    return wide.replace("，", ", ").replace("、", " ").replace("。", ".").replace("的", "的\n", 1)


def ellipsis(maker: Maker, sentence: str, _: int) -> str | None:
    if DENSE.search(sentence):
        third = len(sentence) // 3
        left, gap, right = sentence[:third], sentence[third : 2 * third], sentence[2 * third :]
    else:
        words = sentence.split()
        third = len(words) // 3
        left, gap, right = (" ".join(part) for part in (words[:third], words[third : 2 * third], words[2 * third :]))
    if re.search(r"\d$", left) or re.search(r"\d$", gap):  # a figure is not cut
        return None
    if re.search(r"\b(not|no|never|neither|nor|cannot|without|unless|except)\b|n't|[不没無无非未]|ない|ません", gap):
        return None
    return f"{left} {maker.random.choice(('...', '…', '[...]', '[…]'))} {right}"


def misread(maker: Maker, sentence: str, _: int) -> str | None:
    """A scanner's errors."""
    pairs = (("m", "rn"), ("rn", "m"), ("d", "cl"), ("l", "1"), ("o", "0"), ("w", "vv"), ("i", "l"), ("e", "c"))
    for match in _words(maker, sentence, r"(?<![\w-])[a-z]{5,}(?![\w-])"):
        for old, new in maker.random.sample(pairs, len(pairs)):
            if old in match[0]:
                return _replaced(sentence, match, match[0].replace(old, new, 1))
    return None


def misspelled(maker: Maker, sentence: str, _: int) -> str | None:
    for match in _words(maker, sentence, r"(?<![\w-])[a-z]{7,}(?![\w-])"):
        at = maker.random.randrange(2, len(match[0]) - 2)
        word = match[0]
        return _replaced(sentence, match, word[:at] + word[at + 1] + word[at] + word[at + 2 :])
    return None


def article(maker: Maker, sentence: str, _: int) -> str | None:
    for match in _words(maker, sentence, r"(?<= )(?:the|a|an|that|which) "):
        return _replaced(sentence, match, "")
    return None


def ending(maker: Maker, sentence: str, _: int) -> str | None:
    for match in _words(maker, sentence, r"(?<![\w-])[a-z]{4,}[bdklmnprt](?![\w-])"):
        return _replaced(sentence, match, match[0] + "s")
    return None


def adverb(maker: Maker, sentence: str, _: int) -> str | None:
    for match in _words(
        maker, sentence, r"(?<= )(?!only|early|hardly|rarely|nearly|barely|apply|rely|reply|supply)[a-z]{3,}ly "
    ):
        return _replaced(sentence, match, "")
    return None


def particle(maker: Maker, sentence: str, _: int) -> str | None:
    for match in _words(maker, sentence, r"[的了は]"):
        return _replaced(sentence, match, "")
    return None


def scrambled(maker: Maker, sentence: str, _: int) -> str:
    words = sentence.rstrip(".").split()
    maker.random.shuffle(words)
    return " ".join(words)


def halves(_: Maker, sentence: str, __: int) -> str:
    words = sentence.rstrip(".").split()
    return " ".join(words[len(words) // 2 :] + words[: len(words) // 2])


def two_swapped(maker: Maker, sentence: str, _: int) -> str | None:
    found = list(re.finditer(r"(?<![\w-])[A-Za-z]{5,}(?![\w-])", sentence))
    pairs = [(a, b) for a in found for b in found if a.end() + 8 < b.start() and a[0].lower() != b[0].lower()]
    if not pairs:
        return None
    a, b = maker.random.choice(pairs)
    return f"{sentence[: a.start()]}{b[0]}{sentence[a.end() : b.start()]}{a[0]}{sentence[b.end() :]}"


def figure(maker: Maker, sentence: str, _: int) -> str | None:
    for match in _words(maker, sentence, r"\d+"):
        return _replaced(sentence, match, str(int(match[0]) + maker.random.choice((1, 10, 7))))
    return None


def denied(maker: Maker, sentence: str, _: int) -> str | None:
    for match in _words(maker, sentence, r"\b(is|are|was|were|can|must|does|do|has|have|will|may|should) (?!not)"):
        return _replaced(sentence, match, f"{match[1]} not ")
    return None


def undenied(maker: Maker, sentence: str, _: int) -> str | None:
    for match in _words(maker, sentence, r"\b(not|never) "):
        return _replaced(sentence, match, "")
    return None


def name(maker: Maker, sentence: str, place: int) -> str | None:
    for match in _words(maker, sentence, r"(?<=[a-z,] )[A-Z][a-z]{3,}\b"):
        others = [n for p, n in maker.names if p != place and n[:3] != match[0][:3]]
        if others:
            return _replaced(sentence, match, maker.random.choice(others))
    return None


def stitched(maker: Maker, sentence: str, place: int) -> str | None:
    others = [
        s
        for p, s in maker.sentences
        if abs(p - place) > 1 and (DENSE.search(s) is None) == (DENSE.search(sentence) is None)
    ]
    if not others:
        return None
    other = maker.random.choice(others)
    if DENSE.search(sentence):
        return sentence[: len(sentence) // 2] + other[len(other) // 2 :]
    words, more = sentence.split(), other.split()
    return " ".join(words[: len(words) // 2] + more[len(more) // 2 :])


def duty(maker: Maker, sentence: str, _: int) -> str | None:
    swaps = {"must": "may", "may": "must", "all": "some", "every": "some", "before": "after", "after": "before",
             "more": "less", "only": "also", "always": "sometimes", "and": "or", "first": "last"}  # fmt: skip
    for match in _words(maker, sentence, rf"\b(?:{'|'.join(swaps)})\b"):
        return _replaced(sentence, match, swaps[match[0]])
    return None


def dense_figure(maker: Maker, sentence: str, _: int) -> str | None:
    for match in _words(maker, sentence, r"[一二三四五六七八九十百]|\d+"):
        new = str(int(match[0]) + 3) if match[0].isdigit() and match[0].isascii() else "七九"[match[0] == "七"]
        return _replaced(sentence, match, new) if new != match[0] else None
    return None


def dense_denied(maker: Maker, sentence: str, _: int) -> str | None:
    pairs = (("可以", "不可以"), ("应当", "不应当"), ("将", "不将"), ("ます", "ません"), ("です", "ではありません"),
             ("必须", "不必"), ("不", ""), ("ません", "ます"), ("負责", "不负责"), ("需要", "不需要"))  # fmt: skip
    for old, new in maker.random.sample(pairs, len(pairs)):
        if old in sentence:
            return sentence.replace(old, new, 1)
    return None


def dense_name(maker: Maker, sentence: str, _: int) -> str | None:
    names = ("林海生", "霍尔姆", "陈志远", "周敏", "李文博", "ホルム", "田中健一", "佐藤美咲")
    for old in names:
        if old in sentence:
            return sentence.replace(old, maker.random.choice([n for n in names if n[0] != old[0] and len(n) > 2]), 1)
    return None


def dense_halves(_: Maker, sentence: str, __: int) -> str:
    half = len(sentence) // 2
    return sentence[half:].rstrip("。") + sentence[:half]


RIGHT: dict[str, Change] = {
    "typeset": typeset,
    "hyphenated": hyphenated,
    "full width": full_width,
    "ellipsis": ellipsis,
}
NEAR: dict[str, Change] = {
    "misread": misread, "misspelled": misspelled, "article": article, "ending": ending, "adverb": adverb,
}  # fmt: skip
NEAR_DENSE: dict[str, Change] = {"particle": particle}
INVENTED: dict[str, Change] = {
    "scrambled": scrambled, "halves": halves, "two swapped": two_swapped, "figure": figure, "denied": denied,
    "undenied": undenied, "name": name, "stitched": stitched, "duty": duty,
}  # fmt: skip
INVENTED_DENSE: dict[str, Change] = {
    "halves": dense_halves, "figure": dense_figure, "denied": dense_denied, "name": dense_name, "stitched": stitched,
}  # fmt: skip
