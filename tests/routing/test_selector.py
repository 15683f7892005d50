import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from routing_material import make_card
from waiting import in_threads

from agentic_retriever import routing
from agentic_retriever.errors import NoEligibleStrategyError
from agentic_retriever.routing.selector import MAX_QUALITY_SHIFT, quality_shifts
from agentic_retriever.schema import Strategy

SELECTOR = routing.HeuristicSelector()
FUSED = routing.HeuristicSelector(routing.fused_weights())


def choose(query, cards, profile=None, selector=SELECTOR):
    _, score = routing.assess_complexity(query)
    return selector.select(query, cards, features=routing.query_features(query, profile, score))


@pytest.mark.parametrize(("query", "strategy"), [
    ("how long may I keep a borrowed bike", "vector"), ("¿cuándo abre la biblioteca los sábados?", "vector"),
    ("ห้องสมุดเปิดกี่โมง", "vector"), ("what does alarm F-31 mean", "hybrid"),
    ("who wrote the \"harbour rules\"", "hybrid"), ("¿qué dice el artículo 9 sobre el aparcamiento?", "hybrid"),
    ("รหัส กข-19 คืออะไร", "hybrid"), ("Compare the day pass with the monthly pass in price and reach", "planner"),
    ("¿Qué diferencia hay entre el abono diario y el mensual?", "planner"),
    ("ตั๋ววันกับตั๋วเดือนต่างกันอย่างไร", "planner"),
    ("Who lends bikes, what does it cost, and when must they be back?", "planner"),
    ("Give me an overview of the library rules", "summary"),
    ("resumen del reglamento de la biblioteca", "summary"), ("ขอภาพรวมของระเบียบห้องสมุด", "summary"),
    ("Describe the complete membership procedure step by step", "recursive"),
    ("explica el procedimiento completo de alta paso a paso", "recursive"),
    ("Under what conditions exactly is the deposit kept?", "chunk_decoupling"),
    ("¿en qué condiciones exactas se pierde la fianza?", "chunk_decoupling"),
])  # fmt: skip
def test_signals_lead_to_their_strategy(query, strategy, all_cards):
    assert choose(query, all_cards).name == strategy


def test_values_lead_to_metadata_by_both_tables(all_cards, deeds):
    assert choose("ที่ดินเกษตรกรรมในขอนแก่น มากกว่า 20 ไร่", all_cards, deeds).name == "metadata"
    assert choose("ที่ดินเกษตรกรรมในขอนแก่น มากกว่า 20 ไร่", all_cards, deeds, selector=FUSED).name == "metadata"


def test_only_offered_strategies_are_chosen():
    cards = [make_card(Strategy.HYBRID), make_card(Strategy.VECTOR)]
    selection = choose("Give me an overview of the library rules", cards)
    assert (set(selection.scores), selection.name) == ({"vector", "hybrid"}, "vector")
    assert choose("error E42", cards).name == "hybrid"
    cards = [make_card(Strategy.METADATA), make_card(Strategy.VECTOR)]
    assert choose("how long may I keep a borrowed bike", cards, selector=FUSED).name == "vector"


def test_the_reason_names_the_signals_or_says_that_nothing_spoke(all_cards):
    assert "overview" in choose("overview of the rules", all_cards).reason
    assert "reliability" in choose("borrowed bike", all_cards).reason
    selection = choose("borrowed bike", all_cards, selector=FUSED)
    assert selection.reason == "no signal for another strategy; best on average where none speaks"
    # The same certainty as by the wording alone, so that a model is asked as often.
    plain = routing.HeuristicSelector().select("x", all_cards, features={})
    assert choose("", all_cards, selector=FUSED).confidence == pytest.approx(plain.confidence)


def test_without_weights_the_declared_order_decides(all_cards):
    even = routing.HeuristicSelector(routing.StrategyWeights({}, {}))
    for cards in (all_cards, all_cards[::-1]):
        selection = even.select("x", cards, features={})
        assert list(selection.scores) == [strategy.value for strategy in Strategy]
        assert selection.margin == 0.0
    assert even.select("x", all_cards[:2:-1], features={}).name == "chunk_decoupling"


def measured(cards, **quality):
    return [replace(card, quality=quality.get(card.strategy.value)) for card in cards]


def test_measured_quality_shifts_the_odds_soberly(all_cards):
    plain = SELECTOR.select("x", all_cards, features={})
    better = SELECTOR.select("x", measured(all_cards, vector=0.36, hybrid=0.44), features={})
    assert (plain.name, better.name) == ("vector", "hybrid")
    assert "measured quality" in better.reason
    assert SELECTOR.select("x", measured(all_cards, vector=0.40, hybrid=0.41), features={}).name == "vector"


@pytest.mark.parametrize("selector", [SELECTOR, FUSED])
def test_equal_measures_change_nothing_and_a_clear_signal_speaks_louder_than_a_bad_one(selector, all_cards):
    plain = selector.select("x", all_cards, features={})
    even = selector.select("x", measured(all_cards, **dict.fromkeys(plain.scores, 0.4)), features={})
    assert even.scores == pytest.approx(plain.scores)
    for best in ({"vector": 0.9, "hybrid": 0.9}, dict.fromkeys(plain.scores, 0.9)):
        worst = measured(all_cards, **best | {"summary": 0.0})
        assert selector.select("x", worst, features={"overview": 1.0}).name == "summary"


