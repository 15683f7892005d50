"""From a name in the settings to an embedding model, and back."""

import json
import urllib.request
from pathlib import Path
from typing import Final

from llama_index.core.base.embeddings.base import BaseEmbedding

from agentic_retriever.config import OPENAI_URL, RouterConfig
from agentic_retriever.embeddings.local import LOCAL_MODEL, LocalEmbedding
from agentic_retriever.embeddings.model import BATCH_SIZE, TIMEOUT_S
from agentic_retriever.errors import ConfigError

_LOCAL: Final = "local"
_ALLOWED: Final = "auto, local, local:FOLDER, ollama:MODEL or openai:MODEL"
_OLLAMA_PREFIX: Final = "ollama:"
_OPENAI_CLASS: Final = "OpenAIEmbedding"  # what indexes remember of it, and of such an object that was passed in
_AUTO_OLLAMA_MODEL: Final = "nomic-embed-text"


def embedding_name(base: BaseEmbedding) -> str:
    """Return the identity of an embedding object: what an index remembers of it."""
    if isinstance(base, LocalEmbedding):
        return f"{_LOCAL}:{base.model_name}"
    if type(base).__name__ == "OllamaEmbedding":
        return f"{_OLLAMA_PREFIX}{base.model_name}"
    return f"{type(base).__name__}:{base.model_name}"


def resolve_embedding(config: RouterConfig, *, remembered: str | None = None) -> BaseEmbedding:
    """Build the embedding that the settings name; no network but for ``auto`` without an index.

    ``remembered`` is the identity that the indexes of the data directory were built with, if there are any. A name that
    is none of ``auto``, ``local``, ``local:FOLDER``, ``ollama:MODEL`` and ``openai:MODEL`` raises ``ConfigError``.
    """
    name = config.embedding_model
    if name == "auto" and remembered:
        name = remembered
    elif name == "auto":
        there = any(model.split(":")[0] == _AUTO_OLLAMA_MODEL for model in ollama_models(config) or [])
        name = _OLLAMA_PREFIX + _AUTO_OLLAMA_MODEL if there else _LOCAL
    if name in (_LOCAL, f"{_LOCAL}:{LOCAL_MODEL}"):
        return LocalEmbedding()
    if config.embedding_model.startswith(f"{_LOCAL}:"):
        return LocalEmbedding(folder=Path(name.removeprefix(f"{_LOCAL}:")).expanduser())
    provider, _, model = name.partition(":")
    has_openai = bool(config.openai_api_key) or config.openai_base_url != OPENAI_URL
    makers = {"ollama": _ollama, "openai": _openai, _OPENAI_CLASS: _openai if has_openai else None}
    make = makers.get(provider)
    if make is not None and model:
        return make(config, model)
    if remembered == name:
        raise ConfigError(
            f"the indexes were built with the embedding {name!r}, which has no name in the settings; "
            "set embedding_model to local:FOLDER if it is in a folder, or pass that embedding object to the router"
        )
    raise ConfigError(f"setting embedding_model must be {_ALLOWED}, got {name!r}")


def _ollama(config: RouterConfig, model: str) -> BaseEmbedding:
    from llama_index.embeddings.ollama import OllamaEmbedding  # noqa: PLC0415 - heavy, and only needed when chosen

    limit = {"timeout": TIMEOUT_S}  # the client has none, so a hung server would keep its thread for ever
    url = config.ollama_base_url
    return OllamaEmbedding(model_name=model, base_url=url, embed_batch_size=BATCH_SIZE, client_kwargs=limit)


def _openai(config: RouterConfig, model: str) -> BaseEmbedding:
    from llama_index.embeddings.openai import OpenAIEmbedding  # noqa: PLC0415 - likewise

    key, url = config.openai_api_key.reveal(), config.openai_base_url
    if not key and url == OPENAI_URL:
        raise ConfigError(f"setting embedding_model is openai:{model} but there is no key for it; set OPENAI_API_KEY")
    key = key or "none"
    return OpenAIEmbedding(
        model_name=model, api_base=url, api_key=key, embed_batch_size=BATCH_SIZE, timeout=TIMEOUT_S, max_retries=1
    )


def ollama_models(config: RouterConfig, timeout_s: float = 0.5) -> list[str] | None:
    """Return the models that the Ollama server has, or ``None`` when it does not answer in time."""
    base = config.ollama_base_url
    if not base.startswith(("http://", "https://")):
        raise ConfigError(f"setting ollama_base_url must start with http:// or https://, got {base!r}")
    try:
        url = base.rstrip("/") + "/api/tags"
        with urllib.request.urlopen(url, timeout=timeout_s) as response:  # noqa: S310 - scheme checked above
            models = json.loads(response.read(1_000_000)).get("models", [])
            return [str(model.get("name", "")) for model in models if isinstance(model, dict)]
    except (OSError, ValueError, AttributeError):
        return None
