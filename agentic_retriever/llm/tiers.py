"""Several models behind one face: the right one first, the others when it fails."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from agentic_retriever.errors import AllModelsFailedError, DeadlineExceededError, StreamBrokenError
from agentic_retriever.llm.async_streaming import AsyncReplyStream
from agentic_retriever.llm.calls import LLMReply, TierNeeds, estimate_tokens
from agentic_retriever.llm.endpoint import FAILURES
from agentic_retriever.llm.failures import failure_kind
from agentic_retriever.llm.health import TierHealth, look_at
from agentic_retriever.llm.prices import CostReport, Price, cost_report
from agentic_retriever.llm.streaming import Canceller, ReplyStream
from agentic_retriever.schema import Attempt, Complexity, FailureKind, Tier
from agentic_retriever.threads import DeadlineCaller

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from agentic_retriever.llm.client import LLMClient
    from agentic_retriever.schema import TierUsage

LONG_CONTEXT_CHARS = 8_000
"""With more source text than this in a prompt, in characters, the cloud tier is asked first."""

RESERVE_S = 10.0
"""Seconds that a tier leaves to each one behind it, where there is time enough."""

_LOCAL_FIRST = (Tier.PRIMARY, Tier.CLOUD, Tier.SMALL)
_CLOUD_FIRST = (Tier.CLOUD, Tier.PRIMARY, Tier.SMALL)
_NO_NEEDS = TierNeeds()
_MAX_STREAMS = 64


def share_s(left_s: float, followers: int, reserve_s: float = RESERVE_S) -> float:
    """Say how much of the time that is left one tier may use.

    The last one may use all of it. One that others follow may use half, or more as long as each of the others keeps
    ``reserve_s``: of 60 s the first of three gets 40, of 2 s it gets 1.

    Args:
        left_s: Seconds left, above 0.
        followers: Tiers that may still be asked after it.
        reserve_s: Seconds to leave to each of them, if possible.
    """
    return left_s if followers < 1 else max(left_s / 2, left_s - reserve_s * followers)


@dataclass(frozen=True, slots=True)
class _Turn:
    client: LLMClient
    limit_s: float


class TieredClient:
    """Asks the tier that fits, then the others, until one answers or the time is up.

    A simple question goes to the primary tier first; a complex one, one with more than ``long_context_chars`` of source
    text and one that the caller forces goes to the cloud tier first. When a tier fails, the other of the two is asked,
    then the small one. A tier whose window is far too small or that may cost more than is allowed is passed over.

    Args:
        tiers: One client for each tier that is configured, at least one; of two for one tier the first is taken.
        timeout_s: Total seconds of one call, all tiers together.
        long_context_chars: Characters of source text from which on the cloud tier is asked first.
        cloud_price: Price to compare with when no cloud tier is configured.
        clock: Seconds that only grow.

    Raises:
        ValueError: If there is no tier.
    """

    def __init__(
        self,
        tiers: Sequence[LLMClient],
        *,
        timeout_s: float,
        long_context_chars: int = LONG_CONTEXT_CHARS,
        cloud_price: Price | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clients = {client.tier: client for client in reversed(tiers)}
        if not self._clients:
            message = "at least one tier is needed"
            raise ValueError(message)
        self.timeout_s = timeout_s
        self.long_context_chars = long_context_chars
        cloud = self._clients.get(Tier.CLOUD)
        self._cloud_price = cloud_price if cloud is None else cloud.price
        self._clock = clock
        self._streams = DeadlineCaller("streamed answers", max_calls=_MAX_STREAMS, max_waiting=0)

    def __repr__(self) -> str:
        tiers = ", ".join(f"{client.tier.value}={client.model}" for client in self.order())
        return f"TieredClient({tiers}, timeout_s={self.timeout_s:g})"

    @property
    def tier(self) -> Tier:
        """The tier that a simple question goes to first."""
        return self.order()[0].tier

    @property
    def model(self) -> str:
        """Name of the model that a simple question goes to first."""
        return self.order()[0].model

    @property
    def context_tokens(self) -> int:
        """Tokens of prompt and answer together that every tier holds."""
        return min(client.context_tokens for client in self._clients.values())

    def context_tokens_for(self, needs: TierNeeds) -> int:
        """Return the window, in tokens, of the tier that would be asked first."""
        return self.order(needs)[0].context_tokens

    def order(self, needs: TierNeeds = _NO_NEEDS) -> tuple[LLMClient, ...]:
        """Return the models in the order in which they are asked."""
        cloud_first = (
            needs.force_cloud or needs.complexity is Complexity.COMPLEX or needs.context_chars > self.long_context_chars
        )
        tiers = _CLOUD_FIRST if cloud_first else _LOCAL_FIRST
        return tuple(self._clients[tier] for tier in tiers if tier in self._clients)

    def complete(self, prompt: str, *, timeout_s: float | None = None, needs: TierNeeds | None = None) -> LLMReply:
        """Answer a prompt.

        Args:
            prompt: The whole prompt.
            timeout_s: Total seconds for all tiers together; the client's own limit if that is lower.
            needs: What decides the order of the tiers, and which may be asked.

        Returns:
            The answer, with every tier that was tried in ``attempts``.

        Raises:
            AllModelsFailedError: If no tier answered; ``attempts`` says why.
            DeadlineExceededError: If there was no time to begin with.
        """
        attempts: list[Attempt] = []
        last: Exception | None = None
        for turn in self._turns(prompt, timeout_s, needs or _NO_NEEDS, attempts):
            client, trial = turn.client, turn.client.begin(turn.limit_s)
            try:
                reply = client.answer(prompt, trial)
            except FAILURES as err:
                attempts.append(trial.attempt(client.tier, client.model, failure=failure_kind(err)))
                last = err
            else:
                attempts.append(trial.attempt(client.tier, client.model, reply=reply))
                return replace(reply, attempts=tuple(attempts))
        raise _none_answered(attempts) from last

    def stream(self, prompt: str, *, timeout_s: float | None = None, needs: TierNeeds | None = None) -> ReplyStream:
        """Answer a prompt piece by piece; arguments as :meth:`complete`.

        The tier may change until the first piece was shown, never after it.

        Returns:
            The pieces. Iterating raises as :meth:`complete` does before the first piece, and after it a
            ``StreamBrokenError`` with what was shown.
        """

        def run(canceller: Canceller) -> Generator[str, None, LLMReply]:
            attempts: list[Attempt] = []
            for turn in self._turns(prompt, timeout_s, needs or _NO_NEEDS, attempts):
                client = turn.client
                trial = client.begin(turn.limit_s, sleep=canceller.sleep)
                try:
                    reply = yield from client.tokens(prompt, trial, canceller)
                except StreamBrokenError as err:
                    attempts.append(_broken(trial.attempt(client.tier, client.model), prompt, err, client))
                    raise StreamBrokenError(str(err), err.text, attempts) from err.__cause__
                except FAILURES as err:
                    attempts.append(trial.attempt(client.tier, client.model, failure=failure_kind(err)))
                else:
                    attempts.append(trial.attempt(client.tier, client.model, reply=reply))
                    return replace(reply, attempts=tuple(attempts))
            raise _none_answered(attempts)

        return ReplyStream(run)

    def astream(
        self, prompt: str, *, timeout_s: float | None = None, needs: TierNeeds | None = None
    ) -> AsyncReplyStream:
        """Return the twin of :meth:`stream` for ``async for``; the event loop is never blocked."""
        return AsyncReplyStream(self.stream(prompt, timeout_s=timeout_s, needs=needs), self._streams)

    def costs(self, spent: Sequence[TierUsage]) -> CostReport:
        """Compare what was spent with what the cloud model alone would have cost for the same tokens."""
        prices = {client.model: client.price for client in self._clients.values()}
        return cost_report(spent, prices, self._cloud_price)

    def health(self, timeout_s: float = 1.0) -> tuple[TierHealth, ...]:
        """Look whether each tier can be asked, all at once.

        Args:
            timeout_s: Total seconds.

        Returns:
            One finding for each tier, in the order in which a simple question goes to them.
        """
        return look_at(self.order(), timeout_s)

    def to_dict(self) -> dict[str, Any]:
        """Return the tiers with their models, breakers and windows, as plain JSON types."""
        return {
            client.tier.value: {
                "model": client.model,
                "context_tokens": client.context_tokens,
                "breaker": None if client.endpoint.breaker is None else client.endpoint.breaker.to_dict(),
            }
            for client in self.order()
        }

    def close(self) -> None:
        """Free the connections of all models."""
        for client in self._clients.values():
            client.close()

    def _turns(
        self, prompt: str, timeout_s: float | None, needs: TierNeeds, attempts: list[Attempt]
    ) -> Iterator[_Turn]:
        """Yield the models to ask, each with its share of the time; enter those that are passed over."""
        limit = self.timeout_s if timeout_s is None else min(timeout_s, self.timeout_s)
        if limit <= 0:
            raise DeadlineExceededError("no time is left to ask a model; allow the query more time")
        ends = self._clock() + limit
        prompt_tokens = estimate_tokens(prompt)
        able: list[LLMClient] = []
        for client in self.order(needs):
            refusal = client.refusal(prompt_tokens, needs)
            if refusal is None:
                able.append(client)
            else:
                attempts.append(Attempt(tier=client.tier, model=client.model, failure=refusal))
        for i, client in enumerate(able):
            left = ends - self._clock()
            if left <= 0:
                attempts.append(Attempt(tier=client.tier, model=client.model, failure=FailureKind.TIMEOUT))
                continue
            spare = _spare_calls(attempts, needs)
            if spare < 0:
                attempts.append(Attempt(tier=client.tier, model=client.model, failure=FailureKind.BUDGET))
                continue
            followers = min(spare, sum(1 for later in able[i + 1 :] if later.available))
            yield _Turn(client, share_s(left, followers))


def _spare_calls(attempts: Sequence[Attempt], needs: TierNeeds) -> int:
    """How many models may be asked besides the next one; below 0 when not even that one may."""
    most = len(Tier) if needs.max_calls is None else needs.max_calls
    return most - 1 - sum(1 for attempt in attempts if attempt.requests)


def _broken(attempt: Attempt, prompt: str, err: StreamBrokenError, client: LLMClient) -> Attempt:
    """Enter a stream that broke off: what it brought is paid for."""
    prompt_tokens, completion_tokens = estimate_tokens(prompt), estimate_tokens(err.text)
    return replace(
        attempt,
        failure=failure_kind(err),
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        usd=None if client.price is None else client.price.cost_usd(prompt_tokens, completion_tokens),
    )


def _none_answered(attempts: Sequence[Attempt]) -> AllModelsFailedError:
    told = "; ".join(map(str, attempts))
    return AllModelsFailedError(f"no model answered: {told}; see agentic-retriever doctor", attempts)
