"""One model behind one call that ends in time and fails in one way: its price, its retries, its breaker."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

from llama_index.core.llms import LLM
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from agentic_retriever import errors
from agentic_retriever.llm import calls
from agentic_retriever.llm.replies import says_something
from agentic_retriever.schema import Attempt, FailureKind, Record, Tier, TierUsage, frozen
from agentic_retriever.threads import Breaker, DeadlineCaller, Ticket

# What models cost: a dated table in the package, and the user's own on top of it.

_STRICT: Final = ConfigDict(frozen=True, strict=True, extra="forbid", populate_by_name=True, allow_inf_nan=False)


class Price(BaseModel):
    """The price of one model."""

    model_config = _STRICT

    in_usd: float = Field(ge=0, validation_alias="in")  # for a million tokens of the prompt
    out_usd: float = Field(ge=0, validation_alias="out")  # for a million tokens of the answer
    context_tokens: int | None = Field(default=None, gt=0, validation_alias="context")

    @property
    def free(self) -> bool:
        return self.in_usd == 0 and self.out_usd == 0

    def cost_usd(self, prompt_tokens: int, completion_tokens: int) -> float:
        return (prompt_tokens * self.in_usd + completion_tokens * self.out_usd) / 1_000_000


FREE: Final = Price(in_usd=0.0, out_usd=0.0)  # of a model on the user's own machine, such as any Ollama model


class PriceTable(BaseModel):
    """Prices by the model's name at OpenRouter, the day on which they held, and where they are from."""

    model_config = _STRICT

    as_of: str = ""
    source: str = ""
    unit: Any = Field(default=None, repr=False)  # for the reader of the file
    prices: Annotated[Mapping[str, Price], AfterValidator(frozen)] = Field(validation_alias="models")

    @classmethod
    def load(cls, path: str | Path | None = None) -> PriceTable:
        """Read the packaged table and, on top of it, a file of the same form, whose models replace those packaged."""
        packaged = json.loads(Path(__file__).with_name("prices.json").read_text("utf-8"))
        table = cls._parse(packaged, "prices.json of the package")
        if not path:
            return table
        try:
            own = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as err:
            unread = f"setting prices_file: cannot read {path} ({type(err).__name__})"
            raise errors.ConfigError(f"{unread}; make it a readable JSON file") from err
        added = cls._parse(own, str(path))
        about = {"as_of": added.as_of or table.as_of, "source": added.source or table.source}
        return cls(**about, prices={**table.prices, **added.prices})

    @classmethod
    def _parse(cls, data: object, where: str) -> PriceTable:
        try:
            return cls.model_validate(data)
        except ValidationError as err:
            raise errors.ConfigError(f"setting prices_file: {where}{_what_is_wrong(err.errors()[0])}") from None

    def price(self, model: str) -> Price | None:
        """Return the price of a model, or ``None`` if unknown; without its maker, the name must end just one entry."""
        if model.endswith(":free"):
            return FREE
        if model in self.prices or "/" in model:
            return self.prices.get(model)
        named = [price for name, price in self.prices.items() if name.rpartition("/")[2] == model]
        return named[0] if len(named) == 1 else None


def _what_is_wrong(problem: ErrorDetails) -> str:
    """Say what is wrong with a file of prices, in terms of its keys."""
    keys = problem["loc"]
    entry = f": {str(keys[1])[:80]!r}" if len(keys) > 1 else ""
    if problem["type"] == "extra_forbidden":
        known = ("in", "out", "context") if entry else ("as_of", "source", "unit", "models")
        return f"{entry}: {errors.unknown_name('key', str(keys[-1]), known)}"
    if entry:
        return f'{entry} needs "in" and "out" from 0 in USD per million tokens, and "context" in tokens or not at all'
    if keys and keys[0] in {"as_of", "source"}:
        return f': "{keys[0]}" must be a text'
    return ' must be a JSON object with "models" by name'


@dataclass(frozen=True, slots=True, kw_only=True)
class CostReport(Record):
    """What a number of calls cost, and what they would have cost on the cloud model alone."""

    usd: float  # what was paid, as far as prices are known
    cloud_only_usd: float | None  # of the same tokens; None if the price of the cloud model is not known
    saved_usd: float | None  # the difference; None likewise
    local_share: float  # of the calls, those to models without a price, in [0, 1]; 0 without calls
    calls: int
    unpriced_calls: int  # to models whose price is not known; they count 0 in usd


def cost_report(spent: Sequence[TierUsage], prices: Mapping[str, Price | None], cloud: Price | None) -> CostReport:
    """Compare what was spent with what the cloud model alone would have cost; a missing price is not known."""
    calls = sum(one.calls for one in spent)
    usd = sum(one.usd for one in spent)
    asked = [(one.calls, prices.get(one.model)) for one in spent]
    cloud_usd = None if cloud is None else sum(cloud.cost_usd(u.prompt_tokens, u.completion_tokens) for u in spent)
    return CostReport(
        usd=usd,
        cloud_only_usd=cloud_usd,
        saved_usd=None if cloud_usd is None else cloud_usd - usd,
        local_share=sum(n for n, price in asked if price is not None and price.free) / max(1, calls),
        calls=calls,
        unpriced_calls=sum(n for n, price in asked if price is None),
    )


