"""Fixtures for turns with the real starter model: one App for each module, and a small PDF."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.settings import Settings
from app.wiring import App
from tests.app.small_pdfs import FACTS, write_pdf


@pytest.fixture(scope="session")
def facts_pdf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pdf(tmp_path_factory.mktemp("pdf") / "lighthouse.pdf", FACTS)


@pytest.fixture(scope="module")
def open_app(starter_model: Path) -> Iterator[Callable[[Path], App]]:
    """Opens the app with the starter model and short answers; everything opened is closed after the module."""
    opened: list[App] = []

    def open_at(folder: Path) -> App:
        settings = Settings(data_dir=folder, model=str(starter_model), max_answer_tokens=24, threads=1)
        opened.append(App.open(settings))
        return opened[-1]

    yield open_at
    for app in opened:
        app.close()


@pytest.fixture(scope="module")
def app(open_app: Callable[[Path], App], tmp_path_factory: pytest.TempPathFactory) -> App:
    return open_app(tmp_path_factory.mktemp("data"))
