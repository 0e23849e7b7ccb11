"""Raised signs, accents, turned letters and tables, on pages drawn for the purpose."""

from __future__ import annotations

from typing import Any

import pytest

from app.ingest import read_file


def text_of(pdfs: Any, draw: Any) -> str:
    [page] = read_file(pdfs.draw("signs.pdf", 1, lambda canvas, _: draw(canvas))).pages
    return page.text


def _raised(canvas: Any, x: float, y: float, *parts: tuple[str, float, float]) -> None:
    """Parts (text, size, rise) one behind the other."""
    text = canvas.beginText(x, y)
    for part, size, rise in parts:
        text.setFont("Helvetica", size)
        text.setRise(rise)
        text.textOut(part)
    canvas.drawText(text)


def test_raised_signs_are_marked(pdfs: Any) -> None:
    def draw(canvas: Any) -> None:
        _raised(
            canvas, 72, 700, ("About 10", 11, 0), ("6", 7, 4), (" ships, the 1", 11, 0), ("st", 7, 4), (" one.", 11, 0)
        )
        _raised(canvas, 72, 650, ("The law x", 11, 0), ("2", 7, 4), ("y and a note", 11, 0), ("12", 7, 4), (".", 11, 0))
        _raised(
            canvas,
            72,
            600,
            ("Water is H", 11, 0),
            ("2", 7, -3),
            ("O, written in L", 11, 0),
            ("A", 8, 3),
            ("TeX.", 11, 0),
        )

    text = text_of(pdfs, draw)
    assert "About 10^6 ships, the 1st one." in text
    assert "The law x^2 y and a note^12." in text
    assert "Water is H2O, written in LATeX." in text


def test_letters_of_two_sizes_on_one_line_are_not_raised(pdfs: Any) -> None:
    text = text_of(pdfs, lambda c: _raised(c, 72, 700, ("U", 12, 0), ("NABRIDGED", 9, 0), (" reads", 12, 0)))
    assert text == "UNABRIDGED reads"


def test_an_accent_drawn_over_its_letter_is_one_with_it(pdfs: Any) -> None:
    def draw(canvas: Any) -> None:
        canvas.setFont("Helvetica", 11)
        x = 72.0
        for place, part in enumerate(("L'Abb", "\u00b4", "e plots, M", "\u00a8", "achler")):
            wide = canvas.stringWidth(part, "Helvetica", 11)
            canvas.drawString(x + (1.4 if place in (1, 3) else 0), 700, part)
            x += 0 if place in (1, 3) else wide

    assert text_of(pdfs, draw) == "L'Abbé plots, Mächler"


@pytest.mark.parametrize("angle", [90, 270])
def test_turned_letters_drawn_one_by_one_are_words(pdfs: Any, angle: int) -> None:
    def draw(canvas: Any) -> None:
        canvas.setFont("Helvetica", 11)
        canvas.drawString(72, 750, "A plot whose axis is named along its side.")
        along = 0.0
        for letter in "Height of waves":
            canvas.saveState()
            canvas.translate(100, 500)
            canvas.rotate(angle)
            canvas.drawString(along, 0, letter)
            canvas.restoreState()
            along += canvas.stringWidth(letter, "Helvetica", 11)

    assert "Height of waves" in text_of(pdfs, draw)


def _table(canvas: Any, rows: list[list[str]], x: tuple[float, ...], top: float = 700, step: float = 14) -> float:
    canvas.setFont("Helvetica", 10)
    for number, row in enumerate(rows):
        for left, cell in zip(x, row, strict=True):
            canvas.drawString(left, top - number * step, cell)
    return top - (len(rows) - 1) * step


def test_a_lone_stroke_in_a_cell_is_not_the_separator(pdfs: Any) -> None:
    rows = [["Formula", "Meaning", "Kind"], ["(1 | g)", "intercept", "random"], ["x + (x | g)", "slope", "random"]]
    text = text_of(pdfs, lambda canvas: _table(canvas, rows, (72, 200, 300)))
    assert text.splitlines() == [
        r"Formula | Meaning | Kind",
        r"(1 \| g) | intercept | random",
        r"x + (x \| g) | slope | random",
    ]


def test_what_follows_the_closing_rule_is_no_row(pdfs: Any) -> None:
    rows = [["Year", "Ships", "Storms"], *([str(1900 + k), str(10 + k), str(k)] for k in range(5))]

    def draw(canvas: Any) -> None:
        low = _table(canvas, rows, (72, 140, 220))
        for y in (712, 696, low - 4):
            canvas.line(66, y, 260, y)
        canvas.setFont("Helvetica-Bold", 12)
        canvas.drawString(72, low - 26, "2.8")
        canvas.drawString(106, low - 26, "Flat tables")

    lines = [line for line in text_of(pdfs, draw).splitlines() if line]
    assert lines == [*(" | ".join(row) for row in rows), "2.8 Flat tables"]


def test_a_cell_of_many_lines_stays_one_cell(pdfs: Any) -> None:
    words = ["reads the file and", "says how long it is", "in pages, in tokens", "and in minutes of", "reading time"]
    rows = [["Name", "Where", "What"], ["first", "here", words[0]], *(["", "", line] for line in words[1:])]
    rows += [["second", "there", "stops"], ["third", "nowhere", "waits"]]

    def draw(canvas: Any) -> None:
        low = _table(canvas, rows, (72, 140, 220), step=11)
        for y in (712, 697, low - 4):
            canvas.line(66, y, 330, y)

    lines = text_of(pdfs, draw).splitlines()
    assert [line for line in lines if line] == [
        "Name | Where | What", f"first | here | {' '.join(words)}", "second | there | stops", "third | nowhere | waits"
    ]  # fmt: skip
