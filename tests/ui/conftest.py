"""A page over the fake app, and a real chromium that looks at it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_app import FakeBackend

CHROMIUM_ARGS = [
    "--no-sandbox", "--disable-quic", "--disable-gpu", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
SCREENSHOTS = "UNABRIDGED_SCREENSHOTS"
"""Names a folder: the browser tests then write what they see there as PNG files."""


@pytest.fixture(scope="module")
def chromium():
    """Not for the whole session: while Playwright runs, its event loop keeps other tests from running theirs."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("no chromium on this machine (apt-get install chromium)")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_ARGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeBackend, str]]:
    """One page for all browser tests; each test uses conversations of its own."""
    import ui

    folder = tmp_path_factory.mktemp("ui")
    sample = folder / "sample handbook.pdf"
    sample.write_bytes(b"%PDF-1.4 sample")
    backend = FakeBackend(folder / "temp", sample, step=0.03)
    with ui.serve(backend) as running:
        yield backend, running.address


@pytest.fixture
def snap() -> Callable[..., None]:
    """snap(page, name) writes a screenshot when the environment asks for them."""
    wanted = os.environ.get(SCREENSHOTS)

    def write(page, name: str) -> None:
        if wanted:
            Path(wanted).mkdir(parents=True, exist_ok=True)
            page.wait_for_timeout(300)
            page.screenshot(path=str(Path(wanted) / f"{name}.png"))

    return write


@pytest.fixture
def page(chromium, served):
    """A fresh browser profile on the page. Fails the test if the page reached for another host or a script failed."""
    _, address = served
    context = chromium.new_context(viewport={"width": 1280, "height": 800}, color_scheme="light")
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened = context.new_page()
    opened.set_default_timeout(20_000)
    host = address.split("/?")[0]
    foreign: list[str] = []
    broken: list[str] = []
    context.on(
        "request", lambda r: None if r.url.startswith((host, "data:", "blob:", "about:")) else foreign.append(r.url)
    )
    opened.on("pageerror", lambda error: broken.append(str(error)))
    opened.on("dialog", lambda dialog: broken.append(f"dialog: {dialog.message}"))
    opened.goto(address)
    opened.wait_for_selector(".ub-empty")
    yield opened
    context.close()
    assert foreign == []
    assert broken == []
