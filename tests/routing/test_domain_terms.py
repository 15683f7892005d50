from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_retriever.errors import ConfigError
from agentic_retriever.routing import DomainTerms, HeuristicSelector, query_features
from agentic_retriever.text import Tokenizer

TERMS = DomainTerms.parse("homologation | type approval; ABS\nR155 | UN R155; homologación")


def found(query: str, language: str = "en", terms: DomainTerms = TERMS) -> list[str]:
    return terms.found(Tokenizer(language=language).query_tokens(query), language)


def test_a_setting_is_read():
    assert TERMS.terms == (("homologation", "type approval"), ("ABS",), ("R155", "UN R155"), ("homologación",))
    assert DomainTerms.parse(" \n ; ").terms == ()


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("which type approvals are there", ["homologation"]),
        ("the approval of a type", []),
        ("what does UN R155 ask of ABS", ["ABS", "R155"]),
        ("homologation and type approval are one term", ["homologation"]),
        ("the absolute truth", []),
        ("", []),
    ],
)
def test_terms_are_found_by_any_form_and_ending(query, wanted):
    assert found(query) == wanted


def test_accents_do_not_matter():
    assert "homologación" in found("la homologacion de un coche", "es")
    assert "homologación" in found("las HOMOLOGACIONES", "es")


def test_terms_inside_text_without_spaces_are_found():
    assert found("ค่าธรรมเนียมจดจำนองเท่าไร", "th", DomainTerms.parse("จดจำนอง")) == ["จดจำนอง"]


@pytest.mark.parametrize("text", ["a | ", "| a", "a | ; b", "—", "x" * 201, ";".join(f"t{n}" for n in range(501))])
def test_wrong_settings_are_refused(text):
    with pytest.raises(ConfigError, match=r"domain_terms|domain terms"):
        DomainTerms.parse(text)


def test_a_feature_says_how_many_there_are(deeds):
    def strength(query: str, profile=None) -> float:
        return query_features(query, profile, 0.0, domain_terms=TERMS)["domain_terms"]

    for profile in (None, deeds):
        assert strength("how long may I keep a bike", profile) == 0.0
        assert strength("the ABS rules", profile) == 0.8
        assert strength("ABS and R155", profile) == 1.0
    assert query_features("ABS and R155", None, 0.0)["domain_terms"] == 0.0
    assert query_features("ABS", None, 0.0, domain_terms=DomainTerms())["domain_terms"] == 0.0


def test_a_domain_term_leads_to_hybrid(all_cards):
    query = "how long is a homologation valid"
    without = HeuristicSelector().select(query, all_cards, features=query_features(query, None, 0.0))
    with_terms = query_features(query, None, 0.0, domain_terms=TERMS)
    chosen = HeuristicSelector().select(query, all_cards, features=with_terms)
    assert (without.name, chosen.name) == ("vector", "hybrid")
    assert "domain terms" in chosen.reason


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
