"""Runs the command line as a user does, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def unabridged(*words: object, data_dir: Path, timeout: float = 120, **more: str) -> subprocess.CompletedProcess[str]:
    """`unabridged WORDS`, with the data folder in the environment; more: further environment variables."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("UNABRIDGED_", "HF_", "GRADIO_"))}
    environment = inherited | {"UNABRIDGED_DATA_DIR": str(data_dir), "PYTHONPATH": str(ROOT)} | more
    return subprocess.run(
        [sys.executable, "-m", "app.cli", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def is_one_error(stderr: str) -> bool:
    """One 'error:' line and one 'hint:' line, and no traceback."""
    lines = stderr.strip().splitlines()
    return len(lines) == 2 and lines[0].startswith("error: ") and lines[1].startswith("hint: ") and len(lines[1]) > 8