@given(st.dictionaries(st.sampled_from(Strategy), st.none() | st.floats()))
def test_quality_shifts_are_finite_and_bounded(qualities):
    cards = [replace(make_card(strategy), quality=quality) for strategy, quality in qualities.items()]
    assert all(-MAX_QUALITY_SHIFT <= shift <= MAX_QUALITY_SHIFT for shift in quality_shifts(cards).values())
    if cards:
        assert math.isclose(sum(SELECTOR.select("x", cards, features={}).scores.values()), 1.0, abs_tol=1e-9)


def test_one_card_is_the_only_choice():
    selection = SELECTOR.select("x", [make_card(Strategy.SUMMARY)] * 2, features={})
    assert (selection.name, selection.mode, selection.confidence, selection.margin) == ("summary", "only", 1.0, 1.0)


@pytest.mark.parametrize("selector", [SELECTOR, routing.RoundRobinSelector()], ids=lambda s: s.mode)
def test_no_card_is_an_error(selector):
    assert isinstance(selector, routing.StrategySelector)
    with pytest.raises(NoEligibleStrategyError, match="no strategy is offered"):
        selector.select("x", [], features={})


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    query=st.text(st.characters(exclude_categories=()), max_size=300),
    offered=st.lists(st.sampled_from(Strategy), min_size=1, max_size=9),
)
def test_any_text_gets_an_offered_strategy(query, offered, deeds):
    selection = choose(query, [make_card(strategy) for strategy in offered], deeds)
    shares = list(selection.scores.values())
    assert set(selection.scores) == {strategy.value for strategy in offered}
    assert selection.name == next(iter(selection.scores))
    assert selection.confidence == shares[0] == max(shares)
    assert shares == sorted(shares, reverse=True)
    assert math.isclose(sum(shares), 1.0, abs_tol=1e-9)


@given(st.dictionaries(st.sampled_from(routing.FEATURES) | st.text(max_size=5), st.floats(), max_size=10))
def test_odd_features_do_no_harm(features):
    shares = SELECTOR.select("x", [make_card(strategy) for strategy in Strategy], features=features).scores.values()
    assert all(map(math.isfinite, shares))
    assert math.isclose(sum(shares), 1.0, abs_tol=1e-9)


def test_round_robin_offers_each_in_turn_for_each_offer_and_fairly_over_threads(all_cards):
    selector = routing.RoundRobinSelector()
    names = [selector.select("x", all_cards, features={}).name for _ in range(8)]
    assert names == [*(strategy.value for strategy in Strategy), "vector"]
    selection = selector.select("x", all_cards, features={})
    assert selection.mode == "round_robin"
    assert next(iter(selection.scores)) == selection.name == "hybrid"
    assert sum(selection.scores.values()) == pytest.approx(1.0)
    selector = routing.RoundRobinSelector()
    two = [make_card(Strategy.VECTOR), make_card(Strategy.HYBRID)]
    three = [*two, make_card(Strategy.SUMMARY)]
    names = [selector.select("x", cards, features={}).name for cards in (two, three, two, three, two, three)]
    assert names == ["vector", "vector", "hybrid", "hybrid", "vector", "summary"]
    selector = routing.RoundRobinSelector()

    def run(_: int) -> Counter:
        return Counter(selector.select("x", all_cards[:3], features={}).name for _ in range(1000))

    total = sum(in_threads(run, range(16)), Counter())
    assert sum(total.values()) == 16_000
    assert max(total.values()) - min(total.values()) <= 1


def test_both_tables_are_packaged_and_cover_strategies_and_signals():
    weights = routing.packaged_weights()
    spoken = {strategy for row in weights.signals.values() for strategy, weight in row.items() if weight > 0}
    assert (spoken | {Strategy.VECTOR}, set(weights.signals)) == (set(Strategy), set(routing.FEATURES))
    assert routing.packaged_weights() is weights
    fused, plain = routing.fused_weights(), routing.packaged_weights()
    assert set(fused.signals) <= set(routing.FEATURES)
    assert max(plain.base, key=plain.base.__getitem__) is Strategy.VECTOR
    assert max(fused.base, key=fused.base.__getitem__) is Strategy.HYBRID
    assert routing.fused_weights() is fused


@pytest.mark.parametrize(("query", "strategy"), [
    ("how long may I keep a borrowed bike", "hybrid"), ("¿cuándo abre la biblioteca los sábados?", "hybrid"),
    ("ห้องสมุดเปิดกี่โมง", "hybrid"), ("what does alarm F-31 mean", "hybrid"),
    ("Compare the day pass with the monthly pass in price and reach", "planner"),
    ("Who lends bikes, what does it cost, and when must they be back?", "planner"),
    ("Describe the complete membership procedure step by step", "recursive"), ("", "hybrid"),
    ("Give me an overview of the library rules", "summary"),
    ("resumen del reglamento de la biblioteca", "summary"), ("ขอภาพรวมของระเบียบห้องสมุด", "summary"),
])  # fmt: skip
def test_a_signal_that_has_paid_leads_away_from_hybrid(query, strategy, all_cards):
    assert choose(query, all_cards, selector=FUSED).name == strategy


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
