from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_retriever.routing import assess_complexity
from agentic_retriever.routing.complexity import question_count
from agentic_retriever.routing.tables import load_table, matching_form
from agentic_retriever.schema import Complexity


@pytest.mark.parametrize(
    "query",
    [
        "Compare the tariffs of the north line with those of the south line",
        "What is the difference between a ketch and a yawl?",
        "Analyse the accident rate of the last decade",
        "Walk me through the licence application step by step",
        "Where is the office? And when does it open?",
        "Who signs the form, what does it cost, and how long does it take?",
        "Compara el precio del billete sencillo con el del abono",
        "¿Quién firma, cuánto cuesta y qué papeles hacen falta?",
        "¿Por qué sube el alquiler mientras que bajan los salarios?",
        "เปรียบเทียบราคาบ้านกับคอนโด",
        "รถไฟกับรถบัสแบบไหนเร็วกว่า",
    ],
)
def test_complex(query):
    verdict, score = assess_complexity(query)
    assert verdict is Complexity.COMPLEX
    assert score > 0.1


@pytest.mark.parametrize(
    "query",
    [
        "",
        "   ",
        "What is the capital of Peru?",
        "How many islands are there?",
        "opening hours",
        "When does the ferry leave and from which pier?",
        "¿Cuánto cuesta un billete?",
        "¿Dónde está la oficina que expide el carné?",
        "ราคาเท่าไร",
        "สถานีรถไฟอยู่ที่ไหน",
    ],
)
def test_simple(query):
    verdict, score = assess_complexity(query)
    assert verdict is Complexity.SIMPLE
    assert score < 0.3


def test_a_long_question_is_complex_and_a_long_list_is_not():
    story = "The boiler in our cellar keeps losing pressure although nobody has opened a valve since the plumber came "
    assert assess_complexity(story + "here last autumn to exchange the pump that had been rattling")[0] is (
        Complexity.COMPLEX
    )
    assert assess_complexity(", ".join(f"valve of pipe {n}" for n in range(12)))[0] is Complexity.SIMPLE


def test_three_conjunctions_are_complex():
    assert assess_complexity("bolts and nuts and screws or nails")[0] is Complexity.COMPLEX
    assert assess_complexity("bolts and nuts or nails")[0] is Complexity.SIMPLE


def test_a_complex_pattern_goes_before_a_simple_one():
    assert assess_complexity("What is the difference between them?")[0] is Complexity.COMPLEX


def test_a_simple_pattern_goes_before_the_count_of_conjunctions():
    assert assess_complexity("What is the rule of salt and oil and flour or bran?")[0] is Complexity.SIMPLE


def test_the_score_adds_up():
    # One conjunction and the length.
    assert assess_complexity("bolts and nuts")[1] == pytest.approx(0.05 + 0.2 * 14 / 300)
    # A medium keyword.
    assert assess_complexity("boiler trend")[1] == pytest.approx(0.08 + 0.2 * 12 / 300)
    # A strong keyword.
    assert assess_complexity("evaluate boilers")[1] == pytest.approx(0.15 + 0.2 * 16 / 300)
    # A simple pattern takes off, and the score never falls below zero.
    assert assess_complexity("What is salt?")[1] == 0.0


def test_the_score_is_clipped():
    query = (
        "Compare pros and cons, analyse and evaluate and assess and contrast the trade-offs, the implications, the "
        "root cause, versus each other step by step: what is the difference between them? Why? And how do they differ?"
    )
    assert assess_complexity(query)[1] == 1.0


def test_relative_clauses_are_no_questions():
    text = matching_form("¿Dónde está el coche que compré y que vendí?")
    assert question_count(text, [load_table("es")]) == 1
    assert question_count(matching_form("really??!"), [load_table("en")]) == 1
    assert question_count(matching_form("Who? When? Where?"), [load_table("en")]) == 3


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=()), max_size=400))
def test_any_text_has_a_complexity(query):
    verdict, score = assess_complexity(query)
    assert isinstance(verdict, Complexity)
    assert 0.0 <= score <= 1.0
