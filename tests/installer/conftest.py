"""The installer's modules import each other by plain names, as they do when `python3 installer` runs."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "installer"))


@pytest.fixture
def root() -> Path:
    return ROOT
