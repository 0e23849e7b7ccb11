"""Web pages, e-books, mails, notebooks, tables in text files, RTF and OpenDocument: the text and its places."""

from __future__ import annotations

import json
from email.message import EmailMessage
from pathlib import Path

import pytest

from app.errors import BadInput
from tests.app.ingest.formats_help import labels, read, text, zipped

PAGE = """<!doctype html><html><head><title>not shown</title><style>p {}</style></head><body>
<nav><a href="/">Home</a> <a>Docs</a></nav><main><h1>The Harbour</h1>
<p>It has 10<sup>2</sup> boats&nbsp;and   the
1<sup>st</sup> pier.<br>New line<script>alert(1)</script></p>
<ul><li>one<ul><li>inner</li></ul></li><li>two</li></ul><ol start=3><li>three<li>four</ol>
<table><tr><th>Name<th>Price</tr><tr><td rowspan=2>Crab<td>10 €</tr><tr><td>12 €</tr></table>
<pre>def f():
    return 1
</pre><img src="http://evil.example/x.png"><img src=y alt="A map of the pier">
<p hidden>hidden words</p><p style="display: none">more hidden</p><iframe src="http://evil.example"></iframe>
<p>עברית and 日本語 text, enough words to be the main part of this page as a reader would see it, since menus are
only left out where there is a text beside them that is long enough to be one.</p></main></body></html>"""


def test_a_web_page(tmp_path: Path) -> None:
    path = tmp_path / "harbour.html"
    path.write_text(PAGE, encoding="utf-8")
    out = read(path)
    assert labels(out) == ["The Harbour"]
    assert text(out).split("\n")[:14] == [
        "The Harbour",
        "It has 10^2 boats and the 1st pier.",
        "New line",
        "- one",
        "  - inner",
        "- two",
        "3. three",
        "4. four",
        "Name | Price",
        "Crab | 10 €",
        "Crab | 12 €",
        "def f():",
        "    return 1",
        "[Picture: A map of the pier]",
    ]
    assert "עברית and 日本語 text" in text(out)
    for unseen in ("alert", "hidden words", "more hidden", "Home", "evil", "not shown"):
        assert unseen not in text(out)
    assert out.warnings == [
        "Menus beside the text were left out.",
        "Text that the page hides was left out.",
        "Not read: embedded pages.",
        "1 picture was not read.",
    ]


@pytest.mark.parametrize(
    ("encoding", "declared"),
    [("utf-8", ""), ("cp1251", "windows-1251"), ("shift_jis", "Shift_JIS"), ("gb18030", "gb2312"), ("utf-16", "")],
)
def test_the_encoding_that_a_page_declares(tmp_path: Path, encoding: str, declared: str) -> None:
    words = {"cp1251": "Музей открыт каждый день", "shift_jis": "博物館は毎日", "gb18030": "博物馆每天"}.get(
        encoding, "é"
    )
    meta = f'<meta charset="{declared}">' if declared else ""
    path = tmp_path / "page.html"
    path.write_bytes(f"<html><head>{meta}</head><body><p>{words}</body></html>".encode(encoding))
    assert read(path).pages == [("Part 1", words)]


def test_broken_and_deep_pages_are_read_to_their_end(tmp_path: Path) -> None:
    path = tmp_path / "deep.html"
    path.write_text("<html><body>" + "<div><b>" * 900 + "<p>at the bottom" + "</div>" * 10 + "<p>after all", "utf-8")
    assert "at the bottom" in text(read(path))
    assert "after all" in text(read(path))
    path.write_text("<html><body><p>at the top" + "<div>" * 5_000 + "<p>at the bottom", "utf-8")
    assert read(path).warnings == ["What is nested more than 2,000 levels deep was not read."]
    path.write_text("<html><body><p>only half a pa", "utf-8")
    assert text(read(path)) == "only half a pa"
    (tmp_path / "saved.txt").write_text("<!DOCTYPE html><html><body><p>told by its content</body></html>")
    assert text(read(tmp_path / "saved.txt")) == "told by its content"


