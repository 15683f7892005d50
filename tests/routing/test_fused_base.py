"""Where hybrid search is calibrated, stage two starts from it and leaves it only for what has paid."""

from __future__ import annotations

from dataclasses import replace

import pytest
from routing_material import make_card

from agentic_retriever.routing import (
    FEATURES,
    HeuristicSelector,
    assess_complexity,
    fused_weights,
    packaged_weights,
    query_features,
)
from agentic_retriever.schema import Strategy

FUSED = HeuristicSelector(fused_weights())


def choose(query, cards, profile=None):
    _, score = assess_complexity(query)
    return FUSED.select(query, cards, features=query_features(query, profile, score))


def measured(cards, **quality):
    return [replace(card, quality=quality.get(card.strategy.value)) for card in cards]


@pytest.mark.parametrize(
    "query",
    [
        "how long may I keep a borrowed bike",
        "¿cuándo abre la biblioteca los sábados?",
        "ห้องสมุดเปิดกี่โมง",
        "what does alarm F-31 mean",
        # The parts of a comparison found no more than the whole question did, and often less.
        "Compare the day pass with the monthly pass in price and reach",
        "Who lends bikes, what does it cost, and when must they be back?",
        "Describe the complete membership procedure step by step",
        "",
    ],
)
def test_without_a_signal_that_has_paid_it_is_hybrid(query, all_cards):
    assert choose(query, all_cards).name == "hybrid"


@pytest.mark.parametrize(
    ("query", "strategy"),
    [
        ("Give me an overview of the library rules", "summary"),
        ("resumen del reglamento de la biblioteca", "summary"),
        ("ขอภาพรวมของระเบียบห้องสมุด", "summary"),
    ],
)
def test_a_signal_that_has_paid_leads_away(query, strategy, all_cards):
    assert choose(query, all_cards).name == strategy


def test_named_values_lead_to_metadata(all_cards, deeds):
    assert choose("ที่ดินเกษตรกรรมในขอนแก่น มากกว่า 20 ไร่", all_cards, deeds).name == "metadata"
    assert FUSED.select("x", all_cards, features={"people": 1.0}).name == "metadata"


def test_the_reason_says_that_nothing_spoke(all_cards):
    selection = choose("borrowed bike", all_cards)
    assert selection.reason == "no signal for another strategy; best on average where none speaks"
    # The same certainty as by the wording alone, so that a model is asked as often.
    plain = HeuristicSelector().select("x", all_cards, features={})
    assert choose("", all_cards).confidence == pytest.approx(plain.confidence)


def test_without_a_keyword_view_it_is_vector():
    cards = [make_card(Strategy.METADATA), make_card(Strategy.VECTOR)]
    assert choose("how long may I keep a borrowed bike", cards).name == "vector"


@pytest.mark.parametrize(
    ("quality", "chosen"),
    [
        ({"vector": 0.46, "hybrid": 0.43}, "vector"),
        ({"vector": 0.44, "hybrid": 0.43}, "hybrid"),
        ({"vector": 0.43, "hybrid": 0.43, "planner": 0.48}, "planner"),
        ({"vector": 0.43, "hybrid": 0.46, "planner": 0.48}, "hybrid"),
        # How far behind the worst is says nothing about those in front.
        ({"vector": 0.46, "hybrid": 0.43, "summary": 0.0, "metadata": 0.0}, "vector"),
    ],
)
def test_a_clear_measured_lead_outranks_the_base(quality, chosen, all_cards):
    selection = FUSED.select("x", measured(all_cards, **quality), features={})
    assert selection.name == chosen
    assert ("measured quality" in selection.reason) == (quality[chosen] > min(quality.values()))


def test_equal_measures_change_nothing(all_cards):
    plain = FUSED.select("x", all_cards, features={})
    even = FUSED.select("x", measured(all_cards, **{card.strategy.value: 0.4 for card in all_cards}), features={})
    assert even.scores == pytest.approx(plain.scores)


def test_a_clear_signal_speaks_louder_than_the_measure(all_cards):
    bad = measured(all_cards, **{card.strategy.value: 0.9 for card in all_cards if card.strategy.value != "summary"})
    worst = [replace(card, quality=0.0) if card.strategy is Strategy.SUMMARY else card for card in bad]
    assert FUSED.select("x", worst, features={"overview": 1.0}).name == "summary"


def test_both_tables_are_packaged_and_know_their_signals():
    fused, plain = fused_weights(), packaged_weights()
    assert set(fused.signals) <= set(FEATURES)
    assert max(plain.base, key=plain.base.__getitem__) is Strategy.VECTOR
    assert max(fused.base, key=fused.base.__getitem__) is Strategy.HYBRID
    assert fused_weights() is fused
