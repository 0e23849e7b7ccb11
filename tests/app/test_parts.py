"""Windows, kinds of question, key sentences, and what the app writes of parts: all without a model."""

from __future__ import annotations

import pytest

from app.citations import Citation, PageSource
from app.extract_summary import central_sentences
from app.parts.join import Finding, Joiner
from app.parts.kept import question_key, read_before
from app.parts.state import PartPhase, PartsState, PartState, parts_from
from app.parts.text import merge_items, nothing_found, so_far
from app.parts.windows import Piece, make_windows
from app.prompts import DocumentText
from app.tasks import recognise, says_nothing
from tests.app.four_languages import HANDBOOKS, Handbook


def document(texts: list[str], id: str = "d") -> DocumentText:
    pages = tuple(Piece(number, str(number), text) for number, text in enumerate(texts, 1))
    return DocumentText(id, f"{id}.pdf", len(texts), pages)


def count(text: str) -> int:
    return len(text.split())


def windows_of(texts: list[str], budget: int):
    return make_windows([document(texts)], lambda d, page: count(page.text), count, budget)


def test_windows_hold_whole_pages_and_every_page_once() -> None:
    texts = [f"page {number} " + "word " * (10 + number % 7) for number in range(1, 31)]
    windows = windows_of(texts, 50)
    assert [page for window in windows for page in window.pages] == list(range(1, 31))
    for window in windows:
        assert sum(count(page.text) for page in window.document.pages) <= 50
        assert all(page.text == texts[page.index - 1] for page in window.document.pages)
    first = windows_of(texts, 50)
    assert [w.key for w in first] == [w.key for w in windows]
    assert len({w.key for w in windows}) == len(windows)
    assert windows_of(["other", *texts[1:]], 50)[0].key != windows[0].key


def test_a_page_longer_than_a_window_is_cut_and_nothing_is_lost() -> None:
    long = " ".join(f"Sentence {number} says something of its own." for number in range(60)) + " end" * 200
    windows = windows_of(["short page", long, "last page"], 60)
    pieces = [page for window in windows for page in window.document.pages if page.index == 2]
    assert len(pieces) > 3
    assert "".join(piece.text for piece in pieces) == long
    assert all(count(piece.text) <= 60 for piece in pieces)
    assert windows[0].pages == (1,)
    with pytest.raises(ValueError, match="budget: got 3"):
        windows_of(["a"], 3)


def test_two_documents_share_no_window() -> None:
    both = [document(["one", "two"], "a"), document(["three"], "b")]
    windows = make_windows(both, lambda d, page: 1, count, 100)
    assert [(w.document.id, w.pages, w.number) for w in windows] == [("a", (1, 2), 1), ("b", (1,), 2)]


@pytest.mark.parametrize(
    ("question", "documents", "kind"),
    [
        ("Summarize this document", 1, "summarize"),
        ("please summarise the report in five sentences", 1, "summarize"),
        ("Can you give me a short summary of chapter 3?", 1, "summarize"),
        ("TL;DR", 1, "summarize"),
        ("What is this document about?", 1, "summarize"),
        ("List all commands that change a patch", 1, "list"),
        ("Name every person who is mentioned", 1, "list"),
        ("Find all dates", 1, "list"),
        ("Compare these two documents", 2, "compare"),
        ("What are the differences between the two contracts?", 2, "compare"),
        ("Compare these two documents", 1, "question"),
        ("How do I summarize a table in R?", 1, "question"),
        ("Which command lists all patches?", 1, "question"),
        ("What is the list price?", 1, "question"),
        ("Who wrote the summary?", 1, "question"),
        ("What is this option about, and when is it used?", 1, "question"),
        ("Is the name in the list?", 1, "question"),
    ],
)
def test_kinds_of_question(question: str, documents: int, kind: str) -> None:
    assert recognise(question, documents) == kind


@pytest.mark.parametrize("book", HANDBOOKS, ids=lambda book: book.name)
def test_kinds_of_question_in_four_languages(book: Handbook) -> None:
    assert recognise(book.summarize, 1) == "summarize"
    assert recognise(book.list_all, 1) == "list"
    assert recognise(book.compare, 2) == "compare"
    assert recognise(book.question, 2) == "question"


@pytest.mark.parametrize(
    ("answer", "nothing"),
    [
        ("NOTHING", True),
        ("Nothing.", True),
        ("  ", True),
        ('"NOTHING"', True),
        ("Nothing in this part helps.", True),
        ('"Nothing may enter the lamp room at night, not even the harbour master himself." (page 3)', False),
        ('"The code is 7391." (page 3)', False),
    ],
)
def test_a_part_may_say_that_it_has_nothing(answer: str, nothing: bool) -> None:
    assert says_nothing(answer) is nothing


def pages_of(book: Handbook, repeat: int = 1) -> list[PageSource]:
    return [
        PageSource("d", book.name, number + 5 * round, "", f"{book.headings[number - 1]}\n\n{text}")
        for round in range(repeat)
        for number, text in enumerate(book.sentences, 1)
    ]


@pytest.mark.parametrize("book", HANDBOOKS, ids=lambda book: book.name)
def test_key_sentences_come_from_all_of_the_text_word_for_word(book: Handbook) -> None:
    pages = pages_of(book)
    found = central_sentences(pages, 5)
    assert [passage.page for passage in found] == [1, 2, 3, 4, 5]
    for passage in found:
        assert passage.text in pages[passage.page - 1].text
        assert book.headings[passage.page - 1] not in passage.text
        assert 0 < passage.score <= 1


