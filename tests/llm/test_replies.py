import json
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_retriever.errors import LLMOutputError
from agentic_retriever.llm import Choice, read_choice
from agentic_retriever.llm.replies import MAX_REPLY_CHARS, containers, json_values, without_thoughts
from agentic_retriever.testing.choice_contract import MALFORMED_REPLIES


@pytest.mark.parametrize(
    ("reply", "rest"),
    [("<think>a</think>b", "b"), ("<THINK>a</Think>\n b ", "b"),
     ("<thinking>a</thinking>b<reasoning>c</reasoning>d", "b\nd"), ("[THINK]a[/THINK]b", "b"),
     ("a<think>b<think>c</think>d</think>e", "a\ne"), ("still thinking</think>b", "b"), ("a<think>never closed", "a"),
     ("<think>a</think>b</think>c", "b\nc"), ("<think>", ""), ("</think>", ""),
     ("<|channel|>analysis<|message|>a<|end|><|channel|>final<|message|>b<|return|>c", "b"),
     ("I think so", "I think so"), ("", "")],
)  # fmt: skip
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


NUMBERS = st.booleans() | st.integers(-(10**29), 10**29) | st.floats(allow_nan=False, allow_infinity=False)
ODD = st.sampled_from(["it's", 'a "b"', "a, b", "{", "[]", "\\", "true", "\U0001f600"])
LEAVES = st.none() | NUMBERS | st.text(max_size=12) | ODD
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
)
WRAPPINGS = st.sampled_from(["%s", "```json\n%s\n```", "Here it is: %s Enjoy!", "} ] %s {", "<a>%s</a>"])


@settings(max_examples=300)
@given(
    st.lists(JSON, max_size=4) | st.dictionaries(st.text(max_size=6), JSON, max_size=4), WRAPPINGS, st.booleans(),
    st.sampled_from([None, 2]),
)  # fmt: skip
def test_json_is_found_as_the_standard_library_reads_it(value, wrapping, ascii_only, indent):
    assert json_values(wrapping.replace("%s", json.dumps(value, ensure_ascii=ascii_only, indent=indent))) == [value]


@settings(max_examples=200)
@given(st.dictionaries(st.text("ab cé", min_size=1, max_size=6), st.integers(0, 9) | st.text("xyz ", max_size=5)))
def test_python_dictionaries_are_read_too(value):
    assert json_values(f"I say {value!r}.") == [value]


@pytest.mark.parametrize(
    ("text", "values"),
    [('{"a": 1,}', [{"a": 1}]), ("[1, 2,,]", [[1, 2]]), ("{'a': 'it's', 'b': None}", [{"a": "it's", "b": None}]),
     ("{a: b, c: True}", [{"a": "b", "c": True}]), ("{“a”: “b”}", [{"a": "b"}]), ('{"a": 1, "a": 2}', [{"a": 1}]),
     ('{// why\n"a": /* so */ 1}', [{"a": 1}]), ('{{"a": 1}}', [{"a": 1}]), ('{"a": 1 "b": [2]}', [[2]]),
     ('{"a": "line\nbreak"}', [{"a": "line\nbreak"}]), ('{"a": "\\ud83d\\ude00\\ud800"}', [{"a": "\U0001f600\ufffd"}]),
     ("[1] and [2]", [[1], [2]]), ("[note to self] [1]", [[1]]), ("[Plan]", []),
     ('{"a": ' + "9" * 40 + "}", [{"a": "9" * 40}]), ("[+1, .5, 1e3]", [[1, 0.5, 1000.0]]), ('["cut', []), ("", [])],
)  # fmt: skip
def test_what_is_forgiven_and_what_is_not(text, values):
    assert json_values(text) == values


def test_containers_come_outer_first_in_bounded_depth_and_number():
    deep = "[" * 20 + "]" * 20
    assert json_values(deep) == [json.loads(deep)]
    assert json_values("[" * 5_000 + "]" * 5_000)[:1] != [None]
    assert len(json_values("[1]" * 1_000)) == 100
    assert json_values("[note a] " * 150 + '{"a": 1}') == [{"a": 1}]
    values = json_values('{"a": [1, {"b": 2}], "c": {}} [3]')
    assert list(containers(values)) == [values[0], [1, {"b": 2}], {"b": 2}, {}, [3]]


@settings(max_examples=300)
@given(st.text(max_size=300) | st.text("{}[],:'\"\\ /*a1“”", max_size=60))
def test_any_text_gives_plain_values(text):
    for container in containers(json_values(text)):
        for item in container.values() if isinstance(container, dict) else container:
            assert isinstance(item, (dict, list, str, int, float, bool, type(None)))


NAMES = ("cacm", "cisi", "xquad-en", "xquad")


def read(reply, names=NAMES):
    """The choice that is read, or the message that none can be."""
    try:
        return read_choice(reply, names)
    except LLMOutputError as err:
        return str(err)


def named(reply, names=NAMES):
    return getattr(read(reply, names), "name", None)


@pytest.mark.parametrize(
    ("said", "confidence"),
    [("0.8", 0.8), ('"0.8"', 0.8), ('"80%"', 0.8), ("80", 0.8), ('"8/10"', 0.8), ('"80/100"', 0.8), ('"0,8"', 0.8),
     ("1", 1.0), ("1.0", 1.0), ("0", 0.0), ("100", 1.0), ("101", None), ("1e999", None), ("NaN", None), ("-0.5", None),
     ("true", None), ("null", None), ('"high"', None), ("[0.8]", None), ('"11/10"', None), ('""', None)],
)  # fmt: skip
def test_confidence_is_read_or_left_out(said, confidence):
    choice = read_choice(f'{{"choice": "cisi", "confidence": {said}}}', NAMES)
    assert choice.confidence == (None if confidence is None else pytest.approx(confidence))


