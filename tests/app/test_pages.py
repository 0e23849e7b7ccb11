import pytest

from app.errors import WrongUse
from app.pages import PageChoice, format_pages


@pytest.mark.parametrize(
    ("text", "total", "pages"),
    [
        ("1-3,5", 9, (1, 2, 3, 5)),
        ("3", 9, (3,)),
        (" 2 - 4 ; 1 ", 9, (1, 2, 3, 4)),
        ("7-", 9, (7, 8, 9)),
        ("1–2", 9, (1, 2)),
        ("none", 9, ()),
        ("2,2,1-2", 9, (1, 2)),
    ],
)
def test_a_choice_is_read(text: str, total: int, pages: tuple[int, ...]) -> None:
    assert PageChoice.parse(text).pages("any", total) == pages


@pytest.mark.parametrize("text", ["", "a", "1-b", "0", "5-3", "1,,x", "-3", "1.5"])
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(WrongUse) as caught:
        PageChoice.parse(text)
    assert caught.value.hint


def test_a_page_that_is_not_there_is_named() -> None:
    with pytest.raises(WrongUse, match=r"Page 12 .* 9 pages"):
        PageChoice.parse("1-12").pages("any", 9)


def test_choices_of_several_documents() -> None:
    choice = PageChoice.parse("1-2", "a").join(PageChoice.parse("none", "b"))
    assert choice.pages("a", 9) == (1, 2)
    assert choice.pages("b", 9) == ()
    assert choice.pages("c", 3) == (1, 2, 3)


def test_pages_are_written_as_ranges() -> None:
    assert format_pages((1, 2, 3, 7, 9, 10)) == "1-3,7,9-10"
    assert format_pages(()) == ""
    assert format_pages((4,)) == "4"
