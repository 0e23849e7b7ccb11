"""Each prompt up to its last answer is a token prefix of the next one, whatever the template and the clock do."""

from dataclasses import replace
from datetime import date

import pytest

from app.ledger import PastTurn, TurnRecord, read_ledger, read_record
from app.plan import Planner, Room
from app.prompts import DocumentText, PromptWriter
from app.skeleton import Skeleton, render_skeleton, template_variables
from engine import ChatTemplate
from storage import PageRow
from tests.app.chat_templates import CONTROL, SPECIAL_TOKENS, TEMPLATES, ByteEncoder

TODAY, LATER = date(2026, 11, 29), date(2026, 12, 1)
SYSTEM = "Answer from the documents."
ROOM = Room(context=100_000, answer=512, parameters=8 * 10**9)


def document(name: str, *texts: str) -> DocumentText:
    pages = tuple(PageRow(number, str(number), text) for number, text in enumerate(texts, start=1))
    return DocumentText(name, name, len(pages), pages)


def encode_document(text: DocumentText) -> list[int]:
    encoder = ByteEncoder()
    return [id for page in text.pages for id in encoder.encode(f"[Page {page.index}] {page.text}\n")]


class Chat:
    """A conversation as the app keeps it: the skeleton is rendered once, everything else through its stored form."""

    def __init__(self, template: str, thinking: bool) -> None:
        self.template = ChatTemplate(template, SPECIAL_TOKENS)
        self.thinking = thinking
        self.frozen: str | None = None
        self.past: list[PastTurn] = []
        self.documents = {d.id: d for d in (document("a.pdf", "One.", "Two."), document("b.pdf", "Three."))}

    def ask(self, question: str, today: date, names: tuple[str, ...]) -> tuple[int, ...]:
        if self.frozen is None:
            variables = template_variables(today, thinking=self.thinking)
            self.frozen = render_skeleton(self.template, variables, today, "test").to_json()
        writer = PromptWriter(ByteEncoder(), Skeleton.from_json(self.frozen), SYSTEM, encode_document)
        planner = Planner(writer, "model", ROOM, self.past)
        plan = planner.whole(question, [self.documents[name] for name in names])
        stored = read_record(plan.record.to_dict(), lambda id, pages: encode_document(self.documents[id]))
        assert stored == plan.record
        self.last: TurnRecord = plan.record
        self.question = question
        self.writer = writer
        return plan.ids

    def answer(self, text: str, thinking: str = "") -> tuple[int, ...]:
        """Stores an answer as the app does; with thinking it is encoded anew without it."""
        ids = self.writer.answer(text) if thinking or self.last.open_thinking else tuple(ByteEncoder().encode(text))
        self.past.append(PastTurn(self.question, text, self.last, ids))
        return ids


@pytest.mark.parametrize("thinking", [False, True], ids=["thinking-off", "thinking-on"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_prompts_only_grow(name: str, thinking: bool) -> None:
    chat = Chat(TEMPLATES[name], thinking)
    first = chat.ask("What is on page one?", TODAY, ("a.pdf",))
    answer = chat.answer("One.", "Let me see." if thinking else "")
    second = chat.ask("And then?", LATER, ("a.pdf",))
    assert second[: len(first)] == first
    assert second[len(first) : len(first) + len(answer)] == answer
    chat.answer("Two.")
    third = chat.ask("And in the new file?", LATER, ("a.pdf", "b.pdf"))
    assert third[: len(second)] == second
    text = ByteEncoder().decode(third)
    wanted = [SYSTEM, "[Page 1] One.", "What is on page one?", "One.", "And then?", "Two.", "Three.", "new file?"]
    position = 0
    for part in wanted:
        position = text.index(part, position) + len(part)
    assert text.count(SYSTEM) == 1
    assert "Let me see." not in text
    assert "QX" not in text  # no marker word is left


@pytest.mark.parametrize("name", TEMPLATES)
def test_first_prompt_is_what_the_template_renders(name: str) -> None:
    """The pieces, put together, are the template's own rendering; Gemma's system text is folded into the user's."""
    chat = Chat(TEMPLATES[name], thinking=False)
    ids = chat.ask("Why?", TODAY, ())
    system = [] if name == "gemma-no-system" else [{"role": "system", "content": SYSTEM}]
    user = f"{SYSTEM}\n\nWhy?" if name == "gemma-no-system" else "Why?"
    rendered = chat.template.render(
        [*system, {"role": "user", "content": user}],
        add_generation_prompt=True,
        variables={"date_string": "29 Nov 2026", "enable_thinking": False, "now": TODAY},
    )
    assert ByteEncoder().decode(ids) == rendered


def test_the_date_is_that_of_the_first_turn() -> None:
    chat = Chat(TEMPLATES["llama3-date"], thinking=False)
    chat.ask("Why?", TODAY, ())
    chat.answer("Because.")
    text = ByteEncoder().decode(chat.ask("Really?", LATER, ()))
    assert "Today: 29 Nov 2026" in text
    assert "Dec" not in text


def test_thinking_left_open_is_closed_before_an_earlier_answer() -> None:
    chat = Chat(TEMPLATES["always-thinking"], thinking=True)
    first = chat.ask("Why?", TODAY, ())
    assert ByteEncoder().decode(first).endswith("<think>\n")
    chat.answer("Because.", "Hm.")
    assert "<think>\n\n</think>\n\nBecause." in ByteEncoder().decode(chat.ask("Really?", TODAY, ()))


@pytest.mark.parametrize("name", TEMPLATES)
def test_contents_never_become_control_tokens(name: str) -> None:
    chat = Chat(TEMPLATES[name], thinking=False)
    clean = chat.ask("Why?", TODAY, ("a.pdf",))
    everything = " ".join(CONTROL)
    hostile = Chat(TEMPLATES[name], thinking=False)
    hostile.documents["a.pdf"] = document("a.pdf", everything, everything)
    ids = hostile.ask(f"Why? {everything}", TODAY, ("a.pdf",))
    control = [id for id in ids if id < 100]
    assert control == [id for id in clean if id < 100]


def test_another_models_ids_are_not_used() -> None:
    chat = Chat(TEMPLATES["chatml"], thinking=False)
    chat.ask("Why?", TODAY, ("a.pdf",))
    chat.answer("Because.")
    assert read_ledger(chat.past, "model") is not None
    assert read_ledger(chat.past, "another") is None
    planner = Planner(chat.writer, "another", ROOM, chat.past)
    plan = planner.whole("Really?", [chat.documents["a.pdf"]])
    text = ByteEncoder().decode(plan.ids)
    assert plan.record.start
    assert text.index("[Page 2]") < text.index("Why?") < text.index("Because.") < text.index("Really?")


def test_a_changed_document_voids_the_record() -> None:
    chat = Chat(TEMPLATES["chatml"], thinking=False)
    chat.ask("Why?", TODAY, ("a.pdf",))
    row = chat.last.to_dict()
    assert read_record(row, lambda id, pages: encode_document(chat.documents[id])) == chat.last
    assert read_record(row, lambda id, pages: encode_document(document("a.pdf", "Other.", "Two."))) is None
    assert read_record(row, lambda id, pages: None) is None


def test_record_keeps_no_text_of_a_document() -> None:
    chat = Chat(TEMPLATES["chatml"], thinking=False)
    long = document("a.pdf", "word " * 5000)
    chat.documents["a.pdf"] = long
    chat.ask("Why?", TODAY, ("a.pdf",))
    row = chat.last.to_dict()
    assert len(str(row)) < 1500
    assert chat.last.checkpoint > 25_000
    assert replace(chat.last, model="x") != chat.last
