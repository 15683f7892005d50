from __future__ import annotations

import pytest

from agentic_retriever.synthesis.extractive import NUMERIC, Question, coverage
from agentic_retriever.text import Tokenizer


@pytest.mark.parametrize(
    ("query", "asks"),
    [
        ("How many units?", True), ("When does it begin?", True), ("Who approves it?", False),
        ("¿Cuántos días?", True), ("¿En qué año empezó?", True), ("¿Quién lo aprueba?", False),
        ("มีเนื้อที่กี่ไร่", True), ("เกี่ยวกับอะไร", False), ("多少钱", True),
    ],
)  # fmt: skip
def test_questions_for_a_number_are_seen(query, asks):
    assert bool(Question.of(query, Tokenizer()).kinds & NUMERIC) is asks


def test_asking_words_of_unspaced_scripts_are_no_terms():
    terms = Question.of("ใครเป็นเจ้าของที่ดิน", Tokenizer("th")).terms
    assert not any("ใคร" in term for term in terms)
    assert any("ดิน" in term for term in terms)
    assert Question.of("อะไร", Tokenizer("th")).terms


def test_rare_terms_weigh_more_and_absent_ones_most():
    question = Question.of("pump oil zebra", Tokenizer("en"))
    weights = question.weights([{"pump", "oil"}, {"pump"}, {"pump"}, {"water"}])
    assert 0.5 <= weights["pump"] < weights["oil"] < weights["zebra"] == 1.0


def test_a_code_counts_once():
    question = Question.of("revenue in FY2024", Tokenizer("en"))
    whole, number = "fy2024", "2024"
    assert {whole, number} <= set(question.terms)
    assert number not in question.weights([{whole, number, "fy"}])
    in_parts = question.weights([{number}])
    assert whole not in in_parts
    assert number in in_parts


def test_coverage():
    assert coverage({}, {"a"}) == 0.0
    assert coverage({"a": 1.0, "b": 0.5}, {"a"}) == pytest.approx(2 / 3)
    assert coverage({"a": 1.0, "b": 0.5}, {"a", "b", "c"}) == 1.0
