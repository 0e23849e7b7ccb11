"""PDFs inside folders and archives: pages open as pictures, go by path and page, and say when the file changed."""

from __future__ import annotations

import hashlib
import json
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from pypdf import PdfWriter
from pypdf.constants import PageLabelStyle

from app import documents
from app.changes import apply_changes
from app.changes.folder_files import known_text
from app.citation_report import citation_object, citation_place, place
from app.citations import PageSource, attribute
from app.errors import AppError
from app.export import export
from app.page_view.process import NoPicture, PdfSource, Renderer
from app.settings import Settings
from app.viewer import WIDTHS, Place, Viewer
from app.wiring import App
from storage import FileRow, Library, PageRow
from tests.app.small_pdfs import FACTS, write_pdf

QUOTE = "The garden grows sea kale, and the well is 12 metres deep."


@pytest.fixture(scope="module")
def app(starter_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    data = tmp_path_factory.mktemp("inside") / "data"
    with App.open(Settings(data_dir=data, model=str(starter_model))) as opened:
        yield opened


def fill(root: Path) -> Path:
    """Two PDFs and code; the second one counts its pages in Roman figures."""
    (root / "docs").mkdir(parents=True)
    (root / "main.py").write_text("def lamp():\n    return 'on'\n")
    write_pdf(root / "docs" / "lighthouse.pdf", FACTS)
    writer = PdfWriter(clone_from=write_pdf(root / "plain.pdf", ["The tide is low.", "The tide is high at noon."]))
    writer.set_page_label(0, 1, style=PageLabelStyle.LOWERCASE_ROMAN, start=7)
    writer.write(root / "docs" / "tides.pdf")
    (root / "plain.pdf").unlink()
    return root


def pack(root: Path, name: str) -> Path:
    path = root.parent / name
    files = sorted(file for file in root.rglob("*") if file.is_file())
    if name.endswith(".zip"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in files:
                archive.write(file, str(file.relative_to(root)))
    else:
        with tarfile.open(path, "w:gz") as archive:
            for file in files:
                archive.add(file, str(file.relative_to(root)))
    return path


@pytest.fixture(scope="module")
def read(app: App, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """(conversation, document) of a folder that nobody changes."""
    return add(app, fill(tmp_path_factory.mktemp("read") / "files"))


def add(app: App, path: Path) -> tuple[str, str]:
    """(conversation, document)"""
    conversation = app.library.create_conversation("").id
    (added,) = documents.add_files(app, conversation, [path])
    assert added.document is not None, added.error
    return conversation, added.document.id


def page_of(app: App, document: str, label: str) -> int:
    return next(row.index for row in app.library.pages(document) if row.label == label)


def sources(app: App, document: str) -> list[PageSource]:
    name = app.library.document(document).name
    return [PageSource(document, name, row.index, row.label, row.text) for row in app.library.pages(document)]


@pytest.mark.parametrize("name", ["files.zip", "files.tar.gz"])
def test_pages_of_a_pdf_in_an_archive_are_pictures_even_when_the_original_is_gone(
    app: App, tmp_path: Path, name: str
) -> None:
    path = pack(fill(tmp_path / "files"), name)
    _, document = add(app, path)
    path.unlink()
    viewer = Viewer(app)
    page = page_of(app, document, "docs/lighthouse.pdf:p2")
    view = viewer.look(Place(document, page, QUOTE))
    assert (view.file, view.file_page, view.file_pages) == ("docs/lighthouse.pdf", 2, 4)
    assert view.picture
    assert view.found
    assert len(view.boxes) >= 1
    assert viewer.picture(document, page, 0).startswith(b"\x89PNG")
    code = viewer.look(Place(document, page_of(app, document, "main.py:L1-2")))
    assert code.picture is None
    assert not code.drawable
    assert code.file == ""
    tides = viewer.look(Place(document, page_of(app, document, "docs/tides.pdf:p2 (viii)"), "high at noon"))
    assert (tides.file_page, tides.found) == (2, True)
    documents.remove_document(app, document)
    assert not list((app.data_dir / "documents").iterdir()), "the copy of the archive goes with its document"
    viewer.close()


def test_a_member_whose_name_was_read_otherwise_is_found_by_its_bytes(tmp_path: Path) -> None:
    """As stored by a version that took one encoding for all names of an archive."""
    (tmp_path / "files").mkdir()
    write_pdf(tmp_path / "files" / "Größe.pdf", FACTS)
    write_pdf(tmp_path / "files" / "tides.pdf", ["The tide is low."])
    content = hashlib.sha256((tmp_path / "files" / "Größe.pdf").read_bytes()).hexdigest()
    path = pack(tmp_path / "files", "files.zip")
    renderer = Renderer()
    try:
        assert renderer.page(PdfSource(path, "Gr├Â├ƒe.pdf", content=content), 2, WIDTHS[0], QUOTE).boxes
        for other in ("", "0" * 64):
            with pytest.raises(NoPicture, match="could not be taken out"):
                renderer.page(PdfSource(path, "Gr├Â├ƒe.pdf", content=other), 2, WIDTHS[0], QUOTE)
    finally:
        renderer.close()


def test_a_folder_is_looked_at_where_it_lies_and_says_when_a_file_changed(app: App, tmp_path: Path) -> None:
    root = fill(tmp_path / "files")
    _, document = add(app, root)
    assert not list((app.data_dir / "documents").iterdir()), "nothing of a folder is copied"
    viewer = Viewer(app)
    page = page_of(app, document, "docs/lighthouse.pdf:p2")
    assert viewer.look(Place(document, page, QUOTE)).found
    pdf = root / "docs" / "lighthouse.pdf"
    kept = pdf.read_bytes()
    write_pdf(pdf, ["Something else."])
    changed = viewer.look(Place(document, page, QUOTE))
    assert changed.picture is None
    assert "docs/lighthouse.pdf has changed since it was read" in changed.problem
    assert changed.text is not None
    assert changed.found, "the text as it was read still holds the quote"
    pdf.unlink()
    assert "no longer in the folder" in viewer.look(Place(document, page, QUOTE)).problem
    (root / "elsewhere.pdf").write_bytes(kept)
    pdf.symlink_to(root / "elsewhere.pdf")
    assert "a link" in viewer.look(Place(document, page, QUOTE)).problem
    pdf.unlink()
    pdf.write_bytes(kept)
    assert viewer.look(Place(document, page, QUOTE)).picture
    viewer.close()


def test_a_newer_archive_in_an_update_keeps_its_pages(app: App, tmp_path: Path) -> None:
    root = fill(tmp_path / "files")
    conversation, document = add(app, pack(root, "files.zip"))
    write_pdf(root / "docs" / "lighthouse.pdf", ["The lamp was changed.", "The lamp is green now."])
    (added,) = documents.add_files(app, conversation, [pack(root, "files.zip")])
    assert added.offered
    update = apply_changes(app, conversation, document, "append")
    viewer = Viewer(app)
    view = viewer.look(Place(update.id, page_of(app, update.id, "docs/lighthouse.pdf:p2"), "The lamp is green now."))
    assert view.found
    assert view.picture
    documents.detach(app, conversation, document)
    assert not list((app.data_dir / "documents").iterdir())
    viewer.close()


@pytest.mark.parametrize(
    "said",
    [
        '"{quote}" (lighthouse.pdf, page 2)',
        '"{quote}" (docs/lighthouse.pdf p. 2)',
        '"{quote}" [Page {page}, marked docs/lighthouse.pdf:p2]',
        '"{quote}" [docs/lighthouse.pdf:p2]',
        'In docs/lighthouse.pdf, page 2, it says "{quote}"',
        '"{quote}" (page {page})',
    ],
)
def test_citations_of_a_pdf_in_a_folder_go_by_path_and_page(app: App, read: tuple[str, str], said: str) -> None:
    _, document = read
    page = page_of(app, document, "docs/lighthouse.pdf:p2")
    (cited,) = attribute(said.format(quote=QUOTE, page=page), sources(app, document))
    assert (cited.page, cited.status, cited.said, cited.named) == (page, "verified", "", True)
    assert citation_place(cited) == "docs/lighthouse.pdf, page 2"
    told = citation_object(cited)
    assert (told["file"], told["file_page"]) == ("docs/lighthouse.pdf", 2)


def test_a_wrong_page_of_a_file_is_repaired_within_it(app: App, read: tuple[str, str]) -> None:
    conversation, document = read
    pages = sources(app, document)
    (cited,) = attribute(f'"{QUOTE}" (lighthouse.pdf, page 4)', pages)
    assert (citation_place(cited), cited.said) == ("docs/lighthouse.pdf, page 2", "p. 4")
    (tides,) = attribute('"The tide is high at noon" (tides.pdf, page viii)', pages)
    assert tides.named
    assert citation_place(tides) == "docs/tides.pdf, page 2 (printed viii)"
    (code,) = attribute("It returns on (main.py:2).", pages)
    assert citation_object(code)["file"] == "main.py"
    stored = [asdict(cited), asdict(tides)]
    app.library.add_message(conversation, "user", "What grows?")
    app.library.add_message(conversation, "assistant", "Kale.", "complete", citations=stored)
    assert "docs/lighthouse\\.pdf, page 2" in export(app, conversation, "md").data.decode().replace(".pdf", "\\.pdf")
    told = json.loads(export(app, conversation, "json").data)["messages"][1]["citations"]
    assert [(c["file"], c["file_page"]) for c in told] == [("docs/lighthouse.pdf", 2), ("docs/tides.pdf", 2)]


def test_labels_of_earlier_versions_are_understood(tmp_path: Path) -> None:
    """They held what is printed on a page of a PDF, and no number beside it."""
    sha256, made_by = "ab" * 32, "pdf 3 (pypdfium2 1, pypdf 1)"
    with Library.open(tmp_path) as library:
        labels = ("a.py:L1-2", "m.pdf:pvii", "m.pdf:p12")
        rows = [PageRow(index, label, f"Text {index}.") for index, label in enumerate(labels, 1)]
        document = library.add_document("cd" * 32, "old", "folder", "folder 2", rows, 10, "nowhere")
        library.set_files(document.id, [FileRow("m.pdf", 9, 0, sha256, made_by, first_page=2, pages=2)])
        known = known_text(library, sha256, made_by)
        assert known is not None
        assert [page.label for page in known] == ["p1 (vii)", "p2 (12)"]
        found = library.file_of_page(document.id, 3)
        assert found is not None
        assert 3 - found.first_page + 1 == 2, "the page that is drawn"
        assert library.file_of_page(document.id, 1) is None
    assert place("old", 2, "m.pdf:pvii") == "m.pdf, page vii"
    long = "The keeper wound the clockwork of the lamp every four hours."
    pages = [PageSource("d", "old", 7, "m.pdf:pvii", long), PageSource("d", "old", 8, "m.pdf:pviii", "Nothing here.")]
    (cited,) = attribute(f'"{long}" (m.pdf, page vii)', pages)
    assert (cited.page, cited.named) == (7, True)


def test_a_file_that_is_written_to_behind_the_check_of_its_bytes_is_not_shown(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, document = add(app, fill(tmp_path / "files"))
    file = tmp_path / "files" / "docs" / "lighthouse.pdf"
    other = write_pdf(tmp_path / "other.pdf", ["Nobody has read this."] * len(FACTS)).read_bytes()
    page = page_of(app, document, "docs/lighthouse.pdf:p2")
    viewer = Viewer(app)
    check = PdfSource.open

    def open_then_write(source: PdfSource) -> int:
        fd = check(source)
        with file.open("r+b") as opened:  # the same file, which the descriptor leads to
            opened.write(other)
            opened.truncate()
        return fd

    monkeypatch.setattr(PdfSource, "open", open_then_write)
    view = viewer.look(Place(document, page, "Nobody has read this."))
    assert view.picture is None
    assert "has changed since it was read" in view.problem
    with pytest.raises(AppError, match="has changed"):
        viewer.picture(document, page, 0)
    viewer.close()


def test_of_two_files_in_an_archive_that_are_stored_under_one_name_no_page_of_the_other_is_shown(
    app: App, tmp_path: Path
) -> None:
    texts = ["The first one tells of seals.", "The second one tells of gulls."]
    files = [write_pdf(tmp_path / f"{number}.pdf", [text]) for number, text in enumerate(texts)]
    names = ["caf\udce9.pdf", "caf\ufffd.pdf"]  # the first one's bytes are no UTF-8, and cannot be stored
    path = tmp_path / "files.tar"
    with tarfile.open(path, "w") as archive:
        for file, inside in zip(files, names, strict=True):
            archive.add(file, inside)
    _, document = add(app, path)
    viewer = Viewer(app)
    shown = 0
    for row in app.library.pages(document):
        view = viewer.look(Place(document, row.index, row.text))
        assert view.found, "on the picture of this very page, or in its text"
        shown += view.picture is not None
        assert view.picture or "is not the one that was read" in view.problem
    assert shown == 1
    viewer.close()
