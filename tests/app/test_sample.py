"""The sample document: its questions have their answers on the named pages, and it is what its script makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.citations import PageSource, attribute
from app.ingest import Extracted, read_file
from app.sample import QUESTIONS, SAMPLE_PDF, SAMPLE_QUESTIONS
from app.sample.make_sample import make, pages


@pytest.fixture(scope="module")
def sample() -> Extracted:
    return read_file(SAMPLE_PDF)


def test_small_and_whole(sample: Extracted) -> None:
    assert SAMPLE_PDF.stat().st_size < 200_000
    assert len(sample.pages) == len(pages()) == 7
    assert sample.warnings == ()
    assert all(page.flag == "" and len(page.text) > 800 for page in sample.pages)


def test_the_committed_file_is_what_the_script_makes(tmp_path: Path) -> None:
    make(tmp_path / "made.pdf")
    assert [page.text for page in read_file(tmp_path / "made.pdf").pages] == [
        page.text for page in read_file(SAMPLE_PDF).pages
    ]


def test_three_questions_with_their_answers_on_their_pages(sample: Extracted) -> None:
    assert len(QUESTIONS) == len(set(QUESTIONS)) == 3
    for row in SAMPLE_QUESTIONS:
        on = [page.index for page in sample.pages if row.answer in " ".join(page.text.split())]
        assert on == [row.page], row


def test_every_word_of_the_handbook_is_read(sample: Extracted) -> None:
    """Nothing but the running lines is lost: the text is compared with its source, spacing and line ends aside."""
    for page, source in zip(sample.pages, pages(), strict=True):
        parts = [" ".join(" | ".join(row) for row in part) if isinstance(part, list) else part for part in source]
        written = " ".join(part.removeprefix("# ") for part in parts).split()
        read = page.text.split()
        assert read[-len(written) :] == written if page.index == 1 else read == written
        assert f"Page {page.index} of 7" not in page.text


def test_right_answers_are_attributed_to_the_right_pages(sample: Extracted) -> None:
    answers = [
        "A family ticket costs 31 euros.",
        "Only Tobias Renn and his deputy Aino Marsh may switch it on; it may lift no more than 5 tonnes.",
        "Staff close the flood gates of the Boat Hall and bring visitors to the upper floors.",
    ]
    sources = [PageSource("s", sample.name, page.index, page.label, page.text) for page in sample.pages]
    for row, answer in zip(SAMPLE_QUESTIONS, answers, strict=True):
        assert [(c.page, c.status) for c in attribute(answer, sources, row.question)] == [(row.page, "attributed")]
