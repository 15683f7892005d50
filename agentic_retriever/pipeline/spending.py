"""The accounts of one query: what each step took, what models cost, and what is left of time and money."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from agentic_retriever.errors import AllModelsFailedError, BudgetExceededError, DeadlineExceededError
from agentic_retriever.llm import LLMReply, ModelClient, TierNeeds, spent_on
from agentic_retriever.schema import NO_LIMITS, Budget, TierUsage, Usage


class Spending:
    """Counts milliseconds by step and seconds down to the deadline, and what models cost; safe for several threads."""

    def __init__(self, budget: Budget | None, limit_s: float, timer: Callable[[], float]) -> None:
        self.budget = budget or NO_LIMITS
        self._limit_s, self._timer, self._start = limit_s, timer, timer()
        self._steps: dict[str, float] = {}
        self._spent: list[TierUsage] = []  # only ever extended, which needs no lock

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Add the time that the block takes to a step."""
        start = self._timer()
        try:
            yield
        finally:
            self.add_ms(name, (self._timer() - start) * 1000)

    def add_ms(self, name: str, milliseconds: float) -> None:
        self._steps[name] = self._steps.get(name, 0.0) + milliseconds

    def remaining_s(self) -> float:
        """Return the seconds that are left; 0 or less when the time is up."""
        return self._limit_s - (self._timer() - self._start)

    def left_s(self, doing: str) -> float:
        """Return the seconds that are left; ``DeadlineExceededError`` if there are none for what is named."""
        left = self.remaining_s()
        if left <= 0:
            raise DeadlineExceededError(
                f"the time for this query ({self._limit_s:.1f} s) ran out before {doing}; allow more or ask less"
            )
        return left

    def left(self, doing: str) -> Budget:
        """Return what is left, money and calls included."""
        return self.budget.left(self.usage, 1000 * self.left_s(doing))

    def timings_ms(self) -> dict[str, float]:
        """Return milliseconds by step, with ``total``."""
        return {**self._steps, "total": (self._timer() - self._start) * 1000}

    def stop(self) -> None:
        """Let no time be left: nobody wants the result any more, so the next step is the end."""
        self._limit_s = 0.0

    def add(self, spent: Sequence[TierUsage]) -> None:
        self._spent.extend(spent)

    @property
    def usage(self) -> Usage:
        return Usage.of(self._spent)


class MeteredModel:
    """A model whose calls are counted in the accounts of one query, and refused when the budget forbids them."""

    def __init__(self, client: ModelClient, spending: Spending) -> None:
        self._client, self._spending = client, spending
        self.tier = client.tier
        self.model = client.model
        self.context_tokens = client.context_tokens

    def complete(self, prompt: str, *, timeout_s: float | None = None, needs: TierNeeds | None = None) -> LLMReply:
        spending = self._spending
        left = spending.left("asking the model")
        if not left.may_ask:
            raise BudgetExceededError(f"the budget allows no further model call ({spending.budget}); allow more")
        needs = needs or TierNeeds()
        needs = replace(needs, budget=needs.budget.within(left))
        limit = min(limit for limit in (left.timeout_s, timeout_s) if limit is not None)
        try:
            reply = self._client.complete(prompt, timeout_s=limit, needs=needs)
        except AllModelsFailedError as err:
            spending.add(spent_on(err.attempts))
            raise
        spending.add(spent_on(reply.attempts))
        return reply
