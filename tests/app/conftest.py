"""Fixtures for turns with the real starter model: one App for each module, and a small PDF."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.settings import Settings
from app.wiring import App
from tests.app.kettle import PAGES
from tests.app.small_pdfs import FACTS, write_pdf
from tests.engine.tiny_models import make_model, save_folder


@pytest.fixture(scope="session")
def facts_pdf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pdf(tmp_path_factory.mktemp("pdf") / "lighthouse.pdf", FACTS)


@pytest.fixture(scope="session")
def kettle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.app.test_cli import make_pdf

    return make_pdf(tmp_path_factory.mktemp("files") / "kettle.pdf", PAGES)


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random model that reads and answers in no time."""
    return save_folder(make_model("llama", max_position=8192, layers=4), tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text file of 60 sentences."""
    from tests.app.test_kills import write_files

    return write_files(tmp_path_factory.mktemp("files"), 1, 60)[0]


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
