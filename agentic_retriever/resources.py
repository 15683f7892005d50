"""What a router holds: settings, embedding model, open indexes and adapters; each made when first needed."""

from __future__ import annotations

import hashlib
import os
import threading
import time
import uuid
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from llama_index.core.response_synthesizers import BaseSynthesizer

from agentic_retriever.cache import cache_key
from agentic_retriever.embeddings import (
    DiskVectorCache,
    EmbeddingModel,
    embedding_name,
    resolve_embedding,
)
from agentic_retriever.embeddings.model import MEMORY_TTL_S
from agentic_retriever.errors import (
    ConfigError,
    IndexExistsError,
    IndexingError,
    StoreDamagedError,
    StoreError,
    UnknownIndexError,
    unknown_name,
)
from agentic_retriever.indices import IndexStorage, IngestReport
from agentic_retriever.indices.attached import attach_index, recognise
from agentic_retriever.indices.manifest import check_index_name
from agentic_retriever.indices.measured import MEASURED_FILE, MeasuredStrategies
from agentic_retriever.llm import build_client
from agentic_retriever.redis import RedisVectorCache, open_link
from agentic_retriever.retrievers import FUSION_FILE, AdapterSettings, build_adapter
from agentic_retriever.retrievers.fusion import Fusion
from agentic_retriever.routing import (
    AutoClassifier,
    AutoSelector,
    EmbeddingClassifier,
    HeuristicSelector,
    LLMClassifier,
    LLMSelector,
    ProfileClassifier,
    RoundRobinSelector,
    StrategySelector,
    fused_weights,
)
from agentic_retriever.schema import Degradation, Tier
from agentic_retriever.synthesis import ExtractiveSynthesizer, ForeignSynthesizer, LLMSynthesizer, Synthesizer
from agentic_retriever.synthesis.writing import ForeignModel
from agentic_retriever.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.llms import LLM
    from llama_index.core.postprocessor.types import BaseNodePostprocessor

    from agentic_retriever.config import RouterConfig
    from agentic_retriever.embeddings import VectorSource
    from agentic_retriever.embeddings.model import Matrix
    from agentic_retriever.indices import Index, Progress, StoredIndex
    from agentic_retriever.llm import ModelClient, TieredClient
    from agentic_retriever.retrievers import RetrieverAdapter
    from agentic_retriever.routing import IndexClassifier
    from agentic_retriever.schema import Strategy


# What training left beside an index: its measured strategies, and what changes when it is trained anew.

Stamp = list[tuple[int, int]]
"""When each of the files was last changed, in nanoseconds, and its size in bytes; zeros for one that is not there."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What is known of the strategies on one index."""

    measured: MeasuredStrategies | None = None  # Quality and latency by strategy, or None
    degraded: tuple[Degradation, ...] = ()


_UNTRAINED = Trained()
_SETTLED_NS = 2_000_000_000
_MISSING = (0, 0)


class TrainedFiles:
    """Reads the files beside each index again when they have changed; safe to use from several threads."""

    def __init__(self, stamps: TrainingStamps) -> None:
        self._stamps = stamps
        self._lock = threading.Lock()
        self._known: dict[str, tuple[Stamp, Trained]] = {}

    def of(self, index: Index) -> Trained:
        """Return what is known of an index; a file that cannot be read counts as missing and is told."""
        folder, changed = _folder_of(index), self._stamps.of(index)
        if folder is None or not any(map(any, changed)):
            return _UNTRAINED
        with self._lock:
            known = self._known.get(index.name)
            if known is None or known[0] != changed:
                known = self._known[index.name] = changed, _loaded(folder)
            return known[1]


