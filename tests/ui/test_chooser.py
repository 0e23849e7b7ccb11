"""Before the first question, in a real chromium over the real app: counts, tree, proposals, folders that changed."""

from __future__ import annotations

import os
import re
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_browser import until

from app import documents
from app.before_reading import choice
from app.before_reading.estimate import speed_key
from app.settings import load_settings
from app.wiring import App

pytestmark = [pytest.mark.browser, pytest.mark.slow]
OLD = time.time() - 72_000


def write(root: Path, files: dict[str, str], when: float = OLD) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (when, when))
    return root


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = {
        "README.md": "# Harbour\nNotes on tides and moons.\n",
        "src/tide.py": "class Tide:\n    def height(self, hour):\n        return 4.2\n",
        "src/moon.py": "def phase(day):\n    return day % 29\n",
        "src/<img src=x onerror=alert(1)>.py": "NAME = 'hostile'\n",
        "docs/guide.md": "\n\n".join(
            f"## Chapter {n}\n" + f"The pilot boat number {n} leaves at dawn. " * 120 for n in range(9)
        ),
        "docs/lights.md": "The lighthouse keeper lights the lamp every evening. " * 60,
    }
    return write(tmp_path_factory.mktemp("chooser") / "harbour", files)


@pytest.fixture(scope="module")
def app(starter_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    flags = {"model": str(starter_model), "max_answer_tokens": 16, "context": 4096}
    with App.open(load_settings(flags, {}, tmp_path_factory.mktemp("data"))) as opened:
        yield opened


@pytest.fixture(scope="module")
def address(app: App) -> Iterator[str]:
    import ui

    with ui.launch(app, open_browser=False) as running:
        yield running.address


def add(app: App, *paths: Path) -> str:
    conversation = app.library.create_conversation("Before reading").id
    for added in documents.add_files(app, conversation, paths):
        assert added.error is None, added.error
    return conversation


@pytest.fixture
def shown(chromium, address: str):
    """shown(conversation, dark) opens the page on it; no script fails and no other host is asked."""
    contexts, broken = [], []

    def show(conversation: str, *, dark: bool = False, width: int = 1280):
        context = chromium.new_context(
            viewport={"width": width, "height": 860}, color_scheme="dark" if dark else "light"
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: broken.append(str(error)))
        page.on("dialog", lambda dialog: broken.append(dialog.message))
        page.goto(f"{address}&c={conversation}")
        page.wait_for_selector(".ub-plan")
        return page

    yield show
    for context in contexts:
        context.close()
    assert broken == []


def count(page) -> int:
    return int(page.inner_text(".ub-chooser-count").replace(",", ""))


def tick(page, name: str):
    return page.locator(".ub-pick", has=page.locator(f'.ub-pick-name[title="{name}"]')).locator("input")


def test_the_tree_counts_what_is_ticked(app: App, repo: Path, shown, snap) -> None:
    conversation = add(app, repo)
    page = shown(conversation)
    line = page.inner_text(".ub-plan")
    (source,) = choice.sources(app, conversation)
    assert f"{source.tokens:,} tokens to read" in line
    assert re.search(r"about \d+ (s|min) \(a guess\)", line)
    assert "MB of memory" in line
    assert "tokens more than fit" in line
    snap(page, "chooser-line")
    page.click('button[name="choose-open"]')
    page.wait_for_selector(".ub-chooser")
    assert count(page) == source.tokens
    assert page.is_visible(".ub-chooser-over")
    snap(page, "chooser-open")
    page.locator("summary", has=page.locator('[title="docs/"]')).locator("input").uncheck()
    docs = sum(item.tokens for item in source.items if item.name.startswith("docs/"))
    assert count(page) == source.tokens - docs
    assert not page.is_visible(".ub-chooser-over")
    assert page.evaluate("document.querySelector('.ub-pick-document').indeterminate")
    page.locator("summary", has=page.locator('[title="src/"]')).click(position={"x": 4, "y": 12})
    tick(page, "moon.py").uncheck()
    moon = next(item for item in source.items if item.name == "src/moon.py")
    assert count(page) == source.tokens - docs - moon.tokens
    assert page.locator(".ub-chooser img").count() == 0, "a file's name is text"
    snap(page, "chooser-ticked")
    page.click('button[name="choose-these"]')
    page.wait_for_selector(".ub-chooser", state="detached")
    page.wait_for_selector(
        f".ub-plan >> text={source.tokens - docs - moon.tokens:,} of {source.tokens:,} tokens chosen"
    )
    chosen = choice.stored_choice(app, conversation)
    read = [p.label for text in documents.document_texts(app, conversation, chosen) for p in text.pages]
    assert {label.split(":")[0] for label in read} == {
        "README.md", "src/tide.py", "src/<img src=x onerror=alert(1)>.py",
    }  # fmt: skip
    assert page.is_checked('#ub-reading input[value="whole"]')
    page.reload()
    page.wait_for_selector(".ub-plan >> text=tokens chosen")
    page.click('button[name="choose-open"]')
    page.click('button[name="choose-all"]')
    page.wait_for_selector(".ub-plan >> text=tokens to read")
    assert choice.stored_choice(app, conversation) is None


def test_a_proposal_that_matches_the_question_is_taken_with_one_click(app: App, repo: Path, shown, snap) -> None:
    conversation = add(app, repo)
    page = shown(conversation, dark=True, width=1024)
    page.fill("#ub-question textarea", "Who lights the lamp of the lighthouse in the evening?")
    page.click('button[name="choose-open"]')
    page.wait_for_selector(".ub-proposals")
    first = page.locator(".ub-proposals li").first
    assert re.search(r"match(es)? your question and fits?: [\d,]+ tokens", first.inner_text())
    assert page.locator(".ub-proposals", has_text="map of harbour").count() == 1
    snap(page, "chooser-dark")
    first.locator("button").click()
    page.wait_for_selector(".ub-plan >> text=tokens chosen")
    chosen = choice.stored_choice(app, conversation)
    read = [p for text in documents.document_texts(app, conversation, chosen) for p in text.pages]
    assert any("lighthouse keeper" in p.text for p in read)
    assert choice.chosen_tokens(choice.sources(app, conversation), chosen) <= choice.room(app)
    assert page.input_value("#ub-question textarea") == "Who lights the lamp of the lighthouse in the evening?"


def test_the_map_is_one_click_away_and_a_panel_closes_with_escape(app: App, repo: Path, shown, snap) -> None:
    conversation = add(app, repo)
    page = shown(conversation)
    page.click('button[name="choose-open"]')
    page.wait_for_selector(".ub-chooser")
    page.keyboard.press("Escape")
    page.wait_for_selector(".ub-chooser", state="detached")
    page.click('button[name="choose-open"]')
    page.click('button[name="choose-map"]')
    page.wait_for_selector("text=harbour, map")
    page.wait_for_selector(".ub-plan >> text=tokens chosen")
    snap(page, "chooser-map")
    chosen = choice.stored_choice(app, conversation)
    (text,) = documents.document_texts(app, conversation, chosen)
    assert "1: class Tide" in text.pages[0].text


def test_a_question_that_does_not_fit_is_asked_again_with_what_was_chosen(app: App, repo: Path, shown, snap) -> None:
    conversation = add(app, repo)
    page = shown(conversation)
    page.locator("#ub-reading label", has=page.locator('input[value="whole"]')).click()
    page.fill("#ub-question textarea", "Who lights the lamp of the lighthouse?")
    page.press("#ub-question textarea", "Enter")
    page.wait_for_selector(".ub-error .ub-choices")
    page.click('.ub-error button[name="choose-open"]')
    page.wait_for_selector(".ub-chooser")
    snap(page, "chooser-after-error")
    page.locator(".ub-proposals li").first.locator("button").click()
    page.wait_for_selector(".ub-chooser", state="detached")
    until(page, "document.querySelectorAll('#ub-history .ub-answer .ub-text').length === 1", seconds=200)
    assert page.locator(".ub-error").count() == 0
    note = page.locator(".ub-note", has_text="Not read of harbour, as you chose")
    assert "README.md" in note.inner_text()
    snap(page, "chooser-answered")
    assert app.library.reading_speeds(app.face().fingerprint, speed_key(app)), "how long reading took is remembered"
    page.wait_for_selector(".ub-plan >> text=tokens chosen")
    assert "(a guess)" not in page.inner_text(".ub-plan")


def test_an_archive_that_is_added_again_is_offered_as_newer(app: App, shown, tmp_path: Path) -> None:
    def archive(folder: str, text: str) -> Path:
        path = tmp_path / folder / "notes.zip"
        path.parent.mkdir()
        with zipfile.ZipFile(path, "w") as made:
            made.writestr("a.md", "# Tides\nHigh at noon.\n")
            made.writestr("b.md", text)
        return path

    conversation = add(app, archive("old", "Low at six.\n"))
    page = shown(conversation)
    page.set_input_files("#ub-controls input[type=file]", str(archive("new", "Low at seven.\n")))
    page.wait_for_selector(".ub-changes >> text=b.md changed")
    assert len(app.library.documents(conversation)) == 1
    page.click('button[name="changes-again"]')
    page.wait_for_selector(".ub-changes", state="detached")
    (document,) = app.library.documents(conversation)
    assert "Low at seven.\n" in [row.text for row in app.library.pages(document.id)]


def test_a_changed_folder_is_named_and_taken_with_its_time(app: App, shown, snap, tmp_path: Path) -> None:
    repo = write(tmp_path / "notes", {"a.py": "A = 1\n", "b.py": "B = 2\n", "long.md": "All is calm. " * 200})
    conversation = add(app, repo)
    page = shown(conversation)
    assert page.locator(".ub-changes").count() == 0
    write(repo, {"b.py": "B = 3\n", "c.py": "C = 4\n"}, time.time() - 60)
    page = shown_later(page, conversation)
    notice = page.inner_text(".ub-changes")
    assert "2 files of notes changed since it was read: b.py changed; c.py added." in notice
    assert re.search(r"Append the new versions: about \d+ s", notice)
    assert re.search(r"Read again from the first change: about \d+ s", notice)
    snap(page, "changes")
    page.click('button[name="changes-append"]')
    page.wait_for_selector(".ub-changes", state="detached")
    page.wait_for_selector("text=notes, newer versions")
    snap(page, "changes-appended")
    names = [document.name for document in app.library.documents(conversation)]
    assert names == ["notes", "notes, newer versions"]


def shown_later(page, conversation: str):
    from ui import app_plans

    usual, app_plans.LOOK_AGAIN_S = app_plans.LOOK_AGAIN_S, 0.0
    try:
        page.reload()
        page.wait_for_selector(".ub-changes")
    finally:
        app_plans.LOOK_AGAIN_S = usual
    return page


def test_thousands_of_files_are_folded_into_rows_that_fit(app: App, shown, tmp_path: Path) -> None:
    files = {f"pack{n // 50}/file{n}.txt": f"Line {n}.\n" for n in range(2500)}
    conversation = add(app, write(tmp_path / "many", files))
    page = shown(conversation)
    started = time.monotonic()
    page.click('button[name="choose-open"]')
    page.wait_for_selector(".ub-chooser")
    assert time.monotonic() - started < 20
    assert 50 <= page.locator(".ub-pick").count() <= 1600
    total = count(page)
    (source,) = choice.sources(app, conversation)
    assert total == source.tokens
    page.locator(".ub-pick-branch, .ub-pick-leaf").last.uncheck()
    assert count(page) < total
    until(page, "document.querySelector('.ub-pick-document').indeterminate")
