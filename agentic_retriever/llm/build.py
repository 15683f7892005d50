"""From the settings of the ``llm`` group to the models, without a network call."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from agentic_retriever.breaker import Breaker
from agentic_retriever.errors import ConfigError
from agentic_retriever.llm import providers
from agentic_retriever.llm.client import LLMClient
from agentic_retriever.llm.endpoint import Endpoint
from agentic_retriever.llm.health import ollama_probe, openrouter_probe
from agentic_retriever.llm.prices import FREE, PriceTable
from agentic_retriever.llm.providers import MAX_ANSWER_TOKENS
from agentic_retriever.llm.reading import is_ollama, model_name
from agentic_retriever.llm.retry import RetryPolicy
from agentic_retriever.llm.tiers import TieredClient
from agentic_retriever.schema import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_index.core.llms import LLM

    from agentic_retriever.config import RouterConfig

log = logging.getLogger(__name__)

DEFAULT_CLOUD_MODEL = "openai/gpt-4o-mini"
"""What ``openrouter`` without a model stands for, and what savings are compared with when there is no cloud tier."""

_DEFAULTS = {
    ("ollama", "llm"): "llama3:8b",
    ("ollama", "llm_small"): "qwen2.5:3b",
    ("openrouter", "llm"): DEFAULT_CLOUD_MODEL,
    ("openrouter", "llm_cloud"): DEFAULT_CLOUD_MODEL,
}
_TIERS = {Tier.PRIMARY: "llm", Tier.CLOUD: "llm_cloud", Tier.SMALL: "llm_small"}
_ALLOWED = "none, ollama:MODEL (such as ollama:llama3:8b) or openrouter:MODEL (such as openrouter:openai/gpt-4o-mini)"
_MAX_WAITING_PER_WORKER = 4


def build_llm(config: RouterConfig) -> LLM | None:
    """Make the model that the setting ``llm`` names.

    Construction makes no network call and loads no provider that is not asked for. Providers' own retries are off.

    Args:
        config: The settings of the ``llm`` group are read.

    Returns:
        The model, or ``None`` for ``"none"``.

    Raises:
        ConfigError: If the setting names no known provider or no model, or the provider's key is missing.
    """
    provider, model = _named(config, "llm")
    if provider == "none":
        return None
    _check_key(config, provider, "llm")
    return _make(config, provider, model, PriceTable.load(config.prices_file)).llm


def build_client(config: RouterConfig, *, models: Mapping[Tier, LLM] | None = None) -> TieredClient | None:
    """Make the configured tiers behind one face.

    An ``openrouter`` model in ``llm`` is the cloud tier when ``llm_cloud`` names none. A cloud or small tier whose key
    is missing is left out with one warning.

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
        provider, model = _named(config, setting)
        if provider == "none" or _lacks_key(config, provider, setting):
            continue
        alone = setting == "llm" and provider == "openrouter" and Tier.CLOUD not in given and config.llm_cloud == "none"
        clients.append(_client(config, Tier.CLOUD if alone else tier, (provider, model), table))
    if not clients:
        return None
    return TieredClient(
        clients,
        timeout_s=config.llm_timeout_s,
        long_context_chars=config.llm_long_context_chars,
        cloud_price=table.price(DEFAULT_CLOUD_MODEL),
    )


def context_window(context_chars: int) -> int:
    """Size a model's context for a prompt with that much source text, question and answer.

    Three tokens for four characters hold for dense scripts such as Thai; English needs a third of that.

    Args:
        context_chars: Most source text in one prompt, in characters.

    Returns:
        Tokens: a multiple of 1,024 from 4,096 to 32,768, since a local server takes memory for all of it.
    """
    tokens = context_chars * 3 // 4 + 2 * MAX_ANSWER_TOKENS
    return min(32_768, max(4_096, -(-tokens // 1_024) * 1_024))


def _named(config: RouterConfig, setting: str) -> tuple[str, str]:
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


def _check_key(config: RouterConfig, provider: str, setting: str) -> None:
    if provider == "openrouter" and not config.openrouter_api_key:
        raise ConfigError(
            f"setting {setting} is {getattr(config, setting)[:80]!r} but there is no key for OpenRouter; set "
            f"OPENROUTER_API_KEY, or set {setting} to none or ollama:MODEL"
        )


def _lacks_key(config: RouterConfig, provider: str, setting: str) -> bool:
    try:
        _check_key(config, provider, setting)
    except ConfigError as err:
        if setting == "llm":
            raise
        log.warning("%s; this tier is left out", err)
        return True
    return False


def _make(config: RouterConfig, provider: str, model: str, table: PriceTable) -> providers.Built:
    window = context_window(config.llm_context_chars)
    if provider == "ollama":
        return providers.ollama(config, model, window)
    price = table.price(model)
    return providers.openrouter(config, model, (price.context_tokens if price else None) or window)


def _client(config: RouterConfig, tier: Tier, named: tuple[str, str], table: PriceTable) -> LLMClient:
    provider, model = named
    built = _make(config, provider, model, table)
    local = provider == "ollama"
    probe = (
        ollama_probe(config.ollama_base_url, model) if local else openrouter_probe(config.openrouter_base_url, model)
    )
    endpoint = Endpoint(
        retry=RetryPolicy(retries=config.llm_retries),
        breaker=_breaker(config),
        price=FREE if local else table.price(model),
        max_answer_tokens=MAX_ANSWER_TOKENS,
        max_waiting=_MAX_WAITING_PER_WORKER * config.llm_workers,
        secrets=() if local else (config.openrouter_api_key.reveal(),),
        probe=probe,
        on_close=built.close,
    )
    return _with_endpoint(config, tier, built.llm, endpoint)


def _stand_in(config: RouterConfig, tier: Tier, llm: LLM, table: PriceTable) -> LLMClient:
    key = getattr(llm, "api_key", None)
    endpoint = Endpoint(
        retry=RetryPolicy(retries=config.llm_retries),
        breaker=_breaker(config),
        price=FREE if is_ollama(llm) else table.price(model_name(llm)),
        max_answer_tokens=MAX_ANSWER_TOKENS,
        max_waiting=_MAX_WAITING_PER_WORKER * config.llm_workers,
        secrets=(key,) if isinstance(key, str) and key else (),
    )
    return _with_endpoint(config, tier, llm, endpoint)


def _breaker(config: RouterConfig) -> Breaker:
    return Breaker(failures=config.breaker_failures, cooldown_s=config.breaker_cooldown_s)


def _with_endpoint(config: RouterConfig, tier: Tier, llm: LLM, endpoint: Endpoint) -> LLMClient:
    return LLMClient(llm, tier=tier, timeout_s=config.llm_timeout_s, max_calls=config.llm_workers, endpoint=endpoint)
