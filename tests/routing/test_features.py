import math
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentic_retriever.errors import ConfigError
from agentic_retriever.routing import FEATURES, DomainTerms, HeuristicSelector, assess_complexity, query_features
from agentic_retriever.text import Tokenizer


def strengths(query, profile=None):
    return query_features(query, profile, 0.0)


CODES = [
    "error E42", "NS-3 battery", "section 6.2.1", "use salinity_mode", "C++ guide", "camelCase name", "EUR/JPY rate",
    "serial 3A-20000", "Real Decreto RD-750/2010", "ธน-06 คืออะไร", "โฉนดเลขที่ 10234", "น.ส.3ก คืออะไร",
]  # fmt: skip
QUOTED = ['the "frost programme"', "la «clase IV»", "a “soft start”", "„Not-Aus“", "「保証」とは"]
NO_CODES = [
    "in 2024", "60,000 euro", "5 km", "the 2nd floor", "3rd-and-nine", "e.g. this", "ปี2560", "well-known",
    "12.5 percent",
]  # fmt: skip
NOT_QUOTED = ["don't", 'a screen of 5"', '""', "l'article"]


@pytest.mark.parametrize(
    ("signal", "query"),
    [
        *(("codes", query) for query in NO_CODES),
        *(("quoted", query) for query in NOT_QUOTED),
        ("acronyms", "WHERE IS THE OFFICE"),
        ("detail", "why should a footnote stand inside the quotation?"),
    ],
)
def test_what_is_no_signal(signal, query):
    assert strengths(query)[signal] == 0.0


@pytest.mark.parametrize(("signal", "query"), [
    *(("codes", query) for query in CODES), *(("quoted", query) for query in QUOTED),
    ("comparison", "Ketch versus yawl"), ("comparison", "¿qué diferencias hay entre los dos?"),
    ("comparison", "รถไฟกับรถบัสต่างกันอย่างไร"), ("overview", "Summarise the annual report"),
    ("overview", "dame un RESUMEN del informe"), ("overview", "ช่วยสรุปรายงานให้หน่อย"),
    ("procedure", "the licence procedure, please"), ("procedure", "explícame el trámite paso a paso"),
    ("procedure", "ขั้นตอนการขอใบอนุญาต"), ("detail", "under what exact conditions may a crew leave?"),
    ("detail", "¿en qué condiciones se permite?"), ("detail", "what is the limit in the footnote?"),
    ("several_questions", "Who signs, what does it cost, and when is it due?"),
    ("range", "flats between 40 and 60 square metres"), ("range", "coches de más de 10 años"),
    ("range", "ที่ดินไม่เกิน 3 ไร่"), ("references", "what does article 17 say"), ("references", "el anexo III"),
    ("references", "มาตรา 12 ว่าอย่างไร"), ("acronyms", "the DME limit"),
])  # fmt: skip
def test_signals(signal, query):
    assert strengths(query)[signal] >= 0.7


def test_rare_terms_are_those_of_few_nodes_and_a_plain_question_has_no_signal(make):
    assert {name for name, value in strengths("how long may I keep a borrowed bike").items() if value > 0} <= {"length"}
    index = make("x", ["valve and gasket", *["valve"] * 200])
    assert strengths("gasket", index)["rare_terms"] == 1.0
    assert strengths("valve", index)["rare_terms"] == 0.0
    assert strengths("unknown", index)["rare_terms"] == 0.0


def test_metadata_values_grow_with_the_fields_named_and_follow_changes(deeds, make):
    none = strengths("ใครเป็นเจ้าของ", deeds)["metadata_values"]
    one = strengths("ที่ดินในเชียงใหม่", deeds)["metadata_values"]
    two = strengths("ที่ดินเกษตรกรรมในเชียงใหม่", deeds)["metadata_values"]
    three = strengths("ที่ดินเกษตรกรรมในเชียงใหม่ ไม่เกิน 3 ไร่", deeds)["metadata_values"]
    assert none == 0.0 < one < two < three == 1.0
    texts = ["one text", "two texts", "three texts"]
    before = make("x", texts, [{"team": "red"}] * 3)
    after = make("x", texts, [{"team": "blue"}] * 3)
    assert strengths("the blue team", before)["metadata_values"] == 0.0
    assert strengths("the blue team", after)["metadata_values"] > 0