class TrainingStamps:
    """Tells what changes whenever training changes how an index is searched; safe to use from several threads.

    Files that were not there are looked for only when their folder has changed, as it does whenever a file comes or
    goes; those that were there always, as they may also be written over in place.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, tuple[str, ...]]] = {}

    def of(self, index: Index) -> Stamp:
        """Return the stamp of an index; of one without a folder, nothing."""
        where = _folder_of(index)
        if where is None:
            return []
        folder = str(where)
        changed = _changed(folder)[0]
        known = self._known.get(folder)
        if known is not None and known[0] == changed:
            return [_changed(path) if path else _MISSING for path in known[1]]
        paths = _paths(folder)
        stamp = [_changed(path) for path in paths]
        # A folder that changed a moment ago may change again within the clock's resolution.
        if time.time_ns() - changed > _SETTLED_NS:
            there = (path if seen is not _MISSING else "" for path, seen in zip(paths, stamp, strict=True))
            self._known[folder] = changed, tuple(there)
        return stamp


def _folder_of(index: Index) -> Path | None:
    return index.folder


@lru_cache(1_024)
def _paths(folder: str) -> tuple[str, str]:
    # As texts, made once: every query asks for them, and joining paths costs more than asking the file system.
    return str(Path(folder) / MEASURED_FILE), str(Path(folder) / FUSION_FILE)


def _loaded(folder: Path) -> Trained:
    try:
        return Trained(MeasuredStrategies.load(folder))
    except StoreDamagedError as err:
        lost = Degradation(step="stage_two.measured", reason=str(err), fallback="the signals alone")
        return Trained(degraded=(lost,))


def _changed(path: str) -> tuple[int, int]:
    """When a file was last changed, in nanoseconds, and its size; ``_MISSING`` when it is not there."""
    try:
        found = os.stat(path)  # noqa: PTH116 - see _paths
    except OSError:
        return _MISSING
    return found.st_mtime_ns, found.st_size


# The LlamaIndex indexes, query engines and retrievers that were registered with a router.


class AttachedIndexes:
    """The attached indexes of one router, by name; safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, Index] = {}

    def names(self) -> list[str]:
        """Return their names."""
        return list(self._known)

    def get(self, name: str) -> Index | None:
        """Return one, or ``None``."""
        return self._known.get(name)

    def add(self, index: Index) -> None:
        """Add one."""
        with self._lock:
            if index.name in self._known:
                raise _taken(index.name)
            self._known[index.name] = index

    def remove(self, name: str) -> bool:
        """Let go of one, and tell whether there was one."""
        with self._lock:
            return self._known.pop(name, None) is not None

    def catch_up(self, name: str | None, timeout_s: float) -> tuple[Degradation, ...]:
        """Take notice of changes."""
        end, late = time.monotonic() + timeout_s, []
        for index in list(self._known.values()):
            if name in {None, index.name}:
                reason = index.catch_up(end - time.monotonic())
                if reason is not None:
                    fallback = "its nodes as they were read last"
                    late.append(Degradation(step=f"index.{index.name}", reason=reason, fallback=fallback))
        return tuple(late)

    def refuse(self, name: str) -> None:
        """See that a name is not that of an attached index."""
        if name in self._known:
            raise IndexingError(
                f"index {name!r} is an attached LlamaIndex index: change it through LlamaIndex; it has no files, "
                "documents or views of its own"
            )


def attach(
    resources: Resources, name: str, given: object, *, description: str, progress: Progress | None
) -> IngestReport:
    """Attach an index to a router."""
    name = check_index_name(name)
    if name in resources.names():
        raise _taken(name)
    if _asks_itself(resources, given):
        raise IndexingError(f"index {name!r}: a {type(given).__name__} of this router would ask itself without end")
    made = attach_index(
        name,
        recognise(name, given),
        description=description,
        created=uuid.uuid4().hex,
        router=resources.embedding(),
        wrap=_model,
        progress=progress,
    )
    resources.attached.add(made)
    return IngestReport(added=len(made.doc_ids()), nodes=made.count() if made.doc_ids() else 0)


