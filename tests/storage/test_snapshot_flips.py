"""Single flipped bits, cut files and deleted rows of kvcache.db: what is read is right or is not there.

CI takes a sample. UNABRIDGED_FLIPS=1000 UNABRIDGED_CUTS=200 is the whole of it.
"""

import os
import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from storage import SnapshotStore
from tests.storage.helpers import MEGABYTE, chain

FLIPS = int(os.environ.get("UNABRIDGED_FLIPS", "30"))
CUTS = int(os.environ.get("UNABRIDGED_CUTS", "10"))
ROWS = chain("a", 4, size=90_000)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    with SnapshotStore.open(folder, 100 * MEGABYTE) as store:
        store.put("one", "f", ROWS)
    return folder / "kvcache.db"


def restored(store: SnapshotStore) -> int:
    """As an engine would restore: the leading run of known blocks, read in turn. What comes is right."""
    keys = [row.key for row in ROWS]
    found = 0
    for row in ROWS[: store.known_blocks(keys[:-1])]:
        payload = store.read_block(row.key)
        if payload is None:
            break
        assert payload == row.payload
        found += 1
    for key, parent, ids in store.checkpoints(keys):
        end = store.read_checkpoint(key)
        if end is not None:
            assert (key, parent, ids, end) == (ROWS[-1].key, ROWS[-1].parent, ROWS[-1].token_ids, ROWS[-1].payload)
    return found


def goes_on(folder: Path) -> int:
    """Open, restore, store again what is missing, restore all -> how many blocks were there at first."""
    with SnapshotStore.open(folder, 100 * MEGABYTE) as store:
        found = restored(store)
        store.put("one", "f", ROWS)
        again = restored(store)
        if again < len(ROWS) - 1 or store.verify():  # damaged bookkeeping shows when it is written over, or looked for
            store.verify()
            store.put("one", "f", ROWS)
            again = restored(store)
        assert again == len(ROWS) - 1
        assert store.verify() == []
    with sqlite3.connect(folder / "kvcache.db") as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    return found


def test_single_bits(sound: Path, tmp_path: Path) -> None:
    dice, data = random.Random(FLIPS), sound.read_bytes()
    found = []
    for _ in range(FLIPS):
        folder = tmp_path / "one"
        folder.mkdir()
        at = dice.randrange(len(data))
        changed = bytearray(data)
        changed[at] ^= 1 << dice.randrange(8)
        (folder / "kvcache.db").write_bytes(changed)
        found.append(goes_on(folder))
        shutil.rmtree(folder)
    assert min(found) < len(ROWS) - 1  # some of it was damage
    assert max(found) > 0  # and a bit in one row costs no other


def test_cut_files(sound: Path, tmp_path: Path) -> None:
    dice, data = random.Random(CUTS), sound.read_bytes()
    for _ in range(CUTS):
        folder = tmp_path / "one"
        folder.mkdir()
        (folder / "kvcache.db").write_bytes(data[: dice.randrange(len(data))])
        goes_on(folder)
        shutil.rmtree(folder)


@pytest.mark.parametrize("table", ["snapshots", "payloads"])
@pytest.mark.parametrize("row", range(len(ROWS)))
def test_a_deleted_row(sound: Path, tmp_path: Path, table: str, row: int) -> None:
    shutil.copy(sound, tmp_path / "kvcache.db")
    with sqlite3.connect(tmp_path / "kvcache.db") as db:
        db.execute(f"DELETE FROM {table} WHERE {'id' if table == 'snapshots' else 'snapshot_id'} = ?", (row + 1,))
    assert goes_on(tmp_path) == min(row, len(ROWS) - 1)


def test_a_row_under_another_key(sound: Path, tmp_path: Path) -> None:
    """Two rows whose payloads changed places: both are sound in themselves and wrong where they stand."""
    shutil.copy(sound, tmp_path / "kvcache.db")
    with sqlite3.connect(tmp_path / "kvcache.db") as db:
        db.execute("UPDATE payloads SET snapshot_id = 5 - snapshot_id + 100 WHERE snapshot_id IN (2, 3)")
        db.execute("UPDATE payloads SET snapshot_id = snapshot_id - 100 WHERE snapshot_id > 100")
    assert goes_on(tmp_path) == 1
