"""What stands around one model: retries, a breaker, a price, a window; and one call's way through them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentic_retriever.errors import (
    AgenticRetrieverError,
    DeadlineExceededError,
    LLMError,
    ModelPausedError,
    OverloadedError,
)
from agentic_retriever.llm.failures import failure_kind
from agentic_retriever.llm.retry import RetryPolicy
from agentic_retriever.schema import Attempt, FailureKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentic_retriever.breaker import Breaker, Ticket
    from agentic_retriever.llm.calls import LLMReply
    from agentic_retriever.llm.prices import Price
    from agentic_retriever.schema import Tier

FAILURES = (LLMError, DeadlineExceededError)
"""How a model call fails; anything else is a defect or an interrupt."""

_SAYS_NOTHING = frozenset({FailureKind.BAD_REQUEST, FailureKind.OVERLOADED, FailureKind.BUDGET, FailureKind.TOO_LONG})
_FAIR_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """How one model is called.

    Attributes:
        retry: When a request is sent again; by default never.
        breaker: Leaves a failing model alone, or ``None``. Models of one server and key may share one.
        price: What it costs, or ``None`` if not known.
        context_tokens: Tokens of prompt and answer together, or ``None`` to ask the model object.
        max_answer_tokens: Longest answer, for the estimate of a call's cost.
        max_waiting: Callers that may wait for a free thread, or ``None`` for any number.
        secrets: Texts that must show nowhere.
        probe: Looks within some seconds whether the model can be asked; returns what is wrong, or ``""``.
        on_close: Frees connections.
        sleep: Waits some seconds before a retry.
    """

    retry: RetryPolicy = field(default_factory=lambda: RetryPolicy(retries=0))
    breaker: Breaker | None = None
    price: Price | None = None
    context_tokens: int | None = None
    max_answer_tokens: int = 1_024
    max_waiting: int | None = None
    secrets: tuple[str, ...] = field(default=(), repr=False)
    probe: Callable[[float], str] | None = field(default=None, repr=False)
    on_close: Callable[[], None] | None = field(default=None, repr=False)
    sleep: Callable[[float], object] = field(default=time.sleep, repr=False)


class Trial:
    """One call to one model: its time, its requests, its way past the breaker. For one thread.

    Args:
        who: The model, such as ``"primary model llama3:8b"``.
        endpoint: How it is called.
        limit_s: Seconds that the call has.
        clock: Seconds that only grow.
        sleep: Waits before a retry; the endpoint's own by default.

    Attributes:
        requests: Requests sent so far.
    """

    def __init__(
        self,
        who: str,
        endpoint: Endpoint,
        *,
        limit_s: float,
        clock: Callable[[], float],
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self.requests = 0
        self._who = who
        self._endpoint = endpoint
        self._limit_s = limit_s
        self._clock = clock
        self._sleep = sleep or endpoint.sleep
        self._started = clock()
        self._ticket: Ticket | None = None
        self._given_s = 0.0

    @property
    def seconds(self) -> float:
        """Seconds since the call began."""
        return self._clock() - self._started

    @property
    def left_s(self) -> float:
        """Seconds that the call still has."""
        return self._limit_s - self.seconds

    def enter(self) -> float:
        """Begin a request.

        Returns:
            Seconds that it has.

        Raises:
            DeadlineExceededError: If no time is left.
            ModelPausedError: If the breaker lets nothing through.
        """
        left = self.left_s
        if left <= 0:
            raise DeadlineExceededError(f"{self._who}: no time is left to ask it; allow the query more time")
        breaker = self._endpoint.breaker
        if breaker is not None:
            self._ticket = breaker.enter()
            if self._ticket is None:
                wait = breaker.retry_in_s
                raise ModelPausedError(
                    f"{self._who}: not asked since it failed {breaker.failures} times in a row; tried again in "
                    f"{wait:.0f} s"
                )
        self.requests += 1
        self._given_s = left
        return left

    def succeeded(self) -> None:
        """The request brought an answer."""
        self._leave(ok=True)

    def forgive(self) -> None:
        """The request was given up for a reason that says nothing about the model."""
        self._leave(ok=None)

    def broke(self, error: AgenticRetrieverError) -> None:
        """The request failed, and there will be no other one."""
        if isinstance(error, OverloadedError):
            self.requests -= 1
        kind = failure_kind(error)
        hasty = kind is FailureKind.TIMEOUT and self._given_s < _FAIR_S
        self._leave(ok=None if kind in _SAYS_NOTHING or hasty else False)

    def failed(self, error: AgenticRetrieverError, retry_after_s: float | None = None) -> None:
        """The request failed: wait until it is time for the next one, or raise the error.

        Args:
            error: How it failed.
            retry_after_s: Seconds that the server asked to wait, or ``None``.

        Raises:
            AgenticRetrieverError: The error, when there is no point in another request or no time for it.
        """
        self.broke(error)
        wait = self._endpoint.retry.wait_s(
            self.requests, failure_kind(error), left_s=self.left_s, retry_after_s=retry_after_s
        )
        if wait is None or self._is_open():
            raise error
        self._sleep(wait)

    def attempt(
        self, tier: Tier, model: str, *, reply: LLMReply | None = None, failure: FailureKind | None = None
    ) -> Attempt:
        """Return the record of the call."""
        price = self._endpoint.price
        prompt, completion = (0, 0) if reply is None else (reply.prompt_tokens, reply.completion_tokens)
        return Attempt(
            tier=tier,
            model=model,
            failure=failure,
            seconds=self.seconds,
            requests=self.requests,
            prompt_tokens=prompt,
            completion_tokens=completion,
            usd=None if price is None else price.cost_usd(prompt, completion),
        )

    def _is_open(self) -> bool:
        breaker = self._endpoint.breaker
        return breaker is not None and breaker.retry_in_s > 0

    def _leave(self, *, ok: bool | None) -> None:
        ticket, self._ticket = self._ticket, None
        if ticket is not None and self._endpoint.breaker is not None:
            self._endpoint.breaker.leave(ticket, ok=ok)
