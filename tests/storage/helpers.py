"""Contents for libraries and stores, written for the tests."""

import hashlib

from storage import Document, Library, PageRow, SnapshotRow

MEGABYTE = 2**20


def key(text: object) -> str:
    return hashlib.sha256(str(text).encode()).hexdigest()


def chain(name: str, blocks: int, size: int = 1000, checkpoint: bool = True) -> list[SnapshotRow]:
    """Blocks that build on each other, and a checkpoint on the last; 64 tokens each, contents told by their place."""
    rows = []
    parent = key(f"{name}-root")
    for index in range(blocks):
        ids = tuple(range(index * 64, index * 64 + 64))
        payload = hashlib.shake_128(f"{name}{index}".encode()).digest(size)
        rows.append(SnapshotRow("block", key(f"{name}{index}"), parent, index * 64, ids, payload))
        parent = rows[-1].key
    if checkpoint:
        rows.append(SnapshotRow("checkpoint", key(f"{name}-end"), parent, blocks * 64, (7, 8), b"tail" * 10))
    return rows


def add_text(library: Library, name: str, *texts: str) -> Document:
    pages = [PageRow(index + 1, str(index + 1), text) for index, text in enumerate(texts)]
    return library.add_document(key(name), name, "text", "test-1", pages, 100, f"/somewhere/{name}")
