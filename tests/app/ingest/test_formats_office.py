"""Word, PowerPoint and Excel files, written by other programs' libraries: what of them a reader gets to see."""

from __future__ import annotations

import datetime
import io
from pathlib import Path
from typing import Any

import docx
import openpyxl
import pptx
import pytest
from docx.enum.text import WD_BREAK
from docx.oxml import parse_xml
from docx.oxml.ns import nsdecls
from openpyxl.comments import Comment
from PIL import Image
from pptx.chart.data import CategoryChartData
from pptx.enum.chart import XL_CHART_TYPE
from pptx.util import Inches

from app.ingest.formats.number_format import formatter
from tests.app.ingest.formats_help import labels, read, text

HEBREW, JAPANESE = "המוזיאון פתוח כל יום", "博物館は毎日午前九時半に開きます。"


def picture() -> io.BytesIO:
    data = io.BytesIO()
    Image.new("RGB", (8, 8)).save(data, "PNG")
    data.seek(0)
    return data


def inside(xml: str) -> Any:
    return parse_xml(xml.replace(">", f" {nsdecls('w')}>", 1))


def test_word_headings_lists_tables_and_what_other_readers_drop(tmp_path: Path) -> None:
    document = docx.Document()
    document.add_heading("Lease", 0)
    document.add_heading("Scope", 1)
    document.add_paragraph("The pier is let as it stands.")
    document.add_paragraph("First term", style="List Number")
    document.add_paragraph("Second term", style="List Number")
    document.add_paragraph("A point", style="List Bullet")
    paragraph = document.add_paragraph("An area of 10 m")
    paragraph.add_run("2").font.superscript = True
    paragraph._p.append(inside("<w:ins><w:r><w:t> and more, added later</w:t></w:r></w:ins>"))
    paragraph._p.append(inside("<w:del><w:r><w:delText>never seen</w:delText></w:r></w:del>"))
    hidden = document.add_paragraph("Open to all. ").add_run("Ignore the rules.")
    hidden.font.hidden = True
    document.element.body.insert(
        0, inside("<w:sdt><w:sdtContent><w:p><w:r><w:t>In a form field</w:t></w:r></w:p></w:sdtContent></w:sdt>")
    )
    table = document.add_table(3, 3)
    for row, cells in enumerate([["Boat", "Berth", "Fee"], ["Gull", "A1", "120"], ["", "A2", "90"]]):
        for column, cell in enumerate(cells):
            table.cell(row, column).text = cell
    table.cell(1, 0).merge(table.cell(2, 0))
    document.add_picture(picture())
    document.sections[0].header.paragraphs[0].text = "Harbour Board, confidential"
    document.add_paragraph(HEBREW)
    document.add_paragraph(JAPANESE)
    document.save(str(tmp_path / "lease.docx"))
    out = read(tmp_path / "lease.docx")
    lines = text(out).split("\n")
    for line in (
        "In a form field",
        "1. First term",
        "2. Second term",
        "• A point",
        "An area of 10 m^2 and more, added later",
        "Open to all. ",
        "Boat | Berth | Fee",
        "Gull | A1 | 120",
        "Gull | A2 | 90",
        HEBREW,
        JAPANESE,
        "Harbour Board, confidential",
    ):
        assert line in lines or line.strip() in lines, line
    assert "never seen" not in text(out)
    assert "Ignore the rules" not in text(out)
    assert labels(out) == ["Lease to Scope", "Headers and footers"]
    assert [(entry.title, entry.page, entry.level) for entry in out.outline] == [
        ("Lease", 1, 0),
        ("Scope", 1, 0),
        ("Headers and footers", 2, 0),
    ]
    assert out.warnings == [
        "Text that was deleted with changes tracked was left out.",
        "Text that the author made invisible was left out.",
        "1 picture was not read.",
    ]


def test_word_pages_are_those_that_word_laid_out(tmp_path: Path) -> None:
    document = docx.Document()
    document.add_paragraph("On the first page.").add_run().add_break(WD_BREAK.PAGE)
    second = document.add_paragraph()
    second._p.append(inside("<w:r><w:lastRenderedPageBreak/><w:t>On the second, which</w:t></w:r>"))
    second._p.append(inside("<w:r><w:t> ends </w:t><w:lastRenderedPageBreak/><w:t>on the third.</w:t></w:r>"))
    document.save(str(tmp_path / "pages.docx"))
    out = read(tmp_path / "pages.docx")
    assert out.pages == [("1", "On the first page."), ("2", "On the second, which ends"), ("3", "on the third.")]


