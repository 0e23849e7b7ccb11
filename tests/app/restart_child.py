"""Run by test_restart: opens the app, asks, prints what came out as JSON; with --die it is killed in the middle."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import engine.turn
from app import assistant, conversations, documents
from app.settings import Settings
from app.wiring import App


def main(folder: str, model: str, pdf: str, question: str, how: str) -> None:
    if how == "die-reading":
        engine.turn.CHECKPOINT_SECONDS = 0.5  # else a fast machine has read all before the first one
    app = App.open(Settings(data_dir=Path(folder), model=model, max_answer_tokens=24, threads=1))
    known = conversations.list(app)
    conversation = known[0].id if known else conversations.new(app).id
    if not known:
        (added,) = documents.add_files(app, conversation, [Path(pdf)])
        assert added.error is None, added.error
    job = assistant.ask(app, conversation, question, reading="whole")
    if how == "die-reading":
        while not (app.snapshots.stats().checkpoints and job.state.phase == "reading"):
            assert not job.state.finished, job.state
            time.sleep(0.01)
        print(json.dumps({"read": job.state.read_done, "of": job.state.read_total}), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "die-answering":
        while not app.library.message(job.state.message_id).text:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    state = job.wait(400)
    assert state.stats is not None, state.error
    if how == "die-after":
        written = 0
        while written < 2:  # the checkpoint after the document and the one after the turn
            app.snapshot_writer.flush()
            written = app.snapshots.stats().checkpoints
            time.sleep(0.05)
        print(json.dumps({"answer": state.answer} | state.stats.as_dict()), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    app.close()
    print(json.dumps({"answer": state.answer} | state.stats.as_dict()), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