# How one model is called.

MAX_ANSWER_TOKENS: Final = 1_024  # for the tiers of the settings, and for the estimate of what a call costs
MAX_RETRIES: Final = 2  # one call sends at most three requests to an endpoint
MIN_REQUEST_S: Final = 0.25  # that a request must have left after the wait; with less, the failure seen says more
# Failures that may pass by themselves. A refused key, model or request (400, 401, 402, 404) stays refused; after a
# timeout no time is left; and at temperature 0 the same prompt brings the same unusable reply.
RETRIED: Final = frozenset({FailureKind.UNREACHABLE, FailureKind.RATE_LIMITED, FailureKind.SERVER})
_SAYS_NOTHING: Final = frozenset(
    {FailureKind.BAD_REQUEST, FailureKind.OVERLOADED, FailureKind.BUDGET, FailureKind.TOO_LONG}
)
_FAIR_S: Final = 0.25  # a timeout after less says nothing about the server


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """One retry loop for all providers; waits double up to ``cap_s``, partly drawn, or are ``Retry-After``."""

    retries: int = MAX_RETRIES  # requests after the first one
    base_s: float = 0.25
    cap_s: float = 2.0
    draw: Callable[[], float] = random.random

    def __post_init__(self) -> None:
        if not 0 <= self.retries <= MAX_RETRIES:
            raise ValueError(f"retries must be from 0 to {MAX_RETRIES}, got {self.retries}")

    def wait_s(
        self, failed: int, kind: FailureKind, *, left_s: float, retry_after_s: float | None = None
    ) -> float | None:
        """How long to wait after a number of failed requests, the last of a kind; ``None`` when another is no use."""
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
    # Models of one server and key may share one; by default it never opens.
    breaker: Breaker = field(default_factory=lambda: Breaker(failures=sys.maxsize))
    price: Price | None = None  # None if not known
    max_waiting: int | None = None  # callers that may wait for a free thread; None for any number
    secrets: tuple[str, ...] = field(default=(), repr=False)  # texts that must show nowhere
    # Looks within some seconds whether the model can be asked; returns what is wrong, or "".
    probe: Callable[[float], str] | None = field(default=None, repr=False)
    on_close: Callable[[], object] = field(default=lambda: None, repr=False)  # frees connections
    sleep: Callable[[float], object] = field(default=time.sleep, repr=False)


class Trial:
    """One call to one model: its seconds so far, its requests, its way past the breaker. For one thread."""

    def __init__(self, client: LLMClient, timeout_s: float, canceller: calls.Canceller | None) -> None:
        self.requests = 0
        self.canceller = canceller  # of a reply that is streamed
        self._client = client
        self._endpoint = client.endpoint
        self._limit_s = min(timeout_s, client.timeout_s)
        self._sleep = self._endpoint.sleep if canceller is None else canceller.sleep
        self._started = client.clock()
        self._ticket: Ticket | None = None
        self._given_s = 0.0

    @property
    def seconds(self) -> float:
        return self._client.clock() - self._started

    def enter(self) -> float:
        """Begin a request, and return the seconds that it has, if any; ``ModelPausedError`` if the breaker is open."""
        left = self._limit_s - self.seconds
        if left <= 0:
            raise errors.DeadlineExceededError(f"{self._client.who}: no time is left to ask it; allow more time")
        breaker = self._endpoint.breaker
        self._ticket = breaker.enter()
        if self._ticket is None:
            failed = f"{self._client.who}: not asked since it failed {breaker.failures} times in a row"
            raise errors.ModelPausedError(f"{failed}; tried again in {breaker.retry_in_s:.0f} s")
        self.requests += 1
        self._given_s = left
        return left

    def leave(self, *, ok: bool | None) -> None:
        """End a request that brought an answer, failed, or says nothing about the model (``None``)."""
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._endpoint.breaker.leave(ticket, ok=ok)

    def broke(self, error: errors.AgenticRetrieverError) -> None:
        """End a request that failed, after which there will be no other one."""
        if isinstance(error, errors.OverloadedError):
            self.requests -= 1
        kind = calls.failure_kind(error)
        hasty = kind is FailureKind.TIMEOUT and self._given_s < _FAIR_S
        self.leave(ok=None if kind in _SAYS_NOTHING or hasty else False)

    def failed(self, error: errors.AgenticRetrieverError, retry_after_s: float | None) -> None:
        """End a request that failed, and wait until it is time for the next one; raise the error if there is none."""
        self.broke(error)
        left, kind = self._limit_s - self.seconds, calls.failure_kind(error)
        wait = self._endpoint.retry.wait_s(self.requests, kind, left_s=left, retry_after_s=retry_after_s)
        if wait is None or not self._client.available:
            raise error
        self._sleep(wait)

    def attempt(self, *, failure: FailureKind | None = None, prompt_tokens: int = 0, answer_tokens: int = 0) -> Attempt:
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


