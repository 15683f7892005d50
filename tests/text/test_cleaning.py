from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_retriever.text import TerminalPieces, normalise_query, safe_terminal

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=200)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  what \t is\n\nthis ", "what is this"), ("ｆｕｌｌ　ｗｉｄｔｈ", "full width"), ("a\x00b", "ab"),
        ("e\x07\u0301", "é"), ("x\ud800y", "x\ufffdy"), ("What", "What"), ("", ""), (" \x00 ", ""),
    ],
)  # fmt: skip
def test_normalise_query(text: str, expected: str) -> None:
    assert normalise_query(text) == expected


@given(ANY_TEXT)
def test_normalise_query_is_a_key(text: str) -> None:
    key = normalise_query(text)
    assert normalise_query(key) == key
    assert normalise_query(f" {text}\n") == key
    key.encode()
    assert not any(unicodedata.category(char) == "Cc" for char in key)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain\ttext\n", "plain\ttext\n"), ("\x1b[31mred\x1b[0m", "red"), ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"), ("\x9b2Jcleared", "cleared"),
        ("\x1bPq#0\x1b\\sixel", "sixel"), ("\x1b(Bset", "set"), ("\x1b]never closed\nnext", "never closed\nnext"),
        ("back\x08space\x7f\r\n", "backspace\n"), ("user\u202egnp.exe\u2066x\u200f", "usergnp.exex"),
        ("สวัสดี 👩\u200d👩 é", "สวัสดี 👩\u200d👩 é"), ("\ud800", "\ufffd"),
    ],
)  # fmt: skip
def test_safe_terminal(text: str, expected: str) -> None:
    assert safe_terminal(text) == expected


@given(st.text("\x1b[]()\x9b\x9c\x07\\0;mHP\n\t\u202e a", max_size=60) | ANY_TEXT)
def test_safe_terminal_leaves_nothing_that_steers(text: str) -> None:
    safe = safe_terminal(text)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", safe)
    assert safe_terminal(safe) == safe


@given(st.text(st.characters(categories=["L", "M", "N", "Zs", "P"]), max_size=100))
def test_safe_terminal_keeps_ordinary_text(text: str) -> None:
    assert safe_terminal(text) == text


STEERING = st.text("\x1b[]()\x9b\x9c\x9d\x07\\0;mHP\n\t\u202e a", max_size=60)


@given(STEERING, st.lists(st.integers(0, 60), max_size=8))
def test_pieces_are_shown_as_the_whole_is_wherever_it_is_cut(text: str, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = TerminalPieces()
    shown = [pieces.shown(text[begin:end]) for begin, end in pairwise(places)]
    assert "".join([*shown, pieces.end()]) == safe_terminal(text)
    assert pieces.end() == ""


def test_ordinary_pieces_do_not_wait() -> None:
    pieces = TerminalPieces()
    assert [pieces.shown(piece) for piece in ("Every ", "word [1]", " at once")] == ["Every ", "word [1]", " at once"]
    assert (pieces.shown("a\x1b]0;ow"), pieces.shown("ned\x07b")) == ("a", "b")
    assert (pieces.shown("c\x1b]" + "x" * 5_000), pieces.end()) == ("c" + "x" * 5_000, "")
