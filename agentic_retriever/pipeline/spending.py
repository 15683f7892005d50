"""The accounts of one query: what each step took, what models cost, and what is left of time and money."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from agentic_retriever.errors import AllModelsFailedError, BudgetExceededError, DeadlineExceededError
from agentic_retriever.llm import LLMReply, ModelClient, TierNeeds, spent_on
from agentic_retriever.schema import NO_LIMITS, Budget, Tier, TierUsage, Usage


class Spending:
    """Counts milliseconds by step and seconds down to the deadline, and what models cost; safe for several threads."""

    def __init__(self, budget: Budget | None, limit_s: float, timer: Callable[[], float]) -> None:
        self._budget = budget or NO_LIMITS
        self._limit_s = limit_s
        self._timer = timer
        self._start = timer()
        self._steps: dict[str, float] = {}
        self._lock = threading.Lock()
        self._spent: list[TierUsage] = []

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Add the time that the block takes to a step."""
        start = self._timer()
        try:
            yield
        finally:
            self.add_ms(name, (self._timer() - start) * 1000)

    def add_ms(self, name: str, milliseconds: float) -> None:
        """Add time that was measured elsewhere to a step."""
        self._steps[name] = self._steps.get(name, 0.0) + milliseconds

    def left_s(self, doing: str) -> float:
        """Return the seconds that are left; ``DeadlineExceededError`` if there are none for what is named."""
        left = self.remaining_s()
        if left <= 0:
            raise DeadlineExceededError(
                f"the time for this query ({self._limit_s:.1f} s) ran out before {doing}; allow more or ask less"
            )
        return left

    def remaining_s(self) -> float:
        """Return the seconds that are left; 0 or less when the time is up."""
        return self._limit_s - (self._timer() - self._start)

    def elapsed_ms(self) -> float:
        """Return the milliseconds since the query began."""
        return (self._timer() - self._start) * 1000

    def timings_ms(self) -> dict[str, float]:
        """Return milliseconds by step, with ``total``."""
        return {**self._steps, "total": self.elapsed_ms()}

    def stop(self) -> None:
        """Let no time be left: nobody wants the result any more, so the next step is the end."""
        self._limit_s = 0.0

    def budget_ms(self) -> float | None:
        """Return the milliseconds that are left, or ``None`` if the caller's budget names none."""
        return None if self._budget.max_ms is None else 1000 * self.left_s("choosing the strategy")

    @property
    def usage(self) -> Usage:
        """What was spent on models so far."""
        with self._lock:
            return Usage.of(self._spent)

    def add(self, spent: Sequence[TierUsage]) -> None:
        """Enter what a step spent on models."""
        with self._lock:
            self._spent.extend(spent)

    def left(self, doing: str) -> Budget:
        """Return what is left; ``DeadlineExceededError`` if no time is left for what is named."""
        return self._budget.left(self.usage, 1000 * self.left_s(doing))

    def refuse(self) -> BudgetExceededError:
        """Return the error for a model call that the budget forbids."""
        return BudgetExceededError(f"the budget allows no further model call ({self._budget}); allow more")


class MeteredModel:
    """A model whose calls are counted in the accounts of one query, and refused when the budget forbids them."""

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
        """Answer a prompt within a total time."""
        left = self._spending.left("asking the model")
        if not left.may_ask:
            raise self._spending.refuse()
        limit = left.timeout_s if timeout_s is None or left.timeout_s is None else min(left.timeout_s, timeout_s)
        needs = needs or TierNeeds()
        try:
            reply = self._client.complete(
                prompt, timeout_s=limit, needs=replace(needs, budget=needs.budget.within(left))
            )
        except AllModelsFailedError as err:
            self._spending.add(spent_on(err.attempts))
            raise
        self._spending.add(spent_on(reply.attempts))
        return reply
