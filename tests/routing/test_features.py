from __future__ import annotations

import math
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentic_retriever.routing import FEATURES, assess_complexity, query_features


def strengths(query, profile=None):
    return query_features(query, profile, 0.0)


@pytest.mark.parametrize(
    "query",
    ["error E42", "NS-3 battery", "section 6.2.1", "use salinity_mode", "C++ guide", "camelCase name", "EUR/JPY rate",
     "serial 3A-20000", "Real Decreto RD-750/2010", "ธน-06 คืออะไร", "โฉนดเลขที่ 10234", "น.ส.3ก คืออะไร"],
)  # fmt: skip
def test_codes(query):
    assert strengths(query)["codes"] >= 0.9


@pytest.mark.parametrize(
    "query", ["in 2024", "60,000 euro", "5 km", "the 2nd floor", "3rd-and-nine", "e.g. this", "ปี2560", "well-known",
              "12.5 percent"]
)  # fmt: skip
def test_no_codes(query):
    assert strengths(query)["codes"] == 0.0


@pytest.mark.parametrize(
    "query", ['the "frost programme"', "la «clase IV»", "a “soft start”", "„Not-Aus“", "「保証」とは"]
)
def test_quoted(query):
    assert strengths(query)["quoted"] == 1.0


@pytest.mark.parametrize("query", ["don't", 'a screen of 5"', '""', "l'article"])
def test_not_quoted(query):
    assert strengths(query)["quoted"] == 0.0


@pytest.mark.parametrize(
    ("signal", "query"),
    [
        ("comparison", "Ketch versus yawl"),
        ("comparison", "¿qué diferencias hay entre los dos?"),
        ("comparison", "รถไฟกับรถบัสต่างกันอย่างไร"),
        ("overview", "Summarise the annual report"),
        ("overview", "dame un RESUMEN del informe"),
        ("overview", "ช่วยสรุปรายงานให้หน่อย"),
        ("procedure", "the licence procedure, please"),
        ("procedure", "explícame el trámite paso a paso"),
        ("procedure", "ขั้นตอนการขอใบอนุญาต"),
        ("detail", "under what exact conditions may a crew leave?"),
        ("detail", "¿en qué condiciones se permite?"),
        ("several_questions", "Who signs, what does it cost, and when is it due?"),
        ("range", "flats between 40 and 60 square metres"),
        ("range", "coches de más de 10 años"),
        ("range", "ที่ดินไม่เกิน 3 ไร่"),
        ("references", "what does article 17 say"),
        ("references", "el anexo III"),
        ("references", "มาตรา 12 ว่าอย่างไร"),
        ("acronyms", "the DME limit"),
    ],
)
def test_signals(signal, query):
    assert strengths(query)[signal] >= 0.7


def test_a_plain_question_has_no_signal():
    found = {name for name, value in strengths("how long may I keep a borrowed bike").items() if value > 0}
    assert found <= {"length"}


def test_capitals_throughout_are_no_acronyms():
    assert strengths("WHERE IS THE OFFICE")["acronyms"] == 0.0


def test_metadata_values_grow_with_the_fields_named(deeds):
    none = strengths("ใครเป็นเจ้าของ", deeds)["metadata_values"]
    one = strengths("ที่ดินในเชียงใหม่", deeds)["metadata_values"]
    two = strengths("ที่ดินเกษตรกรรมในเชียงใหม่", deeds)["metadata_values"]
    three = strengths("ที่ดินเกษตรกรรมในเชียงใหม่ ไม่เกิน 3 ไร่", deeds)["metadata_values"]
    assert none == 0.0 < one < two < three == 1.0


def test_a_year_counts_only_within_the_years_of_the_index(deeds):
    assert strengths("ออกเมื่อปี 2560", deeds)["metadata_values"] > 0
    assert strengths("ออกเมื่อปี 2490", deeds)["metadata_values"] == 0.0


def test_a_range_counts_only_where_it_cuts_a_numeric_field(deeds, boats):
    assert strengths("มากกว่า 20 ไร่", deeds)["metadata_values"] > 0
    assert strengths("มากกว่า 90000 ไร่", deeds)["metadata_values"] == 0.0
    assert strengths("more than 20 boats", boats)["metadata_values"] == 0.0


def test_values_of_a_changed_index_are_seen(make):
    texts = ["one text", "two texts", "three texts"]
    before = make("x", texts, [{"team": "red"}] * 3)
    after = make("x", texts, [{"team": "blue"}] * 3)
    assert strengths("the blue team", before)["metadata_values"] == 0.0
    assert strengths("the blue team", after)["metadata_values"] > 0


def test_rare_terms_are_those_of_few_nodes(make):
    index = make("x", ["valve and gasket", *["valve"] * 200])
    assert strengths("gasket", index)["rare_terms"] == 1.0
    assert strengths("valve", index)["rare_terms"] == 0.0
    assert strengths("unknown", index)["rare_terms"] == 0.0


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=st.text(st.characters(exclude_categories=()), max_size=400), score=st.floats(-1, 2))
def test_any_text_has_every_feature_in_range(query, score, deeds):
    features = query_features(query, deeds, score)
    assert tuple(features) == FEATURES
    assert all(0.0 <= value <= 1.0 and math.isfinite(value) for value in features.values())


@pytest.mark.parametrize(
    "unit",
    ["a", " ", "why ", "compare ", "1", "1.1.", '"a', "«", "between 1 and ", "word by ", "aA", "a_", "a-", "แปลงไหน",
     "ตั้งแต่", "\u0301", "\0", "\ud800", "?", "a?", "which of ", "in the example ", "entre 1 y ", "A "],
)  # fmt: skip
def test_no_text_takes_more_than_linear_time(unit, deeds):
    def seconds(length: int) -> float:
        query = (unit * length)[:length]
        start = time.thread_time()
        _, score = assess_complexity(query)
        query_features(query, deeds, score)
        return time.thread_time() - start

    seconds(10)
    # 40 ms are allowed for 20,000 characters; ten times that leaves room for a slow machine, not for backtracking.
    assert seconds(20_000) < 0.4
