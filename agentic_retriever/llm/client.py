"""One model behind one call that ends in time and fails in one way: its retries, its breaker, its price."""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from agentic_retriever.errors import (
    AgenticRetrieverError,
    BudgetExceededError,
    DeadlineExceededError,
    LLMError,
    LLMOutputError,
    ModelPausedError,
    OverloadedError,
    StreamBrokenError,
)
from agentic_retriever.llm.calls import (
    FAILURES,
    NO_NEEDS,
    CallWatch,
    Canceller,
    Ending,
    LLMReply,
    ReplyStream,
    TierNeeds,
    TokenFeed,
    estimate_tokens,
    failure_kind,
    model_name,
    model_window,
    own_error,
    result_of,
)
from agentic_retriever.schema import Attempt, FailureKind, Tier
from agentic_retriever.threads import DeadlineCaller

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from llama_index.core.llms import LLM

    from agentic_retriever.llm.prices import Price
    from agentic_retriever.threads import Breaker, Ticket

MAX_RETRIES: Final = 2
"""One call sends at most three requests to an endpoint."""

MIN_REQUEST_S: Final = 0.25
"""Seconds that a request needs to have left after the wait; with less, the failure that was seen says more."""

RETRIED: Final = frozenset({FailureKind.UNREACHABLE, FailureKind.RATE_LIMITED, FailureKind.SERVER})
"""Failures that may pass by themselves.

A refused key, model or request (400, 401, 402, 404) stays refused; after a timeout no time is left; and at temperature
0 the same prompt brings the same unusable reply.
"""

_SAYS_NOTHING: Final = frozenset(
    {FailureKind.BAD_REQUEST, FailureKind.OVERLOADED, FailureKind.BUDGET, FailureKind.TOO_LONG}
)
_FAIR_S: Final = 0.25  # a timeout after less says nothing about the server


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """One retry loop for all providers, whose own retries are off.

    The waits double from ``base_s`` up to ``cap_s``; each is drawn between half of that and all of it, so that callers
    who failed together do not come back together. A server's ``Retry-After`` takes the place of the drawn wait.
    """

    retries: int = MAX_RETRIES  # requests after the first one
    base_s: float = 0.25
    cap_s: float = 2.0
    draw: Callable[[], float] = random.random

    def __post_init__(self) -> None:
        if not 0 <= self.retries <= MAX_RETRIES:
            message = f"retries must be from 0 to {MAX_RETRIES}, got {self.retries}"
            raise ValueError(message)

    def wait_s(
        self, failed: int, kind: FailureKind, *, left_s: float, retry_after_s: float | None = None
    ) -> float | None:
        """Say how long to wait after a number of failed requests, the last of a kind.

        ``None`` when there is no point in another request, or after the wait no time for it.
        """
        if failed > self.retries or kind not in RETRIED:
            return None
        wait = retry_after_s
        if wait is None:
            wait = min(self.cap_s, self.base_s * 2 ** (failed - 1)) * (0.5 + self.draw() / 2)
        return wait if wait + MIN_REQUEST_S < left_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """How one model is called."""

    retry: RetryPolicy = field(default_factory=lambda: RetryPolicy(retries=0))
    breaker: Breaker | None = None  # models of one server and key may share one
    price: Price | None = None  # None if not known
    max_answer_tokens: int = 1_024  # for the estimate of a call's cost
    max_waiting: int | None = None  # callers that may wait for a free thread; None for any number
    secrets: tuple[str, ...] = field(default=(), repr=False)  # texts that must show nowhere
    # Looks within some seconds whether the model can be asked; returns what is wrong, or "".
    probe: Callable[[float], str] | None = field(default=None, repr=False)
    on_close: Callable[[], None] | None = field(default=None, repr=False)  # frees connections
    sleep: Callable[[float], object] = field(default=time.sleep, repr=False)


