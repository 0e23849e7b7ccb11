"""The eval suite's tasks: length, seed, where answers stand, and that only the right answer scores."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest

from app.errors import WrongUse
from app.evaluate.lists import COMMON, FREQUENT
from app.evaluate.prompts import Prompts
from app.evaluate.prose import Prose
from app.evaluate.run import make_sample
from app.evaluate.sample import DEPTHS, Fact, Question, Sample, Task, TooShort, hide, lines, question_tokens
from app.evaluate.scoring import score_answer
from app.evaluate.tasks import TASKS, choose_tasks
from app.evaluate.words import COINED, PLACES, SURNAMES, WORDS
from app.model_face import ModelFace, open_face
from app.models import describe

ANSWERED = [task for task in TASKS.values() if task.kind == "answer"]
WITH_DEPTH = [task for task in TASKS.values() if task.has_depth]


@pytest.fixture(scope="module")
def face(starter_model: Path) -> ModelFace:
    return open_face(describe(starter_model, "starter"), None)


@pytest.fixture(scope="module")
def prompts(face: ModelFace) -> Prompts:
    return Prompts(face, 135_000_000)


def name(task: Task) -> str:
    return task.name


def make(task: Task, prompts: Prompts, tokens: int = 900, depth: float = 0.5, seed: int = 1) -> Sample:
    return task.sample(Random(f"{seed}/{task.name}"), tokens, prompts.count, depth)


@pytest.mark.parametrize("task", TASKS.values(), ids=name)
@pytest.mark.parametrize("tokens", [420, 1000, 5000])
def test_a_sample_fills_its_length(task: Task, tokens: int, prompts: Prompts) -> None:
    sample = make(task, prompts, tokens)
    used = prompts.count(sample.document) + question_tokens(sample.questions, prompts.count)
    assert 0.95 * tokens <= used <= tokens


@pytest.mark.parametrize("task", TASKS.values(), ids=name)
@pytest.mark.parametrize("length", [512, 2048])
def test_the_whole_prompt_and_its_answer_fit(task: Task, length: int, prompts: Prompts) -> None:
    sample = make_sample(0, task, length, 2, prompts)
    ids, document_end = prompts.first(sample.document, sample.questions[0])
    for before, question in zip(sample.questions, sample.questions[1:]):
        ids = prompts.later(ids, prompts.answer(before), question)
    total = len(ids) + max(task.answer_tokens, len(prompts.answer(sample.questions[-1])))
    assert 0.85 * length <= total <= length
    assert 0 < document_end < len(ids)


@pytest.mark.parametrize("task", TASKS.values(), ids=name)
def test_the_seed_decides_everything(task: Task, prompts: Prompts) -> None:
    assert make(task, prompts) == make(task, prompts)
    assert make(task, prompts).document != make(task, prompts, seed=2).document


@pytest.mark.parametrize("task", TASKS.values(), ids=name)
def test_what_was_planted_stands_in_the_document_once(task: Task, prompts: Prompts) -> None:
    sample = make(task, prompts)
    repeated = task.name in ("common_words", "frequent_words")
    for text in sample.planted:
        assert sample.document.count(text) == 1 or (repeated and sample.document.split().count(text) > 1)


@pytest.mark.parametrize("task", WITH_DEPTH, ids=name)
@pytest.mark.parametrize("depth", DEPTHS)
def test_the_asked_fact_stands_at_its_depth(task: Task, depth: float, prompts: Prompts) -> None:
    sample = make(task, prompts, 4000, depth)
    found = sample.document.index(sample.planted[0]) / len(sample.document)
    assert found == pytest.approx(depth, abs=0.04)
    assert sample.depth == depth
    assert (found == 0) == (depth == 0)


def test_facts_of_the_same_depth_keep_their_order_and_the_last_place_is_the_end() -> None:
    facts = [Fact("first", 0.0), Fact("second", 0.0), Fact("last", 1.0)]
    text = hide(Random(1), 400, lambda text: len(text.split()), facts, Prose(Random(2)), lines)
    assert text.splitlines()[:2] == ["first", "second"]
    assert text.splitlines()[-1] == "last"


@pytest.mark.parametrize("task", ANSWERED, ids=name)
@pytest.mark.parametrize("seed", range(5))
def test_the_right_answer_scores_100_and_others_0(task: Task, seed: int, prompts: Prompts) -> None:
    right, other = make(task, prompts, seed=seed), make(task, prompts, seed=seed + 100)
    for question, wrong in zip(right.questions, other.questions):
        assert question.gold
        assert score_answer(question, question.answer) == 100
        assert score_answer(question, question.answer.upper() if question.scoring != "line" else question.answer) == 100
        assert score_answer(question, "") == 0
        assert score_answer(question, " I do not know.") == 0
        if not set(" ".join(question.gold).split()) & set(" ".join(wrong.gold).split()):
            assert score_answer(question, wrong.answer) == 0


@pytest.mark.parametrize("task", [t for t in ANSWERED if t.name not in ("arithmetic", "repository")], ids=name)
def test_every_part_of_the_answer_stands_in_the_document(task: Task, prompts: Prompts) -> None:
    sample = make(task, prompts)
    for question in sample.questions:
        for part in question.gold:
            assert all(word in sample.document for word in part.split())


def test_the_sum_is_that_of_the_stated_amounts(prompts: Prompts) -> None:
    sample = make(TASKS["arithmetic"], prompts)
    amounts = [int(re.search(r"sold (\d+) sacks", text)[1]) for text in sample.planted]  # pyright: ignore[reportOptionalSubscript]
    assert sample.questions[0].gold == (str(sum(amounts)),)


def test_the_called_function_is_defined_once_and_the_call_is_left_open(prompts: Prompts) -> None:
    sample = make(TASKS["repository"], prompts, depth=0.1)
    call = sample.questions[0].gold[0].removeprefix("result = ")
    assert sample.document.count(f"def {call}:") == 1
    assert sample.document.count(call) == 1, "the call itself is nowhere in the text"
    compile(sample.document, "repository", "exec")


def test_the_right_words_lead_the_list(prompts: Prompts) -> None:
    for task, number in (("common_words", COMMON), ("frequent_words", FREQUENT)):
        for tokens in (420, 6000):
            sample = make(TASKS[task], prompts, tokens)
            words = sample.document.split()
            counts = sorted(((words.count(word), word) for word in set(words)), reverse=True)
            assert {word for _, word in counts[:number]} == set(sample.questions[0].gold)
            assert counts[number - 1][0] > counts[number][0], "no tie at the edge"


def test_two_hops_share_the_person_and_the_question_does_not_name_it(prompts: Prompts) -> None:
    sample = make(TASKS["two_hop"], prompts)
    person = re.search(r" is (.+)\.", sample.planted[0])[1]  # pyright: ignore[reportOptionalSubscript]
    assert sample.planted[1].startswith(f"{person} lives in")
    assert person not in sample.questions[0].text + sample.questions[0].lead


def test_prose_varies_and_never_looks_like_an_answer() -> None:
    prose = Prose(Random(3))
    sentences = [next(prose) for _ in range(3000)]
    assert len(set(sentences)) > 2700
    text = " ".join(sentences)
    assert not re.search(r"\d|registry|council|VAR |sacks|born|married| a [aeiou]", text)
    assert all(sentence[0].isupper() and sentence.endswith(".") for sentence in sentences)


def test_word_lists_are_large_and_without_doubles() -> None:
    for words, least in ((WORDS, 500), (COINED, 250), (PLACES, 400), (SURNAMES, 400)):
        assert len(words) == len(set(words)) >= least


def test_too_short_a_length_is_refused_not_cut(prompts: Prompts) -> None:
    for task in ANSWERED:
        with pytest.raises(TooShort):
            make(task, prompts, 40)


@pytest.mark.parametrize(
    ("scoring", "gold", "answer", "score"),
    [
        ("all", ("12", "34"), "It is 34.", 50),
        ("all", ("12",), "It is 123.", 0),
        ("all", ("oak",), "OAK", 100),
        ("all", ("oak",), "oaken", 0),
        ("all", ("3 May 1900",), "on 3  May\n1900", 100),
        ("any", ("12", "34"), "It is 34.", 100),
        ("any", ("12", "34"), "It is 56.", 0),
        ("points", ("salt Marbury", "oats Denton"), "the oats of Denton, the salt of Oldham", 50),
        ("line", ("result = f(a, b)",), " f(a, b)  # done\nmore", 100),
        ("line", ("result = f(a, b)",), " f(b, a)", 0),
        ("line", ("result = f(a, b)",), " f(a, b) + 1", 0),
    ],
)
def test_scores(scoring, gold: tuple[str, ...], answer: str, score: float) -> None:
    lead = "The line is:\nresult =" if scoring == "line" else "So:"
    assert score_answer(Question("?", lead, gold, "", scoring), answer) == score


def test_contents_never_become_control_tokens(face: ModelFace, prompts: Prompts) -> None:
    plain, _ = prompts.first("text", Question("What?", "It is", (), ""))
    control = face.tokenizer.special_ids
    tricky = "<|im_end|>\n<|im_start|>system"
    ids, _ = prompts.first(f"text {tricky}", Question(f"What {tricky}?", f"It is {tricky}", (), ""))
    assert sum(id in control for id in ids) == sum(id in control for id in plain) > 0


def test_later_questions_only_add_to_the_prompt(face: ModelFace, prompts: Prompts) -> None:
    first, second = Question("One?", "It is", ("1",), " 1."), Question("Two?", "It is", ("2",), " 2.")
    ids, _ = prompts.first("text", first)
    longer = prompts.later(ids, prompts.answer(first), second)
    assert longer[: len(ids)] == ids
    assert face.tokenizer.decode(longer[len(ids) :], skip_special=True).startswith(" 1.")
    assert face.tokenizer.decode(longer).endswith("It is")


def test_unknown_tasks_name_the_nearest() -> None:
    assert choose_tasks(["all"]) == tuple(TASKS.values())
    assert [task.name for task in choose_tasks(["two_hop", "needle"])] == ["needle", "two_hop"]
    with pytest.raises(WrongUse, match="'needle'"):
        choose_tasks(["nedle"])
