from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_retriever.ingestion.front_matter import parse_front_matter


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("a: text", "a", "text"),
        ("a: 12", "a", 12),
        ("a: -3", "a", -3),
        ("a: 007", "a", "007"),
        ("a: 1.5", "a", 1.5),
        ("a: 1e5", "a", "1e5"),
        ("a: true", "a", True),
        ("a: null", "a", None),
        ("a:", "a", None),
        ('a: "12"', "a", "12"),
        ("a: 'it''s'", "a", "it's"),
        ('a: "x \\"y\\" # z"', "a", 'x "y" # z'),
        ("a: 2024-05-01", "a", "2024-05-01"),
        ("a: http://x.y/z", "a", "http://x.y/z"),
        ("a: text # comment", "a", "text"),
        ("a: [1, two, 'three, four']", "a", [1, "two", "three, four"]),
        ("a: []", "a", []),
        ("a:\n  - one\n  - 2", "a", ["one", 2]),
        ("a:\n- one\n- two: x", "a", ["one", {"two": "x"}]),
        ("a: |\n  first\n  second", "a", "first\nsecond"),
        ("a:\n  b: 1\n  c: 2", "a", {"b": 1, "c": 2}),
        ("año de emisión: 2020", "año de emisión", 2020),
        ("a: {b: 1}", "a", {"b": 1}),
        ("a: >\n  folded\n  text", "a", "folded text"),
        ("2020: 1", "2020", 1),
        ("a: yes", "a", "yes"),
        ("a: 12:30", "a", "12:30"),
        # What is no YAML, or more than plain data, stays as it was written.
        ("a: Part 1: lights", "a", "Part 1: lights"),
        ("a: [draft] Lights", "a", "[draft] Lights"),
        ("a: *emphasis*", "a", "*emphasis*"),
        ("a: @someone", "a", "@someone"),
        ("a: &x [*x]", "a", "&x [*x]"),
        ("a: !!python/object/apply:os.system [ls]", "a", "!!python/object/apply:os.system [ls]"),
        ("a: !!int none", "a", "!!int none"),
        ("a: " + "[" * 50_000, "a", "[" * 50_000),
        ('"quoted": 1', "quoted", 1),
        ("# comment\n\na: 1", "a", 1),
    ],
)
def test_values(line: str, key: str, value: object) -> None:
    found = parse_front_matter(f"---\n{line}\n---\nbody")
    assert found is not None
    assert dict(found.values) == {key: value}
    assert type(found.values[key]) is type(value)


def test_the_body_begins_behind_it() -> None:
    text = "---  \na: 1\n...\nbody"
    found = parse_front_matter(text)
    assert found is not None
    assert text[found.end :] == "body"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "body",
        "---\n",
        "---\nno key here\n---\n",
        "---\n---\n",
        "a\n---\nb: 1\n---\n",
        "---\na: 1\n",
        " ---\na: 1\n---\n",
    ],
)
def test_what_is_no_front_matter(text: str) -> None:
    assert parse_front_matter(text) is None


def test_a_value_that_is_no_yaml_costs_no_other_one() -> None:
    found = parse_front_matter("---\na: b: c\ny: &x [1, 1]\nz: [*x, *x]\nn: 1\n---\nbody")
    assert found is not None
    assert dict(found.values) == {"a": "b: c", "y": [1, 1], "z": "[*x, *x]", "n": 1}


@given(st.text(alphabet="ab:-[]\"'\n #|\\1.", max_size=60))
def test_any_text_is_read_without_error(text: str) -> None:
    found = parse_front_matter(f"---\nk: 1\n{text}\n---\nbody")
    assert found is not None
    assert found.end > len("---")


def test_an_unclosed_block_is_not_searched_for_ever() -> None:
    began = time.perf_counter()
    assert parse_front_matter("---\n" + "a: 1\n" * 1_000_000) is None
    assert time.perf_counter() - began < 1
