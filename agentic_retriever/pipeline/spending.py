"""The accounts of one query: what each step took, what models cost, and what is left of time and money."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from agentic_retriever.errors import AllModelsFailedError, BudgetExceededError, DeadlineExceededError
from agentic_retriever.llm.calls import LLMReply, ModelClient, TierNeeds, spent_on
from agentic_retriever.schema import NO_LIMITS, Budget, TierUsage, Usage

# How the time of a query is shared. What hangs takes all that it is given, so nobody is given what later steps need.
# Embedding, catching up with attached indexes, a model within a search, rerankers and postprocessors take half of what
# is left to them at most, each by itself; the parts and the most seconds of the others:
_ROUTING: Final = 0.25, 5.0  # of what is left, for both choices by a model together: a name takes a second or two
_EXTRACT: Final = 0.2, 1.0  # of the whole, kept for the extract, which takes 0.3 to 0.6 s with a local embedding model
_CLOSING: Final = 0.1, 0.25  # of what is left, kept from who writes, to hand out the extract when no model answers
_HANDOVER_S: Final = 0.1  # that a caller waits beyond the time for who computes, and has to end within it


def _part(of_s: float, share: tuple[float, float]) -> float:
    return min(share[0] * of_s, share[1])


class Spending:
    """Counts milliseconds by step and seconds down to the deadline, and what models cost; safe for several threads."""

    def __init__(self, budget: Budget | None, limit_s: float, timer: Callable[[], float]) -> None:
        self.budget = budget or NO_LIMITS
        self._limit_s, self._timer, self._start = limit_s, timer, timer()
        self._routed_s: float | None = None  # how much is left when no model may choose any more
        self.extract_s = _part(limit_s, _EXTRACT)
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

    def search_s(self, doing: str) -> float:
        """Return the seconds that are left before those for the extract, or half of the rest where that is more."""
        left = self.left_s(doing)
        return max(left / 2, left - self.extract_s)

    def writing_s(self) -> float:
        """Return the seconds from now in which the extract has to be ready and a model to have answered."""
        left = self.left_s("writing the answer")
        return left - _part(left, _CLOSING)

    def waiting_s(self) -> float:
        """Return the seconds for which a caller waits for the answer."""
        return self.left_s("waiting for the answer") + _HANDOVER_S

    def choosing(self, doing: str) -> Budget:
        """Return what a choice by a model may spend: no call, once all choices together took their time."""
        allowed, left = self.left(doing), self.remaining_s()
        if self._routed_s is None:
            self._routed_s = left - _part(left, _ROUTING)
        mine = left - self._routed_s
        return replace(allowed, max_ms=1000 * mine) if mine > 0 else replace(allowed, max_llm_calls=0)

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
        most = spending.search_s("asking the model")
        limit = most if timeout_s is None else min(most, timeout_s)
        try:
            reply = self._client.complete(prompt, timeout_s=limit, needs=needs)
        except AllModelsFailedError as err:
            spending.add(spent_on(err.attempts))
            raise
        spending.add(spent_on(reply.attempts))
        return reply
