from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_retriever.synthesis.citations import MARKER, read_markers


@pytest.mark.parametrize(
    ("text", "clean", "numbers"),
    [
        ("One [1].", "One.", [1]), ("One. [1]", "One. ", [1]), ("One.[1] Two.[2]", "One. Two.", [1, 2]),
        ("One [1][2].", "One.", [1, 2]), ("One [1, 2; 3].", "One.", [1, 2, 3]), ("One [1-3].", "One.", [1, 2, 3]),
        ("One [[2]].", "One.", [2]), ("One 【3】。", "One。", [3]), ("หนึ่ง [๑]", "หนึ่ง ", [1]),
        ("一［１］二", "一 二", [1]),
        ("One [passage 2].", "One.", [2]), ("One [9].", "One.", []), ("One [0].", "One.", []),
        ("In [2024] it was.", "In it was.", []), ("One [1]. [1]. Two.", "One. Two.", [1, 1]),
        ("One [3-900000000].", "One.", [3]), ("f(x)[a] [note]", "f(x)[a] [note]", []),
    ],
)  # fmt: skip
def test_markers_are_read_and_removed(text, clean, numbers):
    got, marks = read_markers(text, 3)
    assert got == clean
    assert [m.number for m in marks] == numbers


def test_a_marker_belongs_to_what_stands_before_it_or_begins_its_line():
    clean, marks = read_markers("First fact [1]. Second fact. [2]\n[3] Third fact.", 3)
    assert clean == "First fact. Second fact. \nThird fact."
    ends = [clean.index("First fact") + 10, clean.index("Second fact.") + 12]
    assert [m.position for m in marks[:2]] == ends
    assert clean.index("Third") < marks[2].position <= clean.index("Third") + 1


@given(st.text(alphabet="[]【】 1290,-a.\n", max_size=60), st.integers(0, 5))
def test_nothing_that_is_left_reads_as_a_marker(text, known):
    clean, marks = read_markers(text, known)
    assert not MARKER.search(clean)
    assert not re.search(r"\[\d+\]", clean)
    assert all(1 <= m.number <= known and 0 <= m.position <= len(clean) + 1 for m in marks)


@pytest.mark.parametrize("text", ["[" * 20_000, "[1," * 7_000, "[ " * 10_000, "[1" + " " * 20_000, "[" + "1" * 20_000])
def test_hostile_brackets_take_no_time(text):
    clean, marks = read_markers(text, 3)
    assert marks == ()
    assert clean == text
