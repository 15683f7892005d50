from __future__ import annotations

import time

import pytest

from agentic_retriever.understanding.words import PersonName, is_listed_form, parse_listed


@pytest.mark.parametrize(
    ("name", "family", "given"),
    [
        ("Pooch, U. W.", "pooch", ("u", "w")),
        ("wells,w.r.", "wells", ("w", "r")),
        ("Nguyen, Van-An", "nguyen", ("van-an",)),
        ("Smith, J.-P.", "smith", ("j", "p")),
        ("O'Neil, Mary Ann", "o'neil", ("mary", "ann")),
        ("Ludwig van Beethoven", "van beethoven", ("ludwig",)),
        ("J.R.R. Tolkien", "tolkien", ("j", "r", "r")),
    ],
)
def test_names_are_taken_apart(name, family, given):
    assert parse_listed(name) == PersonName(family, given)


@pytest.mark.parametrize("text", ["j. ae. scs. 25, 1958, 324.", "Smith, J. and others, 1958", "Smith, ", "a", ""])
def test_what_is_no_name_is_refused(text):
    assert not is_listed_form(text)


@pytest.mark.parametrize(
    "text",
    [
        "Smith, " + "abcdefgh" * 9 + "!",
        "Smith, " + "ab-" * 24 + "!",
        "naca wr, " + "a b" * 23 + ",",
        "a" * 79 + "!",
        "Ab-" * 26 + "!",
        "A." * 39 + "!",
    ],
)
def test_long_values_are_refused_at_once(text):
    start = time.perf_counter()
    for _ in range(20):
        assert not is_listed_form(text)
        assert parse_listed(text) is None
    # With a pattern that tries every way to cut the text, one of these took minutes.
    assert time.perf_counter() - start < 1.0
