import email.utils
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import in_threads, within

from agentic_retriever.errors import DeadlineExceededError, LLMError, LLMOutputError
from agentic_retriever.llm import LLMClient, TieredClient, result_of
from agentic_retriever.llm.calls import estimate_tokens, failure_kind, retry_after_s
from agentic_retriever.llm.client import MIN_REQUEST_S, RETRIED, Endpoint, RetryPolicy, Trial
from agentic_retriever.schema import FailureKind, Tier
from agentic_retriever.testing.fakes import FakeLLM
from agentic_retriever.threads import Breaker


def asked(one, prompt, timeout_s=60):
    """What one model says by itself."""
    return result_of(one.answer(prompt, Trial(one, timeout_s, None)))


def client(replies, **kwargs) -> LLMClient:
    return LLMClient(FakeLLM(replies), tier=Tier.PRIMARY, timeout_s=kwargs.pop("timeout_s", 5), **kwargs)


def test_reply_carries_text_tier_model_and_estimated_tokens_and_goes_to_the_thread_that_asked():
    ticks = itertools.chain([10.0, 10.0], itertools.repeat(12.5))
    reply = asked(client(["Paris [1]."], clock=lambda: next(ticks)), "Where? " * 10)
    assert (reply.text, reply.model, reply.tier, reply.truncated) == ("Paris [1].", "fake-llm", Tier.PRIMARY, False)
    assert reply.prompt_tokens == estimate_tokens("Where? " * 10) == 18
    assert (reply.completion_tokens, reply.seconds) == (3, 2.5)
    thai = "ที่ดิน"  # dense scripts count by character
    assert [estimate_tokens(text) for text in ("", "a", "abcd" * 5, thai)] == [0, 1, 5, len(thai)]
    one = client(lambda prompt: f"re {prompt}")
    assert repr(one) == "LLMClient('primary model fake-llm', timeout_s=5)"  # no key of the model shows
    assert in_threads(lambda i: asked(one, f"q{i}").text, range(16)) == [f"re q{i}" for i in range(16)]


@pytest.mark.parametrize("blank", ["", "   ", "\n\t\u3000"])
def test_blank_reply_is_a_failure_and_our_own_errors_pass_unchanged(blank):
    with pytest.raises(LLMOutputError, match=r"primary model fake-llm: the reply is blank"):
        asked(client([blank]), "q")
    own = LLMOutputError("as it is")
    with pytest.raises(LLMOutputError) as caught:
        asked(client([own]), "q")
    assert caught.value is own


class _ProviderError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__("SECRET-BODY sk-canary")
        self.status_code = status


@pytest.mark.parametrize(
    ("raised", "expected", "kind"),
    [(ConnectionError("SECRET-BODY"), LLMError, FailureKind.UNREACHABLE),
     (OSError("SECRET-BODY"), LLMError, FailureKind.UNREACHABLE),
     (TimeoutError("SECRET-BODY"), DeadlineExceededError, FailureKind.TIMEOUT),
     (TypeError("'NoneType' SECRET-BODY"), LLMOutputError, FailureKind.OUTPUT),
     (IndexError("SECRET-BODY"), LLMOutputError, FailureKind.OUTPUT),
     (ValueError("SECRET-BODY"), LLMOutputError, FailureKind.OUTPUT),
     (UnicodeDecodeError("utf-8", b"x", 0, 1, "SECRET-BODY"), LLMOutputError, FailureKind.OUTPUT),
     (RuntimeError("SECRET-BODY"), LLMError, FailureKind.OTHER),
     (_ProviderError(400), LLMError, FailureKind.BAD_REQUEST),
     (_ProviderError(401), LLMError, FailureKind.AUTHENTICATION), (_ProviderError(402), LLMError, FailureKind.PAYMENT),
     (_ProviderError(404), LLMError, FailureKind.NOT_FOUND), (_ProviderError(418), LLMError, FailureKind.BAD_REQUEST),
     (_ProviderError(429), LLMError, FailureKind.RATE_LIMITED), (_ProviderError(503), LLMError, FailureKind.SERVER),
     (_ProviderError(-1), LLMError, FailureKind.OTHER)],
)  # fmt: skip
def test_every_foreign_error_becomes_one_of_ours(raised, expected, kind):
    with pytest.raises((LLMError, DeadlineExceededError)) as caught:
        asked(client([raised]), "the PROMPT itself")
    assert type(caught.value) is expected
    assert caught.value.__cause__ is raised
    assert failure_kind(raised) is failure_kind(caught.value) is kind
    message = str(caught.value)
    assert message.startswith(f"primary model fake-llm: {kind.value}")
    for secret in ("SECRET", "canary", "PROMPT"):
        assert secret not in message


