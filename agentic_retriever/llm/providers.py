"""The two providers that settings can name, built without a network call and with their own retries off."""

from __future__ import annotations

import functools
import importlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentic_retriever.llm.watch import event_hooks

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from llama_index.core.llms import LLM

    from agentic_retriever.config import RouterConfig

MAX_ANSWER_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Built:
    """A model, and what frees its connections."""

    llm: LLM
    close: Callable[[], None]


@functools.lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    """Make the TLS settings once: reading the certificates takes 30 ms for each client otherwise."""
    import httpx  # noqa: PLC0415 - only who uses it pays for its import

    return httpx.create_ssl_context()


def ollama(config: RouterConfig, model: str, context_tokens: int) -> Built:
    """Make a model on the configured Ollama server."""
    from llama_index.llms.ollama import Ollama  # noqa: PLC0415 - only who uses it pays for its import
    from ollama import Client  # noqa: PLC0415

    client = Client(host=config.ollama_base_url, timeout=config.llm_timeout_s, verify=_tls(), event_hooks=event_hooks())
    llm = Ollama(
        model=model,
        base_url=config.ollama_base_url,
        temperature=0.0,
        # Left unset, reading the model's metadata asks the server.
        context_window=context_tokens,
        request_timeout=config.llm_timeout_s,
        additional_kwargs={"num_predict": MAX_ANSWER_TOKENS},
        client=client,
    )
    return Built(llm, client.close)


def openrouter(config: RouterConfig, model: str, context_tokens: int) -> Built:
    """Make a model at OpenRouter."""
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
    llm = OpenRouter(
        model=model,
        api_key=config.openrouter_api_key.reveal(),
        api_base=config.openrouter_base_url,
        temperature=0.0,
        max_tokens=MAX_ANSWER_TOKENS,
        max_retries=0,
        timeout=config.llm_timeout_s,
        context_window=context_tokens,
        additional_kwargs=options,
        http_client=http,
    )
    return Built(llm, http.close)