CONTAINER = '<container><rootfiles><rootfile full-path="OEBPS/book.opf"/></rootfiles></container>'
BOOK = """<package xmlns="http://www.idpf.org/2007/opf"><manifest>
<item id="cover" href="cover.xhtml" media-type="application/xhtml+xml"/>
<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>
<item id="a" href="text/a.xhtml" media-type="application/xhtml+xml"/>
<item id="b" href="text/b%20b.xhtml" media-type="application/xhtml+xml"/></manifest>
<spine><itemref idref="cover"/><itemref idref="nav"/><itemref idref="b"/><itemref idref="a"/></spine></package>"""
NAV = """<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops"><body>
<nav epub:type="toc"><ol><li><a href="text/b%20b.xhtml">1. Loomings</a></li>
<li><a href="text/a.xhtml">2. The Carpet-Bag</a><ol><li><a href="text/a.xhtml#inn">The Inn</a></li></ol></li></ol></nav>
</body></html>"""
XHTML = (
    '<?xml version="1.0" encoding="utf-8"?><!DOCTYPE html>'
    '<html xmlns="http://www.w3.org/1999/xhtml"><head><title/></head>'
    "<body>{}</body></html>"
)


def book(**changes: str) -> bytes:
    parts: dict[str, str | bytes] = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": CONTAINER,
        "OEBPS/book.opf": BOOK,
        "OEBPS/nav.xhtml": NAV,
        "OEBPS/cover.xhtml": XHTML.format('<img src="cover.jpg" alt="cover.jpg"/>'),
        "OEBPS/text/b b.xhtml": XHTML.format("<h1>1. Loomings</h1><p>Call me&nbsp;Ishmael.</p>"),
        "OEBPS/text/a.xhtml": XHTML.format(
            "<h1>2. The Carpet-Bag</h1>"
            + "<p>I stuffed a shirt or two.</p>" * 150
            + '<h2 id="inn">The Inn</h2><p>Cold.</p>'
        ),
    }
    return zipped(parts | changes)


def test_an_e_book_in_reading_order(tmp_path: Path) -> None:
    (tmp_path / "whale.epub").write_bytes(book())
    out = read(tmp_path / "whale.epub")
    assert labels(out) == ["1. Loomings", "2. The Carpet-Bag", "2. The Carpet-Bag (2)", "The Inn"]
    assert out.pages[0][1] == "1. Loomings\nCall me Ishmael."
    assert out.pages[-1][1].endswith("The Inn\nCold.")
    assert [(entry.title, entry.page, entry.level) for entry in out.outline] == [
        ("1. Loomings", 1, 0),
        ("2. The Carpet-Bag", 2, 0),
        ("The Inn", 4, 1),
    ]
    assert text(out).count("I stuffed a shirt or two.") == 150


def test_a_protected_e_book_says_so(tmp_path: Path) -> None:
    drm = '<encryption><EncryptedData><EncryptionMethod Algorithm="http://www.w3.org/2001/04/xmlenc#aes128-cbc"/>'
    (tmp_path / "locked.epub").write_bytes(book(**{"META-INF/encryption.xml": drm + "</EncryptedData></encryption>"}))
    with pytest.raises(BadInput, match="copy-protected"):
        read(tmp_path / "locked.epub")


