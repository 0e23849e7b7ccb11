"""Whether a stretch of a page is nearly what a quote says: slips that change no fact.

From the longest run that both share, words are aligned outwards, and each difference is judged. A figure, a denial, a
name, a duty or a quantity that differs ends it, and so does a word that only changed its place, a plain word more than
the page has, or one plain word for another that is not known to say the same. What remains (articles, endings,
spelling, a scanner's errors, a plain word left out or one of the same sense) costs a little, and a quote may cost about
one plain word in seven.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from app.citations.longest import Shared, longest_shared
from app.citations.senses import is_aside, same_amount, same_sense, written_out
from app.citations.stream import Token
from app.citations.telling import is_article, is_filler, is_form, is_harmless, is_misread, is_name, is_slip, is_telling
from app.words import is_dense, stem

SHARE = 0.15  # cost that a quote may have, by its words
LEAST_WORDS, MOST_WORDS = 4, 600
HARMLESS, SLIP, PLAIN = 0.25, 0.3, 1.0
BAND = 8  # words by which the two may drift apart
PLACES = 6  # within so many words a word that one side lacks and the other has more is the same word, moved
ANCHORS = 2  # of a page that are tried
MERGED = 4  # words that one word may have been cut into
Spread = Callable[[str], int]
"""On how many pages of the documents a folded word stands."""
ENDS = (*".!?:;。！？：；", "")
_FOOTNOTE = re.compile(r"\d{1,3}")


@dataclass(frozen=True, slots=True)
class Word:
    """A folded word, as it is written. glued: right behind a letter, a figure or a bracket. ends: a sentence."""

    folded: str
    written: str
    glued: bool = False
    ends: bool = False


@dataclass(frozen=True, slots=True)
class Near:
    """Tokens [first, last) of the page, and what the differences cost."""

    first: int
    last: int
    cost: float


def words_of(text: str, taken: Sequence[Token]) -> list[Word]:
    return [
        Word(
            word,
            text[start:end],
            start > 0 and (text[start - 1].isalnum() or text[start - 1] in "[,.;’'\")]"),
            text[end : end + 1] in ENDS or text[end : end + 2] == "\n\n",
        )
        for word, start, end in taken
    ]


def nearest(page: Sequence[Token], text: str, quote: Sequence[Word], spread: Spread) -> Near | None:
    """The stretch of the page (its tokens and its text) that is nearly the quote, or None."""
    size = len(quote)
    if not LEAST_WORDS <= size <= MOST_WORDS:
        return None
    wanted = [word.folded for word in quote]
    counted = Counter(wanted)
    hits = [(place, token[0]) for place, token in enumerate(page) if token[0] in counted]
    for _ in range(ANCHORS):
        start, shared = _densest(hits, counted, size)
        if shared < 0.6 * size - 2:
            return None
        low, high = max(0, start - size // 2 - BAND), min(len(page), start + size + size // 2 + BAND)
        folded: list[str | None] = [None] * (high - low)
        for place, word in hits:
            if low <= place < high:
                folded[place - low] = word
        anchor = longest_shared(folded, wanted)
        if anchor.size < 2:
            return None
        found = _aligned(words_of(text, page[low:high]), quote, anchor, spread)
        if found is not None:
            return Near(low + found.first, low + found.last, found.cost)
        begin = low + anchor.a  # the page may say nearly the same twice
        hits = [hit for hit in hits if not begin <= hit[0] < begin + anchor.size]
    return None


def _aligned(words: Sequence[Word], quote: Sequence[Word], anchor: Shared, spread: Spread) -> Near | None:
    """The stretch of these words around the anchor that is nearly the quote, or None."""
    size = len(quote)
    allowed = max(1.0 if size >= 6 else 0.6, SHARE * size)
    before = words[: anchor.a][::-1], quote[: anchor.b][::-1]
    left = _Side(*before, allowed, words[anchor.a], spread, backwards=True).align()
    if left is None:
        return None
    end = anchor.a + anchor.size
    behind = words[end:], quote[anchor.b + anchor.size :]
    right = _Side(*behind, allowed - left.cost, words[end - 1], spread).align()
    if right is None or left.cost + right.cost > allowed:
        return None
    changes = [replace(change, place=-change.place) for change in left.changes]
    changes += [replace(change, place=anchor.size + change.place) for change in right.changes]
    return None if _moved(changes) else Near(anchor.a - left.taken, end + right.taken, left.cost + right.cost)


@dataclass(frozen=True, slots=True)
class _Change:
    """A folded word that only one of the two has: the quote, or the page.

    place: words of the quote from the anchor to it. paired: with a word of the other that it stands for.
    """

    word: str
    quoted: bool
    place: int
    paired: bool


@dataclass(frozen=True, slots=True)
class _Aligned:
    """cost, words of the page taken in, and the words that only one of the two has."""

    cost: float
    taken: int
    changes: Sequence[_Change]


@dataclass(frozen=True, slots=True)
class _Step:
    """From (page word, quote word) one step on: so many words of each, at this cost."""

    there: int
    quoted: int
    cost: float


class _Side:
    """Aligns all of `quoted` with the beginning of `there`, behind the word `before`; backwards: right to left."""

    def __init__(
        self,
        there: Sequence[Word],
        quoted: Sequence[Word],
        allowed: float,
        before: Word,
        spread: Spread,
        backwards: bool = False,
    ) -> None:
        self.there, self.quoted, self.allowed = there, quoted, allowed
        self.before, self.spread, self.backwards = before, spread, backwards

    def align(self) -> _Aligned | None:
        reached: list[dict[int, tuple[float, _Step | None]]] = [{} for _ in range(len(self.quoted) + 1)]
        reached[0][0] = (0.0, None)
        for j in range(len(self.quoted) + 1):
            for i in range(max(0, j - BAND), min(len(self.there), j + BAND) + 1):
                if i not in reached[j]:
                    continue
                cost = reached[j][i][0]
                for step in self._steps(i, j):
                    total = cost + step.cost
                    goal = reached[j + step.quoted]
                    if total <= self.allowed and (i + step.there not in goal or total < goal[i + step.there][0]):
                        goal[i + step.there] = (total, step)
        if not reached[-1]:
            return None
        for taken in sorted(reached[-1], key=lambda i: (reached[-1][i][0], i)):
            aligned = self._judged(taken, reached)
            if aligned is not None:
                return aligned
        return None

    def _steps(self, i: int, j: int) -> list[_Step]:
        steps: list[_Step] = []
        mine = self.there[i] if i < len(self.there) else None
        theirs = self.quoted[j] if j < len(self.quoted) else None
        if mine and is_aside([word.folded for word in self._run(self.there, i, 2)]):
            steps.append(_Step(2, 0, HARMLESS))
        if mine and theirs and mine.folded == theirs.folded:
            return [*steps, _Step(1, 1, 0.0)]
        if mine and theirs:
            steps += _step(1, 1, _price(mine, theirs, self.spread))
            for size in range(2, MERGED + 1):
                steps += _step(size, 1, _merged(self._run(self.there, i, size), [theirs]))
                steps += _step(1, size, _merged([mine], self._run(self.quoted, j, size)))
        if mine:
            steps += _step(1, 0, HARMLESS if self._said_twice(self.there, i) else _left_out(mine))
        if theirs:
            steps += _step(0, 1, HARMLESS if self._said_twice(self.quoted, j) else _put_in(theirs))
        return steps

    def _said_twice(self, words: Sequence[Word], place: int) -> bool:
        """A word that was written twice by a slip: "to to". Figures are meant."""
        word, other = words[place].folded, (words[place - 1] if place else self.before).folded
        return word == other and word.isalpha() and not is_dense(word)

    def _run(self, words: Sequence[Word], start: int, size: int) -> Sequence[Word]:
        run = words[start : start + size]
        return (run[::-1] if self.backwards else run) if len(run) == size else ()

    def _judged(self, taken: int, reached: list[dict[int, tuple[float, _Step | None]]]) -> _Aligned | None:
        changes: list[_Change] = []
        i, j = taken, len(self.quoted)
        run = changed = 0  # plain characters of a script without blanks in a row, and whether some were exchanged
        outermost = edge = True  # outermost: only words put in so far; edge: no word that both have
        while (step := reached[j][i][1]) is not None:
            i, j = i - step.there, j - step.quoted
            mine = self.there[i] if step.there else None
            theirs = self.quoted[j] if step.quoted else None
            if step.cost in (HARMLESS, PLAIN):
                paired = mine is not None and theirs is not None
                changes += [_Change(word.folded, word is theirs, j, paired) for word in (mine, theirs) if word]
            outermost = outermost and not step.there
            adds = theirs is not None and not (
                is_article(theirs.folded) or (is_dense(theirs.folded) and step.cost < PLAIN)
            )
            if outermost and adds and not self._is_sentence_end(taken):  # the page goes on in other words
                return None
            if step.cost < PLAIN:
                run = changed = 0
                edge = edge and not step.there
                continue
            if is_dense((theirs or self.there[i]).folded):
                run += 1
                changed += mine is not None and theirs is not None
                if run > 2 or (run == 2 and changed) or edge:  # that is another word
                    return None
        return _Aligned(reached[len(self.quoted)][taken][0], taken, changes)

    def _is_sentence_end(self, taken: int) -> bool:
        """Whether the page's sentence ends, or begins, where the quote's words end to be those of the page."""
        if self.backwards:
            return taken == len(self.there) or self.there[taken].ends
        return self.there[taken - 1].ends if taken else self.before.ends


def _step(there: int, quoted: int, price: float | None) -> list[_Step]:
    return [] if price is None else [_Step(there, quoted, price)]


def _moved(changes: Sequence[_Change]) -> bool:
    """Whether a word only changed its place, or another stands where the page has a plain one."""
    for less, more in product(changes, changes):
        if less.quoted or not more.quoted:
            continue
        apart = abs(less.place - more.place)
        if stem(less.word) == stem(more.word) and (apart <= PLACES or not is_harmless(less.word)):
            return True
        kept = is_harmless(less.word) or is_article(more.word) or is_filler(more.word) or is_dense(more.word)
        if apart <= 1 and not kept and not (less.paired and same_sense(less.word, more.word)):
            return True
    return False


def _left_out(word: Word) -> float | None:
    """What it costs that only the page has this word; None if it changes a fact."""
    if is_telling(word.folded, word.written):
        return HARMLESS if word.glued and _FOOTNOTE.fullmatch(word.folded) else None  # a footnote's number is no figure
    return HARMLESS if is_harmless(word.folded) else PLAIN


def _put_in(word: Word) -> float | None:
    """What it costs that only the quote has this word; None if it says more than the page."""
    if is_harmless(word.folded):
        return HARMLESS
    plain = is_dense(word.folded) and not is_telling(word.folded, word.written)
    return PLAIN if plain or is_filler(word.folded) else None


def _price(there: Word, quoted: Word, spread: Spread) -> float | None:
    """What it costs that the page has one word where the quote has another; None if it changes a fact."""
    a, b = there.folded, quoted.folded
    name = is_name(a, there.written) or is_name(b, quoted.written)
    if same_amount(a, b) or written_out(a) == written_out(b) or is_form(a, b):
        return SLIP
    if is_slip(a, b, name=name) and (name or is_misread(a, b) or spread(a) < 2 or not spread(b)):
        return SLIP  # two words that both stand in the documents, rbind and cbind, are two
    if same_sense(a, b):
        return PLAIN
    if name or is_telling(a, there.written) or is_telling(b, quoted.written):
        return None
    if is_harmless(a) and is_harmless(b):
        return HARMLESS
    return PLAIN if is_dense(a) or is_dense(b) else None


def _merged(there: Sequence[Word], quoted: Sequence[Word]) -> float | None:
    """Whether both are the same letters, cut into words differently or misread by a scanner."""
    if not there or not quoted:
        return None
    a, b = ("".join([written_out(word.folded) for word in words]) for words in (there, quoted))
    if abs(len(a) - len(b)) > 2:
        return None
    if a == b:
        return SLIP
    several = there if len(there) > 1 else quoted
    glued = all(word.glued for word in several[1:])
    return SLIP if glued and is_misread(a, b) else None


def _densest(hits: Sequence[tuple[int, str]], wanted: Counter[str], size: int) -> tuple[int, int]:
    """(start, words shared) of the run of `size` words that shares most words with the wanted ones; linear.

    hits: (place, word) of all wanted words of the page.
    """
    inside: Counter[str] = Counter()
    shared = best = best_start = behind = 0
    for place, word in hits:
        while hits[behind][0] <= place - size:
            gone = hits[behind][1]
            shared -= inside[gone] <= wanted[gone]
            inside[gone] -= 1
            behind += 1
        inside[word] += 1
        shared += inside[word] <= wanted[word]
        if shared > best:
            best, best_start = shared, max(0, place - size + 1)
    return best_start, best
