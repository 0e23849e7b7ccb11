"""What answers say about where things stand, in the forms that models write."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.citations import Citation, PageSource, attribute, recheck, verify
from app.citations.claims import claims_of
from app.citations.index import PageIndex

MANUAL = [
    PageSource("m", "manual.pdf", n, label, text)
    for n, label, text in (
        (1, "i", "The kettle holds two litres. It must not be opened while the water boils."),
        (2, "ii", "Descale the kettle every forty days with citric acid, and rinse it twice. The lid is not"),
        (3, "1", "part of the warranty. Spare parts are sold by Harlan and Brothers in 1998 for 25 euros."),
        (4, "2", "Nothing of interest stands on this page of the manual at all."),
    )
]
NOTES = [PageSource("n", "notes.pdf", n, str(n), f"Sheet {n} of the notes about boats.") for n in range(1, 21)]
CODE = [
    PageSource("c", "src", 1, "src/tide.py:L1-3", "def height(hour):\n    base = 4.2\n    return base * hour\n"),
    PageSource(
        "c", "src", 2, "src/tide.py:L4-6", "def alarm(level):\n    siren.sound(level)\n    log.warning('high water')\n"
    ),
    PageSource("c", "src", 3, "src/main.py:L1-2", "from tide import alarm\nalarm(3)\n"),
]
ALL = [*MANUAL, *NOTES, *CODE]
INDEX = PageIndex(tuple(ALL))


def named(answer: str) -> list[tuple[str, int]]:
    """(document, page) of all places that an answer names."""
    claims = claims_of(answer, INDEX, ["m", "n", "c"]).found
    return list(dict.fromkeys((ALL[place].document_id, ALL[place].page) for c in claims for place in c.places))


@pytest.mark.parametrize(
    ("answer", "places"),
    [
        ("It boils [D1 p2].", [("m", 4), ("m", 2)]),  # printed label first, then number
        ("It boils [D2 p12].", [("n", 12)]),
        ("It boils (Doc 2, page 7).", [("n", 7)]),
        ("It boils [Document 2, pp. 5-7].", [("n", 5), ("n", 6), ("n", 7)]),
        ("It boils [p. 12].", [("n", 12)]),
        ("It boils (page 12).", [("n", 12)]),
        ("It boils (p.12-13).", [("n", 12), ("n", 13)]),
        ("It boils (pages 12, 14 and 15).", [("n", 12), ("n", 14), ("n", 15)]),
        ("It boils [p. 12; p. 14].", [("n", 12), ("n", 14)]),
        ("It boils [D1 p3, D2 p9].", [("m", 3), ("n", 9)]),
        ("It boils 【12】.", [("n", 12)]),
        ("It boils 【p. 12】.", [("n", 12)]),
        ("It boils [12].", [("n", 12)]),
        ("It boils, see page 12.", [("n", 12)]),
        ("On page 12 it boils.", [("n", 12)]),
        ("It boils (manual.pdf, page iii).", []),
        ("It boils (manual.pdf, page ii).", [("m", 2)]),
        ("It boils (notes, page 3).", [("n", 3)]),
        ("It boils [Page 3, marked 1].", [("m", 3)]),
        ("It boils on page 3 of notes.pdf.", [("n", 3)]),
        ("水烧开了（第12页）。", [("n", 12)]),
        ("見出しは12ページにあります。", [("n", 12)]),
        ("Es kocht (Seite 12).", [("n", 12)]),
        ("It boils (S. 12).", [("n", 12)]),
        ("It rings in src/tide.py:5.", [("c", 2)]),
        ("It rings (tide.py:5-6).", [("c", 2)]),
        ("It rings (src/tide.py#L4-L6).", [("c", 2)]),
        ("Lines 1-2 of src/main.py ring.", [("c", 3)]),
        ("It rings (`src/tide.py`, lines 2-5).", [("c", 1), ("c", 2)]),
        ("It boils.¹\n\n¹ notes.pdf, page 8", [("n", 8)]),
        ("It boils [1].\n\n[1] notes.pdf, p. 8", [("n", 8)]),
        ("It boils [^1].\n\n[^1]: page 8 of notes.pdf", [("n", 8)]),
        ("It boils at 9:30, costs (14) and was built in (1904).", []),
        ("Ratio 3:4, see example.com:8080 and x[5000].", []),
        ("See the [link](http://a.example/page).", []),
        ("It boils 【4†source】.", []),
    ],
)
def test_forms(answer: str, places: list[tuple[str, int]]) -> None:
    assert named(answer) == places


def one(answer: str, pages: list[PageSource] = ALL) -> Citation:
    (found,) = attribute(answer, pages, documents=["m", "n", "c"])
    return found


def test_a_wrong_page_is_kept_and_repaired() -> None:
    found = one('It says "Spare parts are sold by Harlan and Brothers" (manual.pdf, page 4).')
    assert (found.document_id, found.page, found.status, found.said, found.named) == ("m", 3, "verified", "p. 4", False)
    right = one('It says "Spare parts are sold by Harlan and Brothers" (manual.pdf, page 3).')
    assert (right.page, right.said, right.named) == (3, "", True)
    beyond = one('It says "Spare parts are sold by Harlan and Brothers" (page 900).')
    assert (beyond.page, beyond.said) == (3, "p. 900")


def test_each_quote_has_the_page_behind_it() -> None:
    found = attribute(
        '"The kettle holds two litres" (p. i) but "Spare parts are sold by Harlan" (p. i).', MANUAL, documents=["m"]
    )
    assert [(c.page, c.said) for c in found] == [(1, ""), (3, "p. i")]


def test_a_quote_over_a_page_break() -> None:
    found = one('The manual says: "The lid is not part of the warranty." [p. ii]')
    assert (found.page, found.last_page, found.status, found.said) == (2, 3, "verified", "")
    assert found.quote == "The lid is not\npart of the warranty"
    assert one('It says "Spare parts of boats sold by Harlan and Sons" [p. 4].').status == "not_found"


def test_what_was_left_out() -> None:
    assert one('"Descale the kettle ... with citric acid" (p. 2)').status == "verified"
    hidden = one('"It must … be opened while the water boils" (p. 1)')
    assert hidden.status == "near", "the dots hide a denial"
    assert "not" in hidden.quote
    assert one('"Descale the kettle ... for 25 euros and more" (p. 2)').status == "not_found"


@pytest.mark.parametrize(
    ("quote", "status"),
    [
        ("Spare parts are sold by Harlan and Brothers in 1998 for 25 euros", "verified"),
        ("spare parts are sold by HARLAN & Brothers in 1998, for 25 euros", "near"),
        ("Spare parts are so1d by Harlan and Brothers in 1998 for 25 euros", "near"),
        ("Spare parts were sold by Harlan and Brothers in 1998 for 25 euros", "near"),
        ("Spare parts are sold by Harlan and Brothers in 1989 for 25 euros", "not_found"),
        ("Spare parts are sold by Harlan and Brothers in 1998 for 52 euros", "not_found"),
        ("Spare parts are sold by Harland and Brothers in 1998 for €25", "not_found"),
        ("Spare parts are not sold by Harlan and Brothers in 1998 for 25 euros", "not_found"),
        ("Spare parts are sold by Marlow and Brothers in 1998 for 25 euros", "not_found"),
        ("It must be opened while the water boils", "not_found"),
        ("It may not be opened while the water boils", "not_found"),
        ("It must not be open while the water boils", "near"),
        ("water must not be opened while it the boils", "not_found"),
        ("Descale the kettle every forty days with citric acid, and rinse it.", "verified"),
        ("Descale the kettle every forty days with citric acid and rinse twice", "near"),
        ("Descale the ket-\ntle every forty days", "verified"),
        ("Descale the kettle every fifty days with citric acid", "not_found"),
    ],
)
def test_near_as_a_lawyer_reads_it(quote: str, status: str) -> None:
    assert verify(quote, None, MANUAL).status == status


def test_footnotes_are_not_answers() -> None:
    found = attribute("The kettle holds two litres.¹\n\n¹ manual.pdf, page 4", ALL, documents=["m", "n", "c"])
    assert [(c.page, c.said, c.places) for c in found] == [(1, "p. 4", (29,))]


def test_code_has_its_lines() -> None:
    found = one("The siren is sounded with the level (src/tide.py:1).", CODE)
    assert (found.page, found.first_line, found.last_line, found.said) == (2, 5, 5, "src/tide.py:1")
    right = one("The siren is sounded with the level (src/tide.py:4-6).", CODE)
    assert (right.named, right.said) == (True, "")


def test_marks_stand_behind_the_sentence() -> None:
    table = "| What | Where |\n| --- | --- |\n| Spare parts are sold by Harlan | shop |"
    answer = f"{table}\n\n> The kettle holds two litres.\n\nYes."
    found = attribute(answer, MANUAL)
    for citation in found:
        for place in citation.places:
            assert answer[place - 1] not in "| \n"
    assert any(c.status == "verified" and c.page == 1 for c in found), "a block quote is a quote"


def test_one_passage_may_carry_several_sentences() -> None:
    answer = "The kettle holds two litres. Parts come from Harlan and Brothers. So the kettle holds two litres."
    found = attribute(answer, MANUAL)
    assert [len(c.places) for c in found] == [2, 1]


def test_recheck_keeps_what_was_said() -> None:
    (missing,) = attribute('It says "Sheet 7 of the notes about boats" (p. 2).', MANUAL)
    assert missing.status == "not_found"
    again = recheck(missing, ALL)
    assert (again.document_id, again.page, again.status, again.said) == ("n", 7, "verified", "p. 2")
    assert again.places == missing.places


@given(st.text(alphabet='()[]【】pP.12345 -,;:DdLl¹^\n"“”>`第页ivx', max_size=120))
@settings(max_examples=400, deadline=2_000)
def test_any_answer_is_read(answer: str) -> None:
    for claim in claims_of(answer, INDEX, ["m"]).found:
        assert 0 <= claim.start < claim.end <= len(answer)
    for citation in attribute(answer, ALL):
        assert all(0 <= place <= len(answer) for place in citation.places)


def test_thousands_of_citations_take_no_longer_than_their_number() -> None:
    index = PageIndex([PageSource("d", "a.txt", 1, "1", "Nothing.")])
    began = time.monotonic()
    assert len(claims_of("[p. 1]" * 20_000, index, ["d"]).found) == 20_000
    assert time.monotonic() - began < 10


def test_blanks_behind_the_marker_of_a_footnote_take_linear_time() -> None:
    index = PageIndex((PageSource("d", "a.txt", 1, "1", "Nothing."),))
    began = time.monotonic()
    claims_of("[1] page 3 marked x" + " " * 100_000 + "y\n", index, ["d"])
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(
    "written", ["(manual.pdf, p. 2)", "on page 2 of manual.pdf", "(manual, page 2)", "in manual.pdf, page 2"]
)
def test_a_name_that_two_files_have_means_either(inside: bool, written: str) -> None:
    quote = "The valve opens at nine bar"
    texts = (("a", "Alpha here."), ("a", "Nothing much."), ("b", "An intro."), ("b", f"{quote}."))
    pages = [
        PageSource("z", "all.zip", number, f"{folder}/manual.pdf:p{2 - number % 2}", text)
        if inside
        else PageSource(folder, "manual.pdf", 2 - number % 2, str(2 - number % 2), text)
        for number, (folder, text) in enumerate(texts, 1)
    ]
    (citation,) = attribute(f'"{quote}" {written}.', pages)
    assert (citation.status, citation.named, citation.said) == ("verified", True, "")
    assert citation.label.startswith("b/") or citation.document_id == "b"