def test_no_time_left_asks_nothing_and_a_hanging_model_is_abandoned_with_its_reply(gate):
    hung = client(lambda _p: str(gate.wait(20)), timeout_s=0.05)
    for left in (0, -1.0):
        with pytest.raises(DeadlineExceededError, match="no time is left"):
            asked(hung, "q", left)
    assert hung._llm().prompts == []
    with pytest.raises(DeadlineExceededError):
        asked(hung, "q")
    hung = client(lambda _p: gate.wait(20) and "late")
    with within(1.0), pytest.raises(DeadlineExceededError, match=r"primary model fake-llm"):
        asked(hung, "q", 0.1)
    gate.set()
    assert asked(hung, "q").text == "late"


def test_more_callers_than_may_wait_are_told_at_once_that_it_is_overloaded(gate):
    hung = client(lambda _p: str(gate.wait(20)), max_calls=2, endpoint=Endpoint(max_waiting=1))
    kinds: list[FailureKind] = []

    def ask(_i) -> None:
        try:
            asked(hung, "q", 0.6)
        except DeadlineExceededError as err:
            kinds.append(failure_kind(err))

    with within(0.6 + 0.5):
        in_threads(ask, range(20))
    assert (kinds.count(FailureKind.TIMEOUT), kinds.count(FailureKind.OVERLOADED)) == (2, 18)


@given(
    failed=st.integers(1, 5), kind=st.sampled_from(FailureKind), left=st.floats(0, 100),
    asked=st.none() | st.floats(0, 100), draw=st.floats(0, 1, exclude_max=True),
)  # fmt: skip
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


def test_waits_differ_between_callers_retry_after_is_read_and_more_than_three_requests_are_refused():
    draws = iter([0.0, 0.5, 0.99])
    policy = RetryPolicy(draw=lambda: next(draws))
    waits = [policy.wait_s(1, FailureKind.SERVER, left_s=9) for _ in range(3)]
    assert waits == sorted(set(waits))
    for retries in (-1, 3):
        with pytest.raises(ValueError, match="from 0 to 2"):
            RetryPolicy(retries=retries)
    now = 1_700_000_000.0
    date = email.utils.formatdate(now + 7, usegmt=True)
    assert (retry_after_s({"retry-after": "3"}), retry_after_s({"retry-after": "-3"})) == (3.0, 0.0)
    assert retry_after_s({"retry-after": date}, now=lambda: now) == 7.0
    for text in ("", "soon", "nan", "inf", "Thu, 99 Foo"):
        assert retry_after_s({"retry-after": text}) is None
    assert retry_after_s({}) is None


def retrying(llm, clock, **kwargs):
    endpoint = Endpoint(retry=RetryPolicy(draw=lambda: 0.5), sleep=clock.sleep, **kwargs)
    one = LLMClient(llm, tier=Tier.PRIMARY, timeout_s=10, clock=clock, endpoint=endpoint)
    return TieredClient([one], timeout_s=10, clock=clock)


def test_a_passing_failure_is_waited_out_and_a_refused_request_says_nothing_about_the_server(fake_clock):
    llm = FakeLLM([ConnectionError("x"), ConnectionError("x"), "Paris."])
    reply = retrying(llm, fake_clock).complete("q")
    assert (reply.text, len(llm.prompts), fake_clock.slept) == ("Paris.", 3, [0.1875, 0.375])
    assert reply.attempts[0].requests == 3
    assert reply.attempts[0].seconds == pytest.approx(0.5625)

    class BadRequestError(Exception):
        status_code = 400

    breaker = Breaker(failures=1, clock=fake_clock)
    one = retrying(FakeLLM([BadRequestError("too long"), "ok"]), fake_clock, breaker=breaker)
    with pytest.raises(Exception, match="refused"):
        one.complete("q")
    assert one.complete("q").text == "ok"
