import copy
import json
import pickle

import pytest
from hypothesis import given
from made_up_values import ROUTES

from agentic_retriever.errors import ConfigError, InvalidQueryError, RoutingError
from agentic_retriever.schema import (
    Budget,
    Complexity,
    RouteDecision,
    Selection,
    Tier,
    TierUsage,
    Usage,
    check_query,
    check_top_k,
)


@given(ROUTES)
def test_a_record_survives_json(decision):
    read = RouteDecision.from_dict(json.loads(json.dumps(decision.to_dict())))
    assert read.to_dict() == decision.to_dict()
    assert not decision.diff(read)
    assert str(decision.diff(read)) == "no difference"
    for other in (copy.copy(decision), copy.deepcopy(decision), pickle.loads(pickle.dumps(decision))):
        assert other == decision


@given(ROUTES, ROUTES)
def test_a_diff_is_empty_exactly_for_equal_records(one, other):
    diff = one.diff(other)
    assert bool(diff) == bool(other.diff(one))
    for difference in diff.differences:
        assert difference.before != difference.after
        assert not difference.path.startswith(("index.spent", "strategy.spent", "timings_ms"))
    if one.index.names != other.index.names or one.strategy.name != other.strategy.name:
        assert not diff.same_choice


def simple(**changes):
    stage = Selection(name="a", confidence=0.9, scores={"a": 0.9, "b": 0.1}, margin=0.8, reason="r", mode="profile")
    whole = {"query": "q", "index": stage, "strategy": stage, "complexity": Complexity.SIMPLE, "complexity_score": 0.1}
    return RouteDecision(**(whole | changes))


def test_a_diff_names_what_changed_and_what_is_no_record_is_refused():
    other = Selection(name="b", confidence=0.6, scores={"b": 0.6, "a": 0.4}, margin=0.2, reason="r", mode="profile")
    diff = simple().diff(simple(index=other, timings_ms={"total": 9.0}))
    paths = {one.path: (one.before, one.after) for one in diff.differences}
    assert (paths["index.name"], paths["index.scores.a"]) == (("a", "b"), (0.9, 0.4))
    assert not any(path.startswith("timings") for path in paths)
    assert not diff.same_choice
    assert "index.name: a -> b" in str(diff)
    assert diff.to_dict()[0]["path"] == "index.name"
    assert simple().diff(simple(complexity_score=0.2)).same_choice
    for damage in [{}, {"format": 99}, {"format": 1}, {"format": 1, "stages": 3}, {"format": 1, "query": "q"}]:
        with pytest.raises(RoutingError, match="decision record"):
            RouteDecision.from_dict(damage)


def test_usage_adds_up_and_a_budget_says_what_is_left():
    one = TierUsage(tier=Tier.CLOUD, model="m", calls=1, prompt_tokens=10, completion_tokens=2, usd=0.5)
    other = TierUsage(tier=Tier.PRIMARY, model="n", calls=1, prompt_tokens=1, completion_tokens=1)
    usage = Usage.of([one, other, one])
    assert [(u.model, u.calls, u.prompt_tokens, u.usd) for u in usage.tiers] == [("m", 2, 20, 1.0), ("n", 1, 1, 0.0)]
    assert (usage.llm_calls, usage.usd) == (3, 1.0)
    assert usage.to_dict()["tiers"]["cloud"]["completion_tokens"] == 4
    assert Budget().may_ask
    assert not Budget(max_llm_calls=0).may_ask
    spent = Usage((TierUsage(tier=Tier.CLOUD, model="m", calls=2, prompt_tokens=1, completion_tokens=1, usd=0.5),))
    assert Budget(max_llm_calls=1, max_usd=0.75).left(spent, 10) == Budget(max_ms=10, max_llm_calls=0, max_usd=0.25)
    assert Budget().left(spent, 10) == Budget(max_ms=10)
    one, other = Budget(max_usd=1, max_ms=5), Budget(max_usd=2, max_llm_calls=3)
    assert one.within(other) == other.within(one) == Budget(max_ms=5, max_usd=1, max_llm_calls=3)
    assert str(Budget(max_usd=0.5, max_llm_calls=2)) == "max_llm_calls=2, max_usd=0.5"
    assert str(Budget()) == "no limit"


@pytest.mark.parametrize("limits", [
    {"max_ms": 0}, {"max_ms": -1}, {"max_ms": float("nan")}, {"max_ms": "5"}, {"max_ms": True}, {"max_usd": -0.1},
    {"max_usd": float("inf")}, {"max_llm_calls": -1}, {"max_llm_calls": 1.5}, {"max_llm_calls": True},
])  # fmt: skip
def test_a_budget_out_of_range_is_refused(limits):
    with pytest.raises(ConfigError, match=f"budget {next(iter(limits))}"):
        Budget(**limits)


def test_unusable_questions_and_top_k_are_refused_with_a_short_message():
    for query in [None, 5, b"bytes", ["q"], "", "   ", "\n\t\u3000", "x" * 100_000]:
        with pytest.raises(InvalidQueryError) as caught:
            check_query(query)
        assert len(str(caught.value)) < 200
        assert check_query("  ¿qué? ") == "  ¿qué? "
    for top_k in [0, -1, 10**9, "5", True, 2.0, None, float("nan")]:
        with pytest.raises(InvalidQueryError, match="top_k must be"):
            check_top_k(top_k)
        assert (check_top_k(1), check_top_k(50, maximum=50)) == (1, 50)
