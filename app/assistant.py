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
from app.parts.work import PartsWork
from app.tasks import TASKS, Task, recognise
from app.turn_choices import READINGS, reading_for
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
    task: str = "auto",
) -> Job:
    """Stores the question and puts its turn into the queue; passages of the documents are in the state already.

    reading: 'passages', 'whole', 'parts' or 'auto' (by the settings, else by the model's size). pages: a choice for
    'whole' and 'parts'. task: a kind of `app.tasks`, or 'auto': recognised; one about the whole text is never answered
    from passages: it reads the whole, at once where that fits, else in parts.
    thinking: counts for a conversation's first turn, later ones follow it. Errors: WrongUse, also for a page that is
    not there, and nothing is stored then; storage's own; everything later is the job's state 'failed' with the error
    in it.
    """
    if not question.strip():
        raise WrongUse("The question is empty.", "Write a question first.")
    if reading not in READINGS:
        raise WrongUse(f"There is no way of reading called {reading!r}.", f"Use {', '.join(READINGS)}.")
    if task not in ("auto", *TASKS):
        raise WrongUse(f"There is no kind of question called {task!r}.", f"Use auto, {', '.join(TASKS)}.")
    conversation = app.library.conversation(conversation_id)
    if pages is not None:  # before anything is stored
        for document in app.library.documents(conversation_id):
            pages.pages(document.id, document.pages)
    message = app.library.add_message(conversation_id, "user", question.strip())
    if not conversation.title:
        app.library.rename_conversation(conversation_id, title_of(question))
    return answer(app, message, reading=reading, pages=pages, sampling=sampling, thinking=thinking, task=task)


def answer(
    app: App,
    question: Message,
    *,
    reading: str = "auto",
    pages: PageChoice | None = None,
    sampling: Sampling | None = None,
    thinking: bool = False,
    replaces: Message | None = None,
    task: str = "auto",
) -> Job:
    """Puts an answer to a stored question into the queue. replaces: an earlier answer that this one takes over from."""
    turn = turn_for(
        app,
        question,
        reading=reading,
        pages=pages,
        sampling=sampling,
        thinking=thinking,
        replaces=replaces,
        task=task,
    )
    job = Job(question.conversation_id, turn.run, turn.store, turn.first_state)
    try:
        return app.engine_service.submit(job)
    except Exception as error:
        job.finish("failed", error=as_app_error(error))
        return job


def turn_for(
    app: App,
    question: Message,
    *,
    reading: str = "auto",
    pages: PageChoice | None = None,
    sampling: Sampling | None = None,
    thinking: bool = False,
    replaces: Message | None = None,
    task: str = "auto",
) -> TurnWork:
    """The work of answering a stored question, not yet begun; its answer's row is there already."""
    kind = kind_of(app, question, task)
    if kind != "question" or reading_for(app, question.conversation_id, reading) == "parts":
        return PartsWork(app, question, reading, pages, sampling, thinking, replaces, kind)
    return TurnWork(app, question, reading, pages, sampling, thinking, replaces)


def kind_of(app: App, question: Message, task: str) -> Task:
    """The chosen kind, else the recognised one; without documents every question is a plain one."""
    documents = app.library.documents(question.conversation_id)
    if not documents:
        return "question"
    for known in TASKS:
        if known == task:
            return known
    return recognise(question.text, len(documents))
