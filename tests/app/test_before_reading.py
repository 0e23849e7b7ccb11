"""What is known before anything is read: tokens, times, what fits, choices and suggestions, maps and changes."""

from __future__ import annotations

import os
import time
import zipfile
from pathlib import Path

import pytest

from app import documents
from app.before_reading import choice, repository_map, suggestions
from app.before_reading.estimate import Pace, pace_of
from app.changes import apply_changes, find_changes
from app.changes.versions import EARLIER, superseded
from app.errors import WrongUse
from app.pages import PageChoice
from app.settings import load_settings
from app.wiring import App
from storage import ReadingSpeed

OLD = time.time() - 72_000


def write(root: Path, files: dict[str, str], when: float = OLD) -> Path:
    for number, (name, text) in enumerate(files.items()):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (when + 60 * number, when + 60 * number))
    return root


@pytest.fixture
def app(data_dir: Path, starter_model: Path):
    settings = load_settings({"model": str(starter_model), "max_answer_tokens": 16}, {}, data_dir)
    with App.open(settings) as opened:
        yield opened


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return write(
        tmp_path / "repo",
        {
            "README.md": "# Tide table\nHow to predict the tide.\n",
            "src/tide.py": "class Tide:\n    def height(self, hour: int) -> float:\n        return 4.2\n",
            "src/moon.py": "def phase(day):\n    return day % 29\n",
            "docs/long.txt": "The harbour opens at dawn. " * 400,
        },
    )


def add(app: App, *paths: Path) -> str:
    conversation = app.library.create_conversation().id
    for added in documents.add_files(app, conversation, paths):
        assert added.error is None, added.error
    return conversation


def labels(app: App, conversation: str) -> list[str]:
    return [page.label for text in documents.document_texts(app, conversation, None) for page in text.pages]


def test_pace_is_measured_or_a_stated_guess() -> None:
    assert pace_of([], 0.01) == Pace(0.01, 0.0, False)
    steady = pace_of([ReadingSpeed(0, 1000, 4.0)], 0.01)
    assert steady.measured
    assert steady.seconds(0, 500) == pytest.approx(2.0)
    real = Pace(0.002, 1e-6, True)
    stretches = [(0, 1000), (0, 8000), (8000, 12000), (0, 300)]
    fitted = pace_of([ReadingSpeed(a, b, real.seconds(a, b)) for a, b in stretches], 0.01)
    assert fitted.seconds(0, 20_000) == pytest.approx(real.seconds(0, 20_000), rel=1e-6)
    assert fitted.seconds(10_000, 20_000) > fitted.seconds(0, 10_000)


def test_tokens_of_every_file_add_up_to_what_the_prompt_holds(app: App, repo: Path) -> None:
    conversation = add(app, repo)
    (source,) = choice.sources(app, conversation)
    assert [item.name for item in source.items] == ["README.md", "src/tide.py", "src/moon.py", "docs/long.txt"]
    (text,) = documents.document_texts(app, conversation, None)
    assert source.tokens == len(app.document_tokens().ids(text))
    tokenizer = app.face().fingerprint
    assert source.page_tokens == app.document_tokens().counts(source.document.id).pages
    assert choice.chosen_tokens([source], None) == source.tokens
    assert tokenizer


def test_files_are_chosen_by_name_and_what_is_left_out_is_named(app: App, repo: Path) -> None:
    conversation = add(app, repo)
    found = choice.sources(app, conversation)
    chosen = choice.by_names(found, ["src/*.py"])
    texts = documents.document_texts(app, conversation, chosen)
    assert [page.label.split(":")[0] for text in texts for page in text.pages] == ["src/tide.py", "src/moon.py"]
    (sentence,) = choice.left_out(app, conversation, chosen)
    assert sentence == "Not read of repo, as you chose: 2 of 4 files (README.md, docs/long.txt)."
    assert choice.left_out(app, conversation, choice.by_names(found, ["repo"])) == ()
    assert choice.by_names(found, ["repo/src/*"]) == chosen
    with pytest.raises(WrongUse, match=r"src/tyde\.py") as wrong:
        choice.by_names(found, ["src/tyde.py"])
    assert "src/tide.py" in wrong.value.hint
    choice.store_choice(app, conversation, chosen)
    assert choice.stored_choice(app, conversation) == chosen
    documents.detach(app, conversation, found[0].document.id)
    assert choice.stored_choice(app, conversation) is None


