"""What a turn's prompt holds, and the refusals, with one token a byte so that lengths are plain."""

import pytest

from app.errors import DoesNotFit
from app.ledger import PastTurn
from app.plan import SMALL_PASSAGE_TOKENS, SMALL_PASSAGES, Plan, Planner, Room, choose_reading
from app.prompts import DocumentText, PromptWriter
from app.skeleton import Skeleton
from app.turn import Passage
from storage import PageRow
from tests.app.chat_templates import ByteEncoder

SMALL, LARGE = 135_000_000, 8 * 10**9
SKELETON = Skeleton("<", ">", "A:", "|", "A:", folded=False)


def encode_document(text: DocumentText) -> list[int]:
    return [id for page in text.pages for id in ByteEncoder().encode(f"[{page.index}]{page.text}")]


WRITER = PromptWriter(ByteEncoder(), SKELETON, "System.", encode_document)


def planner(context: int, past: list[PastTurn] | None = None, parameters: int = LARGE) -> Planner:
    return Planner(WRITER, "model", Room(context, 100, parameters), past or [])


def document(pages: int, length: int = 100, id: str = "doc") -> DocumentText:
    rows = tuple(PageRow(number, str(number), "x" * length) for number in range(1, pages + 1))
    return DocumentText(id, f"{id}.pdf", pages, rows)


def passage(page: int, text: str = "p" * 50) -> Passage:
    return Passage("doc", "doc.pdf", page, str(page), text, 1.0)


def after(plan: Plan, question: str, answer: str = "Yes.") -> PastTurn:
    return PastTurn(question, answer, plan.record, tuple(ByteEncoder().encode(answer)))


def text_of(plan: Plan) -> str:
    return ByteEncoder().decode(plan.ids)


def test_a_document_that_does_not_fit_is_refused_with_numbers_and_choices() -> None:
    with pytest.raises(DoesNotFit) as caught:
        planner(1000).whole("Why?", [document(20)])
    error = caught.value
    assert error.exit_code == 3
    assert error.available_tokens == 1000
    assert error.needed_tokens > 2000
    assert error.choices[0] == "pages 1-8 of doc.pdf"
    assert "answering from the best passages" in error.choices
    assert "1,000" in error.message
    plan = planner(1000).whole("Why?", [document(8)])
    assert len(plan.ids) <= 900
    with pytest.raises(DoesNotFit):
        planner(1000).whole("Why?", [document(9)])


def test_a_later_document_is_appended_and_the_checkpoint_lies_behind_it() -> None:
    first = planner(5000).whole("Why?", [document(2)])
    past = [after(first, "Why?")]
    second = planner(5000, past).whole("And?", [document(2), document(1, id="new")])
    assert second.ids[: len(first.ids)] == first.ids
    assert text_of(second).count("[1]") == 2
    before_question = text_of(second)[: second.checkpoint]
    assert before_question.endswith("x" * 100)
    assert dict(second.shown) == {"doc": (1, 2), "new": (1,)}
    again = planner(5000, [*past, after(second, "And?")]).whole("Last?", [document(2), document(1, id="new")])
    assert again.checkpoint == second.checkpoint  # should it all be read anew, that state is kept again
    plain = planner(5000).plain("Why?")
    assert planner(5000, [after(plain, "Why?")]).plain("And?").checkpoint == 0
    assert again.ids[: len(second.ids)] == second.ids


def test_a_narrower_choice_of_pages_begins_anew() -> None:
    first = planner(5000).whole("Why?", [document(5)])
    part = DocumentText("doc", "doc.pdf", 5, document(5).pages[:2])
    second = planner(5000, [after(first, "Why?")]).whole("And?", [part], chosen=True)
    assert second.record.start
    assert dict(second.shown) == {"doc": (1, 2)}
    wider = planner(5000, [after(second, "And?")]).whole("More?", [document(5)], chosen=True)
    assert not wider.record.start
    assert dict(wider.shown) == {"doc": (1, 2, 3, 4, 5)}


def test_passages_keep_reading_order_and_a_small_model_gets_few() -> None:
    found = [passage(page, f"Fact {page} stands here.") for page in (7, 3, 9, 1, 5, 2)]
    plan = planner(12_000, parameters=SMALL).passages("Why?", found, ["doc"])
    assert plan.passages == tuple(found[:SMALL_PASSAGES])
    long = [passage(page, f"Fact {page} stands here. " * 3 + f"More about {page}. " * 40) for page in (7, 3)]
    plan = planner(12_000, parameters=SMALL).passages("What is fact 7?", long, ["doc"])
    assert "Fact 7 stands here." in plan.passages[0].text
    assert sum(len(p.text) for p in plan.passages) <= SMALL_PASSAGE_TOKENS + len(plan.passages)
    plan = planner(12_000, parameters=LARGE).passages("Why?", found, ["doc"])
    assert [p.page for p in plan.passages] == [1, 2, 3, 5, 7, 9]


def test_an_outgrown_conversation_says_so_and_keeps_questions_and_answers() -> None:
    past: list[PastTurn] = []
    warnings: list[str] = []
    context = 1500
    for number in range(12):
        question = f"Question {number}?"
        plan = planner(context, past).passages(question, [passage(1), passage(2)], ["doc"])
        assert len(plan.ids) <= context - 100
        assert all(f"Question {earlier}?" in text_of(plan) for earlier in range(number + 1))
        if plan.warnings:
            assert plan.record.start
            assert text_of(plan).count("p" * 50) == 2
        elif past:
            assert not plan.record.start
        warnings += plan.warnings
        past.append(after(plan, question, f"Answer {number}."))
    assert warnings
    assert "1,500" in warnings[0]


def test_one_passage_is_read_where_two_do_not_fit() -> None:
    found = [passage(1, "p" * 150), passage(2, "q" * 150)]
    plan = planner(435, parameters=SMALL).passages("Why?", found, ["doc"])
    assert plan.passages == tuple(found[:1])
    assert len(plan.ids) <= 335
    past = [after(plan, "Why?")]
    later = planner(435, past, parameters=SMALL).passages("And?", found, ["doc"])
    assert later.passages == tuple(found[:1])
    assert later.warnings
    with pytest.raises(DoesNotFit):
        planner(250, parameters=SMALL).passages("Why?", found, ["doc"])


def test_questions_and_answers_that_no_longer_fit_are_refused() -> None:
    past = [PastTurn("q" * 400, "a" * 400, None, None)] * 3
    with pytest.raises(DoesNotFit) as caught:
        planner(1500, past).passages("Why?", [passage(1)], ["doc"])
    assert "a new conversation" in caught.value.choices
    with pytest.raises(DoesNotFit):
        planner(1500, past).plain("Why?")


def test_whole_after_passages_begins_with_the_document_when_both_do_not_fit() -> None:
    first = planner(1500).passages("Why?", [passage(1, "p" * 450)], ["doc"])
    past = [after(first, "Why?")]
    appended = planner(1500, past).whole("And?", [document(3)])
    assert not appended.record.start
    anew = planner(1500, past).whole("And?", [document(10)])
    assert anew.record.start
    assert anew.warnings
    assert "ppp" not in text_of(anew)
    assert text_of(anew).index("[10]") < text_of(anew).index("Why?")


def test_the_way_of_reading() -> None:
    assert choose_reading("auto", "auto", SMALL, True) == "passages"
    assert choose_reading("auto", "auto", LARGE, True) == "whole"
    assert choose_reading("auto", "whole", SMALL, True) == "whole"
    assert choose_reading("passages", "whole", LARGE, True) == "passages"
    assert choose_reading("whole", "auto", LARGE, False) == "none"