@pytest.mark.parametrize(
    ("query", "counts"),
    [
        pytest.param("ออกเมื่อปี 2560", True, id="a year within those of the index"),
        pytest.param("ออกเมื่อปี 2490", False, id="another year"),
        pytest.param("มากกว่า 20 ไร่", True, id="a range that cuts a numeric field"),
        pytest.param("มากกว่า 90000 ไร่", False, id="a range beyond all values"),
    ],
)
def test_years_and_ranges_count_where_they_restrict(query, counts, deeds, boats):
    assert (strengths(query, deeds)["metadata_values"] > 0) is counts
    assert strengths("more than 20 boats", boats)["metadata_values"] == 0.0


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
    for length, most in ((10, math.inf), (20_000, 0.4)):
        query = (unit * length)[:length]
        start = time.thread_time()
        query_features(query, deeds, assess_complexity(query)[1])
        # 40 ms are allowed for 20,000 characters; ten times that leaves room for a slow machine, not for backtracking.
        assert time.thread_time() - start < most


TERMS = DomainTerms.parse("homologation | type approval; ABS\nR155 | UN R155; homologación")


def found(query: str, language: str = "en", terms: DomainTerms = TERMS) -> list[str]:
    return terms.found(Tokenizer(language=language).query_tokens(query), language)


def test_domain_terms_are_read_counted_and_lead_to_hybrid(deeds, all_cards):
    assert TERMS.terms == (("homologation", "type approval"), ("ABS",), ("R155", "UN R155"), ("homologación",))
    assert DomainTerms.parse(" \n ; ").terms == ()

    def strength(query: str, profile=None) -> float:
        return query_features(query, profile, 0.0, domain_terms=TERMS)["domain_terms"]

    for profile in (None, deeds):
        assert strength("how long may I keep a bike", profile) == 0.0
        assert strength("the ABS rules", profile) == 0.8
        assert strength("ABS and R155", profile) == 1.0
    assert query_features("ABS and R155", None, 0.0)["domain_terms"] == 0.0
    assert query_features("ABS", None, 0.0, domain_terms=DomainTerms())["domain_terms"] == 0.0
    query = "how long is a homologation valid"
    without = HeuristicSelector().select(query, all_cards, features=query_features(query, None, 0.0))
    with_terms = query_features(query, None, 0.0, domain_terms=TERMS)
    chosen = HeuristicSelector().select(query, all_cards, features=with_terms)
    assert (without.name, chosen.name) == ("vector", "hybrid")
    assert "domain terms" in chosen.reason


@pytest.mark.parametrize(("query", "language", "wanted"), [
    ("which type approvals are there", "en", ["homologation"]), ("the approval of a type", "en", []),
    ("what does UN R155 ask of ABS", "en", ["ABS", "R155"]),
    ("homologation and type approval are one term", "en", ["homologation"]), ("the absolute truth", "en", []),
    ("", "en", []), pytest.param("la homologacion de un coche", "es", ["homologación"], id="without accents"),
    pytest.param("las HOMOLOGACIONES", "es", ["homologación"], id="in capitals"),
    pytest.param("ค่าธรรมเนียมจดจำนองเท่าไร", "th", ["จดจำนอง"], id="inside text without spaces"),
])  # fmt: skip
def test_terms_are_found_by_any_form_and_ending(query, language, wanted):
    terms = TERMS if language == "en" else DomainTerms.parse(";".join(wanted))
    assert found(query, language, terms) == wanted


@pytest.mark.parametrize("text", ["a | ", "| a", "a | ; b", "—", "x" * 201, ";".join(f"t{n}" for n in range(501))])
def test_wrong_settings_are_refused(text):
    with pytest.raises(ConfigError, match=r"domain_terms|domain terms"):
        DomainTerms.parse(text)


@given(st.lists(st.sampled_from(["valve", "gasket", "pump", "seal"]), max_size=8), st.lists(st.lists(
    st.sampled_from(["valve", "gasket", "pump", "seal"]), min_size=1, max_size=3), min_size=1, max_size=4))  # fmt: skip
def test_exactly_the_runs_of_words_are_found(words, terms):
    table = DomainTerms.parse(";".join(" ".join(term) for term in terms))
    wanted = [
        " ".join(term)
        for term in terms
        if any(words[at : at + len(term)] == term for at in range(len(words) - len(term) + 1))
    ]
    assert found(" ".join(words), terms=table) == wanted


@given(st.text(st.characters(exclude_categories=()), max_size=200))
def test_any_text_is_read_or_refused(text):
    try:
        terms = DomainTerms.parse(text)
    except ConfigError:
        return
    assert 0.0 <= terms.strength(["a"], "en") <= 1.0
