"""Several models behind one face: the right one first, the others when it fails."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ConfigDict

from agentic_retriever.errors import AllModelsFailedError, DeadlineExceededError, StreamBrokenError
from agentic_retriever.llm.calls import (
    FAILURES,
    NO_NEEDS,
    AsyncReplyStream,
    Canceller,
    LLMReply,
    TierNeeds,
    estimate_tokens,
    failure_kind,
)
from agentic_retriever.llm.client import AskedModel, LLMClient
from agentic_retriever.llm.prices import CostReport, Price, cost_report
from agentic_retriever.schema import Attempt, Complexity, FailureKind, Tier
from agentic_retriever.threads import DeadlineCaller

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from concurrent.futures import Future

    from agentic_retriever.schema import TierUsage

LONG_CONTEXT_CHARS: Final = 8_000
"""With more source text than this in a prompt, in characters, the cloud tier is asked first."""

RESERVE_S: Final = 10.0
"""Seconds that a tier leaves to each one behind it, where there is time enough."""

_LOCAL_FIRST: Final = (Tier.PRIMARY, Tier.CLOUD, Tier.SMALL)
_CLOUD_FIRST: Final = (Tier.CLOUD, Tier.PRIMARY, Tier.SMALL)
_MAX_STREAMS: Final = 64


def share_s(left_s: float, followers: int, reserve_s: float = RESERVE_S) -> float:
    """Say how much of the time that is left one tier may use, when some others may still be asked after it.

    The last one may use all of it. One that others follow may use half, or more as long as each of the others keeps
    ``reserve_s``: of 60 s the first of three gets 40, of 2 s it gets 1.
    """
    return left_s if followers < 1 else max(left_s / 2, left_s - reserve_s * followers)


class TierHealth(BaseModel):
    """Whether one tier can be asked."""

    model_config = ConfigDict(frozen=True)

    tier: Tier
    model: str
    ok: bool | None  # None when there is no way to look, as with a model that was passed in
    detail: str  # what is wrong and what to do, or what was seen

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return self.model_dump(mode="json")


class TieredClient(AskedModel):
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

    def order(self, needs: TierNeeds = NO_NEEDS) -> tuple[LLMClient, ...]:
        """Return the models in the order in which they are asked."""
        cloud_first = (
            needs.force_cloud or needs.complexity is Complexity.COMPLEX or needs.context_chars > self.long_context_chars
        )
        tiers = _CLOUD_FIRST if cloud_first else _LOCAL_FIRST
        return tuple(self._clients[tier] for tier in tiers if tier in self._clients)

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
        """Look whether each tier can be asked, all at once, within some seconds.

        Returns:
            One finding for each tier, in the order in which a simple question goes to them.
        """
        return _look_at(self.order(), timeout_s)

    def close(self) -> None:
        """Free the connections of all models."""
        for client in self._clients.values():
            client.close()

    def _pieces(
        self, prompt: str, timeout_s: float | None, needs: TierNeeds, canceller: Canceller | None
    ) -> Generator[str, None, LLMReply]:
        attempts: list[Attempt] = []
        last: Exception | None = None
        for client, limit_s in self._turns(prompt, timeout_s, needs, attempts):
            trial = client.begin(limit_s, canceller)
            try:
                reply = yield from client.answer(prompt, trial, canceller)
            except StreamBrokenError as err:
                # What a stream that broke off brought is paid for.
                counts = {"prompt_tokens": estimate_tokens(prompt), "answer_tokens": estimate_tokens(err.text)}
                attempts.append(trial.attempt(failure=failure_kind(err), **counts))
                raise StreamBrokenError(str(err), err.text, attempts) from err.__cause__
            except FAILURES as err:
                attempts.append(trial.attempt(failure=failure_kind(err)))
                last = err
            else:
                attempts.append(trial.answered(reply))
                return replace(reply, attempts=tuple(attempts))
        tried = "; ".join(map(str, attempts))
        raise AllModelsFailedError(f"no model answered: {tried}; see agentic-retriever doctor", attempts) from last

    def _turns(
        self, prompt: str, timeout_s: float | None, needs: TierNeeds, attempts: list[Attempt]
    ) -> Iterator[tuple[LLMClient, float]]:
        """Yield the models to ask, each with its share of the time; enter those that are passed over."""
        limit = self.timeout_s if timeout_s is None else min(timeout_s, self.timeout_s)
        if limit <= 0:
            raise DeadlineExceededError("no time is left to ask a model; allow the query more time")
        ends = self._clock() + limit
        prompt_tokens = estimate_tokens(prompt)
        refusals = {client: client.refusal(prompt_tokens, needs) for client in self.order(needs)}
        attempts += [_passed_over(client, refusal) for client, refusal in refusals.items() if refusal is not None]
        able = [client for client, refusal in refusals.items() if refusal is None]
        for i, client in enumerate(able):
            left = ends - self._clock()
            # How many models may be asked besides this one; below 0 when not even this one may.
            most = len(Tier) if needs.budget.max_llm_calls is None else needs.budget.max_llm_calls
            spare = most - 1 - sum(1 for attempt in attempts if attempt.requests)
            if left <= 0 or spare < 0:
                attempts.append(_passed_over(client, FailureKind.TIMEOUT if left <= 0 else FailureKind.BUDGET))
                continue
            followers = min(spare, sum(1 for later in able[i + 1 :] if later.available))
            yield client, share_s(left, followers)


def _look_at(clients: Sequence[LLMClient], timeout_s: float) -> tuple[TierHealth, ...]:
    """Look at several models at once, within some seconds."""
    ends = time.monotonic() + timeout_s
    caller = DeadlineCaller("looking at the models", max_calls=max(1, len(clients)))

    def start(probe: Callable[[float], str] | None) -> Future[str] | None:
        return None if probe is None else caller.start(lambda: probe(timeout_s), 0.0)

    started = [(client, start(client.endpoint.probe)) for client in clients]
    return tuple(_found(client, future, ends) for client, future in started)


def _found(client: LLMClient, future: Future[str] | None, ends: float) -> TierHealth:
    if future is None:
        return TierHealth(tier=client.tier, model=client.model, ok=None, detail="a model that was passed in; not asked")
    try:
        wrong = future.result(timeout=max(0.0, ends - time.monotonic()))
    except (TimeoutError, DeadlineExceededError):
        wrong = "no answer in time; check that its server runs"
    except Exception as err:  # noqa: BLE001 - a diagnosis reports whatever goes wrong
        wrong = f"{type(err).__name__} while looking; check its address"
    paused = "" if client.available else "; left alone for now since it failed several times in a row"
    return TierHealth(tier=client.tier, model=client.model, ok=not wrong, detail=(wrong or "it can be asked") + paused)


def _passed_over(client: LLMClient, why: FailureKind) -> Attempt:
    return Attempt(tier=client.tier, model=client.model, failure=why)