def test_a_notebook(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Tides\n", "A study."], "attachments": {"a.png": {"image/png": "aGk="}}},
        {
            "cell_type": "code",
            "source": "print('high')",
            "outputs": [
                {"output_type": "stream", "text": ["10 %\r", "100 %\n"]},
                {"output_type": "display_data", "data": {"image/png": "iVBORw0KGgo=", "text/plain": ["<Figure>"]}},
                {"output_type": "error", "traceback": ["\x1b[0;31mValueError\x1b[0m: too low"]},
            ],
        },
        {"cell_type": "raw", "source": "x" * 4_000},
        {"cell_type": "code", "source": "", "outputs": []},
        {"cell_type": "code", "source": "lone = '\\ud800'", "outputs": "odd"},
    ]
    (tmp_path / "tides.ipynb").write_text(json.dumps({"cells": cells, "nbformat": 4}))
    out = read(tmp_path / "tides.ipynb")
    assert labels(out) == ["Cells 1-2", "Cell 3", "Cell 3 (2)", "Cell 5"]
    assert out.pages[0][1] == (
        "[Cell 1, markdown]\n# Tides\nA study.\n\n[Cell 2, code]\nprint('high')\n[output]\n100 %\n<Figure>\n"
        "ValueError: too low"
    )
    assert "iVBOR" not in text(out)
    assert out.warnings == ["2 pictures were not read."]
    assert [(entry.title, entry.page) for entry in out.outline] == [("Tides", 1)]
    (tmp_path / "old.ipynb").write_text(
        json.dumps({"worksheets": [{"cells": [{"cell_type": "heading", "level": 2, "source": "Old"}]}]})
    )
    assert text(read(tmp_path / "old.ipynb")) == "[Cell 1, markdown]\n## Old"
    for name, content in {"cut.ipynb": '{"cells": [', "list.ipynb": "[]", "deep.ipynb": "[" * 100_000}.items():
        (tmp_path / name).write_text(content)
        with pytest.raises(BadInput, match=name):
            read(tmp_path / name)


def test_a_mail(tmp_path: Path) -> None:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "Ann <ann@example.org>", "Bob", "Grüße vom Hafen"
    mail["Date"] = "Mon, 01 Jan 2024 10:00:00 +0000"
    mail.set_content("The pier is closed.\nSee the plan.")
    mail.add_alternative("<p>The pier is <b>closed</b>.</p>", subtype="html")
    mail.add_attachment(b"%PDF-1.4 " + b"x" * 200_000, maintype="application", subtype="pdf", filename="plan.pdf")
    inner = EmailMessage()
    inner["Subject"] = "An older one"
    inner.set_content("secret of the inner mail")
    mail.add_attachment(inner)
    (tmp_path / "note.eml").write_bytes(bytes(mail))
    out = read(tmp_path / "note.eml")
    assert labels(out) == ["Message"]
    assert text(out).split("\n") == [
        "From: Ann <ann@example.org>",
        "To: Bob",
        "Date: Mon, 01 Jan 2024 10:00:00 +0000",
        "Subject: Grüße vom Hafen",
        'Attachments: plan.pdf (0.2 MB); the message "An older one"',
        "The pier is closed.",
        "See the plan.",
    ]
    assert out.warnings == ['2 attachments were not opened: plan.pdf (0.2 MB); the message "An older one".']
    html = EmailMessage()
    html["From"] = "Ann"
    html.set_content("See the HTML part.")
    html.add_alternative("<h1>Prices</h1><table><tr><td>Crab<td>12 €</table>" + "<p>more</p>" * 200, subtype="html")
    (tmp_path / "html.eml").write_bytes(bytes(html))
    assert "Crab | 12 €" in text(read(tmp_path / "html.eml"))
    (tmp_path / "none.eml").write_text("hello\n\nworld")
    with pytest.raises(BadInput, match="not an e-mail"):
        read(tmp_path / "none.eml")


