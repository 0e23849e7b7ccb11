"""Other people's text on a terminal: no control character gets through, from whatever command."""

import io
import sys

from hypothesis import given
from hypothesis import strategies as st

from app.terminal import CleanStream, clean_output, printable


def test_escape_sequences_lose_their_escape():
    assert printable("a\x1b]52;c;aGk=\x07b\x9b31mc\x7f\u202ed") == "a\ufffd]52;c;aGk=\ufffdb\ufffd31mc\ufffd\ufffdd"
    assert printable("a,b\r\nc\rd") == "a,b\r\nc\ufffdd"
    assert printable("tab\tand\nline, naïve 東京 👩‍🚀") == "tab\tand\nline, naïve 東京 👩‍🚀"


@given(st.text())
def test_nothing_that_moves_a_cursor_is_left(text):
    cleaned = printable(text)
    assert len(cleaned) == len(text)
    cleaned = cleaned.replace("\r\n", "\n")  # how lines of CSV end
    assert not any((ord(c) < 32 and c not in "\t\n") or 127 <= ord(c) < 160 for c in cleaned)


def test_everything_printed_is_cleaned_and_the_streams_come_back(monkeypatch):
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with clean_output():
        print("\x1b[2J", "x", sep="")
        print("\x1b[2J", file=sys.stderr)
    assert (sys.stdout, sys.stderr) == (out, err)
    assert out.getvalue() == "\ufffd[2Jx\n"
    assert err.getvalue() == "\ufffd[2J\n"


def test_the_apps_own_cursor_movements_still_work():
    stream = io.StringIO()
    CleanStream(stream).write_raw("\r")  # type: ignore[arg-type]
    assert stream.getvalue() == "\r"