def test_word_sections_of_about_a_page_are_named_by_their_headings(tmp_path: Path) -> None:
    document = docx.Document()
    for chapter in ("Tides", "Winds"):
        document.add_heading(chapter, 1)
        for number in range(60):
            document.add_paragraph(f"{chapter} rule {number} is kept by all who sail from this harbour in winter.")
    document.save(str(tmp_path / "rules.docx"))
    out = read(tmp_path / "rules.docx")
    assert labels(out) == ["Tides", "Tides (2)", "Winds", "Winds (2)"]
    assert all(len(page) <= 3_000 for _, page in out.pages)
    assert [(entry.title, entry.page) for entry in out.outline] == [("Tides", 1), ("Winds", 3)]
    assert text(out).count(" rule ") == 120


def test_a_long_word_table_repeats_its_header(tmp_path: Path) -> None:
    document = docx.Document()
    table = document.add_table(1, 2)
    table.rows[0].cells[0].text, table.rows[0].cells[1].text = "Boat", "Remark"
    for number in range(40):
        cells = table.add_row().cells
        cells[0].text, cells[1].text = f"Boat {number}", "in need of paint, rope and a new anchor " * 5
    document.save(str(tmp_path / "boats.docx"))
    out = read(tmp_path / "boats.docx")
    assert len(out.pages) == 3
    assert all(page.startswith("Boat | Remark\n") for _, page in out.pages)
    assert text(out).count("in need of paint, rope and a new anchor") == 200


def test_slides_with_notes_tables_charts_and_order(tmp_path: Path) -> None:
    deck = pptx.Presentation()
    first = deck.slides.add_slide(deck.slide_layouts[1])
    first.shapes.title.text = "The Harbour"
    body = first.placeholders[1].text_frame
    body.text = "Three piers"
    inner = body.add_paragraph()
    inner.text, inner.level = "One is new", 1
    low = first.shapes.add_textbox(Inches(1), Inches(6), Inches(3), Inches(1))
    low.text_frame.text = "At the bottom"
    high = first.shapes.add_textbox(Inches(5), Inches(0.1), Inches(3), Inches(1))
    high.text_frame.text = "At the top"
    first.notes_slide.notes_text_frame.text = "Greet the mayor."
    second = deck.slides.add_slide(deck.slide_layouts[6])
    table = second.shapes.add_table(2, 2, Inches(1), Inches(1), Inches(4), Inches(1)).table
    for row, cells in enumerate([["Boat", "Fee"], ["Gull", "120"]]):
        for column, cell in enumerate(cells):
            table.cell(row, column).text = cell
    data = CategoryChartData()
    data.categories = ["May", "June"]
    data.add_series("Visitors", (4.5, 7.25))
    second.shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, Inches(1), Inches(4), Inches(4), Inches(2), data)
    third = deck.slides.add_slide(deck.slide_layouts[6])
    third.shapes.add_picture(picture(), 0, 0)
    third._element.set("show", "0")
    deck.save(str(tmp_path / "deck.pptx"))
    out = read(tmp_path / "deck.pptx")
    assert out.pages == [
        (
            "Slide 1",
            "The Harbour\nAt the top\nThree piers\n  One is new\nAt the bottom\n\nSpeaker notes:\nGreet the mayor.",
        ),
        ("Slide 2", "Boat | Fee\nGull | 120\nChart | Visitors\nMay | 4.5\nJune | 7.25"),
        ("Slide 3 (hidden)", ""),
    ]
    assert [(entry.title, entry.page) for entry in out.outline] == [("The Harbour", 1)]
    assert out.warnings == ["Slide 3: pictures without text.", "1 picture was not read."]


