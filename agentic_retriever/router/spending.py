"""What one query may spend on models, and what it has spent."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from agentic_retriever.errors import AllModelsFailedError, BudgetExceededError
from agentic_retriever.llm import TierNeeds, spent_on
from agentic_retriever.schema import Allowance, TierUsage, Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentic_retriever.llm import LLMReply, ModelClient
    from agentic_retriever.router.timing import QueryClock
    from agentic_retriever.schema import Budget, Tier


class Spending:
    """The accounts of one query; safe to use from several threads.

    Args:
        budget: What may be spent; ``None`` for no limit but the time.
        clock: The time of the query.
    """

    def __init__(self, budget: Budget | None, clock: QueryClock) -> None:
        self.clock = clock
        self._budget = budget
        self._lock = threading.Lock()
        self._spent: list[TierUsage] = []

    def left_ms(self) -> float | None:
        """Return the milliseconds that the caller's budget leaves, or ``None`` if it names none."""
        if self._budget is None or self._budget.max_ms is None:
            return None
        return 1000 * self.clock.left_s("choosing the strategy")

    @property
    def usage(self) -> Usage:
        """What was spent so far."""
        with self._lock:
            return Usage.of(self._spent)

    def add(self, spent: Sequence[TierUsage]) -> None:
        """Enter what a step spent."""
        with self._lock:
            self._spent.extend(spent)

    def allowance(self, doing: str) -> Allowance:
        """Return what is left.

        Args:
            doing: What it is for, for the message.

        Raises:
            DeadlineExceededError: If no time is left.
        """
        left_s = self.clock.left_s(doing)
        if self._budget is None:
            return Allowance(timeout_s=left_s)
        usage, calls, usd = self.usage, self._budget.max_llm_calls, self._budget.max_usd
        return Allowance(
            timeout_s=left_s,
            llm_calls=None if calls is None else max(0, calls - usage.llm_calls),
            usd=None if usd is None else max(0.0, usd - usage.usd),
        )

    def refuse(self) -> BudgetExceededError:
        """Return the error for a model call that the budget forbids."""
        return BudgetExceededError(f"the budget allows no further model call ({self._limits()}); allow more")

    def _limits(self) -> str:
        budget = self._budget
        if budget is None:
            return "no limit"
        shown = (f"{name}={value:g}" for name in ("max_llm_calls", "max_usd", "max_ms")
                 if (value := getattr(budget, name)) is not None)  # fmt: skip
        return ", ".join(shown) or "no limit"


class MeteredModel:
    """A model whose calls are counted in the accounts of one query, and refused when the budget forbids them.

    Args:
        client: The model.
        spending: The accounts.
    """

    def __init__(self, client: ModelClient, spending: Spending) -> None:
        self._client = client
        self._spending = spending

    @property
    def tier(self) -> Tier:
        """The tier that is asked first."""
        return self._client.tier

    @property
    def model(self) -> str:
        """Name of the model that is asked first."""
        return self._client.model

    @property
    def context_tokens(self) -> int:
        """Tokens of prompt and answer together that the model holds."""
        return self._client.context_tokens

    def complete(self, prompt: str, *, timeout_s: float | None = None, needs: TierNeeds | None = None) -> LLMReply:
        """Answer a prompt within a total time.

        Raises:
            BudgetExceededError: If the budget allows no further call.
            LLMError: If the model failed.
            DeadlineExceededError: If there was no answer in time.
        """
        allowance = self._spending.allowance("asking the model")
        if not allowance.may_ask:
            raise self._spending.refuse()
        left = allowance.timeout_s
        limit = left if timeout_s is None else timeout_s if left is None else min(left, timeout_s)
        needs = needs or TierNeeds()
        if allowance.usd is not None:
            most = allowance.usd if needs.max_usd is None else min(allowance.usd, needs.max_usd)
            needs = replace(needs, max_usd=most)
        if allowance.llm_calls is not None:
            needs = replace(needs, max_calls=allowance.llm_calls)
        try:
            reply = self._client.complete(prompt, timeout_s=limit, needs=needs)
        except AllModelsFailedError as err:
            self._spending.add(spent_on(err.attempts))
            raise
        self._spending.add(spent_on(reply.attempts))
        return reply
