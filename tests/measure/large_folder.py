"""How long a folder of thousands of files takes from its path to a list with token counts, and what memory that costs.

    python tests/measure/large_folder.py FOLDER MODEL

Prints one JSON object: files, pages, tokens, seconds of each step, and the resident memory of this process before and
after (the text passes through it, the reading itself is done in a child).
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import psutil


def main() -> None:
    from app import documents
    from app.before_reading import reading_plan
    from app.changes import find_changes
    from app.settings import load_settings
    from app.wiring import App

    folder, model = Path(sys.argv[1]), sys.argv[2]
    process = psutil.Process()
    steps: dict[str, float] = {}
    memory: dict[str, float] = {}

    def mark(name: str, since: float) -> None:
        steps[name] = round(time.monotonic() - since, 2)
        memory[name] = round(process.memory_info().rss / 1e6)

    with tempfile.TemporaryDirectory() as data:
        settings = load_settings({"model": model}, {}, Path(data))
        with App.open(settings) as app:
            started = time.monotonic()
            app.face()
            mark("model_file", started)
            conversation = app.library.create_conversation().id
            listed = time.monotonic()
            (added,) = documents.add_files(app, conversation, [folder])
            mark("read_and_stored", listed)
            if added.error is not None:
                raise added.error
            counted = time.monotonic()
            plan = reading_plan(app, conversation)
            mark("counted", counted)
            total = round(time.monotonic() - listed, 2)
            again = time.monotonic()
            reading_plan(app, conversation)
            mark("counted_again", again)
            looked = time.monotonic()
            changes = find_changes(app, conversation)
            mark("looked_for_changes", looked)
            (source,) = plan.sources
            result = {
                "files": len(source.items),
                "pages": source.document.pages,
                "tokens": plan.all_tokens,
                "skipped": len(added.skipped),
                "listed_with_counts_s": total,
                "steps_s": steps,
                "memory_mb": memory,
                "changes": len(changes),
            }
            print(json.dumps(result, indent=1))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    main()
