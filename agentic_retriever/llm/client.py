"""One model behind one call that ends in time and fails in one way."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from agentic_retriever.errors import (
    AgenticRetrieverError,
    BudgetExceededError,
    LLMError,
    LLMOutputError,
    StreamBrokenError,
)
from agentic_retriever.llm.calls import LLMReply, ModelClient, TierNeeds, estimate_tokens
from agentic_retriever.llm.endpoint import FAILURES, Endpoint, Trial
from agentic_retriever.llm.failures import safe_cause, translated
from agentic_retriever.llm.reading import Ending, model_name, model_window
from agentic_retriever.llm.streaming import Canceller, ReplyStream, StreamStopped, TokenFeed
from agentic_retriever.llm.watch import CallWatch
from agentic_retriever.schema import FailureKind
from agentic_retriever.threads import DeadlineCaller

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from llama_index.core.base.llms.types import CompletionResponse
    from llama_index.core.llms import LLM

    from agentic_retriever.llm.prices import Price
    from agentic_retriever.schema import Tier

__all__ = ["LLMClient", "LLMReply", "ModelClient", "TierNeeds", "estimate_tokens"]

_NO_NEEDS = TierNeeds()


class _Unshown:
    """Holds a model whose own repr may show a key."""

    __slots__ = ("llm",)

    def __init__(self, llm: LLM) -> None:
        self.llm = llm


class LLMClient:
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
        self.timeout_s = timeout_s
        self.endpoint = endpoint or Endpoint()
        self._unshown = _Unshown(llm)
        self._clock = clock
        self._who = f"{tier.value} model {self.model}"
        self._caller = DeadlineCaller(self._who, max_calls=max_calls, max_waiting=self.endpoint.max_waiting)

    def __repr__(self) -> str:
        # Never the model object: its repr shows the key.
        return f"LLMClient({self._who!r}, timeout_s={self.timeout_s})"

    @property
    def context_tokens(self) -> int:
        """Tokens of prompt and answer together that the model holds."""
        return self.endpoint.context_tokens or model_window(self._unshown.llm)

    @property
    def price(self) -> Price | None:
        """What the model costs, or ``None`` if not known."""
        return self.endpoint.price

    @property
    def available(self) -> bool:
        """Whether the breaker lets calls through."""
        return self.endpoint.breaker is None or self.endpoint.breaker.retry_in_s == 0

    def estimate_usd(self, prompt_tokens: int) -> float | None:
        """Return what a call costs at most in USD, with the longest answer; ``None`` if the price is not known."""
        return None if self.price is None else self.price.cost_usd(prompt_tokens, self.endpoint.max_answer_tokens)

    def refusal(self, prompt_tokens: int, needs: TierNeeds = _NO_NEEDS) -> FailureKind | None:
        """Say why a prompt must not be sent to the model, or ``None`` if it may.

        Args:
            prompt_tokens: Its estimated tokens. The estimate may be twice too high, so only a prompt of more than twice
                the window is refused; a server would cut such a prompt without a word, and its beginning first.
            needs: What the call may cost.
        """
        if prompt_tokens > 2 * self.context_tokens:
            return FailureKind.TOO_LONG
        if needs.max_usd is None:
            return None
        usd = self.estimate_usd(prompt_tokens)
        return FailureKind.BUDGET if usd is None or usd > needs.max_usd else None

    def complete(self, prompt: str, *, timeout_s: float | None = None, needs: TierNeeds | None = None) -> LLMReply:
        """Answer a prompt.

        Args:
            prompt: The whole prompt; a chat model gets it as one user message.
            timeout_s: Total seconds for this call; the client's own limit if that is lower.
            needs: What the call may cost; its other wishes concern the choice among several models.

        Returns:
            The answer with its token counts.

        Raises:
            DeadlineExceededError: If there was no answer in time.
            BudgetExceededError: If it may cost more than is allowed.
            LLMOutputError: If the reply was blank or not what the provider promises.
            LLMError: If the model could not be reached or refused.
        """
        self._check(prompt, needs)
        trial = self.begin(timeout_s)
        reply = self.answer(prompt, trial)
        return replace(reply, attempts=(trial.attempt(self.tier, self.model, reply=reply),))

    def stream(self, prompt: str, *, timeout_s: float | None = None, needs: TierNeeds | None = None) -> ReplyStream:
        """Answer a prompt piece by piece; arguments as :meth:`complete`.

        Returns:
            The pieces. Iterating raises as :meth:`complete` does before the first piece, and after it a
            ``StreamBrokenError`` that holds what came.
        """

        def run(canceller: Canceller) -> Generator[str, None, LLMReply]:
            self._check(prompt, needs)
            trial = self.begin(timeout_s, sleep=canceller.sleep)
            reply = yield from self.tokens(prompt, trial, canceller)
            return replace(reply, attempts=(trial.attempt(self.tier, self.model, reply=reply),))

        return ReplyStream(run)

    def begin(self, timeout_s: float | None = None, *, sleep: Callable[[float], object] | None = None) -> Trial:
        """Start the time of one call."""
        limit = self.timeout_s if timeout_s is None else min(timeout_s, self.timeout_s)
        return Trial(self._who, self.endpoint, limit_s=limit, clock=self._clock, sleep=sleep)

    def answer(self, prompt: str, trial: Trial) -> LLMReply:
        """Answer a prompt within a call that has begun; errors as :meth:`complete`."""
        while True:
            left = trial.enter()
            watch = CallWatch(left)
            try:
                response = self._ask(prompt, left, watch)
                ending = Ending()
                ending.see(getattr(response, "raw", None))
                reply = self._reply(prompt, getattr(response, "text", None), ending, trial)
            except FAILURES as err:
                trial.failed(err, watch.retry_after_s)
            except BaseException:
                trial.forgive()
                raise
            else:
                trial.succeeded()
                return reply

    def tokens(self, prompt: str, trial: Trial, canceller: Canceller) -> Generator[str, None, LLMReply]:
        """Yield the pieces of an answer within a call that has begun, and return the whole.

        Raises:
            StreamBrokenError: If it broke off after the first piece; before that as :meth:`complete`.
            StreamStopped: If the reader went away.
        """
        while True:
            left = trial.enter()
            watch = CallWatch(left)
            feed = TokenFeed(self._who, left, watch)
            canceller.calls(feed.stop)
            try:
                self._caller.start(lambda f=feed: f.fill(lambda: self._unshown.llm.stream_complete(prompt)), left)  # type: ignore[misc]  # mypy cannot infer a lambda with a default
                yield from self._shown(feed, left)
                reply = self._reply(prompt, feed.text, feed.ending, trial)
            except FAILURES as err:
                if feed.text:
                    trial.broke(err)
                    raise StreamBrokenError(f"{err} (after {len(feed.text):,} characters)", feed.text) from err
                feed.stop()
                trial.failed(err, watch.retry_after_s)
            except BaseException:
                trial.forgive()
                raise
            else:
                trial.succeeded()
                return reply
            finally:
                canceller.calls(None)
                feed.stop()

    def close(self) -> None:
        """Free the model's connections."""
        if self.endpoint.on_close is not None:
            self.endpoint.on_close()

    def _check(self, prompt: str, needs: TierNeeds | None) -> None:
        refusal = self.refusal(estimate_tokens(prompt), needs or _NO_NEEDS)
        if refusal is FailureKind.BUDGET and needs is not None:
            raise BudgetExceededError(
                f"{self._who}: the call may cost more than max_usd={needs.max_usd:g}, or its price is not known; allow "
                "more, or add its price to prices_file"
            )
        if refusal is not None:
            raise LLMError(
                f"{self._who}: the prompt is far longer than its window of {self.context_tokens:,} tokens; send less"
            )

    def _ask(self, prompt: str, left_s: float, watch: CallWatch) -> CompletionResponse:
        try:
            return self._caller.call(lambda: watch.run(lambda: self._unshown.llm.complete(prompt)), left_s)
        except FAILURES:
            watch.cancel()
            raise
        except Exception as err:  # noqa: BLE001 - the seam to foreign code: providers raise whatever they like
            failure, cause = self._failure(err, left_s)
        # Out of the handler, so that an error whose text is withheld is not the context of ours either.
        raise failure from cause

    def _shown(self, feed: TokenFeed, left_s: float) -> Generator[str, None, None]:
        try:
            yield from feed.tokens()
        except (*FAILURES, StreamStopped):
            raise
        except Exception as err:  # noqa: BLE001 - the seam to foreign code
            failure, cause = self._failure(err, left_s)
        else:
            return
        raise failure from cause

    def _failure(self, err: Exception, left_s: float) -> tuple[AgenticRetrieverError, BaseException]:
        return translated(err, who=self._who, timeout_s=left_s), safe_cause(err, self.endpoint.secrets)

    def _reply(self, prompt: str, text: object, ending: Ending, trial: Trial) -> LLMReply:
        if ending.failed:
            raise LLMOutputError(f"{self._who}: it failed within its answer; try again, or take another model")
        if not isinstance(text, str) or not text.strip():
            raise LLMOutputError(f"{self._who}: the reply is blank; try again, or take another model")
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
