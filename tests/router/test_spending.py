from __future__ import annotations

import pytest

from agentic_retriever.errors import BudgetExceededError, DeadlineExceededError
from agentic_retriever.llm import LLMClient
from agentic_retriever.pipeline.spending import MeteredModel, Spending
from agentic_retriever.schema import Budget, Tier, TierUsage
from agentic_retriever.testing import FakeLLM


class Time:
    now = 0.0

    def __call__(self):
        return self.now


def usage(calls=1, usd=0.0):
    return TierUsage(tier=Tier.CLOUD, model="m", calls=calls, prompt_tokens=5, completion_tokens=1, usd=usd)


def test_what_is_left():
    time = Time()
    spending = Spending(Budget(max_ms=2_000, max_usd=0.02, max_llm_calls=3), 2.0, time)
    assert spending.budget_ms() == 2_000
    spending.add([usage(2, 0.015)])
    time.now = 0.5
    left = spending.left("writing")
    assert (left.timeout_s, left.max_llm_calls) == (1.5, 1)
    assert left.max_usd == pytest.approx(0.005)
    spending.add([usage(4, 1.0)])
    assert (spending.left("writing").max_llm_calls, spending.left("writing").max_usd) == (0, 0.0)
    time.now = 2.0
    with pytest.raises(DeadlineExceededError):
        spending.left("writing")


def test_no_budget_limits_only_the_time():
    left = Spending(None, 9.0, Time()).left("x")
    assert (left.timeout_s, left.max_llm_calls, left.max_usd) == (9.0, None, None)
    assert Spending(None, 9.0, Time()).budget_ms() is None
    assert Spending(Budget(max_llm_calls=1), 9.0, Time()).budget_ms() is None


def test_a_metered_model_counts_and_refuses():
    client = LLMClient(FakeLLM(["one", "two", "three"]), tier=Tier.PRIMARY, timeout_s=5.0)
    spending = Spending(Budget(max_llm_calls=2), 9.0, Time())
    model = MeteredModel(client, spending)
    assert (model.tier, model.model) == (client.tier, client.model)
    assert [model.complete("p").text, model.complete("p", timeout_s=1.0).text] == ["one", "two"]
    assert spending.usage.llm_calls == 2
    with pytest.raises(BudgetExceededError, match="max_llm_calls=2"):
        model.complete("p")
    assert spending.usage.llm_calls == 2
