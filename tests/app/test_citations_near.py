"""What is nearly a quote and what is none, rule by rule."""

from __future__ import annotations

import pytest

from app.citations import PageSource, attribute, verify

MANUAL = [
    PageSource(
        "m",
        "manual.pdf",
        1,
        "1",
        "The clerk keeps the sealed letters in the drawer, e.g. those of the owner, and opens them quickly. "
        "The tool encrypts two files at once if the key is larger than the file. "
        "The strings of the harp are tuned, and the entries of the list are sorted by colour. "
        "It is not safe to move the table while the lamp is lit. "
        "The guide supplies examples, maps and tables for the northern routes. "
        "Users can not merge branches without asking; it is required that they need a second reader. "
        "The default rule applies when only slides are printed and the wide option is used. Every page is set "
        "as one sheet without any margin at all, and so on until the whole of it has been laid out with care. "
        "The default rule applies when only slides are printed and the wide option is not used. "
        "All other options are described elsewhere: rotation (page 36), layers (page 21). "
        "Call rbind to join the rows of both frames into one. Call cbind to join columns instead.",
    ),
    PageSource("m", "manual.pdf", 2, "2", "With rbind and cbind frames are joined. Nothing else stands here."),
]


@pytest.mark.parametrize(
    "quote",
    [
        "The clerk keeps the sealed letters in the drawer, those of the owner, and opens them quickly",  # an aside
        "The clerk retains the sealed letters in the drawer",  # a word of the same sense
        "it is required that they require a second reader",  # of a duty
        "The tool encrypts 2 files at once if the key is larger than the file",
        "The string of the harp are tuned, and the entry of the list are sorted by color",
        "It isn't safe to move the table while the lamp is lit",
        "Users can't merge branches without asking",
        "The guide supplies the the examples, maps and tables for the northern routes",
        "The default rule applies when only slides are printed & the wide option is not used",
    ],
)
def test_near(quote: str) -> None:
    assert verify(quote, 1, MANUAL).status == "near"


@pytest.mark.parametrize(
    "quote",
    [
        "The clerk keeps sealed the letters in the drawer, e.g. those of the owner",  # words changed places
        "The clerk keeps the sealed letters the in drawer, e.g. those of owner",
        "The clerk keeps the opened letters in the drawer",  # one plain word for another
        "The clerk keeps the secret letters in the drawer",
        "The clerk keeps the old sealed letters in the drawer",  # one more than the page has
        "The letters keeps the sealed clerk in the drawer",
        "The tool decrypts two files at once if the key is larger than the file",
        "The tool encrypts two files at once unless the key is larger than the file",
        "The tool encrypts two files at once if the key is smaller than the file",
        "The tool encrypts 3 files at once if the key is larger than the file",
        "It is safe to move the table while the lamp is lit",
        "It will be not safe to move the table while the lamp is lit",
        "They guide supplies examples, maps and tables for our northern routes",
        "The guide supplies examples, maps, prices and tables for the northern routes",
        "The guide guide supplies examples, maps and maps for the northern routes",  # said twice in place of another
        "Call xbind to join columns instead of joining rows",
        "Call cbind to join the rows of both frames into one",  # both are words of the manual
    ],
)
def test_not_found(quote: str) -> None:
    assert verify(quote, 1, MANUAL).status == "not_found"


def test_a_quote_that_names_pages_itself() -> None:
    quote = "All other options are described elsewhere: rotation (page 36), layers (page 21)"
    (found,) = attribute(f'It says "{quote}." [p. 1]', MANUAL)
    assert (found.page, found.status, found.said, found.named) == (1, "verified", "", True)