def test_suggestions_fit_and_match(app: App, repo: Path) -> None:
    conversation = add(app, repo)
    found = choice.sources(app, conversation)
    room = 300
    made = suggestions.suggest(app, conversation, found, "What is the phase of the moon? The phase of a day?", room)
    assert {suggestion.kind for suggestion in made} == {"match", "smallest", "beginning"}
    for suggestion in made:
        assert suggestion.tokens == choice.chosen_tokens(found, suggestion.choice) <= room
    match = next(suggestion for suggestion in made if suggestion.kind == "match")
    texts = documents.document_texts(app, conversation, match.choice)
    assert any("phase" in page.text for text in texts for page in text.pages)
    assert "match" in match.text
    smallest = next(suggestion for suggestion in made if suggestion.kind == "smallest")
    assert smallest.files == 3
    assert not any(s.kind == "match" for s in suggestions.suggest(app, conversation, found, "", room))


def test_a_map_stands_in_for_the_text(app: App, repo: Path) -> None:
    conversation = add(app, repo)
    (folder,) = app.library.documents(conversation)
    made = repository_map.use_map(app, conversation, folder)
    text = "".join(page.text for page in app.library.pages(made.id))
    assert "src/tide.py\n1: class Tide\n2:   def height(self, hour: int) -> float\n" in text
    assert "src/moon.py\n1: def phase(day)\n" in text
    assert "harbour" not in text
    assert repository_map.map_of(app, folder).id == made.id
    chosen = choice.stored_choice(app, conversation)
    (shown,) = documents.document_texts(app, conversation, chosen)
    assert shown.id == made.id
    assert choice.left_out(app, conversation, chosen) == (
        "repo was read as its map (paths and signatures), not its text.",
    )
    documents.detach(app, conversation, folder.id)
    assert app.library.documents(conversation) == []
    with pytest.raises(WrongUse, match="no folder"):
        repository_map.map_of(app, app.library.document(add_text_file(app, repo)))


def add_text_file(app: App, repo: Path) -> str:
    conversation = add(app, repo / "README.md")
    return app.library.documents(conversation)[0].id


def change(repo: Path) -> None:
    write(repo, {"src/moon.py": "def phase(day):\n    return day % 30\n"}, time.time() - 600)
    write(repo, {"src/sun.py": "RISES = 'in the east'\n"}, time.time() - 600)
    (repo / "README.md").unlink()
    (repo / "src/tide.py").rename(repo / "src/tides.py")


def test_changes_are_named_and_estimated(app: App, repo: Path) -> None:
    conversation = add(app, repo)
    assert find_changes(app, conversation) == []
    os.utime(repo / "docs/long.txt")  # touched, not changed
    assert find_changes(app, conversation) == []
    change(repo)
    (found,) = find_changes(app, conversation)
    assert (found.changed, found.added, found.deleted) == (("src/moon.py",), ("src/sun.py",), ("README.md",))
    assert found.renamed == (("src/tide.py", "src/tides.py"),)
    assert found.sentence().startswith("4 files of repo changed since it was read: src/moon.py changed; src/sun.py")
    assert found.append is not None
    assert found.again is not None
    assert not found.append.measured
    assert found.append.tokens < found.again.tokens, "the long file stands behind the first change"


def test_new_versions_are_appended_and_the_old_ones_no_longer_count(app: App, repo: Path) -> None:
    conversation = add(app, repo)
    before = labels(app, conversation)
    change(repo)
    (found,) = find_changes(app, conversation)
    update = apply_changes(app, conversation, found.document_id, "append")
    assert find_changes(app, conversation) == []
    (folder, newest) = app.library.documents(conversation)
    assert newest.id == update.id
    notice = app.library.pages(update.id)[0].text
    for line in ("Changed: src/moon.py", "Added: src/sun.py", "earlier text no longer counts: README.md"):
        assert line in notice
    assert "src/tide.py is now src/tides.py" in notice
    now = labels(app, conversation)
    assert [label.split(":")[0] for label in now] == [
        "src/tide.py", *["docs/long.txt"] * sum("long" in label for label in before), "changes", "src/moon.py",
        "src/sun.py",
    ]  # fmt: skip
    old = superseded(app.library, conversation)
    assert set(old) == {folder.id}
    hits = app.library.search("phase of the day", [folder.id, update.id], 5, without=old)
    assert [hit.document_id for hit in hits if "phase" in hit.text] == [update.id]
    write(repo, {"src/moon.py": "def phase(day):\n    return day % 31\n"}, time.time() - 300)
    (again,) = find_changes(app, conversation)
    assert again.changed == ("src/moon.py",)
    second = apply_changes(app, conversation, folder.id, "append")
    assert {update.id, folder.id} == set(superseded(app.library, conversation))
    assert "31" in app.library.pages(second.id)[1].text
    with pytest.raises(WrongUse, match="as it was"):
        apply_changes(app, conversation, folder.id, "append")


