"""Long and hostile answers are checked in time that grows with their length; results are those of the plain ways."""

from __future__ import annotations

import random
from collections.abc import Callable
from difflib import SequenceMatcher
from time import process_time

import pytest

from app.citations.attribution import attribute, verify
from app.citations.claims import _LINES, _named_lines, claims_of
from app.citations.index import PageIndex, PageSource
from app.citations.longest import longest_shared

PAGES = [
    PageSource("d", "m.pdf", n, str(n), f"Page {n}. Lamp number {n * 37} burns until hour {n % 12} in room {n}.")
    for n in range(1, 41)
]


def _seconds(work: Callable[[], object]) -> float:
    start = process_time()
    work()
    return process_time() - start


@pytest.mark.parametrize(
    "answer",
    ["a" * 200_000, "a." * 100_000, "p." * 100_000, "a/" * 100_000, ("a" * 199 + " b.a:1 ") * 1_000, "lines " * 40_000],
    ids=lambda answer: answer[:10],
)
def test_claims_in_a_long_word_are_looked_for_in_no_time(answer: str) -> None:
    index = PageIndex(tuple(PAGES))
    assert _seconds(lambda: claims_of(answer, index, ["d"])) < 1.5  # it was 3 to 11


def test_thousands_of_quoted_lines_cost_as_much_each_as_a_thousand() -> None:
    def quoted(count: int) -> str:
        numbers = (n % 40 + 1 for n in range(count))
        return "".join(f"> Lamp number {n * 37} burns until hour {n % 12} in room {n}.\n\n" for n in numbers)

    short, long = (_seconds(lambda count=count: attribute(quoted(count), PAGES)) for count in (500, 6_000))
    assert long < 2.2 * 12 * short + 0.5, (short, long)  # it was three times as much a line


def test_a_long_quote_of_few_words_is_compared_in_no_time() -> None:
    words = "lamp burns and " * 300
    pages = [PageSource("d", "m.pdf", n, str(n), words) for n in range(1, 9)]
    quote = "lamp burns " * 298 + "x y z"
    assert _seconds(lambda: verify(quote, 1, pages)) < 0.9  # it was 2 to 4


@pytest.mark.parametrize("letters", ["a", "ab", "abc", "abcdefgh"])
def test_the_longest_shared_run_is_the_one_that_difflib_finds(letters: str) -> None:
    random.seed(len(letters))
    for _ in range(400):
        first = [random.choice([*letters, None]) for _ in range(random.randrange(0, 30))]
        second = [random.choice(letters) for _ in range(random.randrange(0, 30))]
        wanted = SequenceMatcher(None, first, second, autojunk=False).find_longest_match()
        found = longest_shared(first, second)
        assert (found.a, found.b, found.size) == tuple(wanted), (first, second)


def test_named_lines_are_those_of_the_plain_search() -> None:
    pieces = [*"a/.\\-:#L7 \n,(`é", "_b", "..", ".py", ".c", "12", "-3", "line ", "Lines ", "at ", "on ", "of "]
    pieces += ["in the file ", "Makefile", "dockerfile", "x" * 199, "s.py:3"]
    random.seed(5)
    seen = 0
    for _ in range(1_500):
        text = "".join(random.choice(pieces) for _ in range(random.randrange(1, 30)))
        wanted = [match.span() for match in _LINES.finditer(text)]
        assert [match.span() for match in _named_lines(text)] == wanted, text
        seen += len(wanted)
    assert seen > 300