def test_tables_in_text_files(tmp_path: Path) -> None:
    rows = [["Name", "Fee"], ["Gull", "1,50"], ["Crab; big", 'say "hi"\nloud']]
    for name, delimiter in (("a.csv", ";"), ("b.csv", ","), ("c.tsv", "\t"), ("d.csv", "|")):
        lines = [delimiter.join('"' + cell.replace('"', '""') + '"' for cell in row) for row in rows]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        assert read(tmp_path / name).pages == [("Rows 1-3", 'Name | Fee\nGull | 1,50\nCrab; big | say "hi" loud')]
    (tmp_path / "long.csv").write_text("id,text\n" + "".join(f"{n},row number {n}\n" for n in range(2, 2_000)))
    out = read(tmp_path / "long.csv")
    assert all(page.startswith("id | text\n") for _, page in out.pages)
    assert out.pages[1][0].startswith("Rows ")
    (tmp_path / "open.csv").write_text('a,b\n"open,1\n' + "x,y\n" * 10_000)
    out = read(tmp_path / "open.csv")
    assert text(out).count("x | y") == 10_000
    assert "quotation marks do not pair" in out.warnings[0]
    (tmp_path / "export.xls").write_text("Name\tFee\nGull\t2\n")
    assert read(tmp_path / "export.xls").pages == [("Rows 1-2", "Name | Fee\nGull | 2")]


def test_rtf(tmp_path: Path) -> None:
    (tmp_path / "note.doc").write_bytes(
        rb"{\rtf1\ansi\ansicpg1252 {\fonttbl{\f0 Arial;}}\f0 The caf\'e9 is \b open\b0 .\par "
        rb"{\pict\pngblip 89504e47" + b"0a" * 4_000 + rb"}Second line, \u21338?.\par }"
    )
    out = read(tmp_path / "note.doc")
    assert text(out) == "The café is open.\nSecond line, 博."
    assert out.warnings == ["1 picture was not read."]


NAMES = {"office": "office", "text": "text", "table": "table", "draw": "drawing", "presentation": "presentation"}
ODF = "".join(f' xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{space}:1.0"' for name, space in NAMES.items())


def opendocument(kind: str, body: str) -> bytes:
    content = f"<office:document-content{ODF}><office:body>{body}</office:body></office:document-content>"
    return zipped({"mimetype": f"application/vnd.oasis.opendocument.{kind}", "content.xml": content})


def test_opendocument(tmp_path: Path) -> None:
    (tmp_path / "a.odt").write_bytes(
        opendocument(
            "text",
            '<office:text><text:h text:outline-level="1">Tides</text:h><text:p>High<text:s text:c="2"/>and low'
            "<text:note><text:note-citation>1</text:note-citation><text:note-body><text:p>As seen.</text:p>"
            "</text:note-body></text:note>.</text:p><text:list><text:list-item><text:p>one</text:p></text:list-item>"
            "</text:list><table:table><table:table-row><table:table-cell><text:p>A</text:p></table:table-cell>"
            "<table:table-cell><text:p>B</text:p></table:table-cell></table:table-row></table:table></office:text>",
        )
    )
    assert read(tmp_path / "a.odt").pages == [("Tides", "Tides\nHigh  and low[1].\n- one\nA | B\n\n[1] As seen.")]
    (tmp_path / "b.ods").write_bytes(
        opendocument(
            "spreadsheet",
            '<office:spreadsheet><table:table table:name="Fees"><table:table-row><table:table-cell>'
            "<text:p>Boat</text:p>"
            "</table:table-cell><table:table-cell><text:p>Fee</text:p></table:table-cell></table:table-row>"
            '<table:table-row table:number-rows-repeated="2"><table:table-cell/></table:table-row>'
            '<table:table-row table:number-rows-repeated="1000000"><table:table-cell '
            'table:number-columns-repeated="1000"/></table:table-row></table:table></office:spreadsheet>',
        )
    )
    assert read(tmp_path / "b.ods").pages == [("Sheet Fees, row 1", "Boat | Fee")]
    (tmp_path / "c.odp").write_bytes(
        opendocument(
            "presentation",
            "<office:presentation><draw:page><draw:frame><draw:text-box><text:p>Piers</text:p></draw:text-box>"
            "</draw:frame><presentation:notes><text:p>Smile.</text:p></presentation:notes></draw:page>"
            "</office:presentation>",
        )
    )
    assert read(tmp_path / "c.odp").pages == [("Slide 1", "Piers\n\nSpeaker notes:\nSmile.")]
