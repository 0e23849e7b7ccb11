"""From the attention of KV pages to shares of document pages, by hand-made masses and by the real app."""

import numpy as np
import pytest

from app import assistant, conversations, documents
from app.evidence import KV_PAGE, DocumentLook, Evidence, Looked, gather_evidence, read_evidence
from app.ledger import Part, PastTurn, Span, TurnRecord, document_parts, read_ledger

NAMES = {"a": "a.pdf", "b": "b.pdf"}
TEXT = "One fact. Another fact."
KV_PAGES = 8  # the prompt's last one is the question's


def step(at: int, **drawn: float) -> Looked:
    """`drawn`: by KV page ("p3")."""
    mass = np.full(KV_PAGES + 1, 0.5, np.float32)
    for page, value in drawn.items():
        mass[int(page[1:])] += value
    return Looked(at, mass)


def spans(*edges: tuple[str, int, int, int]) -> list[Span]:
    return [Span(start, end, document, page) for document, page, start, end in edges]


WHOLE = spans(("a", 1, 64, 128), ("a", 2, 128, 224), ("a", 3, 224, 320), ("b", 7, 320, 384))


def gather(steps, where=WHOLE, text=TEXT, shown=TEXT, labels=None) -> Evidence | None:
    return gather_evidence(steps, where, KV_PAGES * KV_PAGE, text, shown, NAMES, labels or {})


def test_shares_of_an_answer_and_of_its_sentences() -> None:
    found = gather([step(0), step(4, p1=3.0), step(10, p5=1.0), step(18)])
    assert found is not None
    first, second = found.documents
    assert (first.document, first.pages, second.pages) == ("a.pdf", (1, 2, 3), (7,))
    assert first.shares == pytest.approx((0.75, 0, 0))
    assert second.shares == pytest.approx((0.25,))
    assert [TEXT[s.start : s.end].strip() for s in found.sentences] == ["One fact.", "Another fact."]
    assert [found.top_of(s, 3)[0].page for s in found.sentences] == [1, 7]
    assert [p.share for p in found.top_of(found.sentences[1], 3)] == pytest.approx([1.0])
    assert [(p.document, p.page) for p in found.top(5)] == [("a.pdf", 1), ("b.pdf", 7)]


def test_a_kv_page_on_a_border_is_divided_by_tokens() -> None:
    found = gather([step(0), step(4, p3=1.0)])  # tokens 192 to 256: 32 of page 2, 32 of page 3
    assert found is not None
    assert found.documents[0].shares == pytest.approx((0, 0.5, 0.5))


def test_what_is_drawn_in_every_step_says_nothing() -> None:
    always = [step(at, p1=9.0, **({"p2": 0.1} if at else {})) for at in (0, 4, 8)]
    found = gather(always)
    assert found is not None
    assert found.documents[0].shares[1] == pytest.approx(1.0)


def test_one_step_counts_as_it_is() -> None:
    found = gather([step(0, p1=9.0)])
    assert found is not None
    assert found.documents[0].shares[0] > 0.6


def test_sink_question_and_what_follows_do_not_count() -> None:
    everywhere = spans(("a", 1, 0, 64), ("a", 2, 64, 128), ("a", 3, 400, 520))
    found = gather([step(0), step(4, p0=50.0, p7=50.0, p8=50.0, p1=1.0)], everywhere)
    assert found is not None
    assert found.documents[0].shares == pytest.approx((0, 1, 0))


def test_thinking_is_no_part_of_the_answer() -> None:
    text = "<think>hm</think>" + TEXT
    found = gather([step(0), step(3, p1=9.0), step(20, p5=1.0)], text=text)
    assert found is not None
    assert found.documents[1].shares == pytest.approx((1,))


