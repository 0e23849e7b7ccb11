"""The installer's modules import each other by plain names, as when `python3 installer` runs; so do these helpers."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "installer"), str(ROOT / "tests" / "installer")]


@pytest.fixture
def root() -> Path:
    return ROOT
