"""One turn of a conversation: store the question, search, plan the prompt, read, answer, check, remember.

`ask` returns at once with a Job; everything that takes time happens in the engine's thread (`app.turn_work`). The
question is on disk before anything else happens, and the answer's row is never more than a second older than what the
job shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.errors import WrongUse, as_app_error
from app.history import title_of
from app.jobs import Job
from app.turn_choices import READINGS
from app.turn_work import TurnWork

if TYPE_CHECKING:
    from app.pages import PageChoice
    from app.wiring import App
    from engine import Sampling
    from storage import Message


def ask(
    app: App,
    conversation_id: str,
    question: str,
    *,
    reading: str = "auto",
    pages: PageChoice | None = None,
    sampling: Sampling | None = None,
    thinking: bool = False,
) -> Job:
    """Stores the question and puts its turn into the queue; passages of the documents are in the state already.

    reading: 'passages', 'whole' or 'auto' (by the settings, else by the model's size). pages: a choice for 'whole'.
    thinking: counts for a conversation's first turn, later ones follow it. Errors: WrongUse, storage's own; everything
    later is the job's state 'failed' with the error in it.
    """
    if not question.strip():
        raise WrongUse("The question is empty.", "Write a question first.")
    if reading not in READINGS:
        raise WrongUse(f"There is no way of reading called {reading!r}.", f"Use {', '.join(READINGS)}.")
    conversation = app.library.conversation(conversation_id)
    message = app.library.add_message(conversation_id, "user", question.strip())
    if not conversation.title:
        app.library.rename_conversation(conversation_id, title_of(question))
    return answer(app, message, reading=reading, pages=pages, sampling=sampling, thinking=thinking)


def answer(
    app: App,
    question: Message,
    *,
    reading: str = "auto",
    pages: PageChoice | None = None,
    sampling: Sampling | None = None,
    thinking: bool = False,
    replaces: Message | None = None,
) -> Job:
    """Puts an answer to a stored question into the queue. replaces: an earlier answer that this one takes over from."""
    turn = TurnWork(app, question, reading, pages, sampling, thinking, replaces)
    job = Job(question.conversation_id, turn.run, turn.store, turn.first_state)
    try:
        return app.engine_service.submit(job)
    except Exception as error:
        job.finish("failed", error=as_app_error(error))
        return job
