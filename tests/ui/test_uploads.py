"""Uploads that share a folder: Gradio names folders by content, so equal files lie side by side."""

from __future__ import annotations

import time
from pathlib import Path

from fake_app import FakeBackend

from ui.uploads import Uploads


def test_an_upload_that_ends_leaves_an_equal_one_its_file(tmp_path: Path) -> None:
    backend = FakeBackend(tmp_path / "temp", step=0.001)
    folder = backend.temp_dir / "hash-of-content"
    folder.mkdir(parents=True)
    first, second = folder / "a-broken.pdf", folder / "b-broken.pdf"
    for path in (first, second):
        path.write_bytes(b"the same")
    uploads = Uploads(backend)
    try:
        conversation = backend.new_conversation()
        uploads.add(conversation, [first, second, second])
        deadline = time.monotonic() + 10
        while any(upload.busy for upload in uploads.of(conversation)):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        a, b, b_again = uploads.of(conversation)
        uploads.close_one(a.id)
        assert not first.exists()
        assert second.read_bytes() == b"the same"
        uploads.close_one(b.id)
        assert second.exists()
        uploads.close_one(b_again.id)
        assert not folder.exists()
        assert backend.temp_dir.exists()
    finally:
        uploads.close()