class LLMClient:
    """One LlamaIndex model, which answers prompts within a total time.

    The model runs in a thread of its own, so a call that hangs or drips is abandoned after ``timeout_s``, and the model
    can be used from any thread and below a running event loop. How often it is asked again, when it is left alone and
    what it costs is said by ``endpoint``; by default it is asked once, always, at a price that is not known.
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
        self.model = calls.model_name(llm)
        self.who = f"{tier.value} model {self.model}"
        self.timeout_s = timeout_s
        self.endpoint = endpoint or Endpoint()
        self.clock = clock
        self._llm: Callable[[], LLM] = lambda: llm  # in a function, since a model's own repr may show a key
        self._caller = DeadlineCaller(self.who, max_calls=max_calls, max_waiting=self.endpoint.max_waiting)

    def __repr__(self) -> str:  # never the model object: its repr shows the key
        return f"LLMClient({self.who!r}, timeout_s={self.timeout_s})"

    @property
    def context_tokens(self) -> int:
        return calls.model_window(self._llm())

    @property
    def available(self) -> bool:
        """Whether the breaker lets calls through."""
        return self.endpoint.breaker.retry_in_s == 0

    def refusal(self, prompt_tokens: int, needs: calls.TierNeeds) -> FailureKind | None:
        """Say why a prompt of about that many tokens must not be sent to the model, or ``None`` if it may.

        The estimate may be twice too high, so only a prompt of more than twice the window is refused; a server would
        cut such a prompt without a word, and its beginning first.
        """
        if prompt_tokens > 2 * self.context_tokens:
            return FailureKind.TOO_LONG
        if needs.budget.max_usd is None:
            return None
        price = self.endpoint.price
        usd = None if price is None else price.cost_usd(prompt_tokens, MAX_ANSWER_TOKENS)
        return FailureKind.BUDGET if usd is None or usd > needs.budget.max_usd else None

    def answer(self, prompt: str, trial: Trial) -> Generator[str, None, calls.LLMReply]:
        """Answer a prompt within a call that has begun; with a canceller, the pieces are yielded as they come.

        A failure after the first piece is a ``StreamBrokenError``; ``StreamStopped`` ends it when nobody reads on.
        """
        canceller = trial.canceller
        while True:
            call = calls.ProviderCall(self.who, trial.enter())
            if canceller is not None:
                canceller.watch(call)
            try:
                text = yield from self._sent(prompt, call, streamed=canceller is not None)
                reply = self._reply(prompt, text, call.ending, trial)
            except calls.FAILURES as err:
                if call.text:
                    trial.broke(err)
                    raise errors.StreamBrokenError(f"{err} (after {len(call.text):,} characters)", call.text) from err
                call.stop()
                trial.failed(err, call.retry_after_s)
            except BaseException:
                trial.leave(ok=None)
                raise
            else:
                trial.leave(ok=True)
                return reply
            finally:
                if canceller is not None:
                    canceller.watch(None)
                call.stop()

    def close(self) -> None:
        self.endpoint.on_close()

    def _sent(self, prompt: str, call: calls.ProviderCall, *, streamed: bool) -> Generator[str, None, object]:
        """Send one request and return the text of the reply; what the model's client raises comes out as ours."""
        llm = self._llm()
        try:
            if streamed:
                self._caller.start(lambda: call.fill(lambda: llm.stream_complete(prompt)), call.limit_s)
                yield from call.tokens()
                return call.text
            response = self._caller.call(lambda: call.run(lambda: llm.complete(prompt)), call.limit_s)
            call.ending.see(getattr(response, "raw", None))
            return getattr(response, "text", None)
        except calls.FAILURES:
            raise
        except Exception as err:  # noqa: BLE001 - the seam to foreign code: providers raise whatever they like
            failure = calls.own_error(err, who=self.who, timeout_s=call.limit_s, secrets=self.endpoint.secrets)
        # Out of the handler, so that an error whose text is withheld is not the context of ours either.
        raise failure

    def _reply(self, prompt: str, text: object, ending: calls.Ending, trial: Trial) -> calls.LLMReply:
        if ending.reason == "error":  # as OpenRouter says it
            raise errors.LLMOutputError(f"{self.who}: it failed within its answer; try again, or take another model")
        if not isinstance(text, str) or not says_something(text):
            raise errors.LLMOutputError(f"{self.who}: the reply is blank; try again, or take another model")
        prompt_tokens = ending.prompt_tokens or calls.estimate_tokens(prompt)
        completion_tokens = ending.completion_tokens or calls.estimate_tokens(text)
        price = self.endpoint.price
        return calls.LLMReply(
            text=text,
            model=self.model,
            tier=self.tier,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            truncated=ending.cut,
            seconds=trial.seconds,
            usd=0.0 if price is None else price.cost_usd(prompt_tokens, completion_tokens),
            prompt_cut=ending.read_tokens > 0 and ending.read_tokens >= self.context_tokens - 1,
        )
