from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_retriever.llm.replies import MAX_REPLY_CHARS, containers, json_values, without_thoughts


@pytest.mark.parametrize(
    ("reply", "rest"),
    [
        ("<think>a</think>b", "b"),
        ("<THINK>a</Think>\n b ", "b"),
        ("<thinking>a</thinking>b<reasoning>c</reasoning>d", "b\nd"),
        ("[THINK]a[/THINK]b", "b"),
        ("a<think>b<think>c</think>d</think>e", "a\ne"),
        ("still thinking</think>b", "b"),
        ("a<think>never closed", "a"),
        ("<think>a</think>b</think>c", "b\nc"),
        ("<think>", ""),
        ("</think>", ""),
        ("<|channel|>analysis<|message|>a<|end|><|channel|>final<|message|>b<|return|>c", "b"),
        ("I think so", "I think so"),
        ("", ""),
    ],
)
def test_thoughts_are_taken_out(reply, rest):
    assert without_thoughts(reply) == rest


def test_thoughts_may_be_long_and_what_is_left_is_cut():
    assert without_thoughts(f"<think>{'x' * 300_000}</think>end") == "end"
    assert without_thoughts("x" * 1_000_000) == "x" * MAX_REPLY_CHARS


TAGGED = st.lists(st.sampled_from(["<think>", "</think>", "[THINK]", "<thi", "nk>", " ", "a", "b\n"]), max_size=20)


@given(st.text(max_size=200) | TAGGED.map("".join))
def test_taking_thoughts_out_twice_changes_nothing(reply):
    once = without_thoughts(reply)
    assert without_thoughts(once) == once
    assert len(once) <= len(reply)


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(10**29), 10**29)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
    | st.sampled_from(["it's", 'a "b"', "a, b", "{", "[]", "\\", "true", "\U0001f600"])
)
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
)
WRAPPINGS = st.sampled_from(["%s", "```json\n%s\n```", "Here it is: %s Enjoy!", "} ] %s {", "<a>%s</a>"])


@settings(max_examples=300)
@given(
    st.lists(JSON, max_size=4) | st.dictionaries(st.text(max_size=6), JSON, max_size=4),
    WRAPPINGS,
    st.booleans(),
    st.sampled_from([None, 2]),
)
def test_json_is_found_as_the_standard_library_reads_it(value, wrapping, ascii_only, indent):
    written = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert json_values(wrapping.replace("%s", written)) == [value]


@settings(max_examples=200)
@given(st.dictionaries(st.text("ab cé", min_size=1, max_size=6), st.integers(0, 9) | st.text("xyz ", max_size=5)))
def test_python_dictionaries_are_read_too(value):
    assert json_values(f"I say {value!r}.") == [value]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{"a": 1,}', [{"a": 1}]),
        ("[1, 2,,]", [[1, 2]]),
        ("{'a': 'it's', 'b': None}", [{"a": "it's", "b": None}]),
        ("{a: b, c: True}", [{"a": "b", "c": True}]),
        ("{“a”: “b”}", [{"a": "b"}]),
        ('{"a": 1, "a": 2}', [{"a": 1}]),
        ('{// why\n"a": /* so */ 1}', [{"a": 1}]),
        ('{{"a": 1}}', [{"a": 1}]),
        ('{"a": 1 "b": [2]}', [[2]]),
        ('{"a": "line\nbreak"}', [{"a": "line\nbreak"}]),
        ('{"a": "\\ud83d\\ude00\\ud800"}', [{"a": "\U0001f600\ufffd"}]),
        ("[1] and [2]", [[1], [2]]),
        ("[note to self] [1]", [[1]]),
        ("[Plan]", []),
        ('{"a": ' + "9" * 40 + "}", [{"a": "9" * 40}]),
        ("[+1, .5, 1e3]", [[1, 0.5, 1000.0]]),
        ('["cut', []),
        ("", []),
    ],
)
def test_what_is_forgiven_and_what_is_not(text, values):
    assert json_values(text) == values


def test_depth_and_number_are_bounded():
    deep = "[" * 20 + "]" * 20
    assert json_values(deep) == [json.loads(deep)]
    assert json_values("[" * 5_000 + "]" * 5_000)[:1] != [None]
    assert len(json_values("[1]" * 1_000)) == 100
    assert json_values("[note a] " * 150 + '{"a": 1}') == [{"a": 1}]


@settings(max_examples=300)
@given(st.text(max_size=300) | st.text("{}[],:'\"\\ /*a1“”", max_size=60))
def test_any_text_gives_plain_values(text):
    for container in containers(json_values(text)):
        for item in container.values() if isinstance(container, dict) else container:
            assert isinstance(item, (dict, list, str, int, float, bool, type(None)))


def test_containers_come_outer_first_in_order():
    values = json_values('{"a": [1, {"b": 2}], "c": {}} [3]')
    assert list(containers(values)) == [values[0], [1, {"b": 2}], {"b": 2}, {}, [3]]