class Trial:
    """One call to one model: its time, its requests, its way past the breaker. For one thread."""

    def __init__(self, client: LLMClient, limit_s: float, sleep: Callable[[float], object]) -> None:
        self.requests = 0
        self._client = client
        self._endpoint = client.endpoint
        self._limit_s = limit_s
        self._sleep = sleep
        self._started = client.clock()
        self._ticket: Ticket | None = None
        self._given_s = 0.0

    @property
    def seconds(self) -> float:
        """Seconds since the call began."""
        return self._client.clock() - self._started

    def enter(self) -> float:
        """Begin a request, and return the seconds that it has.

        Raises:
            DeadlineExceededError: If no time is left.
            ModelPausedError: If the breaker lets nothing through.
        """
        left = self._limit_s - self.seconds
        if left <= 0:
            raise DeadlineExceededError(f"{self._client.who}: no time is left to ask it; allow the query more time")
        breaker = self._endpoint.breaker
        if breaker is not None:
            self._ticket = breaker.enter()
            if self._ticket is None:
                raise ModelPausedError(
                    f"{self._client.who}: not asked since it failed {breaker.failures} times in a row; tried again in "
                    f"{breaker.retry_in_s:.0f} s"
                )
        self.requests += 1
        self._given_s = left
        return left

    def leave(self, *, ok: bool | None) -> None:
        """End a request that brought an answer, failed, or says nothing about the model (``None``)."""
        ticket, self._ticket = self._ticket, None
        if ticket is not None and self._endpoint.breaker is not None:
            self._endpoint.breaker.leave(ticket, ok=ok)

    def broke(self, error: AgenticRetrieverError) -> None:
        """End a request that failed, after which there will be no other one."""
        if isinstance(error, OverloadedError):
            self.requests -= 1
        kind = failure_kind(error)
        hasty = kind is FailureKind.TIMEOUT and self._given_s < _FAIR_S
        self.leave(ok=None if kind in _SAYS_NOTHING or hasty else False)

    def failed(self, error: AgenticRetrieverError, retry_after_s: float | None) -> None:
        """End a request that failed, and wait until it is time for the next one.

        Raises:
            AgenticRetrieverError: The error, when there is no point in another request or no time for it.
        """
        self.broke(error)
        left = self._limit_s - self.seconds
        wait = self._endpoint.retry.wait_s(self.requests, failure_kind(error), left_s=left, retry_after_s=retry_after_s)
        if wait is None or not self._client.available:
            raise error
        self._sleep(wait)

    def attempt(self, *, failure: FailureKind | None = None, prompt_tokens: int = 0, answer_tokens: int = 0) -> Attempt:
        """Return the record of the call."""
        price = self._endpoint.price
        return Attempt(
            tier=self._client.tier,
            model=self._client.model,
            failure=failure,
            seconds=self.seconds,
            requests=self.requests,
            prompt_tokens=prompt_tokens,
            completion_tokens=answer_tokens,
            usd=None if price is None else price.cost_usd(prompt_tokens, answer_tokens),
        )

    def answered(self, reply: LLMReply) -> Attempt:
        """Return the record of a call that brought a reply."""
        return self.attempt(prompt_tokens=reply.prompt_tokens, answer_tokens=reply.completion_tokens)