def test_key_sentences_are_about_the_subject_and_no_crumbs() -> None:
    subject = "Wind turbines turn the energy of the wind into electricity for the grid."
    other = "My aunt once bought a green bicycle from a neighbour in the village."
    crumbs = "Contents ........ 3\n\n12 14 19 22 8 1 1 2 3 5 8 13.\n\nFigure 3"
    text = f"{crumbs}\n\n{other} {subject} The wind turbines of the coast feed their electricity into the grid."
    (found,) = central_sentences([PageSource("d", "d", 1, "", text)], 1)
    assert "turbines" in found.text


def test_key_sentences_leave_running_lines_out_and_stop() -> None:
    head = "This handbook belongs to the harbour office of the northern island."
    pages = [
        PageSource("d", "d", n, "", f"{head}\n\nChapter {n} explains how machine number {n} is cleaned and oiled.")
        for n in range(1, 9)
    ]
    assert all(head not in passage.text for passage in central_sentences(pages, 8))
    assert central_sentences(pages, 8, stopped=lambda: True) == ()
    assert central_sentences([], 5) == ()


def test_two_documents_both_give_key_sentences() -> None:
    note = PageSource("e", "other", 1, "", "A short note says that the ferry leaves every morning at nine.")
    pages = [*pages_of(HANDBOOKS[0], 2), note]
    found = central_sentences(pages, 6)
    assert {passage.document_id for passage in found} == {"d", "e"}


def part(
    number: int,
    text: str = "",
    pages: tuple[int, ...] = (1,),
    state: PartPhase = "done",
    quotes: tuple[Citation, ...] = (),
) -> PartState:
    return PartState(number, "d", "d.pdf", pages, state, quotes, text, key=f"k{number}")


def test_lists_of_parts_are_joined_without_repeats() -> None:
    parts = [
        part(1, "Here are the items:\n- quilt new (page 3)\n- quilt push. (page 4)", (3, 4)),
        part(2, "1. Quilt push (pages 7, 8)\n2) quilt pop", (5, 8)),
    ]
    assert merge_items(parts, several=False) == [
        "- quilt new (page 3)",
        "- quilt push (page 4, page 7, page 8)",
        "- quilt pop (page 5,8)",
    ]


def test_coverage_and_partial_answers_are_honest() -> None:
    quote = Citation("d", "d.pdf", 2, "2", "The code\nis 7391.", "verified")
    parts = (
        part(1, pages=(1, 2), quotes=(quote,)),
        part(2, pages=(3, 4), state="kept"),
        part(3, pages=(5, 6), state="waiting"),
    )
    state = PartsState(parts, without_text=1)
    cover = state.coverage
    assert (cover.pages_read, cover.pages, cover.without_text, cover.complete) == (4, 6, 1, False)
    assert cover.as_dict()["share"] == round(4 / 6, 4)
    text = so_far(state)
    assert "Stopped after 2 of 3 parts: 4 of 6 pages" in text
    assert "“The code is 7391.” (page 2)" in text
    public = state.public()
    assert public[0] == {
        "document": "d.pdf",
        "pages": "1-2",
        "read": True,
        "found": True,
        "quotes": [{"page": 2, "file": None, "file_page": None, "quote": "The code\nis 7391.", "status": "verified"}],
    }
    assert [row["read"] for row in public] == [True, True, False]


class Stored:
    def __init__(self, **details) -> None:
        self.details = details


def test_read_windows_are_known_again_for_the_same_question_only() -> None:
    state = PartsState((part(1), part(2, state="waiting")))
    key = question_key("Which  code?", "question", "model")
    stored = Stored(parts_key=key, parts=state.rows())
    assert parts_from(stored.details) == state
    assert list(read_before([stored], question_key("Which code? ", "question", "model"))) == ["k1"]  # type: ignore[list-item]
    for other in (
        ("Which door?", "question", "model"),
        ("Which code?", "list", "model"),
        ("Which code?", "question", "m"),
    ):
        assert read_before([stored], question_key(*other)) == {}  # type: ignore[list-item,arg-type]


class Words:
    """A tokenizer of words."""

    def encode(self, text: str) -> list[int]:
        return list(range(len(text.split())))

    encode_skeleton = encode


class ScriptedPrompts:
    """Stands in for the engine: writes a third of what it is given."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def run(self, job, record, most_tokens, share):
        self.sizes.append(len(record.ids))
        return "short " * (len(record.ids) // 3), object()


def test_findings_are_condensed_level_by_level_until_they_fit() -> None:
    from app.prompts import PromptWriter
    from app.skeleton import Skeleton

    writer = PromptWriter(Words(), Skeleton("", "", "", "", "", False), "", lambda text: [], False)
    prompts = ScriptedPrompts()
    joiner = Joiner(prompts, writer, "m", "summarize", "Summarize it", 200)  # type: ignore[arg-type]
    findings = [Finding("d", f"page {n}", f"page {n}", f"[page {n}]\n{'word ' * 60}\n\n") for n in range(30)]
    levels: list[int] = []
    spent: list = []
    left = joiner.condense(None, findings, lambda level, share: levels.append(level), spent)  # type: ignore[arg-type]
    assert left is not None
    assert sum(len(finding.text.split()) for finding in left) <= 200
    assert max(levels) >= 2
    assert levels == sorted(levels)
    assert len(spent) == len(prompts.sizes)
    assert left[0].first == "page 0"
    assert left[-1].last == "page 29"


def test_pages_without_text_are_not_called_read() -> None:
    assert nothing_found(PartsState((), without_text=3), asked=True).startswith("None of the chosen pages has text")
    some = nothing_found(PartsState((part(1),), without_text=3), asked=True)
    assert "with text" in some
    assert some.endswith("which nobody has read: 3.")
    assert "without" not in nothing_found(PartsState((part(1),)), asked=True)
