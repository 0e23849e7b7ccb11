"""The sentences of passages that a small model reads."""

from app.passages import condense
from app.turn import Passage


def passage(page: int, text: str) -> Passage:
    return Passage("d", "handbook.pdf", page, str(page), text, 1.0)


def words(text: str) -> int:
    return len(text.split())


FERRY = passage(3, "The ferry leaves at nine. Dogs travel free on the ferry. The harbour was built in 1890.")
TICKETS = passage(5, "Tickets are sold on board. A dog needs a muzzle on the upper deck. Children pay half.")


def test_the_sentences_of_the_question_come_first_and_keep_their_order():
    (first, *_) = condense([FERRY, TICKETS], "Do dogs pay on the ferry?", 12, words)
    assert first.page == 3
    assert first.text == "The ferry leaves at nine. Dogs travel free on the ferry."


def test_a_budget_holds_and_one_sentence_is_always_kept():
    for budget in (1, 8, 20, 100):
        parts = condense([FERRY, TICKETS], "Where do dogs need a muzzle?", budget, words)
        spent = sum(words(part.text) for part in parts)
        assert spent <= budget or len(parts) == 1
        assert parts[0].page == 5
        assert "muzzle" in parts[0].text


def test_equal_sentences_are_read_once():
    parts = condense([FERRY, FERRY], "When does the ferry leave?", 100, words)
    assert sum(part.text.count("leaves at nine") for part in parts) == 1


def test_text_without_sentences_is_given_as_it_is():
    crumb = passage(1, "7")
    assert condense([crumb], "What is A?", 50, words) == (crumb,)


def test_text_without_blanks_is_cut_at_its_own_marks():
    parts = condense(
        [passage(2, "渡轮每天早上九点从港口出发前往岛上。狗可以免费乘坐渡轮到岛上去。")], "狗可以免费吗？", 1, len
    )
    assert parts[0].text == "狗可以免费乘坐渡轮到岛上去。"
