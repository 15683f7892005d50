"""The choice among tiers, and what happens when they fail, on models that are functions."""

from __future__ import annotations

import json
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import within

from agentic_retriever.errors import AllModelsFailedError, BudgetExceededError, DeadlineExceededError, LLMError
from agentic_retriever.llm import (
    FREE,
    Breaker,
    Endpoint,
    FailureKind,
    LLMClient,
    Price,
    RetryPolicy,
    TieredClient,
    TierNeeds,
    failure_kind,
    spent_on,
)
from agentic_retriever.llm.tiers import share_s
from agentic_retriever.schema import Budget, Complexity, Tier
from agentic_retriever.testing.fakes import FakeLLM
from agentic_retriever.threads import Workers

PRICED = Price(in_usd=1.0, out_usd=2.0)
NAMES = {Tier.PRIMARY: "llama", Tier.CLOUD: "gpt", Tier.SMALL: "qwen"}


class Windowed(FakeLLM):
    context_window: int


def model(tier, replies, **kwargs):
    llm = Windowed(replies, model_name=NAMES[tier], context_window=kwargs.pop("context_tokens", 8_192))
    kwargs.setdefault("price", PRICED if tier is Tier.CLOUD else FREE)
    timeout_s = kwargs.pop("timeout_s", 60)
    clock = kwargs.pop("clock", time.monotonic)
    max_calls = kwargs.pop("max_calls", 8)
    return LLMClient(llm, tier=tier, timeout_s=timeout_s, endpoint=Endpoint(**kwargs), clock=clock, max_calls=max_calls)


def three(primary=("p",), cloud=("c",), small=("s",), **kwargs):
    models = [model(t, r) for t, r in zip(NAMES, (primary, cloud, small), strict=True) if r is not None]
    return TieredClient(models, timeout_s=kwargs.pop("timeout_s", 60), **kwargs)


@pytest.mark.parametrize(
    ("needs", "order"),
    [
        (None, "llama gpt qwen"),
        (TierNeeds(), "llama gpt qwen"),
        (TierNeeds(complexity=Complexity.COMPLEX), "gpt llama qwen"),
        (TierNeeds(force_cloud=True), "gpt llama qwen"),
        (TierNeeds(context_chars=8_000), "llama gpt qwen"),
        (TierNeeds(context_chars=8_001), "gpt llama qwen"),
    ],
)
def test_first_tier_by_complexity_context_and_wish(needs, order):
    tiers = three()
    assert [client.model for client in tiers.order(*([needs] if needs else []))] == order.split()
    reply = tiers.complete("q", needs=needs)
    assert reply.model == order.split()[0]
    assert [a.model for a in reply.attempts] == order.split()[:1]
    assert (tiers.tier, tiers.model) == (Tier.PRIMARY, "llama")


def test_tiers_that_are_not_configured_are_skipped():
    assert three(cloud=None).complete("q", needs=TierNeeds(force_cloud=True)).tier is Tier.PRIMARY
    assert three(primary=None, cloud=None).complete("q").tier is Tier.SMALL
    with pytest.raises(ValueError, match="at least one"):
        TieredClient([], timeout_s=1)


def test_failures_fall_through_and_are_listed_with_what_they_cost():
    tiers = three([ConnectionError("x")], [TypeError("x")], ["at last"])
    reply = tiers.complete("four")
    assert (reply.text, reply.tier) == ("at last", Tier.SMALL)
    assert [(a.tier, a.model, a.failure, a.requests) for a in reply.attempts] == [
        (Tier.PRIMARY, "llama", FailureKind.UNREACHABLE, 1),
        (Tier.CLOUD, "gpt", FailureKind.OUTPUT, 1),
        (Tier.SMALL, "qwen", None, 1),
    ]
    assert [(u.model, u.calls, u.prompt_tokens) for u in spent_on(reply.attempts)] == [
        ("llama", 1, 0),
        ("gpt", 1, 0),
        ("qwen", 1, 1),
    ]
    assert json.loads(json.dumps([a.to_dict() for a in reply.attempts]))[1]["failure"] == "output"


