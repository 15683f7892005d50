"""From a name in the settings to an embedding model."""

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING

from agentic_retriever.embeddings.known import KnownQueryEmbedding
from agentic_retriever.embeddings.local import LOCAL_MODEL, LocalE5Embedding
from agentic_retriever.errors import ConfigError

if TYPE_CHECKING:
    from llama_index.core.base.embeddings.base import BaseEmbedding

    from agentic_retriever.config import RouterConfig

AUTO = "auto"
LOCAL = "local"
OLLAMA_PREFIX = "ollama:"
AUTO_OLLAMA_MODEL = "nomic-embed-text"
_PROBE_TIMEOUT_S = 0.5


def embedding_name(base: BaseEmbedding) -> str:
    """Return the identity of an embedding object: what an index remembers of it."""
    if isinstance(base, KnownQueryEmbedding):
        return embedding_name(base.base)
    if isinstance(base, LocalE5Embedding):
        return f"{LOCAL}:{LOCAL_MODEL}"
    if type(base).__name__ == "OllamaEmbedding":
        return f"{OLLAMA_PREFIX}{base.model_name}"
    return f"{type(base).__name__}:{base.model_name}"


def resolve_embedding(config: RouterConfig, *, remembered: str | None = None) -> BaseEmbedding:
    """Build the embedding that the settings name; no network but for ``auto`` without an index.

    Args:
        config: The settings.
        remembered: Identity that the indexes of the data directory were built with, if there are any.

    Returns:
        A LlamaIndex embedding.

    Raises:
        ConfigError: If the name is none of ``auto``, ``local``, ``ollama:MODEL``.
    """
    name = config.embedding_model
    if name == AUTO:
        name = remembered or (OLLAMA_PREFIX + AUTO_OLLAMA_MODEL if ollama_has(config, AUTO_OLLAMA_MODEL) else LOCAL)
    if name in (LOCAL, f"{LOCAL}:{LOCAL_MODEL}"):
        return LocalE5Embedding()
    if name.startswith(OLLAMA_PREFIX) and len(name) > len(OLLAMA_PREFIX):
        return _ollama(name[len(OLLAMA_PREFIX) :], config)
    if remembered == name:
        raise ConfigError(
            f"the indexes were built with the embedding {name!r}, which has no name in the settings; "
            "pass that embedding object to the router"
        )
    raise ConfigError(f"setting embedding_model must be auto, local or ollama:MODEL, got {name!r}")


def ollama_models(config: RouterConfig, timeout_s: float = _PROBE_TIMEOUT_S) -> list[str] | None:
    """Return the models that the Ollama server has, or ``None`` when it does not answer in time."""
    url = config.ollama_base_url.rstrip("/") + "/api/tags"
    if not url.startswith(("http://", "https://")):
        raise ConfigError(
            f"setting ollama_base_url must start with http:// or https://, got {config.ollama_base_url!r}"
        )
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as response:  # noqa: S310 - scheme checked above
            models = json.loads(response.read(1_000_000)).get("models", [])
            return [str(model.get("name", "")) for model in models if isinstance(model, dict)]
    except (OSError, ValueError, AttributeError):
        return None


def ollama_has(config: RouterConfig, model: str) -> bool:
    """Tell whether the Ollama server answers and has a model, with or without its tag."""
    return any(name == model or name.split(":")[0] == model for name in ollama_models(config) or [])


def _ollama(model: str, config: RouterConfig) -> BaseEmbedding:
    from llama_index.embeddings.ollama import OllamaEmbedding  # noqa: PLC0415 - heavy, and only needed when chosen

    # The client has no time limit of its own, so a hung server would keep its thread for ever.
    return OllamaEmbedding(
        model_name=model,
        base_url=config.ollama_base_url,
        embed_batch_size=config.embedding_batch_size,
        client_kwargs={"timeout": config.embedding_timeout_s},
    )