def test_reading_again_keeps_what_stands_before_the_first_change(app: App, repo: Path) -> None:
    conversation = add(app, repo)
    (text,) = documents.document_texts(app, conversation, None)
    before = app.document_tokens().ids(text)
    write(repo, {"src/moon.py": "def phase(day):\n    return day % 30\n"}, time.time() - 600)
    os.utime(repo / "README.md")  # touching must not move it
    (found,) = find_changes(app, conversation)
    fresh = apply_changes(app, conversation, found.document_id, "again")
    assert [document.id for document in app.library.documents(conversation)] == [fresh.id]
    assert [document.id for document in app.library.earlier_documents(conversation)] == [found.document_id]
    assert [row.path for row in app.library.files(fresh.id)] == [
        "README.md", "src/tide.py", "docs/long.txt", "src/moon.py",
    ]  # fmt: skip
    (text,) = documents.document_texts(app, conversation, None)
    after = app.document_tokens().ids(text)
    shared = next(place for place, (a, b) in enumerate(zip(before, after)) if a != b)
    counts = app.document_tokens().counts(fresh.id)
    assert shared >= sum(counts.pages[:2])
    assert find_changes(app, conversation) == []


def test_citations_of_old_text_say_so(app: App, repo: Path) -> None:
    conversation = add(app, repo)
    (folder,) = app.library.documents(conversation)
    page = next(row.index for row in app.library.pages(folder.id) if row.label.startswith("src/moon.py"))
    other = next(row.index for row in app.library.pages(folder.id) if row.label.startswith("src/tide.py"))
    cited = [{"document_id": folder.id, "document": "repo", "page": number} for number in (page, other)]
    message = app.library.add_message(conversation, "assistant", "It is 29.", citations=cited)
    write(repo, {"src/moon.py": "def phase(day):\n    return day % 30\n"}, time.time() - 600)
    apply_changes(app, conversation, folder.id, "append")
    (stored,) = [m for m in app.library.messages(conversation) if m.id == message.id]
    assert [c["document"] for c in stored.details["citations"]] == ["repo" + EARLIER, "repo"]
    apply_changes_again(app, conversation, repo, folder.id)
    (stored,) = [m for m in app.library.messages(conversation) if m.id == message.id]
    assert [c["document"] for c in stored.details["citations"]] == ["repo" + EARLIER, "repo" + EARLIER]


def apply_changes_again(app: App, conversation: str, repo: Path, document_id: str) -> None:
    write(repo, {"src/sun.py": "RISES = 'in the east'\n"}, time.time() - 600)
    apply_changes(app, conversation, document_id, "again")


def test_unchanged_files_are_not_extracted_again(app: App, repo: Path, facts_pdf: Path, monkeypatch) -> None:
    (repo / "manual.pdf").write_bytes(facts_pdf.read_bytes())
    os.utime(repo / "manual.pdf", (OLD, OLD))
    conversation = add(app, repo)
    write(repo, {"src/moon.py": "def phase(day):\n    return day % 30\n"}, time.time() - 600)
    from app.ingest import folders

    read: list[str] = []

    def never(fd: int, path: Path, *arguments: object, **options: object) -> None:
        read.append(path.name)
        raise AssertionError(path)

    monkeypatch.setattr(folders, "read_descriptor", never)
    (folder,) = app.library.documents(conversation)
    fresh = apply_changes(app, conversation, folder.id, "again")
    assert read == []
    old = {row.label: row.text for row in app.library.pages(folder.id) if row.label.startswith("manual.pdf")}
    assert old
    assert old.items() <= {row.label: row.text for row in app.library.pages(fresh.id)}.items()


def test_a_choice_may_not_name_pages_that_are_not_there(app: App, repo: Path) -> None:
    conversation = add(app, repo)
    with pytest.raises(WrongUse, match="has"):
        choice.left_out(app, conversation, PageChoice.parse("999"))


def test_many_counts_are_those_of_each(app: App) -> None:
    tokenizer = app.face().tokenizer
    texts = ["", "One line.\n", "Öl, 油, \ud800", "word " * 60_000, "<|im_end|>"]
    assert tokenizer.count_many(texts) == [tokenizer.count(text) for text in texts]


def test_an_archive_whose_content_is_known_is_offered_as_the_newer_one(app: App, tmp_path: Path) -> None:
    archive = tmp_path / "tides.zip"

    def write_archive(text: str) -> None:
        with zipfile.ZipFile(archive, "w") as packed:
            packed.writestr("tides/a.txt", text)

    old, other = (app.library.create_conversation().id for _ in range(2))
    write_archive("The tide is high at noon.")
    [first] = documents.add_files(app, old, [archive])
    write_archive("The tide is high at nine.")
    [known] = documents.add_files(app, other, [archive])
    [again] = documents.add_files(app, old, [archive])
    assert first.document is not None
    assert known.document is not None
    assert again.document is not None
    assert (again.document.id, again.offered, known.offered) == (known.document.id, True, False)
    assert [document.id for document in app.library.documents(old)] == [first.document.id]
    [changes] = find_changes(app, old)
    assert changes.changed == ("tides/a.txt",)
    [same] = documents.add_files(app, other, [archive])
    assert not same.offered