def test_all_down_lists_every_attempt():
    tiers = three([ConnectionError("SECRET")], [TypeError("SECRET")], ["  "])
    with pytest.raises(AllModelsFailedError) as caught:
        tiers.complete("the PROMPT")
    error = caught.value
    assert isinstance(error, LLMError)
    assert error.exit_code == 8
    assert [a.failure for a in error.attempts] == [
        FailureKind.UNREACHABLE,
        FailureKind.OUTPUT,
        FailureKind.OUTPUT,
    ]
    assert "llama: the server cannot be reached" in str(error)
    assert "SECRET" not in str(error)
    assert "PROMPT" not in str(error)


def test_hanging_first_tier_leaves_time_for_the_next(release):
    tiers = three(lambda _p: str(release.wait(20)), ["cloud"], ["small"])
    with within(1.0 + 0.5):
        reply = tiers.complete("q", timeout_s=1.0)
    assert reply.text == "cloud"
    assert reply.attempts[0].failure is FailureKind.TIMEOUT
    assert 0.4 < reply.attempts[0].seconds < 0.9


def test_all_hanging_end_at_the_deadline(release):
    tiers = three(*[lambda _p: str(release.wait(20))] * 3)
    with within(1.0 + 0.5), pytest.raises(AllModelsFailedError) as caught:
        tiers.complete("q", timeout_s=1.0)
    assert [a.failure for a in caught.value.attempts] == [FailureKind.TIMEOUT] * 3


def test_no_time_asks_nobody():
    tiers = three()
    with pytest.raises(DeadlineExceededError, match="no time"):
        tiers.complete("q", timeout_s=0)


@given(st.floats(0.001, 1_000), st.integers(0, 5))
def test_share_leaves_time_for_the_others(left, followers):
    share = share_s(left, followers)
    assert 0 < share <= left
    if followers:
        assert share >= left / 2
        assert left - share >= min(left / 2, 10.0 * followers) - 1e-9
    else:
        assert share == left


def test_share_of_a_minute_and_of_two_seconds():
    assert [share_s(60, 2), share_s(60, 1), share_s(60, 0), share_s(2, 2)] == [40, 50, 60, 1]


def test_budget_excludes_what_may_cost_more_and_what_has_no_known_price():
    tiers = three()
    poor = TierNeeds(force_cloud=True, budget=Budget(max_usd=0.0))
    reply = tiers.complete("q", needs=poor)
    assert (reply.tier, reply.usd) == (Tier.PRIMARY, 0.0)
    assert [(a.model, a.failure, a.requests) for a in reply.attempts] == [
        ("gpt", FailureKind.BUDGET, 0),
        ("llama", None, 1),
    ]
    rich = TierNeeds(force_cloud=True, budget=Budget(max_usd=0.01))
    assert tiers.complete("q", needs=rich).tier is Tier.CLOUD
    unknown = model(Tier.PRIMARY, ["x"], price=None)
    with pytest.raises(AllModelsFailedError, match="not within the budget"):
        TieredClient([unknown], timeout_s=5).complete("q", needs=rich)
    with pytest.raises(BudgetExceededError, match=r"max_usd=0\.01"):
        unknown.complete("q", needs=rich)


def test_prompt_far_beyond_a_window_goes_to_the_next_tier():
    tiers = TieredClient(
        [model(Tier.PRIMARY, ["p"], context_tokens=4_096), model(Tier.CLOUD, ["c"], context_tokens=128_000)],
        timeout_s=5,
    )
    assert tiers.context_tokens == 4_096
    assert tiers.context_tokens_for(TierNeeds(force_cloud=True)) == 128_000
    assert tiers.complete("word " * 5_000).tier is Tier.PRIMARY
    reply = tiers.complete("word " * 10_000)
    assert reply.tier is Tier.CLOUD
    assert reply.attempts[0].failure is FailureKind.TOO_LONG


