from __future__ import annotations

import re
from functools import partial

import pytest
from answer_nodes import make_node
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_retriever.synthesis.checking import check_citations
from agentic_retriever.synthesis.context import assemble
from agentic_retriever.synthesis.synthesizer import StreamedText

PASSAGES = assemble(
    [
        make_node("Annual leave is 28 days a year. It is granted in January.", doc_id="leave", start=0),
        make_node("Travel is paid by the company. A hotel may cost 120 euros a night.", doc_id="travel", start=0),
        make_node("ราคาที่ดินในเชียงใหม่สูงขึ้น 12 เปอร์เซ็นต์ในปี 2563", doc_id="land", start=0),
    ],
    max_chars=10_000,
)
REPLIES = [
    "Annual leave is 28 days a year [1]. A hotel may cost 120 euros a night [2].",
    "Annual leave is 28 days a year. [1] A hotel may cost 120 euros a night. [2]",
    "A hotel may cost 120 euros a night [2][9]. Annual leave is 28 days a year.",
    "<think>The passages say [1] this.</think>\n\nAnnual leave is 28 days a year [1].",
    "Rules:\n\n- Annual leave is 28 days a year [1]\n- A hotel may cost 120 euros a night [2, 7]\n",
    "Leave is 28 days, *granted in January* [passage 1]. I do not know more.",
    "ราคาที่ดินในเชียงใหม่สูงขึ้น 12 เปอร์เซ็นต์ในปี 2563 [3]",
]


def run(reply, sizes=(1,), policy="flag"):
    check = partial(check_citations, passages=PASSAGES, language="en", unsupported=policy)
    stream = StreamedText(check, len(PASSAGES), whole_sentences=policy == "drop")
    pieces, at, turn = [], 0, 0
    while at < len(reply):
        size = max(1, sizes[turn % len(sizes)])
        pieces.append(stream.feed(reply[at : at + size]))
        at, turn = at + size, turn + 1
    final = check(re.sub(r"<think>.*?</think>\s*", "", reply, flags=re.DOTALL)).text
    return pieces, [*pieces, stream.finish(final)], final


@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("policy", ["flag", "mark", "drop"])
def test_the_pieces_are_the_finished_text(reply, policy):
    _, pieces, final = run(reply, policy=policy)
    assert "".join(pieces) == final
    assert "think" not in "".join(pieces)
    assert "[9]" not in "".join(pieces)


@pytest.mark.parametrize("reply", REPLIES[:4])
def test_words_are_shown_before_the_sentence_is_finished(reply):
    before, _, final = run(reply)
    assert len([piece for piece in before if piece]) > 10
    assert len("".join(before)) > len(final) / 2


def test_left_out_sentences_are_never_shown():
    _, pieces, final = run("Annual leave is 28 days a year [1]. Bonuses are 900 dollars [2]. Hm.", policy="drop")
    assert "900" not in "".join(pieces)
    assert final.startswith("Annual leave is 28 days a year. [1]")


@pytest.mark.parametrize(
    "reply", ["NO_ANSWER", "**NO ANSWER**", "no_answer.", " [NO_ANSWER] The passages say nothing."]
)
def test_a_refusal_is_not_shown(reply):
    before, _, _ = run(reply)
    assert "".join(before) == ""


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from([*REPLIES, "[1]", "[", "]", " ", "\n", "One.", "<think>", "</think>", "x"]), max_size=6),
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
)
def test_any_reply_in_any_pieces_shows_a_beginning_of_what_it_said(replies, sizes):
    reply = " ".join(replies)
    check = partial(check_citations, passages=PASSAGES, language="en")
    stream = StreamedText(check, len(PASSAGES))
    shown, at, turn = "", 0, 0
    while at < len(reply):
        size = sizes[turn % len(sizes)]
        shown += stream.feed(reply[at : at + size])
        at, turn = at + size, turn + 1
    assert shown == stream.shown
    assert stream.finish(shown + "!") == "!"