def test_a_reason_is_one_short_line_and_labelled_lines_keep_what_belongs_to_the_choice():
    reply = json.dumps({"choice": "cisi", "reason": "  many\n\nlines \x1b[31m " + "x" * 5_000})
    reason = read_choice(reply, NAMES).reason
    assert reason.startswith("many lines [31m x")
    assert len(reason) == 200
    assert read_choice("INDEX: cisi\nREASONING: **because** it is", NAMES).reason == "because** it is"
    reply = "INDEX: nowhere\nCONFIDENCE: 0.1\n\nINDEX: cisi\nCONFIDENCE: 0.6\nREASONING: fits"
    assert read_choice(reply, NAMES) == Choice(name="cisi", confidence=0.6, reason="fits")


@pytest.mark.parametrize(
    ("reply", "name"),
    [("XQuAD-EN", "xquad-en"), ("xquad en", "xquad-en"), ("XQuAD_EN", "xquad-en"), ("xquaden", "xquad-en"),
     ("xquad", "xquad"), ("the XQuAD collection", "xquad"), ("the xquad en collection", "xquad-en"),
     ("xquad-en or xquad", None), ("xquad-es", None), ("cis", None), ("cisis", None), ("ｃｉｓｉ", "cisi")],
)  # fmt: skip
def test_names_are_matched_whole(reply, name):
    assert named(reply) == name


def test_only_one_option_may_match_of_none_or_many_and_of_several_answers_the_first_counts():
    assert named("Data", ("Data", "data")) == "Data"
    assert named("DATA", ("Data", "data")) is None
    assert named("a b", ("a-b", "a_b")) is None
    assert (named("a_b", ("a-b", "a_b")), named("resume", ("résumé", "other"))) == ("a_b", "résumé")
    assert named("resume", ("résumé", "resume")) == "resume"
    assert named("The Data it is.", ("Data", "data")) is None
    reply = json.dumps([{"choice": n} for n in ("nowhere", "cisi", "cisi", "cacm")])
    assert (named(reply), named('["cisi", "cacm"]')) == ("cisi", "cisi")
    assert named('{"choices": [1, 2]}') is None
    assert named("cisi", ()) is named("", ("",)) is None
    assert named("I would search index-1999 first.", [f"index-{i}" for i in range(2_000)]) == "index-1999"


@pytest.mark.parametrize(
    ("reply", "name"),
    [("2", "2"), ("[2]", "2"), ('{"choice": 2}', "2"), ('{"choice": "2"}', "2"), ('{"choice": 2.0}', None),
     ("-2", None), ('{"choice": -2}', None), ('{"choice": "-2"}', None), (".2", None), ("2.", "2"), ("²", None),
     ("I would take 2 of them", None), ("1. 2", "2"), ("INDEX: 2", "2"), ("INDEX: 3", None), ("02", None),
     ('{"choice": 0}', None), ('{"choice": true}', None), ("1", "1")],
)  # fmt: skip
def test_a_number_names_only_an_option_that_is_called_so(reply, name):
    assert named(reply, ("2", "1", "cisi")) == name


@pytest.mark.parametrize(
    "reply",
    ["It is not cisi.", "I can't use cisi.", "cisi is wrong here.", "Anything except cisi", "no cisi", "¿cisi o no?",
     "No uses cisi.", "ไม่ใช่ cisi", "Without cisi nothing works.", "Is it cisi, I wonder?", "Nicht cisi."],
)  # fmt: skip
def test_prose_that_denies_or_asks_is_no_choice(reply):
    assert named(reply) is None
    assert named(f"The question is not about code. I choose {NAMES[0]}.") == NAMES[0]  # a denial elsewhere


def test_errors_are_short_and_do_not_repeat_the_reply(caplog):
    caplog.set_level(logging.DEBUG)
    said = [one for one in (read(case.text(NAMES) + "canary") for case in MALFORMED_REPLIES) if isinstance(one, str)]
    assert len(said) > 40
    assert not [message for message in said if len(message) > 200 or "canary" in message]
    assert caplog.text == ""


PIECES = st.lists(
    st.sampled_from(
        [*NAMES, "{", "}", "[", "]", '"', "'", ":", ",", "\n", " ", "choice", '"choice": ', "INDEX: ",
         "CONFIDENCE: 0.5", "not ", "<think>", "</think>", "```", "1", "-1", "?", "or ", "null", "\\", "cisi2"]
    ),
    max_size=25,
).map("".join)  # fmt: skip


@settings(max_examples=500)
@given(st.text(max_size=300) | PIECES, st.lists(st.text(max_size=12), max_size=5, unique=True) | st.just(list(NAMES)))
def test_what_is_read_is_always_an_option(reply, names):
    choice = read(reply, names)
    if isinstance(choice, str):
        return
    assert choice.name in names
    assert choice.confidence is None or 0 <= choice.confidence <= 1
    assert len(choice.reason) <= 200
    assert "\n" not in choice.reason


SANE = st.from_regex(r"[a-z][a-z0-9]{2,10}([_-][a-z0-9]{1,6})?", fullmatch=True)


@settings(max_examples=200)
@given(st.lists(SANE, min_size=2, max_size=6, unique_by=lambda name: name.replace("-", "").replace("_", "")), st.data())
def test_every_option_can_be_said_in_every_usual_form(names, data):
    name = data.draw(st.sampled_from(names))
    forms = [name, name.upper(), f"**{name}**", f"STRATEGY: {name}", json.dumps([{"choice": name, "reason": names[0]}])]
    assert named(data.draw(st.sampled_from(forms)), names) == name
