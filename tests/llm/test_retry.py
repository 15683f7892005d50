from __future__ import annotations

import email.utils

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_retriever.errors import ModelPausedError
from agentic_retriever.llm import Breaker, Endpoint, FailureKind, LLMClient, RetryPolicy
from agentic_retriever.llm.calls import retry_after_s
from agentic_retriever.llm.client import MIN_REQUEST_S, RETRIED
from agentic_retriever.schema import Tier
from agentic_retriever.testing.fakes import FakeLLM


@given(
    failed=st.integers(1, 5),
    kind=st.sampled_from(FailureKind),
    left=st.floats(0, 100),
    asked=st.none() | st.floats(0, 100),
    draw=st.floats(0, 1, exclude_max=True),
)
def test_wait_fits_the_time_and_only_what_may_pass_is_retried(failed, kind, left, asked, draw):
    policy = RetryPolicy(draw=lambda: draw)
    wait = policy.wait_s(failed, kind, left_s=left, retry_after_s=asked)
    if failed > 2 or kind not in RETRIED:
        assert wait is None
    elif wait is None:
        assert left <= MIN_REQUEST_S + (asked if asked is not None else policy.cap_s)
    else:
        assert 0 <= wait < left - MIN_REQUEST_S + 1e-9
        if asked is None:
            longest = min(policy.cap_s, policy.base_s * 2 ** (failed - 1))
            assert longest / 2 <= wait <= longest
        else:
            assert wait == asked


def test_waits_differ_between_callers():
    draws = iter([0.0, 0.5, 0.99])
    policy = RetryPolicy(draw=lambda: next(draws))
    waits = [policy.wait_s(1, FailureKind.SERVER, left_s=9) for _ in range(3)]
    assert waits == sorted(set(waits))


@pytest.mark.parametrize("retries", [-1, 3])
def test_more_than_three_requests_are_refused(retries):
    with pytest.raises(ValueError, match="from 0 to 2"):
        RetryPolicy(retries=retries)


def test_retry_after_in_seconds_as_a_date_and_as_nonsense():
    now = 1_700_000_000.0
    date = email.utils.formatdate(now + 7, usegmt=True)
    assert retry_after_s({"retry-after": "3"}) == 3.0
    assert retry_after_s({"retry-after": "-3"}) == 0.0
    assert retry_after_s({"retry-after": date}, now=lambda: now) == 7.0
    for text in ("", "soon", "nan", "inf", "Thu, 99 Foo"):
        assert retry_after_s({"retry-after": text}) is None
    assert retry_after_s({}) is None


def retrying(llm, clock, **kwargs):
    endpoint = Endpoint(retry=RetryPolicy(draw=lambda: 0.5), sleep=clock.sleep, **kwargs)
    return LLMClient(llm, tier=Tier.PRIMARY, timeout_s=10, clock=clock, endpoint=endpoint)


def test_a_passing_failure_is_waited_out(fake_clock):
    llm = FakeLLM([ConnectionError("x"), ConnectionError("x"), "Paris."])
    reply = retrying(llm, fake_clock).complete("q")
    assert reply.text == "Paris."
    assert len(llm.prompts) == 3
    assert fake_clock.slept == [0.1875, 0.375]
    assert reply.attempts[0].requests == 3
    assert reply.attempts[0].seconds == pytest.approx(0.5625)


def test_breaker_ends_the_retries_of_one_call_and_refuses_the_next_until_the_cooldown_ends(fake_clock):
    script = [ConnectionError("x")] * 3
    llm = FakeLLM(lambda _p: script.pop() if script else "back")
    breaker = Breaker(failures=3, cooldown_s=30, clock=fake_clock)
    one = retrying(llm, fake_clock, breaker=breaker)
    with pytest.raises(Exception, match="cannot be reached"):
        one.complete("q")
    for _ in range(100):
        with pytest.raises(ModelPausedError, match="3 times in a row; tried again in"):
            one.complete("q")
    assert len(llm.prompts) == 3
    fake_clock.tick(30)
    assert one.complete("q").text == "back"
    assert one.complete("q").text == "back"
    assert breaker.failed == 0


def test_a_refused_request_says_nothing_about_the_server(fake_clock):
    class BadRequestError(Exception):
        status_code = 400

    breaker = Breaker(failures=1, clock=fake_clock)
    one = retrying(FakeLLM([BadRequestError("too long"), "ok"]), fake_clock, breaker=breaker)
    with pytest.raises(Exception, match="refused"):
        one.complete("q")
    assert one.complete("q").text == "ok"
