"""An embedding model whose questions were embedded beforehand."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import numpy.typing as npt


class KnownQueryEmbedding(BaseEmbedding):
    """Another embedding model, with the vectors of some questions at hand, so that it need not compute those.

    It passes for the model itself: ``embedding_name`` gives the name of that one.

    Args:
        base: The model.
        queries: Vector of each known question, ``(dimension,)``, by its text.
    """

    model_name: str = "known-queries"
    _base: BaseEmbedding = PrivateAttr()
    _queries: dict[str, npt.NDArray[np.float32]] = PrivateAttr()

    def __init__(self, base: BaseEmbedding, queries: Mapping[str, npt.NDArray[np.float32]]) -> None:
        super().__init__(model_name=base.model_name, embed_batch_size=base.embed_batch_size)
        self._base = base
        self._queries = dict(queries)

    @classmethod
    def class_name(cls) -> str:
        """Name for LlamaIndex's serialisation."""
        return "KnownQueryEmbedding"

    @property
    def base(self) -> BaseEmbedding:
        """The model behind it."""
        return self._base

    def _get_query_embedding(self, query: str) -> list[float]:
        known = self._queries.get(query)
        if known is None:
            return self._base.get_query_embedding(query)
        vector: list[float] = known.tolist()
        return vector

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._base.get_text_embedding(text)

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._base.get_text_embedding_batch(texts)
