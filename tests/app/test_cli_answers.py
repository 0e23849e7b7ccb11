"""The command line with the real starter model: answers about a document, alone and many at once."""

import csv
import io
import json

import pytest

from tests.app.kettle import KEYS, QUESTION, ask

pytestmark = pytest.mark.slow


def test_whole_document_is_read_once_and_reused_by_a_later_process(tmp_path, kettle, starter_model):
    first, again, other = (
        json.loads(ask(tmp_path, starter_model, kettle, "-q", question, "--whole", "--json").stdout)
        for question in (QUESTION, QUESTION, "How often must the kettle be descaled?")
    )
    assert list(first) == KEYS
    assert "27" in first["answer"]
    assert ("kettle.pdf", 3) in {(citation["document"], citation["page"]) for citation in first["citations"]}
    assert first["passages"][0]["page"] == 3
    assert first["reused_tokens"] == 0
    assert first["finish_reason"] in ("stop", "length")
    assert again["answer"] == first["answer"]
    assert again["prompt_tokens"] == first["prompt_tokens"]
    for later in (again, other):
        assert later["restored_tokens"] >= first["prompt_tokens"] - 200
        assert later["reused_tokens"] + later["computed_tokens"] == later["prompt_tokens"]
        assert later["ttft_s"] < first["ttft_s"]
    from storage import Library

    library = Library.open(tmp_path)
    (conversation,) = library.conversations()
    assert library.frozen(conversation.id)["hidden"] == "command line"
    library.close()


def test_several_questions_are_independent_of_each_other(tmp_path, kettle, starter_model):
    questions = tmp_path / "questions.txt"
    questions.write_text(f"# two\nWhat cleans the kettle?\n\n{QUESTION}\n", encoding="utf-8")
    done = ask(tmp_path / "data", starter_model, kettle, "--questions", questions, "--csv")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["question"] for row in rows] == ["What cleans the kettle?", QUESTION]
    assert all(row["error"] == "" and row["answer"] for row in rows)
    single = json.loads(ask(tmp_path / "alone", starter_model, kettle, "-q", QUESTION, "--json").stdout)
    assert str(single["prompt_tokens"]) == rows[1]["prompt_tokens"]
    assert single["answer"] == rows[1]["answer"]