def _asks_itself(resources: Resources, given: object) -> bool:
    """Tell whether an object, or the retriever in it, is this router in LlamaIndex's clothes."""
    asked = (given, getattr(given, "_retriever", None))
    return any(getattr(getattr(one, "_router", None), "resources", None) is resources for one in asked)


def _model(base: BaseEmbedding) -> EmbeddingModel:
    """Wrap the embedding of an attached index; what it makes is kept in memory only."""
    return EmbeddingModel(
        base,
        name=embedding_name(base),
    )


def _taken(name: str) -> IndexExistsError:
    return IndexExistsError(f"index {name!r} exists already; take another name, or remove_index({name!r}) first")


EMBEDDING_CACHE_FILE = "embeddings.sqlite"


@dataclass(frozen=True, slots=True)
class _AdapterKey:
    index: str
    strategy: Strategy


class Resources:
    """The long-lived parts of one router; safe to use from many threads."""

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
        """Return the embedding model, choosing it now if the settings leave that open."""
        with self._lock:
            if self._embedding is None:
                base = self._given or resolve_embedding(self.config, remembered=self._remembered())
                self._embedding = EmbeddingModel(
                    base,
                    name=embedding_name(base),
                    disk=DiskVectorCache(self.config.data_dir / EMBEDDING_CACHE_FILE),
                    packed=self._packed,
                    shared=None if self.redis is None else RedisVectorCache(self.redis, ttl_s=MEMORY_TTL_S),
                )
            return self._embedding

    def names(self) -> list[str]:
        """Return the names of all indexes, stored and attached, in order."""
        attached = self.attached.names()
        return sorted({*self.storage.names(), *attached}) if attached else self.storage.names()

    def index(self, name: str) -> Index:
        """Return an index, opening it with its first use."""
        attached = self.attached.get(name)
        if attached is not None:
            return attached
        try:
            return self.stored(name)
        except UnknownIndexError as err:
            raise UnknownIndexError(unknown_name("index", str(name), self.names())) from err

    def stored(self, name: str) -> StoredIndex:
        """Return an index of the data directory, opening it with its first use."""
        self.attached.refuse(name)
        index = self.storage.opened(name)
        if index is not None:
            return index
        with self._lock:
            self.storage.manifest(name)  # an unknown or damaged index is named before the embedding model is looked for
            return self.storage.open(name, self.embedding())

    def usable(self) -> tuple[list[Index], tuple[Degradation, ...]]:
        """Return the indexes that can be opened, in order of their names, and why the others cannot."""
        found: list[Index] = []
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

    def compares(self, index: Index) -> bool:
        """Tell whether an index's vectors are of the router's embedding model."""
        return not index.is_attached or index.embedding is self.embedding()

    def adapter(self, index: Index, strategy: Strategy) -> RetrieverAdapter:
        """Return the adapter of a strategy over an index, made once."""
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

    def trained(self, index: Index) -> Trained:
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

    def _opened(self, name: str) -> tuple[Index | None, StoreError | None]:
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


# From the names in the settings to the parts of a router.

_NEEDS_MODEL = "{setting} is {value}, which needs a model; set llm to ollama:MODEL or openrouter:MODEL, or take auto"

INDEX_MARGIN: Final = 0.4
"""Two indexes are searched when their probabilities differ by less; docs/routing.md has what other margins gave."""


def make_classifier(config: RouterConfig, client: ModelClient | None) -> IndexClassifier:
    """Return stage one."""
    kind = EmbeddingClassifier if config.classifier == "embedding" else ProfileClassifier
    profile = kind(INDEX_MARGIN)
    if config.classifier in {"embedding", "profile"}:
        return profile
    model = None if client is None else LLMClassifier(client, profile, index_margin=INDEX_MARGIN)
    if config.classifier == "auto":
        return AutoClassifier(profile, model)
    if model is None:
        raise ConfigError(_NEEDS_MODEL.format(setting="classifier", value=config.classifier))
    return model


