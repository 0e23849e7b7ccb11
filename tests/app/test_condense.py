"""The sentences of passages that a small model reads."""

from app.passages import condense, rarity
from app.prompts import bare_passages_text
from app.turn import Passage


def passage(page: int, text: str) -> Passage:
    return Passage("d", "handbook.pdf", page, str(page), text, 1.0)


def words(text: str) -> int:
    return len(text.split())


def read(passages: list[Passage], question: str, budget: int, count=words) -> tuple[Passage, ...]:
    return condense(passages, rarity(question, [passage.text for passage in passages]), budget, count)


FERRY = passage(3, "The ferry leaves at nine. Dogs travel free on the ferry. The harbour was built in 1890.")
TICKETS = passage(5, "Tickets are sold on board. A dog needs a muzzle on the upper deck. Children pay half.")


def test_the_sentences_of_the_question_come_first_and_keep_their_order():
    (first, *_) = read([FERRY, TICKETS], "Do dogs pay on the ferry?", 12)
    assert first.page == 3
    assert first.text == "The ferry leaves at nine. Dogs travel free on the ferry."


def test_a_budget_holds_and_one_sentence_is_always_kept():
    for budget in (1, 8, 20, 100):
        parts = read([FERRY, TICKETS], "Where do dogs need a muzzle?", budget)
        spent = sum(words(part.text) for part in parts)
        assert spent <= budget or len(parts) == 1
        assert parts[0].page == 5
        assert "muzzle" in parts[0].text


def test_equal_sentences_are_read_once():
    parts = read([FERRY, FERRY], "When does the ferry leave?", 100)
    assert sum(part.text.count("leaves at nine") for part in parts) == 1


def test_text_without_sentences_is_given_as_it_is():
    crumb = passage(1, "7")
    assert read([crumb], "What is A?", 50) == (crumb,)


def test_text_without_blanks_is_cut_at_its_own_marks():
    parts = read(
        [passage(2, "渡轮每天早上九点从港口出发前往岛上。狗可以免费乘坐渡轮到岛上去。")], "狗可以免费吗？", 1, len
    )
    assert parts[0].text == "狗可以免费乘坐渡轮到岛上去。"


def test_a_word_of_every_page_says_less_than_one_of_a_single_page():
    pages = ["The ferry takes cars.", "The ferry takes bikes.", "The ferry takes dogs.", "The harbour is old."]
    weights = rarity("Does the ferry take dogs?", pages)
    assert weights["dog"] > weights["ferry"] > 0
    both = passage(1, "The ferry office opens early. Most dogs like water.")
    assert condense([both], weights, 1, words)[0].text == "Most dogs like water."


def test_a_word_that_stands_nowhere_changes_nothing():
    assert rarity("", ["The ferry."]) == {}
    weights = rarity("When does the zeppelin leave?", [FERRY.text])
    assert condense([FERRY], weights, 1, words)[0].text == "The ferry leaves at nine."


def test_a_small_model_reads_lines_as_they_stand():
    listing = passage(1, "Fares of the ferry:\nadults 4\nchildren 2\n\nDogs of the ferry travel free.\n")
    (read_part,) = read([listing], "What are the fares of the ferry for children?", 100)
    assert read_part.text.startswith("Fares of the ferry:\nadults 4\nchildren 2")
    assert bare_passages_text([read_part, FERRY]) == f"{read_part.text}\n\n{FERRY.text}\n\n"


def test_a_sentence_longer_than_the_budget_is_cut_around_the_question():
    words = [f"word{number}" for number in range(4000)]
    words[2500] = "Zanzibar"
    passage = Passage("d", "doc", 1, "1", " ".join(words), 1.0)
    question = "Where is Zanzibar?"
    (cut,) = condense(
        [passage], rarity(question, [passage.text, "other text", "more"]), 250, lambda text: len(text) // 4
    )
    assert "Zanzibar" in cut.text
    assert 150 <= len(cut.text) // 4 <= 250
    assert condense([passage], {}, 250, lambda text: len(text) // 4)[0].text.startswith("word0 ")


def test_a_cut_in_a_script_without_spaces():
    text = "天" * 3000 + "東京駅" + "地" * 3000
    passage = Passage("d", "doc", 1, "1", text, 1.0)
    (cut,) = condense([passage], rarity("東京駅はどこですか", [text, "別の文"]), 100, len)
    assert "東京" in cut.text
    assert 50 <= len(cut.text) <= 100
