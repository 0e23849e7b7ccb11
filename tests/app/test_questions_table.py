"""Many questions as a table: lists of questions, cells, files, and the hidden place where they are asked."""

from __future__ import annotations

import csv
import io
import json
import time
from pathlib import Path

import pytest

from app import conversations, documents, table_place
from app.citations import Citation
from app.errors import WrongUse
from app.hidden import is_hidden
from app.questions_table import (
    TableRow,
    TableState,
    answer_table,
    as_csv,
    as_json_lines,
    as_markdown,
    harmless,
    read_questions,
    table_file,
    table_from,
)
from app.ready_questions import headings, language_of, questions_for
from app.report import CSV_COLUMNS, csv_row
from app.wiring import App
from tests.app.four_languages import HANDBOOKS, Handbook

CITED = (
    Citation("a", "manual.pdf", 3, "", "one", "verified"),
    Citation("a", "manual.pdf", 5, "", "two", "attributed"),
    Citation("b", "notes.pdf", 3, "", "three", "verified"),
    Citation("", "", 0, "", "four", "not_found"),
)


def test_lists_of_questions_are_read_as_people_write_them() -> None:
    text = '\ufeffQuestion\n\n# a note\n1. How long is it?\n- Who pays?\n"Why, and when?"\n(3) Where?\n2024 was what?\n'
    assert read_questions(text) == ("How long is it?", "Who pays?", "Why, and when?", "Where?", "2024 was what?")
    for wrong in ("", "\n# only notes\n", "x" * 2001, "\n".join(f"Question {n}?" for n in range(501))):
        with pytest.raises(WrongUse):
            read_questions(wrong)


def test_a_row_names_pages_and_how_far_they_hold() -> None:
    row = TableRow("Which?", "This one.", CITED)
    assert row.pages == "manual.pdf p. 3, p. 5; notes.pdf p. 3"
    assert row.quote_status == "quote found (2), matched by the app (1), quote not found (1)"
    assert TableRow("Which?", "None.").quote_status == "no source"
    assert TableRow("Which?", error="It does not fit.").quote_status == ""


def test_no_cell_of_many_answers_is_a_formula_that_a_file_in_an_archive_is_called() -> None:
    label = '=HYPERLINK("x").pdf:p3'
    found = {"document": "a.zip", "page": 3, "label": label, "quote": "One.", "status": "verified"}
    cells = csv_row("-x", {"answer": "=1", "citations": [found], "passages": [found], "prompt_tokens": 5})
    row = dict(zip(CSV_COLUMNS, cells, strict=True))
    assert row["pages"] == row["citations"] == row["passages"] == '\'=HYPERLINK("x").pdf p. 3'
    assert (row["question"], row["answer"]) == ("'-x", "'=1")


def test_files_of_a_table_keep_every_cell_and_no_formula() -> None:
    rows = (TableRow('=HYPERLINK("x")', "- a list\n- of | two", CITED), TableRow("Plain?", error="No."))
    read = list(csv.DictReader(io.StringIO(as_csv(rows))))
    assert read[0]["question"] == '\'=HYPERLINK("x")'
    assert read[0]["answer"] == "'- a list\n- of | two"
    assert read[1]["error"] == "No."
    lines = as_markdown(rows).splitlines()
    assert len(lines) == 4
    assert "- a list - of \\| two" in lines[2]
    assert "(No.)" in lines[3]
    objects = [json.loads(line) for line in as_json_lines(rows).splitlines()]
    where = {"document": "manual.pdf", "page": 3, "file": None, "file_page": None}
    assert objects[0]["citations"][0] == {**where, "quote": "one", "status": "verified"}


@pytest.mark.parametrize("cell", ["=1", "+1", "-1", "@x", "- cmd|' /C calc'!A0", " =1", "\n=1", "\t=1", "＝1", "＋1"])
def test_no_cell_is_taken_for_a_formula(cell: str) -> None:
    (read,) = csv.DictReader(io.StringIO(as_csv([TableRow(cell)])))
    assert read["question"] == f"'{cell}"
    assert harmless("1 - 1 = 0") == "1 - 1 = 0"


def test_a_stored_table_is_the_same_table() -> None:
    table = TableState(("Which?", "Where?"), (TableRow("Which?", "This.", CITED),))
    assert table_from({"table": json.loads(json.dumps(table.as_dict()))}) == table
    assert table.current == "Where?"
    assert table_from({}) is None


