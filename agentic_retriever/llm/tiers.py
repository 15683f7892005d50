"""Several models behind one face: made from the settings, the right one asked first, the others when it fails."""

import functools
import importlib
import json
import logging
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Final

from llama_index.core.llms import LLM

from agentic_retriever.config import OPENAI_URL, RouterConfig, shown_url
from agentic_retriever.errors import AllModelsFailedError, ConfigError, DeadlineExceededError, StreamBrokenError
from agentic_retriever.llm import calls
from agentic_retriever.llm.calls import estimate_tokens
from agentic_retriever.llm.client import (
    FREE,
    MAX_ANSWER_TOKENS,
    CostReport,
    Endpoint,
    LLMClient,
    Price,
    PriceTable,
    RetryPolicy,
    Trial,
    cost_report,
)
from agentic_retriever.schema import Attempt, Complexity, FailureKind, Record, Tier, TierUsage
from agentic_retriever.threads import Breaker, DeadlineCaller

logger = logging.getLogger(__name__)

LONG_CONTEXT_CHARS: Final = 8_000  # with more source text than this in a prompt the cloud tier is asked first
RESERVE_S: Final = 10.0  # that a tier leaves to each one behind it, where there is time enough
_LOCAL_FIRST: Final = (Tier.PRIMARY, Tier.CLOUD, Tier.SMALL)
_CLOUD_FIRST: Final = (Tier.CLOUD, Tier.PRIMARY, Tier.SMALL)
_MAX_STREAMS: Final = 64


def share_s(left_s: float, followers: int, reserve_s: float = RESERVE_S) -> float:
    """Say how much of the time left one tier may use: the last all, else half or all but the others' reserve."""
    return left_s if followers < 1 else max(left_s / 2, left_s - reserve_s * followers)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierHealth(Record):
    """Whether one tier can be asked."""

    tier: Tier
    model: str
    ok: bool | None  # None when there is no way to look, as with a model that was passed in
    detail: str  # what is wrong and what to do, or what was seen