def test_dead_primary_costs_three_requests_in_a_hundred_calls_and_comes_back(fake_clock):
    down = True

    def answer(_prompt):
        return ConnectionError("refused") if down else "back"

    breaker = Breaker(failures=3, cooldown_s=30, clock=fake_clock)
    policy = RetryPolicy(draw=lambda: 0.5)
    primary = model(
        Tier.PRIMARY, answer, breaker=breaker, retry=policy, sleep=fake_clock.sleep, clock=fake_clock, timeout_s=10
    )
    asked = primary._llm().prompts
    tiers = TieredClient([primary, model(Tier.CLOUD, ["cloud"])], timeout_s=10, clock=fake_clock)
    replies = [tiers.complete("q") for _ in range(100)]
    assert {r.text for r in replies} == {"cloud"}
    assert len(asked) == 3
    assert replies[0].attempts[0].requests == 3
    assert {(r.attempts[0].failure, r.attempts[0].requests) for r in replies[1:]} == {(FailureKind.PAUSED, 0)}
    fake_clock.tick(30)
    assert tiers.complete("q").text == "cloud"  # the probe fails
    assert len(asked) == 4
    assert tiers.complete("q").text == "cloud"
    assert len(asked) == 4
    down = False
    fake_clock.tick(30)
    assert [tiers.complete("q").text for _ in range(3)] == ["back"] * 3
    assert breaker.state.value == "closed"


def test_paused_tier_takes_next_to_no_time():
    breaker = Breaker(failures=1, cooldown_s=600)
    tiers = TieredClient(
        [model(Tier.PRIMARY, [ConnectionError("x")], breaker=breaker), model(Tier.CLOUD, ["c"])], timeout_s=10
    )
    tiers.complete("q")
    spent = []
    for _ in range(40):
        started = time.perf_counter()
        reply = tiers.complete("q")
        spent.append(time.perf_counter() - started)
        assert reply.attempts[0].seconds < 0.05
    assert sorted(spent)[37] < 0.05


def test_twenty_hung_calls_do_not_stop_other_work(release):
    hung = model(Tier.PRIMARY, lambda _p: str(release.wait(20)), max_calls=4, max_waiting=4)
    tiers = TieredClient([hung], timeout_s=5)
    kinds = []

    def ask():
        try:
            tiers.complete("q", timeout_s=1.0)
        except AllModelsFailedError as err:
            kinds.append(err.attempts[0].failure)

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    started = time.monotonic()
    with Workers(2, "retrieval") as workers:
        assert [workers.submit(lambda i=i: i * i).result(1) for i in range(10)] == [i * i for i in range(10)]
    assert time.monotonic() - started < 0.9
    for thread in threads:
        thread.join()
    assert time.monotonic() - started < 1.5 + 0.5
    assert kinds.count(FailureKind.OVERLOADED) == 16
    assert kinds.count(FailureKind.TIMEOUT) == 4


def test_costs_compare_with_the_cloud_model():
    tiers = three()
    spent = spent_on(
        [*tiers.complete("x" * 400).attempts, *tiers.complete("x" * 400, needs=TierNeeds(force_cloud=True)).attempts]
    )
    report = tiers.costs(spent)
    one = 100 * 1.0 / 1e6 + 1 * 2.0 / 1e6
    assert report.usd == pytest.approx(one)
    assert report.cloud_only_usd == pytest.approx(2 * one)
    assert (report.local_share, report.unpriced_calls) == (0.5, 0)


def test_defects_are_not_swallowed():
    class Stop(BaseException):
        pass

    def interrupt(_prompt):
        raise Stop

    breaker = Breaker(failures=1)
    tiers = TieredClient([model(Tier.PRIMARY, interrupt, breaker=breaker)], timeout_s=5)
    with pytest.raises(Stop):
        tiers.complete("q")
    assert breaker.state.value == "closed"


def test_repr_names_tiers_and_models():
    assert repr(three()) == "TieredClient(primary=llama, cloud=gpt, small=qwen, timeout_s=60)"


def test_failure_kind_of_our_own_errors():
    with pytest.raises(AllModelsFailedError) as caught:
        three([ConnectionError("x")], None, None).complete("q")
    assert failure_kind(caught.value) is FailureKind.UNREACHABLE