def test_questions_are_asked_beside_the_conversation_and_go_with_it(app: App, facts_pdf: Path) -> None:
    conversation = conversations.new(app)
    documents.add_files(app, conversation.id, [facts_pdf])
    hidden = table_place.place(app, conversation.id)
    assert is_hidden(app, hidden)
    assert table_place.place(app, conversation.id) == hidden
    (document,) = app.library.documents(hidden)
    conversations.delete(app, conversation.id, with_documents=True)
    assert hidden not in {known.id for known in app.library.conversations()}
    assert document.id not in {known.id for known in app.library.documents()} or app.library.conversations_using(
        document.id
    )


@pytest.mark.slow
def test_a_table_is_answered_stored_and_keeps_its_rows_when_stopped(app: App, facts_pdf: Path) -> None:
    conversation = conversations.new(app)
    documents.add_files(app, conversation.id, [facts_pdf])
    listed = ["What is the access code of the lamp room?", "How deep is the well?", "Who built the lighthouse?"]
    job = answer_table(app, conversation.id, listed)
    deadline = time.monotonic() + 400
    while job.state.table is None or len(job.state.table.rows) < 1:
        assert time.monotonic() < deadline
        assert not job.state.finished, job.state.error
        time.sleep(0.002)
    pressed = time.monotonic()
    job.cancel()
    state = job.wait(10)
    assert time.monotonic() - pressed < 0.3
    assert state.phase == "stopped"
    assert state.table is not None
    assert 1 <= len(state.table.rows) < 3
    row = state.table.rows[0]
    assert "7391" in row.answer
    assert "lighthouse.pdf p. 3" in row.pages
    stored = conversations.messages(app, conversation.id)[1]
    assert table_from(stored.details) == state.table
    assert stored.text.startswith("| Question |")
    assert app.library.conversation(conversation.id).title == "3 questions"
    made = table_file(app, stored.id, "csv")
    assert made is not None
    assert "7391" in made[1]
    assert table_file(app, stored.id, "exe") is None
    assert table_file(app, "nothing", "csv") is None
    with pytest.raises(WrongUse):
        conversations.regenerate(app, conversation.id)


def test_tables_need_documents(app: App) -> None:
    with pytest.raises(WrongUse, match="no document"):
        answer_table(app, conversations.new(app).id, ["Why?"])


@pytest.mark.parametrize("book", HANDBOOKS, ids=lambda book: book.name)
def test_ready_questions_come_from_headings_in_four_languages(book: Handbook) -> None:
    pages = [f"{heading}\n\n{text}" for heading, text in zip(book.headings, book.sentences, strict=True)]
    first, *rest = questions_for([pages])
    assert first == book.summarize
    assert len(rest) == 3
    titles = [heading.split(maxsplit=1)[1] for heading in book.headings]
    assert all(any(title in question for title in titles) for question in rest)
    assert questions_for([pages, pages])[0] != book.summarize, "two documents are compared"
    plain = questions_for([["".join(book.sentences)]])
    assert len(plain) == 3
    assert plain[0] == book.summarize


def test_headings_are_found_in_contents_markdown_and_lists_of_questions() -> None:
    contents = (
        "Contents\n\n1 Introduction ........ 1\n2 The Root Filesystem ........ 4\n3 The /usr Hierarchy . . . . . 9\n"
    )
    assert headings([contents]) == ["The Root Filesystem", "The /usr Hierarchy"]
    assert headings(["# Setting up\n\ntext\n\n## Details\n\n# Taking down\n"]) == ["Setting up", "Taking down"]
    faq = "2.1 What is R-Forge?\n\nA site.\n\n2.2 How can I install it?\n\nSo.\n\n2.3 Where are the manuals kept?\n"
    assert headings([faq]) == ["What is R-Forge?", "How can I install it?", "Where are the manuals kept?"]
    assert headings(["12 monkeys ran.\n3 C:\\\\bdr | NA\nThe end of the line 7"]) == []


def test_languages_are_told_by_their_script() -> None:
    assert [language_of("".join(book.sentences)) for book in HANDBOOKS] == ["en", "zh", "ja", "ko"]
    assert language_of("") == "en"


def test_code_gets_questions_for_code() -> None:
    assert "code" in questions_for([["def main():\n    return 1\n"]], is_code=True)[1]


def test_a_cell_of_markdown_fetches_nothing_and_holds_no_html() -> None:
    row = TableRow("a | b", "![x](http://a.example/p.png) <img src=x> 1 < 2")
    assert (
        as_markdown([row]).splitlines()[-1].startswith(r"| a \| b | !\[x](http://a.example/p.png) \<img src=x> 1 < 2 |")
    )
