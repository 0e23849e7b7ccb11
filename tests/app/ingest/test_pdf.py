"""PDFs of every kind, through the real child process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from reportlab.lib.pagesizes import A4
from reportlab.pdfgen.canvas import Canvas

from app.errors import BadInput, PasswordNeeded
from app.ingest import Extracted, OutlineEntry, identify, read_file, read_many

if TYPE_CHECKING:
    from pypdf import PdfWriter

HEIGHT = A4[1]


def test_pages_in_order_with_progress_hash_and_extractor(pdfs: Any) -> None:
    path = pdfs.text("three.pdf", [["The first page."], ["The second page."], ["The third page."]])
    seen: list[tuple[int, int]] = []
    found = read_file(path, progress=lambda done, total: seen.append((done, total)))
    assert [(page.index, page.label, page.text, page.flag) for page in found.pages] == [
        (1, "1", "The first page.", ""),
        (2, "2", "The second page.", ""),
        (3, "3", "The third page.", ""),
    ]
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert (found.name, found.kind, found.size, found.warnings) == ("three.pdf", "pdf", path.stat().st_size, ())
    assert (found.sha256, found.extractor) == identify(path)


def test_labels_and_outline(pdfs: Any) -> None:
    def change(writer: PdfWriter) -> None:
        writer.set_page_label(0, 1, "/r")
        writer.set_page_label(2, 3, "/D", start=127)
        chapter = writer.add_outline_item(title="Tides", page_number=2)
        writer.add_outline_item(title="Spring tides", page_number=3, parent=chapter)

    found = read_file(pdfs.changed("labels.pdf", pdfs.text("l.pdf", [[f"Leaf {n}"] for n in "abcd"]), change))
    assert [page.label for page in found.pages] == ["i", "ii", "127", "128"]
    assert found.outline == (OutlineEntry("Tides", 3, 0), OutlineEntry("Spring tides", 4, 1))


@pytest.mark.parametrize("algorithm", ["RC4-40", "RC4-128", "AES-128", "AES-256"])
def test_encrypted(pdfs: Any, algorithm: str) -> None:
    plain = pdfs.text("plain.pdf", [["The key is under the mat."]])
    path = pdfs.changed(f"{algorithm}.pdf", plain, lambda writer: writer.encrypt("pässword", algorithm=algorithm))
    with pytest.raises(PasswordNeeded, match="protected by a password") as asked:
        read_file(path)
    with pytest.raises(PasswordNeeded, match="password does not open") as wrong:
        read_file(path, password="guess")
    assert asked.value.exit_code == wrong.value.exit_code == 4
    assert asked.value.hint
    assert read_file(path, password="pässword").pages[0].text == "The key is under the mat."


def test_owner_password_alone_does_not_stop_reading(pdfs: Any) -> None:
    plain = pdfs.text("plain.pdf", [["Free to read."]])
    path = pdfs.changed("owner.pdf", plain, lambda writer: writer.encrypt("", "owner", algorithm="AES-256"))
    assert read_file(path).pages[0].text == "Free to read."


@pytest.mark.parametrize("angle", [90, 180, 270])
def test_rotated_pages_read_and_lose_their_footers(pdfs: Any, angle: int) -> None:
    """The text is turned so that it stands upright once the page is turned."""

    def draw(canvas: Canvas, index: int) -> None:
        width, height = A4
        canvas.setPageRotation(angle)  # reportlab swaps the sides of the page with it
        if angle == 90:
            canvas.translate(height, 0)
            canvas.rotate(90)
        elif angle == 180:
            canvas.translate(width, height)
            canvas.rotate(180)
        else:
            canvas.translate(0, width)
            canvas.rotate(270)
        canvas.drawString(70, height - 200, f"The harbour of page {'abcdef'[index]} is calm.")
        canvas.drawString(70, height - 215, "Nobody sails today.")
        canvas.drawString(70, 20, f"Page {index} of 5")

    found = read_file(pdfs.draw("turned.pdf", 5, draw))
    assert [page.text for page in found.pages] == [
        f"The harbour of page {letter} is calm.\nNobody sails today." for letter in "bcdef"
    ]


def test_scanned_files_name_their_pages(pdfs: Any) -> None:
    with pytest.raises(
        BadInput, match=r"scan.pdf is scanned: pages 1-2 and 4 of 4 have pictures but no text"
    ) as all_of_it:
        read_file(pdfs.scanned("scan.pdf", "ssbs"))
    assert "ocr" in all_of_it.value.hint.lower()
    found = read_file(pdfs.scanned("mixed.pdf", "tsstbs"))
    assert [page.flag for page in found.pages] == ["", "scanned", "scanned", "", "empty", "scanned"]
    assert len(found.warnings) == 1
    assert "pages 2-3 and 6 of 6" in found.warnings[0]


def test_stamped_scans_are_still_scanned(pdfs: Any) -> None:
    def draw(canvas: Canvas, index: int) -> None:
        from PIL import Image

        canvas.drawInlineImage(Image.new("L", (60, 80), 200), 0, 0, *A4)
        canvas.drawString(70, 20, f"EXHIBIT {index:04d}")

    with pytest.raises(BadInput, match="pages 1-5 of 5"):
        read_file(pdfs.draw("stamped.pdf", 5, draw))


def test_blank_file_is_refused(pdfs: Any) -> None:
    with pytest.raises(BadInput, match="no text on any of its 3 pages"):
        read_file(pdfs.scanned("blank.pdf", "bbb"))


def test_hyphens_ligatures_and_paragraphs(pdfs: Any) -> None:
    lines = [
        "The pilot gave direc-",
        "tions for the tide-",
        "table, a well-known book. The North-",
        "Sea is a well-",
        "known sea.",
        "",
        "A second paragraph.",
    ]
    text = read_file(pdfs.text("hyphens.pdf", [lines])).pages[0].text
    assert "gave directions for" in text
    assert "a well-known sea" in text  # the document itself writes the word with a hyphen
    assert "The North-\nSea is" in text  # a capital follows: no broken word
    assert "\n\nA second paragraph." in text


def test_two_columns_are_read_one_after_the_other(pdfs: Any) -> None:
    left = [f"left {n} of the moon" for n in range(12)]
    right = [f"right {n} of the sun" for n in range(12)]

    def draw(canvas: Canvas, index: int) -> None:
        for x, lines in ((60, left), (330, right)):
            for number, line in enumerate(lines):
                canvas.drawString(x, HEIGHT - 150 - 15 * number, line)

    text = read_file(pdfs.draw("columns.pdf", 1, draw)).pages[0].text
    assert [line for line in text.split("\n") if line] == left + right


def test_running_lines_go_and_content_stays(pdfs: Any) -> None:
    """Header with alternating titles, footer with a moving number; figures and headings that only look alike stay."""

    def draw(canvas: Canvas, index: int) -> None:
        canvas.drawString(70, HEIGHT - 30, "Annual report" if index % 2 else "Kestrel Quay")
        canvas.drawString(70, 25, f"- {index + 6} -")
        canvas.drawString(70, HEIGHT - 120, f"Section {index}")
        canvas.drawString(70, HEIGHT - 140, "Item Price")
        canvas.drawString(70, HEIGHT - 155, f"Rope {index * 31} euros")
        canvas.drawString(70, 120, "2019")

    found = read_file(pdfs.draw("running.pdf", 8, draw))
    assert [page.text.replace("\n\n", "\n") for page in found.pages] == [
        f"Section {index}\nItem Price\nRope {index * 31} euros\n2019" for index in range(1, 9)
    ]


def test_a_line_at_the_edge_of_one_page_stays(pdfs: Any) -> None:
    def draw(canvas: Canvas, index: int) -> None:
        canvas.drawString(70, HEIGHT - 30, f"Only on page {'abcde'[index - 1]} stands this.")
        canvas.drawString(70, 400, "Body.")

    found = read_file(pdfs.draw("edges.pdf", 5, draw))
    assert [page.text.split("\n")[0] for page in found.pages] == [f"Only on page {c} stands this." for c in "abcde"]


def test_pages_of_running_lines_only_keep_them(pdfs: Any) -> None:
    found = read_file(pdfs.draw("same.pdf", 6, lambda canvas, index: canvas.drawString(70, HEIGHT - 40, "Notes")))
    assert [page.text for page in found.pages] == ["Notes"] * 6


@pytest.mark.parametrize(
    ("font", "line"),
    [
        ("STSong-Light", "博物馆每天上午九点半开门。"),
        ("HeiseiMin-W3", "博物館は午前九時半に開きます。"),
        ("HYSMyeongJo-Medium", "박물관은 아홉시에 문을 엽니다"),
    ],
)
def test_cjk(pdfs: Any, font: str, line: str) -> None:
    found = read_file(pdfs.cjk(f"{font}.pdf", font, [[line], [line + line]]))
    assert [page.text for page in found.pages] == [line, line + line]


def test_garbled_text_is_flagged(pdfs: Any, tmp_path: Path) -> None:
    """A font whose ToUnicode map leads to private-use characters."""
    cmap = b"1 begincodespacerange <00> <ff> endcodespacerange 1 beginbfrange <20> <7e> <e100> endbfrange"
    cmap = b"/CIDInit /ProcSet findresource begin 12 dict begin begincmap " + cmap + b" endcmap end end"
    content = b"BT /F1 12 Tf 72 600 Td (nobody can read this) Tj ET"
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("makers", Path(__file__).with_name("conftest.py"))
    assert spec is not None
    assert spec.loader is not None
    makers = module_from_spec(spec)
    spec.loader.exec_module(makers)
    path = tmp_path / "garbled.pdf"
    path.write_bytes(
        makers.raw_pdf(
            b"<</Type/Catalog/Pages 2 0 R>>",
            b"<</Type/Pages/Count 1/Kids[3 0 R]>>",
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Resources<</Font<</F1 4 0 R>>>>/Contents 5 0 R>>",
            b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/ToUnicode 6 0 R>>",
            b"<</Length %d>>stream\n%s\nendstream" % (len(content), content),
            b"<</Length %d>>stream\n%s\nendstream" % (len(cmap), cmap),
        )
    )
    found = read_file(path)
    assert found.pages[0].flag == "garbled"
    assert "page 1 of 1" in found.warnings[0]


def test_truncated_anywhere_is_refused_or_whole(pdfs: Any, tmp_path: Path) -> None:
    """Cut at many places, a PDF is never read in part without a word."""
    whole = pdfs.text("whole.pdf", [[f"Page {n} says {n * 111}."] for n in range(1, 7)]).read_bytes()
    expected = [f"Page {n} says {n * 111}." for n in range(1, 7)]
    path = tmp_path / "cut.pdf"
    cuts = [
        1,
        5,
        9,
        60,
        *(len(whole) * n // 12 for n in range(1, 12)),
        len(whole) - 40,
        len(whole) - 12,
        len(whole) - 3,
    ]
    refused = 0
    for cut in cuts:
        path.write_bytes(whole[:cut])
        [(_, found)] = read_many([path])
        if isinstance(found, Extracted):
            assert [page.text for page in found.pages] == expected, cut
        else:
            refused += 1
            assert found.exit_code == 4
            assert found.message.count(".") <= 2  # one sentence, and the dot of the file's name
            assert found.hint
    assert refused >= len(cuts) - 2


def test_cut_off_is_told_from_damaged(pdfs: Any, tmp_path: Path) -> None:
    whole = pdfs.text("whole.pdf", [["One."], ["Two."]]).read_bytes()
    path = tmp_path / "half.pdf"
    path.write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(BadInput, match=r"half\.pdf is cut off"):
        read_file(path)
    path.write_bytes(b"%PDF-1.7\n" + b"nonsense " * 100 + b"\n%%EOF\n")
    with pytest.raises(BadInput, match="damaged"):
        read_file(path)
