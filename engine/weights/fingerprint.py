"""The identity of a model: SHA-256 over every byte that decides its outputs.

A file that was hashed before is recognised by path, size and time of change in a mapping that the caller keeps, so a
large model is read once and not at every start.
"""

import hashlib
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path

CHUNK = 8 << 20


def fingerprint_of(
    files: Sequence[Path],
    known: MutableMapping[str, str],
    progress: Callable[[str, float], None] | None = None,
) -> str:
    """Hex digest over the files' contents in the given order. New digests are added to `known`.

    `progress(file name, share of all bytes)` is called about every 8 MB and once with 1.0.
    """
    sizes = [file.stat().st_size for file in files]
    total, done = max(sum(sizes), 1), 0
    combined = hashlib.sha256()
    for file, size in zip(files, sizes):
        key = f"{file.resolve()}|{size}|{file.stat().st_mtime_ns}"
        if key not in known:
            digest = hashlib.sha256()
            with file.open("rb") as handle:
                read = 0
                while chunk := handle.read(CHUNK):
                    digest.update(chunk)
                    read += len(chunk)
                    if progress is not None:
                        progress(file.name, min((done + read) / total, 1.0))
            known[key] = digest.hexdigest()
        done += size
        combined.update(bytes.fromhex(known[key]))
    if progress is not None and files:
        progress(files[-1].name, 1.0)
    return combined.hexdigest()
