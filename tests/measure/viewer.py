"""From the click on a citation to its page's picture in the browser: `python tests/measure/viewer.py FILE.pdf`.

Prints the first click (the drawing process starts), later ones on other pages, and turning pages, in milliseconds.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

TIMED = """(selector) => new Promise(done => {
  const start = performance.now();
  const before = document.querySelector('.ub-sheet img')?.src || '';
  const look = () => {
    const img = document.querySelector('.ub-sheet img');
    if (img && img.src !== before && img.complete && img.naturalWidth) return done(performance.now() - start);
    requestAnimationFrame(look);
  };
  (typeof selector === 'string' ? document.querySelector(selector) : selector).click();
  look();
})"""


def main(pdf: Path) -> None:
    from playwright.sync_api import sync_playwright

    import ui
    from app import documents
    from app.citations import PageSource, attribute
    from app.settings import Settings
    from app.wiring import App
    from tests.app.citation_cases import sentences_of
    from tests.conftest import find_starter_model

    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder), model=str(find_starter_model()))
        with App.open(settings) as app:
            conversation = app.library.create_conversation("measure").id
            (added,) = documents.add_files(app, conversation, [pdf])
            assert added.document is not None, added.error
            id, name = added.document.id, added.document.name
            pages = [PageSource(id, name, row.index, row.label, row.text) for row in app.library.pages(id)]
            quotes = [(page.page, found[0]) for page in pages if (found := sentences_of(page))][:6]
            answer = " ".join(f'It says "{" ".join(quote.split())}" (page {page}).' for page, quote in quotes)
            cited = [asdict(citation) for citation in attribute(answer, pages)]
            app.library.add_message(conversation, "user", "What?")
            app.library.add_message(conversation, "assistant", answer, citations=cited)
            with ui.launch(app, open_browser=False) as running, sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
                )
                page = browser.new_page(viewport={"width": 1440, "height": 900})
                page.goto(f"{running.address}&c={conversation}")
                page.wait_for_selector(".ub-text .ub-chip >> nth=2")
                chips = page.locator(".ub-text .ub-chip").element_handles()
                clicks = [page.evaluate(TIMED, chip) for chip in chips]
                turns = [page.evaluate(TIMED, ".ub-view-previous") for _ in range(3)]
                marked = page.locator(".ub-box").count()
                print(f"{pdf.name}, {len(pages)} pages: first click {clicks[0]:.0f} ms, ", end="")
                print(f"later clicks {median(clicks[1:]):.0f} ms (median of {len(clicks) - 1}), ", end="")
                print(f"turning a page {median(turns):.0f} ms; marks on the last one: {marked}")
                browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
