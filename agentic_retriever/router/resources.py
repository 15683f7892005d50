"""What a router holds: settings, embedding model, open indexes and adapters; each made when first needed."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentic_retriever.cache import cache_key
from agentic_retriever.embeddings import (
    DiskVectorCache,
    EmbeddingModel,
    RedisVectorCache,
    embedding_name,
    resolve_embedding,
)
from agentic_retriever.errors import ConfigError, StoreError, UnknownIndexError, unknown_name
from agentic_retriever.indices import IndexStorage
from agentic_retriever.indices.attached import AttachedIndex
from agentic_retriever.redis_link import open_link
from agentic_retriever.retrievers import AdapterSettings, build_adapter
from agentic_retriever.router.attached import AttachedIndexes
from agentic_retriever.router.trained import TrainedFiles, TrainingStamps
from agentic_retriever.schema import Degradation
from agentic_retriever.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.base.embeddings.base import BaseEmbedding

    from agentic_retriever.config import RouterConfig
    from agentic_retriever.embeddings import VectorSource
    from agentic_retriever.indices import Index, RoutedIndex
    from agentic_retriever.llm import ModelClient
    from agentic_retriever.retrievers import RetrieverAdapter
    from agentic_retriever.router.trained import Trained
    from agentic_retriever.schema import Strategy

EMBEDDING_CACHE_FILE = "embeddings.sqlite"


@dataclass(frozen=True, slots=True)
class _AdapterKey:
    index: str
    strategy: Strategy


class Resources:
    """The long-lived parts of one router; safe to use from many threads.

    Args:
        config: The settings.
        embedding: A LlamaIndex embedding to use instead of the one that the settings name.
        packed: Vectors that came with the indexes' sources.
        model: The language model that strategies may ask, kept as an attribute.
    """

    def __init__(
        self,
        config: RouterConfig,
        *,
        embedding: BaseEmbedding | None = None,
        packed: Sequence[VectorSource] = (),
        model: ModelClient | None = None,
    ) -> None:
        self.config = config
        #: All settings in short, for cache keys; secrets as stars.
        self.config_key = cache_key(**config.to_dict())
        #: What changes with the training of an index.
        self.stamps = TrainingStamps()
        self.storage = IndexStorage.from_config(config)
        #: Indexes of LlamaIndex that were registered; they live in this router only.
        self.attached = AttachedIndexes()
        self._given = embedding
        self.model = model
        self._packed = tuple(packed)
        self._lock = threading.RLock()
        self._embedding: EmbeddingModel | None = None
        self._adapters: dict[_AdapterKey, RetrieverAdapter] = {}
        self._workers: Workers | None = None
        self._trained = TrainedFiles(self.stamps)
        #: The Redis server that answers and vectors are shared through, or ``None``.
        self.redis = open_link(config)

    def embedding(self) -> EmbeddingModel:
        """Return the embedding model, choosing it now if the settings leave that open.

        Raises:
            ConfigError: If the settings name no model that can be had.
        """
        with self._lock:
            if self._embedding is None:
                base = self._given or resolve_embedding(self.config, remembered=self._remembered())
                self._embedding = EmbeddingModel(
                    base,
                    name=embedding_name(base),
                    batch_size=self.config.embedding_batch_size,
                    timeout_s=self.config.embedding_timeout_s,
                    memory_size=self.config.embedding_cache_size,
                    memory_ttl_s=self.config.embedding_cache_ttl_s,
                    disk=DiskVectorCache(self.config.data_dir / EMBEDDING_CACHE_FILE),
                    packed=self._packed,
                    shared=None
                    if self.redis is None
                    else RedisVectorCache(self.redis, ttl_s=self.config.embedding_cache_ttl_s),
                )
            return self._embedding

    def names(self) -> list[str]:
        """Return the names of all indexes, stored and attached, in order."""
        attached = self.attached.names()
        return sorted({*self.storage.names(), *attached}) if attached else self.storage.names()

    def index(self, name: str) -> RoutedIndex:
        """Return an index, opening it with its first use.

        Raises:
            UnknownIndexError: If there is none of that name.
            StoreError: If it cannot be opened.
        """
        attached = self.attached.get(name)
        if attached is not None:
            return attached
        try:
            return self.stored(name)
        except UnknownIndexError as err:
            raise UnknownIndexError(unknown_name("index", str(name), self.names())) from err

    def stored(self, name: str) -> Index:
        """Return an index of the data directory, opening it with its first use.

        Raises:
            IndexingError: If it is an attached one, which is changed through LlamaIndex.
            UnknownIndexError: If there is none of that name.
            StoreError: If it cannot be opened.
        """
        self.attached.refuse(name)
        index = self.storage.opened(name)
        if index is not None:
            return index
        with self._lock:
            self.storage.manifest(name)  # an unknown or damaged index is named before the embedding model is looked for
            return self.storage.open(name, self.embedding())

    def usable(self) -> tuple[list[RoutedIndex], tuple[Degradation, ...]]:
        """Return the indexes that can be opened, in order of their names, and why the others cannot.

        Raises:
            StoreError: If there are indexes and none can be opened.
        """
        found: list[RoutedIndex] = []
        problems: dict[str, StoreError] = {}
        for name in self.names():
            index, problem = self._opened(name)
            if index is not None:
                found.append(index)
            elif problem is not None:
                problems[name] = problem
        if problems and not found:
            raise next(iter(problems.values()))
        lost = (
            Degradation(step=f"index.{name}", reason=str(problem), fallback="the other indexes")
            for name, problem in problems.items()
        )
        return found, tuple(lost)

    def compares(self, index: RoutedIndex) -> bool:
        """Tell whether an index's vectors are of the router's embedding model."""
        return not isinstance(index, AttachedIndex) or index.embedding is self.embedding()

    def adapter(self, index: RoutedIndex, strategy: Strategy) -> RetrieverAdapter:
        """Return the adapter of a strategy over an index, made once.

        Raises:
            UnknownStrategyError: If the strategy is not registered.
        """
        key = _AdapterKey(index.name, strategy)
        with self._lock:
            adapter = self._adapters.get(key)
            if adapter is None:
                settings = AdapterSettings.from_config(self.config, self.workers(), model=self.model)
                adapter = self._adapters[key] = build_adapter(strategy, index, settings)
            return adapter

    def workers(self) -> Workers:
        """Return the threads for searches side by side."""
        with self._lock:
            if self._workers is None:
                self._workers = Workers(self.config.workers, "agentic-retrieval")
            return self._workers

    def trained(self, index: RoutedIndex) -> Trained:
        """Return what benchmark and training left beside an index."""
        return self._trained.of(index)

    def forget(self, name: str) -> None:
        """Drop the adapters of an index that goes away."""
        with self._lock:
            for key in [key for key in self._adapters if key.index == name]:
                del self._adapters[key]

    def close(self) -> None:
        """Close every index and cache file; a later use opens them again."""
        with self._lock:
            self._adapters.clear()
            if self._workers is not None:
                self._workers.close(wait=False)
                self._workers = None
            self.storage.close()
            if self._embedding is not None:
                self._embedding.close()
            if self.redis is not None:
                self.redis.close()

    def _opened(self, name: str) -> tuple[RoutedIndex | None, StoreError | None]:
        try:
            return self.index(name), None
        except StoreError as err:
            return None, err

    def _remembered(self) -> str | None:
        known = self.storage.embeddings()
        if len(known) > 1 and self.config.embedding_model == "auto":
            raise ConfigError(
                f"the indexes in {self.config.data_dir} have different embedding models ({', '.join(known)}); "
                "set embedding_model to one of them, or keep them in separate data directories"
            )
        return known[0] if known else None