class AskedModel(ABC):
    """What can be asked for a whole answer, or for one piece by piece."""

    def complete(self, prompt: str, *, timeout_s: float | None = None, needs: TierNeeds | None = None) -> LLMReply:
        """Answer a prompt.

        Args:
            prompt: The whole prompt; a chat model gets it as one user message.
            timeout_s: Total seconds for this call; the client's own limit if that is lower.
            needs: What the call may cost, and what decides the order of several tiers.

        Returns:
            The answer with its token counts, and everything that was tried in ``attempts``.

        Raises:
            DeadlineExceededError: If there was no answer in time, or no time to begin with.
            AllModelsFailedError: If none of several tiers answered; ``attempts`` says why.
            BudgetExceededError: If one model may cost more than is allowed.
            LLMOutputError: If its reply was blank or not what the provider promises.
            LLMError: If it could not be reached or refused.
        """
        return result_of(self._pieces(prompt, timeout_s, needs or NO_NEEDS, None))

    def stream(self, prompt: str, *, timeout_s: float | None = None, needs: TierNeeds | None = None) -> ReplyStream:
        """Answer a prompt piece by piece; arguments as :meth:`complete`.

        The tier may change until the first piece was shown, never after it.

        Returns:
            The pieces. Iterating raises as :meth:`complete` does before the first piece, and after it a
            ``StreamBrokenError`` with what was shown.
        """
        return ReplyStream(lambda canceller: self._pieces(prompt, timeout_s, needs or NO_NEEDS, canceller))

    @abstractmethod
    def _pieces(
        self, prompt: str, timeout_s: float | None, needs: TierNeeds, canceller: Canceller | None
    ) -> Generator[str, None, LLMReply]:
        """Return the whole reply; with a canceller, its pieces are yielded as they come."""