class TieredClient:
    """Asks the tier that fits, then the others, until one answers or the time is up.

    A simple question goes to the primary tier first; a complex one, one with more than 8,000 characters of source
    text and one that the caller forces goes to the cloud tier first. When a tier fails, the other of the two is asked,
    then the small one. A tier whose window is far too small or that may cost more than is allowed is passed over.
    ``timeout_s`` is for all tiers together; ``cloud_price`` is compared with when no cloud tier is configured.
    """

    def __init__(
        self,
        tiers: Sequence[LLMClient],
        *,
        timeout_s: float,
        cloud_price: Price | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clients = {client.tier: client for client in reversed(tiers)}
        if not self._clients:
            raise ValueError("at least one tier is needed")
        self.timeout_s = timeout_s
        cloud = self._clients.get(Tier.CLOUD)
        self._cloud_price = cloud_price if cloud is None else cloud.endpoint.price
        self._clock = clock
        self._streams = DeadlineCaller("streamed answers", max_calls=_MAX_STREAMS, max_waiting=0)

    def __repr__(self) -> str:
        tiers = ", ".join(f"{client.tier.value}={client.model}" for client in self.order())
        return f"TieredClient({tiers}, timeout_s={self.timeout_s:g})"

    @property
    def tier(self) -> Tier:  # that a simple question goes to first
        return self.order()[0].tier

    @property
    def model(self) -> str:
        return self.order()[0].model

    @property
    def context_tokens(self) -> int:
        """Tokens of prompt and answer together that every tier holds."""
        return min(client.context_tokens for client in self._clients.values())

    def order(self, needs: calls.TierNeeds = calls.NO_NEEDS) -> tuple[LLMClient, ...]:
        """Return the models in the order in which they are asked."""
        is_long = needs.context_chars > LONG_CONTEXT_CHARS
        cloud_first = needs.force_cloud or needs.complexity is Complexity.COMPLEX or is_long
        tiers = _CLOUD_FIRST if cloud_first else _LOCAL_FIRST
        return tuple(self._clients[tier] for tier in tiers if tier in self._clients)

    def complete(
        self, prompt: str, *, timeout_s: float | None = None, needs: calls.TierNeeds | None = None
    ) -> calls.LLMReply:
        """Answer a prompt in ``timeout_s`` seconds in all, or in those of the client if that is less.

        The reply lists what was tried in ``attempts``, and so does the ``AllModelsFailedError`` when no tier answers;
        without any time it is a ``DeadlineExceededError``.
        """
        return calls.result_of(self._pieces(prompt, timeout_s, needs or calls.NO_NEEDS, None))

    def stream(
        self, prompt: str, *, timeout_s: float | None = None, needs: calls.TierNeeds | None = None
    ) -> calls.ReplyStream:
        """Answer a prompt piece by piece; arguments and errors before the first piece as :meth:`complete`.

        The tier may change until the first piece was shown, never after it: then a failure is a ``StreamBrokenError``
        with what was shown.
        """
        return calls.ReplyStream(lambda canceller: self._pieces(prompt, timeout_s, needs or calls.NO_NEEDS, canceller))

    def astream(
        self, prompt: str, *, timeout_s: float | None = None, needs: calls.TierNeeds | None = None
    ) -> calls.AsyncReplyStream:
        """Return the twin of :meth:`stream` for ``async for``; the event loop is never blocked."""
        return calls.AsyncReplyStream(self.stream(prompt, timeout_s=timeout_s, needs=needs), self._streams)

    def costs(self, spent: Sequence[TierUsage]) -> CostReport:
        """Compare what was spent with what the cloud model alone would have cost for the same tokens."""
        prices = {client.model: client.endpoint.price for client in self._clients.values()}
        return cost_report(spent, prices, self._cloud_price)

    def health(self, timeout_s: float = 1.0) -> tuple[TierHealth, ...]:
        """Look whether each tier can be asked, all at once, in the order in which a simple question goes to them."""
        clients = self.order()
        ends = time.monotonic() + timeout_s
        caller = DeadlineCaller("looking at the models", max_calls=len(clients))
        started = [
            None if probe is None else caller.start(functools.partial(probe, timeout_s), 0.0)
            for probe in (client.endpoint.probe for client in clients)
        ]
        return tuple(_found(client, look, ends) for client, look in zip(clients, started, strict=True))

    def close(self) -> None:
        self._streams.close()
        for client in self._clients.values():
            client.close()

    def _pieces(
        self, prompt: str, timeout_s: float | None, needs: calls.TierNeeds, canceller: calls.Canceller | None
    ) -> Generator[str, None, calls.LLMReply]:
        attempts: list[Attempt] = []
        last: Exception | None = None
        for client, limit_s in self._turns(prompt, timeout_s, needs, attempts):
            trial = Trial(client, limit_s, canceller)
            try:
                reply = yield from client.answer(prompt, trial)
            except StreamBrokenError as err:
                # What a stream that broke off brought is paid for.
                counts = {"prompt_tokens": estimate_tokens(prompt), "answer_tokens": estimate_tokens(err.text)}
                attempts.append(trial.attempt(failure=calls.failure_kind(err), **counts))
                raise StreamBrokenError(str(err), err.text, attempts) from err.__cause__
            except calls.FAILURES as err:
                attempts.append(trial.attempt(failure=calls.failure_kind(err)))
                last = err
            else:
                attempts.append(trial.attempt(prompt_tokens=reply.prompt_tokens, answer_tokens=reply.completion_tokens))
                return replace(reply, attempts=tuple(attempts))
        tried = "; ".join(map(str, attempts))
        raise AllModelsFailedError(f"no model answered: {tried}; see agentic-retriever doctor", attempts) from last

    def _turns(
        self, prompt: str, timeout_s: float | None, needs: calls.TierNeeds, attempts: list[Attempt]
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


def _found(client: LLMClient, look: Future[str] | None, ends: float) -> TierHealth:
    try:
        wrong = "" if look is None else look.result(timeout=max(0.0, ends - time.monotonic()))
    except (TimeoutError, DeadlineExceededError):
        wrong = "no answer in time; check that its server runs"
    except Exception as err:  # noqa: BLE001 - a diagnosis reports whatever goes wrong
        wrong = f"{type(err).__name__} while looking; check its address"
    paused = "" if client.available else "; left alone for now since it failed several times in a row"
    detail = "a model that was passed in; not asked" if look is None else (wrong or "it can be asked") + paused
    return TierHealth(tier=client.tier, model=client.model, ok=None if look is None else not wrong, detail=detail)


def _passed_over(client: LLMClient, why: FailureKind) -> Attempt:
    return Attempt(tier=client.tier, model=client.model, failure=why)


# From the settings to the models, without a network call and with providers' own retries off.

# What ``openrouter`` without a model stands for, and what savings are compared with when there is no cloud tier.
DEFAULT_CLOUD_MODEL: Final = "openai/gpt-4o-mini"
_DEFAULTS: Final = {
    ("ollama", "llm"): "llama3:8b", ("ollama", "llm_small"): "qwen2.5:3b",
    ("openrouter", "llm"): DEFAULT_CLOUD_MODEL, ("openrouter", "llm_cloud"): DEFAULT_CLOUD_MODEL,
}  # fmt: skip
_TIERS: Final = {Tier.PRIMARY: "llm", Tier.CLOUD: "llm_cloud", Tier.SMALL: "llm_small"}
_ALLOWED: Final = (
    "none, ollama:MODEL (such as ollama:llama3:8b), openrouter:MODEL (such as openrouter:openai/gpt-4o-mini) or "
    "openai:MODEL (of the server at openai_base_url)"
)
_MAX_WAITING_PER_WORKER: Final = 4
_MAX_LISTING_BYTES: Final = 2_000_000


def build_client(config: RouterConfig, *, models: Mapping[Tier, LLM] | None = None) -> TieredClient | None:
    """Make the configured tiers behind one face.

    An ``openrouter`` model in ``llm`` is the cloud tier when ``llm_cloud`` names none. A cloud or small tier whose key
    is missing is left out with one warning. Construction loads no provider that is not asked for.

    Args:
        config: The settings of the ``llm`` group are read.
        models: LlamaIndex models that stand in for the tiers of the settings; switch their own retries off.

    Returns:
        The tiers, or ``None`` when there is none.

    Raises:
        ConfigError: If a setting names no known provider or no model, or the key for ``llm`` is missing.
    """
    table = PriceTable.load(config.prices_file)
    given = dict(models or {})
    clients = [_stand_in(config, tier, llm, table) for tier, llm in given.items()]
    for tier, setting in _TIERS.items():
        if tier in given:
            continue
        provider, model = _provider_and_model(config, setting)
        if provider == "none" or _lacks_key(config, provider, setting):
            continue
        if provider == "ollama":
            clients.append(_ollama(config, tier, model))
        else:
            alone = provider == "openrouter" and setting == "llm" and config.llm_cloud == "none"
            place = Tier.CLOUD if alone and Tier.CLOUD not in given else tier
            clients.append(_hosted(config, place, provider, model, table.price(model)))
    if not clients:
        return None
    return TieredClient(clients, timeout_s=config.llm_timeout_s, cloud_price=table.price(DEFAULT_CLOUD_MODEL))


def context_window(context_chars: int) -> int:
    """Size a model's context, in tokens, for so much source text: a multiple of 1,024 from 4,096 to 32,768."""
    tokens = context_chars * 3 // 8 + 2 * MAX_ANSWER_TOKENS  # of scripts with spaces; of dense ones fewer passages fit
    return min(32_768, max(4_096, -(-tokens // 1_024) * 1_024))


def _provider_and_model(config: RouterConfig, setting: str) -> tuple[str, str]:
    """Read a setting such as ``ollama:llama3:8b``; a provider alone stands for its usual model in that tier."""
    value: str = getattr(config, setting)
    provider, colon, named = value.strip().partition(":")
    provider = provider.strip().lower()
    model = named.strip() if colon else _DEFAULTS.get((provider, setting), "")
    if (provider in {"ollama", "openrouter", "openai"} and model) or (provider == "none" and not colon):
        return provider, model
    raise ConfigError(f"setting {setting} must be {_ALLOWED}, got {value[:80]!r}")


def _lacks_key(config: RouterConfig, provider: str, setting: str) -> bool:
    is_openai = provider == "openai" and config.openai_base_url == OPENAI_URL  # other servers may want none
    if not (is_openai or provider == "openrouter") or getattr(config, f"{provider}_api_key"):
        return False
    message = (
        f"setting {setting} is {getattr(config, setting)[:80]!r} but there is no key for it; set "
        f"{provider.upper()}_API_KEY, or set {setting} to none or ollama:MODEL"
    )
    if setting == "llm":
        raise ConfigError(message)
    logger.warning("%s; this tier is left out", message)
    return True


def _stand_in(config: RouterConfig, tier: Tier, llm: LLM, table: PriceTable) -> LLMClient:
    key = getattr(llm, "api_key", None)
    price = FREE if calls.is_ollama(llm) else table.price(calls.model_name(llm))
    return _client(config, tier, llm, price=price, secrets=(key,) if isinstance(key, str) and key else ())


def _ollama(config: RouterConfig, tier: Tier, model: str) -> LLMClient:
    from llama_index.llms.ollama import Ollama  # noqa: PLC0415 - only who uses it pays for its import
    from ollama import Client  # noqa: PLC0415

    url = config.ollama_base_url
    # No client follows a redirect, which could carry a prompt to another host.
    hooks = calls.event_hooks()
    client = Client(url, timeout=config.llm_timeout_s, verify=_tls(), event_hooks=hooks, follow_redirects=False)
    llm = Ollama(
        model=model,
        base_url=url,
        temperature=0.0,
        context_window=context_window(config.llm_context_chars),  # left unset, reading the metadata asks the server
        request_timeout=config.llm_timeout_s,
        additional_kwargs={"num_predict": MAX_ANSWER_TOKENS},
        client=client,
    )
    probe = functools.partial(_ollama_probe, url, model)
    return _client(config, tier, llm, price=FREE, probe=probe, on_close=client.close)


def _hosted(config: RouterConfig, tier: Tier, provider: str, model: str, price: Price | None) -> LLMClient:
    """Make a model of OpenRouter, or of any server that has the API of OpenAI."""
    import httpx  # noqa: PLC0415 - only who uses it pays for its import
    from llama_index.llms.openai_like import OpenAILike  # noqa: PLC0415
    from llama_index.llms.openrouter import OpenRouter  # noqa: PLC0415

    # Otherwise the first call loads this, which takes half a second of its own deadline.
    importlib.import_module("openai.resources.chat.completions")
    # At DEBUG this logger prints whole prompts.
    client_log = logging.getLogger("openai._base_client")
    if client_log.level == logging.NOTSET:
        client_log.setLevel(logging.INFO)
    http = httpx.Client(
        timeout=config.llm_timeout_s, follow_redirects=True, verify=_tls(), event_hooks=calls.event_hooks()
    )
    url: str = getattr(config, f"{provider}_base_url")
    key: str = getattr(config, f"{provider}_api_key").reveal()
    # Newer models of OpenAI itself refuse the limit's name that other servers know, and any temperature but 1.
    is_picky = url == OPENAI_URL and not model.startswith(("gpt-3", "gpt-4"))
    limit = {"max_completion_tokens": MAX_ANSWER_TOKENS} if is_picky else {"max_tokens": MAX_ANSWER_TOKENS}
    make: Callable[..., LLM] = OpenRouter if provider == "openrouter" else OpenAILike
    llm = make(
        model=model,
        api_key=key or "none",
        api_base=url,
        is_chat_model=True,
        temperature=1.0 if is_picky else 0.0,
        max_retries=0,
        timeout=config.llm_timeout_s,
        context_window=(price.context_tokens if price else None) or context_window(config.llm_context_chars),
        additional_kwargs={"stream_options": {"include_usage": True}, **limit},
        http_client=http,
    )
    probe = functools.partial(_hosted_probe, provider, url, key, model)
    return _client(config, tier, llm, price=price, secrets=(key,) if key else (), probe=probe, on_close=http.close)


@functools.lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    """Make the TLS settings once: reading the certificates takes 30 ms for each client otherwise."""
    import httpx  # noqa: PLC0415 - only who uses it pays for its import

    return httpx.create_ssl_context()


def _client(config: RouterConfig, tier: Tier, llm: LLM, **settings: Any) -> LLMClient:  # noqa: ANN401 - an Endpoint's
    waiting = _MAX_WAITING_PER_WORKER * config.workers
    endpoint = Endpoint(retry=RetryPolicy(), breaker=Breaker(), max_waiting=waiting, **settings)
    return LLMClient(llm, tier=tier, timeout_s=config.llm_timeout_s, max_calls=config.workers, endpoint=endpoint)


def _ollama_probe(base_url: str, model: str, timeout_s: float) -> str:
    """Say what is wrong with an Ollama server or whether it lacks a model (``GET /api/tags``); ``""`` if nothing is."""
    shown = shown_url(base_url)
    try:
        names = _listed(base_url, "/api/tags", "models", "name", timeout_s)
    except OSError:
        return f"no answer at {shown}; start it with: ollama serve"
    except (ValueError, TypeError, LookupError):
        return f"{shown} does not answer as Ollama does; check ollama_base_url"
    there = model in names or f"{model}:latest" in names
    return "" if there else f"{shown} does not have it; get it with: ollama pull {model}"


def _hosted_probe(provider: str, base_url: str, key: str, model: str, timeout_s: float) -> str:
    """Say the same of OpenRouter or a server with the API of OpenAI (``GET /models``)."""
    shown = shown_url(base_url)
    try:
        names = _listed(base_url, "/models", "data", "id", timeout_s, key)
    except urllib.error.HTTPError as err:
        return f"{shown} answers with HTTP {err.code}; check {provider}_base_url and the key, or wait"
    except OSError:
        return f"no answer at {shown}; check the network"
    except (ValueError, TypeError, LookupError):
        return f"{shown} lists no models; check {provider}_base_url"
    return "" if model in names else f"{shown} does not list it; check the model's name"


def _listed(base_url: str, path: str, key: str, name: str, timeout_s: float, secret: str = "") -> set[str]:
    """Ask a server for the names of its models; what it says otherwise is an error of some kind."""
    url = base_url.rstrip("/") + path
    if not url.startswith(("http://", "https://")):
        raise ValueError("not an HTTP address")
    request = urllib.request.Request(url)  # noqa: S310 - scheme checked above
    if secret:
        request.add_unredirected_header("Authorization", f"Bearer {secret}")
    with urllib.request.urlopen(request, timeout=timeout_s) as response:  # noqa: S310 - likewise
        return {str(entry[name]) for entry in json.loads(response.read(_MAX_LISTING_BYTES))[key]}