def make_selector(config: RouterConfig, client: ModelClient | None) -> StrategySelector:
    """Return stage two."""
    kind = config.selector
    if kind == "round_robin":
        return RoundRobinSelector()
    heuristic = heuristic_selector(config)
    if kind == "heuristic":
        return heuristic
    if kind == "auto":
        model = None if client is None else LLMSelector(client, heuristic)
        return AutoSelector(heuristic, model)
    if client is None:
        raise ConfigError(_NEEDS_MODEL.format(setting="selector", value=kind))
    return LLMSelector(client, heuristic, form="word" if kind == "llm_word" else "structured")


def heuristic_selector(config: RouterConfig) -> HeuristicSelector:
    """Return what decides where no language model does.

    Unless the settings ask for the wording alone (``selector=heuristic``), it starts from ``hybrid`` where that is
    calibrated, since it was then better than dense search on every public collection that was tried.
    """
    measured = config.selector != "heuristic" and config.fusion == Fusion.CALIBRATED.value
    return HeuristicSelector(fused_weights() if measured else None)


def make_client(config: RouterConfig, llm: LLM | None) -> TieredClient | None:
    """Return the models that write answers: the given one and the configured ones, or none."""
    if llm is not None and not hasattr(llm, "complete"):
        raise ConfigError(
            f"llm must be a LlamaIndex LLM, got {type(llm).__name__}; name a model by the setting llm, "
            "as in RouterConfig(llm='ollama:llama3:8b')"
        )
    return build_client(config, models=None if llm is None else {Tier.PRIMARY: llm})


def make_synthesizer(
    resources: Resources, client: ModelClient | None, given: Synthesizer | BaseSynthesizer | None = None
) -> Synthesizer:
    """Return what writes answers: the given one, else the model where there is one, else extraction."""
    if given is not None and not isinstance(given, BaseSynthesizer):
        if callable(getattr(given, "synthesize", None)) and callable(getattr(given, "stream", None)):
            return given
        raise ConfigError(
            f"synthesizer must be a Synthesizer or a LlamaIndex response synthesizer, got {type(given).__name__}"
        )
    config = resources.config
    model: LLMSynthesizer | ForeignSynthesizer | None = None
    if given is not None:
        model = ForeignSynthesizer(given, unsupported=config.unsupported_sentences)
    elif client is not None:
        model = LLMSynthesizer(client, unsupported=config.unsupported_sentences)
    return Synthesizer(_make_extractive(resources), model, answer_threshold=config.answer_threshold)


def _make_extractive(resources: Resources) -> ExtractiveSynthesizer:
    """Return what writes answers without a model."""
    config = resources.config

    def embed(sentences: list[str]) -> Matrix:
        return resources.embedding().embed_sentences(sentences)

    return ExtractiveSynthesizer(embed=embed if config.answer_rescoring else None)


def writers_key(client: ModelClient | None, given: object, postprocessors: Sequence[BaseNodePostprocessor]) -> str:
    """Name what answers depend on besides settings and indexes, for the key of the answer cache.

    What somebody brought along is told apart by a digest of its settings, so that routers which share a cache do not
    get each other's answers; where the settings have no stable form they share nothing.
    """
    names = ["none" if client is None else repr(client)]
    if isinstance(given, BaseSynthesizer):
        names.append(f"{ForeignModel(given).model} {_digest(given.get_prompts())}")
    elif given is not None:
        names.append(f"{type(given).__name__} {_digest(vars(given) if hasattr(given, '__dict__') else given)}")
    names.extend(f"{type(one).__name__} {_digest(_settings(one))}" for one in postprocessors)
    return ", ".join(names)


def _settings(postprocessor: BaseNodePostprocessor) -> dict[str, object]:
    return {name: value for name, value in postprocessor if name != "callback_manager"}


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode("utf-8", "replace")).hexdigest()[:16]