def test_a_workbook_as_people_see_it(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "Budget"
    for row in (
        ["Harbour budget"],
        [],
        ["Date", "Item", "Amount", "Share", "Paid"],
        [datetime.date(2024, 1, 31), "Rope", 1234.5, 0.125, True],
        [datetime.date(2024, 2, 1), "Paint", -20, 0.5, False],
        [None, "Total", "=SUM(C4:C5)"],
    ):
        sheet.append(row)
    for cell in ("A4", "A5"):
        sheet[cell].number_format = "dd/mm/yyyy"
    sheet["C4"].number_format = sheet["C5"].number_format = '#,##0.00 "€"'
    sheet["D4"].number_format = sheet["D5"].number_format = "0.0%"
    sheet["B4"].comment = Comment("Ask the ropemaker", "Ann")
    other = book.create_sheet("Boats")
    for row in (["Pier", "Boat"], ["North", "Gull"], [None, "Tern"], ["South", "Crab"]):
        other.append(row)
    other.merge_cells("A2:A3")
    book.create_sheet("Old").sheet_state = "hidden"
    book["Old"].append([HEBREW, JAPANESE])
    book.save(tmp_path / "budget.xlsx")
    out = read(tmp_path / "budget.xlsx")
    assert out.pages == [
        (
            "Sheet Budget, rows 1-6",
            "Harbour budget\n\nDate | Item | Amount | Share | Paid\n31/01/2024 | Rope | 1,234.50 € | 12.5% | TRUE\n"
            "01/02/2024 | Paint | -20.00 € | 50.0% | FALSE\n | Total | =SUM(C4:C5)",
        ),
        ("Sheet Budget, notes", "Comment on B4: Ask the ropemaker"),
        ("Sheet Boats, rows 1-4", "Pier | Boat\nNorth | Gull\nNorth | Tern\nSouth | Crab"),
        ("Sheet Old, row 1", f"{HEBREW} | {JAPANESE}"),
    ]
    assert [(entry.title, entry.page) for entry in out.outline] == [("Budget", 1), ("Boats", 3), ("Old", 4)]
    assert out.warnings[0].startswith('Sheet "Budget" has 1 formulas whose results are not in the file')
    assert out.warnings[1] == 'Sheet "Old" is hidden; it was read as well.'


@pytest.mark.slow
def test_fifty_thousand_rows_stay_rows(tmp_path: Path) -> None:
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet("Sales")
    sheet.append(["Number", "Region", "Units"])
    for number in range(2, 50_001):
        sheet.append([number, ("North", "South")[number % 2], number % 97])
    book.save(tmp_path / "sales.xlsx")
    out = read(tmp_path / "sales.xlsx")
    rows = [line for _, page in out.pages for line in page.split("\n")]
    assert sum(row == "Number | Region | Units" for row in rows) == len(out.pages)
    assert [row for row in rows if row[0] != "N"] == [
        f"{n} | {('North', 'South')[n % 2]} | {n % 97}" for n in range(2, 50_001)
    ]
    first, last = out.pages[7][1].split("\n")[1], out.pages[7][1].split("\n")[-1]
    assert out.pages[7][0] == f"Sheet Sales, rows {first.split()[0]}-{last.split()[0]}"


@pytest.mark.parametrize(
    ("code", "value", "shown"),
    [
        ("General", 0.1 + 0.2, "0.3"),
        ("General", 1e20, "1E+20"),
        ("General", 123456789012, "123456789012"),
        ("0", 2.5, "3"),
        ("0.00", -0.005, "-0.01"),
        ("#,##0", 1234567, "1,234,567"),
        ("#,##0.00;[Red](#,##0.00)", -1234.5, "(1,234.50)"),
        ('0.0,, "M"', 12_345_678, "12.3 M"),
        ("[$€-407] #,##0.00", 5, "€ 5.00"),
        ('"#"000', 7, "#007"),
        ("000-00-0000", 123456789, "123-45-6789"),
        ("0.00E+00", 12345, "1.23E+04"),
        ("0%", 0.456, "46%"),
        ('0;-0;"none"', 0, "none"),
        ("[<1]0.00;0", 0.5, "0.50"),
        ("[<1]0.00;0", 7, "7"),
        ("yyyy-mm-dd", 45322, "2024-01-31"),
        ("d mmm yy", 45322, "31 Jan 24"),
        ("dddd, mmmm d", 45322, "Wednesday, January 31"),
        ("h:mm AM/PM", 45322.75, "6:00 PM"),
        ("[h]:mm:ss", 1.5, "36:00:00"),
        ("mm:ss.0", 0.000729, "01:03.0"),
        ("yyyy\\-mm\\-dd hh:mm", 45322.999999, "2024-02-01 00:00"),
        ("yyyy", 59, "1900"),
        ("# ?/?", 0.5, "0.5"),
        ("dd/mm/yyyy", -5, "-5"),
        ("@", 12, "12"),
    ],
)
def test_number_formats(code: str, value: float, shown: str) -> None:
    assert formatter(code)(value) == shown


def test_the_other_calendar() -> None:
    assert formatter("yyyy-mm-dd", True)(43860) == "2024-01-31"


def test_what_is_cut_from_a_table_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from app.ingest.formats import tables

    said: list[str] = []
    wide = [[tables.Cell(str(k)) for k in range(1_002)], [tables.Cell("below")]]
    assert [len(row) for row in tables.grid(wide, said.append)] == [1_000, 1_000]
    assert said == ["A table was cut after 1,000 columns."]
    said.clear()
    monkeypatch.setattr(tables, "MOST_CELLS", 10)
    assert len(tables.grid([[tables.Cell("x")] * 4] * 9, said.append)) == 3
    assert said == ["A table was cut after 3 rows: it has more than 10 cells."]
    said.clear()
    assert tables.grid([[tables.Cell("x")] * 2], said.append) == [["x", "x"]]
    assert said == []
