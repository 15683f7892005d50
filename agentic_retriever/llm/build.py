"""From the settings of the ``llm`` group to the models, without a network call and with providers' own retries off."""

from __future__ import annotations

import functools
import importlib
import json
import logging
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Final

from agentic_retriever.errors import ConfigError
from agentic_retriever.llm.calls import event_hooks, is_ollama, model_name
from agentic_retriever.llm.client import Endpoint, LLMClient, RetryPolicy
from agentic_retriever.llm.prices import FREE, Price, PriceTable
from agentic_retriever.llm.tiers import TieredClient
from agentic_retriever.schema import Tier
from agentic_retriever.threads import Breaker

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

    from llama_index.core.llms import LLM

    from agentic_retriever.config import RouterConfig

logger = logging.getLogger(__name__)

DEFAULT_CLOUD_MODEL: Final = "openai/gpt-4o-mini"
"""What ``openrouter`` without a model stands for, and what savings are compared with when there is no cloud tier."""

MAX_ANSWER_TOKENS: Final = 1024

_DEFAULTS: Final = {
    ("ollama", "llm"): "llama3:8b",
    ("ollama", "llm_small"): "qwen2.5:3b",
    ("openrouter", "llm"): DEFAULT_CLOUD_MODEL,
    ("openrouter", "llm_cloud"): DEFAULT_CLOUD_MODEL,
}
_TIERS: Final = {Tier.PRIMARY: "llm", Tier.CLOUD: "llm_cloud", Tier.SMALL: "llm_small"}
_ALLOWED: Final = (
    "none, ollama:MODEL (such as ollama:llama3:8b) or openrouter:MODEL (such as openrouter:openai/gpt-4o-mini)"
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
        if provider == "none" or (provider == "openrouter" and _lacks_key(config, setting)):
            continue
        if provider == "ollama":
            clients.append(_ollama(config, tier, model))
        else:
            alone = setting == "llm" and Tier.CLOUD not in given and config.llm_cloud == "none"
            clients.append(_openrouter(config, Tier.CLOUD if alone else tier, model, table.price(model)))
    if not clients:
        return None
    return TieredClient(
        clients,
        timeout_s=config.llm_timeout_s,
        cloud_price=table.price(DEFAULT_CLOUD_MODEL),
    )


def context_window(context_chars: int) -> int:
    """Size a model's context, in tokens, for a prompt with that much source text, question and answer.

    Three tokens for four characters hold for dense scripts such as Thai; English needs a third of that. A multiple of
    1,024 from 4,096 to 32,768, since a local server takes memory for all of it.
    """
    tokens = context_chars * 3 // 4 + 2 * MAX_ANSWER_TOKENS
    return min(32_768, max(4_096, -(-tokens // 1_024) * 1_024))


def _provider_and_model(config: RouterConfig, setting: str) -> tuple[str, str]:
    """Read a setting such as ``ollama:llama3:8b``; a provider alone stands for its usual model in that tier."""
    value: str = getattr(config, setting)
    provider, colon, model = value.strip().partition(":")
    provider, model = provider.strip().lower(), model.strip()
    if not colon:
        model = _DEFAULTS.get((provider, setting), "")
    if provider == "none" and not colon:
        return provider, ""
    if provider in {"ollama", "openrouter"} and model:
        return provider, model
    raise ConfigError(f"setting {setting} must be {_ALLOWED}, got {value[:80]!r}")


def _lacks_key(config: RouterConfig, setting: str) -> bool:
    if config.openrouter_api_key:
        return False
    message = (
        f"setting {setting} is {getattr(config, setting)[:80]!r} but there is no key for OpenRouter; set "
        f"OPENROUTER_API_KEY, or set {setting} to none or ollama:MODEL"
    )
    if setting == "llm":
        raise ConfigError(message)
    logger.warning("%s; this tier is left out", message)
    return True


def _stand_in(config: RouterConfig, tier: Tier, llm: LLM, table: PriceTable) -> LLMClient:
    key = getattr(llm, "api_key", None)
    price = FREE if is_ollama(llm) else table.price(model_name(llm))
    return _client(config, tier, llm, price, secrets=(key,) if isinstance(key, str) and key else ())


def _ollama(config: RouterConfig, tier: Tier, model: str) -> LLMClient:
    from llama_index.llms.ollama import Ollama  # noqa: PLC0415 - only who uses it pays for its import
    from ollama import Client  # noqa: PLC0415

    client = Client(host=config.ollama_base_url, timeout=config.llm_timeout_s, verify=_tls(), event_hooks=event_hooks())
    llm = Ollama(
        model=model,
        base_url=config.ollama_base_url,
        temperature=0.0,
        # Left unset, reading the model's metadata asks the server.
        context_window=context_window(config.llm_context_chars),
        request_timeout=config.llm_timeout_s,
        additional_kwargs={"num_predict": MAX_ANSWER_TOKENS},
        client=client,
    )
    probe = _ollama_probe(config.ollama_base_url, model)
    return _client(config, tier, llm, FREE, probe=probe, on_close=client.close)


def _openrouter(config: RouterConfig, tier: Tier, model: str, price: Price | None) -> LLMClient:
    import httpx  # noqa: PLC0415 - only who uses it pays for its import
    from llama_index.llms.openrouter import OpenRouter  # noqa: PLC0415

    # Otherwise the first call loads this, which takes half a second of its own deadline.
    importlib.import_module("openai.resources.chat.completions")
    # At DEBUG this logger prints whole prompts.
    client_log = logging.getLogger("openai._base_client")
    if client_log.level == logging.NOTSET:
        client_log.setLevel(logging.INFO)
    http = httpx.Client(timeout=config.llm_timeout_s, follow_redirects=True, verify=_tls(), event_hooks=event_hooks())
    options: dict[str, Any] = {"stream_options": {"include_usage": True}}
    key = config.openrouter_api_key.reveal()
    llm = OpenRouter(
        model=model,
        api_key=key,
        api_base=config.openrouter_base_url,
        temperature=0.0,
        max_tokens=MAX_ANSWER_TOKENS,
        max_retries=0,
        timeout=config.llm_timeout_s,
        context_window=(price.context_tokens if price else None) or context_window(config.llm_context_chars),
        additional_kwargs=options,
        http_client=http,
    )
    probe = _openrouter_probe(config.openrouter_base_url, model)
    return _client(config, tier, llm, price, secrets=(key,), probe=probe, on_close=http.close)


@functools.lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    """Make the TLS settings once: reading the certificates takes 30 ms for each client otherwise."""
    import httpx  # noqa: PLC0415 - only who uses it pays for its import

    return httpx.create_ssl_context()


def _client(
    config: RouterConfig,
    tier: Tier,
    llm: LLM,
    price: Price | None,
    *,
    secrets: tuple[str, ...] = (),
    probe: Callable[[float], str] | None = None,
    on_close: Callable[[], None] | None = None,
) -> LLMClient:
    endpoint = Endpoint(
        retry=RetryPolicy(),
        breaker=Breaker(),
        price=price,
        max_answer_tokens=MAX_ANSWER_TOKENS,
        max_waiting=_MAX_WAITING_PER_WORKER * config.workers,
        secrets=secrets,
        probe=probe,
        on_close=on_close,
    )
    return LLMClient(llm, tier=tier, timeout_s=config.llm_timeout_s, max_calls=config.workers, endpoint=endpoint)


def _ollama_probe(base_url: str, model: str) -> Callable[[float], str]:
    """Return what looks whether an Ollama server runs and has a model (``GET /api/tags``)."""

    def probe(timeout_s: float) -> str:
        try:
            names = {str(entry["name"]) for entry in _listing(base_url, "/api/tags", timeout_s)["models"]}
        except OSError:
            return f"no answer at {base_url}; start it with: ollama serve"
        except (ValueError, TypeError, LookupError):
            return f"{base_url} does not answer as Ollama does; check ollama_base_url"
        if model in names or f"{model}:latest" in names:
            return ""
        return f"{base_url} does not have it; get it with: ollama pull {model}"

    return probe


def _openrouter_probe(base_url: str, model: str) -> Callable[[float], str]:
    """Return what looks whether OpenRouter answers and lists a model (``GET /models``, which takes no key)."""

    def probe(timeout_s: float) -> str:
        try:
            names = {str(entry["id"]) for entry in _listing(base_url, "/models", timeout_s)["data"]}
        except urllib.error.HTTPError as err:
            return f"{base_url} answers with HTTP {err.code}; check openrouter_base_url, or wait"
        except OSError:
            return f"no answer at {base_url}; check the network"
        except (ValueError, TypeError, LookupError):
            return f"{base_url} does not answer as OpenRouter does; check openrouter_base_url"
        return "" if model in names else f"{base_url} does not list it; check the model's name"

    return probe


def _listing(base_url: str, path: str, timeout_s: float) -> Any:  # noqa: ANN401 - whatever the server says
    url = base_url.rstrip("/") + path
    if not url.startswith(("http://", "https://")):
        message = "not an HTTP address"
        raise ValueError(message)
    with urllib.request.urlopen(url, timeout=timeout_s) as response:  # noqa: S310 - scheme checked above
        return json.loads(response.read(_MAX_LISTING_BYTES))
