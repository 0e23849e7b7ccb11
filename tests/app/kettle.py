"""The manual of a kettle, a question about it, and the command line that is asked with the real starter model."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.app.cli_runner import unabridged

PAGES = [
    """The Maple 300 kettle. This manual explains the kettle.
Put the kettle on a dry and level table, away from the edge.
Fill it through the spout or with the lid open, up to the upper mark.
Close the lid before you press the switch at the handle.
The lamp goes out when the water boils, and the kettle turns itself off.
Pour slowly, since steam comes out of the spout first.""",
    """Cleaning. Descale the kettle every 40 days with citric acid.
Let the acid stand for an hour, then rinse the kettle twice.
Wipe the outside with a damp cloth and never put it under water.
The filter behind the spout comes out when you pull it upwards.
Scale on the filter goes away in warm vinegar.""",
    """Warranty. The warranty of the Maple 300 lasts 27 months from purchase.
Keep the receipt, because the shop asks for it.
Damage by scale or by dry boiling is not part of the warranty.
Repairs are made by the shop where the kettle was bought.
Old kettles are collected free of charge at the same shop.""",
]
QUESTION = "How many months does the warranty of the Maple 300 last?"
KEYS = [
    *("answer", "citations", "passages", "prompt_tokens", "reused_tokens", "restored_tokens", "computed_tokens"),
    *("ttft_s", "tpot_ms", "output_tokens", "accepted_per_step", "finish_reason", "profile", "model", "kv_format"),
    *("mode", "read_by", "kv_pages_read_share", "demoted_pages", "peak_memory_bytes", "warnings"),
    *("task", "reading", "evidence", "evidence_by_sentence"),
]


def ask(data_dir: Path, starter_model: Path, *words: object) -> subprocess.CompletedProcess[str]:
    done = unabridged(
        "ask", *words, "--model", starter_model, "--max-answer-tokens", 48, data_dir=data_dir, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done