@pytest.mark.parametrize(
    ("steps", "where", "shown"),
    [
        ([], WHOLE, TEXT),
        ([step(0), step(4)], WHOLE, TEXT),  # nothing drew more than always
        ([step(0), step(4, p1=1.0)], [], TEXT),
        ([step(0), step(4, p1=1.0)], spans(("gone", 1, 64, 128)), TEXT),
        ([step(0), step(4, p1=1.0)], WHOLE, "What the app says in place of an answer."),
    ],
)
def test_nothing_to_tell(steps, where, shown) -> None:
    assert gather(steps, where, shown=shown) is None


def test_a_page_that_stands_in_the_prompt_twice_adds_up() -> None:
    twice = spans(("a", 1, 64, 128), ("a", 2, 128, 192), ("a", 1, 192, 256))
    found = gather([step(0), step(4, p1=1.0, p2=2.0, p3=1.0)], twice)
    assert found is not None
    assert found.documents[0].pages == (1, 2)
    assert found.documents[0].shares == pytest.approx((0.5, 0.5))


def test_stored_and_read_again() -> None:
    found = gather([step(0), step(4, p1=3.0), step(10, p5=1.0)], labels={("a", 1): "xii", ("b", 7): "7"})
    assert found is not None
    again = read_evidence(found.to_dict())
    assert again is not None
    assert again == found
    assert again.documents[0].labels == {1: "xii"}
    assert found.without("b") is None
    assert found.without("c") is found


@pytest.mark.parametrize(
    "stored",
    [
        None,
        "",
        {},
        {"documents": [], "sentences": []},
        {"documents": [{"id": "a"}], "sentences": []},
        {"documents": [{"id": "a", "name": "a", "pages": [[1, 2]], "shares": [1], "labels": {}}], "sentences": []},
        {
            "documents": [{"id": "a", "name": "a", "pages": [[1, 1]], "shares": [1], "labels": {}}],
            "sentences": [[0, 1, [[4, 1, 1]]]],
        },
    ],
)
def test_what_is_no_evidence(stored) -> None:
    assert read_evidence(stored) is None


def test_shares_belong_to_pages() -> None:
    with pytest.raises(ValueError, match="shares: got 1"):
        DocumentLook("a", "a", (1, 2), (0.5,), {})


def test_documents_of_earlier_turns_are_found_again() -> None:
    one = TurnRecord("m", True, (Part((1, 2)), Part((3, 4, 5), "a", (1, 2)), Part((6,))))
    two = TurnRecord("m", False, (Part((7, 8)), Part((9,), "b", (4,)), Part((10,))))
    turns = [PastTurn("q", "a", one, (20, 21)), PastTurn("q", "a", two, (22,))]
    ledger = read_ledger(turns, "m")
    assert ledger is not None
    assert [(start, part.document) for start, part in ledger.placed] == [(2, "a"), (10, "b")]
    assert all(ledger.ids[start : start + len(part.ids)] == part.ids for start, part in ledger.placed)
    assert list(document_parts(two.parts, 100)) == [(102, two.parts[1])]


def test_the_real_app_tells_where_it_looked(app, facts_pdf) -> None:
    """Spans are the pages' own tokens; a second turn finds the document of the first one; deleting forgets it."""
    conversation = conversations.new(app)
    (added,) = documents.add_files(app, conversation.id, [facts_pdf])
    assert added.document is not None
    for question in ("How tall is the lighthouse?", "Who keeps it?"):
        state = assistant.ask(app, conversation.id, question, reading="whole").wait(120)
        assert state.phase == "done"
        assert state.evidence is not None
        (look,) = state.evidence.documents
        assert look.document_id == added.document.id
        assert sum(look.shares) == pytest.approx(1)
        stored = app.library.messages(conversation.id)[-1].details
        assert read_evidence(stored["evidence"]) is not None
    tokens = app.document_tokens()
    decode = app.face().tokenizer.decode
    ids = tokens.resolve(added.document.id, look.pages)
    assert ids is not None
    for span in tokens.spans(0, added.document.id, look.pages):
        assert decode(list(ids[span.start : span.end])).startswith(f"[Page {span.page}")
    documents.detach(app, conversation.id, added.document.id)
    assert all(not message.details.get("evidence") for message in app.library.messages(conversation.id))
