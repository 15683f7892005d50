"""From the setting ``llm`` to a LlamaIndex model, without a network call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentic_retriever.errors import ConfigError
from agentic_retriever.llm.client import LLMClient
from agentic_retriever.schema import Tier

if TYPE_CHECKING:
    from llama_index.core.llms import LLM

    from agentic_retriever.config import RouterConfig

OPENROUTER_URL = "https://openrouter.ai/api/v1"
MAX_ANSWER_TOKENS = 1024

_ALLOWED = "none, ollama:MODEL (such as ollama:llama3:8b) or openrouter:MODEL (such as openrouter:openai/gpt-4o-mini)"


def build_llm(config: RouterConfig) -> LLM | None:
    """Make the model that writes answers.

    Construction makes no network call and loads no provider that is not asked for. Providers' own retries are off.

    Args:
        config: The settings ``llm``, ``llm_timeout_s``, ``llm_context_chars`` and those of the provider are read.

    Returns:
        The model, or ``None`` for ``"none"``.

    Raises:
        ConfigError: If the setting names no known provider or no model, or the provider's key is missing.
    """
    provider, _, model = config.llm.strip().partition(":")
    provider, model = provider.strip().lower(), model.strip()
    if provider == "none" and not model:
        return None
    if provider == "ollama" and model:
        return _ollama(config, model)
    if provider == "openrouter" and model:
        return _openrouter(config, model)
    raise ConfigError(f"setting llm must be {_ALLOWED}, got {config.llm[:80]!r}")


def build_client(config: RouterConfig) -> LLMClient | None:
    """Make the configured model and put it behind a total deadline; arguments and errors as :func:`build_llm`."""
    llm = build_llm(config)
    if llm is None:
        return None
    tier = Tier.CLOUD if config.llm.strip().lower().startswith("openrouter") else Tier.PRIMARY
    return LLMClient(llm, tier=tier, timeout_s=config.llm_timeout_s)


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


def _ollama(config: RouterConfig, model: str) -> LLM:
    from llama_index.llms.ollama import Ollama  # noqa: PLC0415 - only who uses it pays for its import

    return Ollama(
        model=model,
        base_url=config.ollama_base_url,
        temperature=0.0,
        # Left unset, reading the model's metadata asks the server.
        context_window=context_window(config.llm_context_chars),
        request_timeout=config.llm_timeout_s,
        additional_kwargs={"num_predict": MAX_ANSWER_TOKENS},
    )


def _openrouter(config: RouterConfig, model: str) -> LLM:
    if not config.openrouter_api_key:
        raise ConfigError(
            f"setting llm is {config.llm[:80]!r} but there is no key for OpenRouter; set OPENROUTER_API_KEY, "
            "or set llm to none or ollama:MODEL"
        )
    from llama_index.llms.openrouter import OpenRouter  # noqa: PLC0415 - only who uses it pays for its import

    return OpenRouter(
        model=model,
        api_key=config.openrouter_api_key.reveal(),
        api_base=OPENROUTER_URL,
        temperature=0.0,
        max_tokens=MAX_ANSWER_TOKENS,
        max_retries=0,
        timeout=config.llm_timeout_s,
        context_window=context_window(config.llm_context_chars),
    )
