import pytest

from app.thinking import ends_in_thinking, split_thinking

FULL = "<think>\nLet me see.\n</think>\n\nIt is 4."


def test_parts_come_out_apart() -> None:
    assert split_thinking(FULL) == ("Let me see.", "It is 4.")
    assert split_thinking("It is 4.") == ("", "It is 4.")
    assert split_thinking("Let me see.</think>It is 4.", already_open=True) == ("Let me see.", "It is 4.")


@pytest.mark.parametrize("already_open", [False, True])
def test_no_half_tag_is_ever_shown(already_open: bool) -> None:
    text = FULL.removeprefix("<think>\n") if already_open else FULL
    for length in range(len(text)):
        thinking, answer = split_thinking(text[:length], already_open=already_open)
        assert "<" not in thinking + answer
        assert "Let me see.".startswith(thinking)
        assert "It is 4.".startswith(answer)


def test_a_tag_that_never_came_is_text() -> None:
    assert split_thinking("<", complete=False) == ("", "")
    assert split_thinking("<", complete=True) == ("", "<")
    assert split_thinking("a < b") == ("", "a < b")
    assert split_thinking("<think>cut", complete=True) == ("cut", "")


def test_open_blocks_are_seen() -> None:
    assert ends_in_thinking("<|assistant|>\n<think>\n")
    assert not ends_in_thinking("<|assistant|>\n<think>\n\n</think>\n\n")
    assert not ends_in_thinking("<|assistant|>\n")
