"""Libraries and stores in a folder of their own, closed at the end of each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import Library, SnapshotStore
from tests.storage.helpers import MEGABYTE


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    with Library.open(tmp_path) as opened:
        yield opened


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SnapshotStore]:
    with SnapshotStore.open(tmp_path, 1000 * MEGABYTE) as opened:
        yield opened
