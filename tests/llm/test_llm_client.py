from __future__ import annotations

import itertools

import pytest
from waiting import in_threads, within

from agentic_retriever.errors import DeadlineExceededError, LLMError, LLMOutputError
from agentic_retriever.llm import Endpoint, FailureKind, LLMClient, estimate_tokens, failure_kind
from agentic_retriever.schema import Tier
from agentic_retriever.testing.fakes import FakeLLM


def client(replies, **kwargs) -> LLMClient:
    return LLMClient(FakeLLM(replies), tier=Tier.PRIMARY, timeout_s=kwargs.pop("timeout_s", 5), **kwargs)


def test_reply_carries_text_tier_model_and_estimated_tokens():
    ticks = itertools.chain([10.0, 10.0], itertools.repeat(12.5))
    reply = client(["Paris [1]."], clock=lambda: next(ticks)).complete("Where? " * 10)
    assert (reply.text, reply.model, reply.tier, reply.truncated) == ("Paris [1].", "fake-llm", Tier.PRIMARY, False)
    assert reply.prompt_tokens == estimate_tokens("Where? " * 10) == 18
    assert reply.completion_tokens == 3
    assert reply.seconds == 2.5


def test_token_estimate_counts_dense_scripts_by_character():
    thai = "ที่ดิน"
    assert [estimate_tokens(text) for text in ("", "a", "abcd" * 5, thai)] == [0, 1, 5, len(thai)]


@pytest.mark.parametrize("blank", ["", "   ", "\n\t\u3000"])
def test_blank_reply_is_a_failure(blank):
    with pytest.raises(LLMOutputError, match=r"primary model fake-llm: the reply is blank"):
        client([blank]).complete("q")


class _ProviderError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__("SECRET-BODY sk-canary")
        self.status_code = status


@pytest.mark.parametrize(
    ("raised", "expected", "kind"),
    [
        (ConnectionError("SECRET-BODY"), LLMError, FailureKind.UNREACHABLE),
        (OSError("SECRET-BODY"), LLMError, FailureKind.UNREACHABLE),
        (TimeoutError("SECRET-BODY"), DeadlineExceededError, FailureKind.TIMEOUT),
        (TypeError("'NoneType' SECRET-BODY"), LLMOutputError, FailureKind.OUTPUT),
        (IndexError("SECRET-BODY"), LLMOutputError, FailureKind.OUTPUT),
        (ValueError("SECRET-BODY"), LLMOutputError, FailureKind.OUTPUT),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "SECRET-BODY"), LLMOutputError, FailureKind.OUTPUT),
        (RuntimeError("SECRET-BODY"), LLMError, FailureKind.OTHER),
        (_ProviderError(400), LLMError, FailureKind.BAD_REQUEST),
        (_ProviderError(401), LLMError, FailureKind.AUTHENTICATION),
        (_ProviderError(402), LLMError, FailureKind.PAYMENT),
        (_ProviderError(404), LLMError, FailureKind.NOT_FOUND),
        (_ProviderError(418), LLMError, FailureKind.BAD_REQUEST),
        (_ProviderError(429), LLMError, FailureKind.RATE_LIMITED),
        (_ProviderError(503), LLMError, FailureKind.SERVER),
        (_ProviderError(-1), LLMError, FailureKind.OTHER),
    ],
)
def test_every_foreign_error_becomes_one_of_ours(raised, expected, kind):
    with pytest.raises((LLMError, DeadlineExceededError)) as caught:
        client([raised]).complete("the PROMPT itself")
    assert type(caught.value) is expected
    assert caught.value.__cause__ is raised
    assert failure_kind(raised) is failure_kind(caught.value) is kind
    message = str(caught.value)
    assert message.startswith(f"primary model fake-llm: {kind.value}")
    for secret in ("SECRET", "canary", "PROMPT"):
        assert secret not in message


def test_our_own_errors_pass_unchanged():
    own = LLMOutputError("as it is")
    with pytest.raises(LLMOutputError) as caught:
        client([own]).complete("q")
    assert caught.value is own


def test_hanging_model_is_abandoned_and_its_late_reply_ignored(release):
    hung = client(lambda _p: release.wait(20) and "late")
    with within(1.0), pytest.raises(DeadlineExceededError, match=r"primary model fake-llm"):
        hung.complete("q", timeout_s=0.1)
    release.set()
    assert hung.complete("q").text == "late"


def test_more_callers_than_may_wait_are_told_at_once_that_it_is_overloaded(release):
    hung = client(lambda _p: str(release.wait(20)), max_calls=2, endpoint=Endpoint(max_waiting=1))
    kinds: list[FailureKind] = []

    def ask(_i) -> None:
        try:
            hung.complete("q", timeout_s=0.6)
        except DeadlineExceededError as err:
            kinds.append(failure_kind(err))

    with within(0.6 + 0.5):
        in_threads(20, ask)
    assert (kinds.count(FailureKind.TIMEOUT), kinds.count(FailureKind.OVERLOADED)) == (2, 18)


@pytest.mark.parametrize("left", [0, -1.0])
def test_no_time_left_asks_nothing(left):
    llm = FakeLLM(["x"])
    with pytest.raises(DeadlineExceededError, match="no time is left"):
        LLMClient(llm, tier=Tier.CLOUD, timeout_s=5).complete("q", timeout_s=left)
    assert llm.prompts == []


def test_own_limit_wins_over_a_longer_one(release):
    with pytest.raises(DeadlineExceededError):
        client(lambda _p: str(release.wait(20)), timeout_s=0.05).complete("q", timeout_s=60)


def test_works_from_many_threads():
    one = client(lambda prompt: f"re {prompt}")
    got: dict[int, str] = {}
    in_threads(16, lambda i: got.update({i: one.complete(f"q{i}").text}))
    assert got == {i: f"re q{i}" for i in range(16)}


def test_repr_names_the_model_alone():
    assert repr(client(["x"])) == "LLMClient('primary model fake-llm', timeout_s=5)"