class LLMClient(AskedModel):
    """Completes prompts with one LlamaIndex model, within a total time.

    The model runs in a thread of its own, so a call that hangs or drips is abandoned when its time is up, and the model
    can be used from any thread and below a running event loop. How often it is asked again, when it is left alone and
    what it costs is said by ``endpoint``; by default it is asked once, always, at a price that is not known.

    Attributes:
        tier: The tier that the model serves.
        model: Its name.
        timeout_s: Total time for one call, in seconds.
        endpoint: How it is called.
    """

    def __init__(
        self,
        llm: LLM,
        *,
        tier: Tier,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        max_calls: int = 8,
        endpoint: Endpoint | None = None,
    ) -> None:
        self.tier = tier
        self.model = model_name(llm)
        self.who = f"{tier.value} model {self.model}"
        self.timeout_s = timeout_s
        self.endpoint = endpoint or Endpoint()
        self.clock = clock
        self._llm: Callable[[], LLM] = lambda: llm  # in a function, since a model's own repr may show a key
        self._caller = DeadlineCaller(self.who, max_calls=max_calls, max_waiting=self.endpoint.max_waiting)

    def __repr__(self) -> str:
        # Never the model object: its repr shows the key.
        return f"LLMClient({self.who!r}, timeout_s={self.timeout_s})"

    @property
    def context_tokens(self) -> int:
        """Tokens of prompt and answer together that the model holds."""
        return model_window(self._llm())

    @property
    def price(self) -> Price | None:
        """What the model costs, or ``None`` if not known."""
        return self.endpoint.price

    @property
    def available(self) -> bool:
        """Whether the breaker lets calls through."""
        return self.endpoint.breaker is None or self.endpoint.breaker.retry_in_s == 0

    def refusal(self, prompt_tokens: int, needs: TierNeeds) -> FailureKind | None:
        """Say why a prompt of about that many tokens must not be sent to the model, or ``None`` if it may.

        The estimate may be twice too high, so only a prompt of more than twice the window is refused; a server would
        cut such a prompt without a word, and its beginning first.
        """
        if prompt_tokens > 2 * self.context_tokens:
            return FailureKind.TOO_LONG
        if needs.budget.max_usd is None:
            return None
        usd = None if self.price is None else self.price.cost_usd(prompt_tokens, self.endpoint.max_answer_tokens)
        return FailureKind.BUDGET if usd is None or usd > needs.budget.max_usd else None

    def begin(self, timeout_s: float | None, canceller: Canceller | None) -> Trial:
        """Start the time of one call."""
        limit = self.timeout_s if timeout_s is None else min(timeout_s, self.timeout_s)
        return Trial(self, limit, self.endpoint.sleep if canceller is None else canceller.sleep)

    def answer(self, prompt: str, trial: Trial, canceller: Canceller | None) -> Generator[str, None, LLMReply]:
        """Answer a prompt within a call that has begun; with a canceller, the pieces are yielded as they come.

        Raises:
            StreamBrokenError: If it broke off after the first piece; before that as :meth:`complete`.
            StreamStopped: If the reader went away.
        """
        while True:
            left = trial.enter()
            watch = CallWatch(left)
            feed = TokenFeed(self.who, left, watch)
            if canceller is not None:
                canceller.on_cancel(feed.stop)
            try:
                text = yield from self._sent(prompt, feed, watch, left, streamed=canceller is not None)
                reply = self._reply(prompt, text, feed.ending, trial)
            except FAILURES as err:
                if feed.text:
                    trial.broke(err)
                    raise StreamBrokenError(f"{err} (after {len(feed.text):,} characters)", feed.text) from err
                feed.stop()
                trial.failed(err, watch.retry_after_s)
            except BaseException:
                trial.leave(ok=None)
                raise
            else:
                trial.leave(ok=True)
                return reply
            finally:
                if canceller is not None:
                    canceller.on_cancel(None)
                feed.stop()

    def close(self) -> None:
        """Free the model's connections."""
        if self.endpoint.on_close is not None:
            self.endpoint.on_close()

    def _pieces(
        self, prompt: str, timeout_s: float | None, needs: TierNeeds, canceller: Canceller | None
    ) -> Generator[str, None, LLMReply]:
        refusal = self.refusal(estimate_tokens(prompt), needs)
        if refusal is FailureKind.BUDGET:
            raise BudgetExceededError(
                f"{self.who}: the call may cost more than max_usd={needs.budget.max_usd:g}, or its price is not "
                "known; allow more, or add its price to prices_file"
            )
        if refusal is not None:
            raise LLMError(
                f"{self.who}: the prompt is far longer than its window of {self.context_tokens:,} tokens; send less"
            )
        trial = self.begin(timeout_s, canceller)
        reply = yield from self.answer(prompt, trial, canceller)
        return replace(reply, attempts=(trial.answered(reply),))

    def _sent(
        self, prompt: str, feed: TokenFeed, watch: CallWatch, left_s: float, *, streamed: bool
    ) -> Generator[str, None, object]:
        """Send one request and return the text of the reply; what the model's client raises comes out as ours."""
        llm = self._llm()
        try:
            if streamed:
                self._caller.start(lambda: feed.fill(lambda: llm.stream_complete(prompt)), left_s)
                yield from feed.tokens()
                return feed.text
            response = self._caller.call(lambda: watch.run(lambda: llm.complete(prompt)), left_s)
            feed.ending.see(getattr(response, "raw", None))
            return getattr(response, "text", None)
        except FAILURES:
            raise
        except Exception as err:  # noqa: BLE001 - the seam to foreign code: providers raise whatever they like
            failure = own_error(err, who=self.who, timeout_s=left_s, secrets=self.endpoint.secrets)
        # Out of the handler, so that an error whose text is withheld is not the context of ours either.
        raise failure

    def _reply(self, prompt: str, text: object, ending: Ending, trial: Trial) -> LLMReply:
        if ending.failed:
            raise LLMOutputError(f"{self.who}: it failed within its answer; try again, or take another model")
        if not isinstance(text, str) or not text.strip():
            raise LLMOutputError(f"{self.who}: the reply is blank; try again, or take another model")
        prompt_tokens = ending.prompt_tokens or estimate_tokens(prompt)
        completion_tokens = ending.completion_tokens or estimate_tokens(text)
        return LLMReply(
            text=text,
            model=self.model,
            tier=self.tier,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            truncated=ending.cut,
            seconds=trial.seconds,
            usd=0.0 if self.price is None else self.price.cost_usd(prompt_tokens, completion_tokens),
            priced=self.price is not None,
            prompt_cut=ending.read_tokens > 0 and ending.read_tokens >= self.context_tokens - 1,
        )
