"""What a router holds: settings, embedding model, open indexes and adapters; each made when first needed."""

import hashlib
import logging
import math
import re
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.response_synthesizers import BaseSynthesizer

from agentic_retriever import embeddings, errors, retrievers, routing
from agentic_retriever.cache import cache_key
from agentic_retriever.config import RouterConfig
from agentic_retriever.embeddings import EmbeddingModel, VectorSource, embedding_name, resolve_embedding
from agentic_retriever.embeddings.model import MEMORY_TTL_S, Vector, embedding_time_s
from agentic_retriever.indices import Index, IndexStorage, IngestReport, Progress, StoredIndex
from agentic_retriever.indices.attached.index import attach_index
from agentic_retriever.indices.attached.sources import recognise
from agentic_retriever.indices.profile import MEASURED_FILE, MeasuredStrategies
from agentic_retriever.indices.stored_nodes import check_index_name
from agentic_retriever.ingestion.chunking import LEAF_SIZE, ChunkSettings
from agentic_retriever.json_files import is_finite, last_change
from agentic_retriever.llm import ModelClient, build_client
from agentic_retriever.redis import RedisVectorCache, open_link
from agentic_retriever.schema import Degradation, Strategy, Tier, View, strategy_named
from agentic_retriever.synthesis import ExtractiveSynthesizer, ForeignSynthesizer, LLMSynthesizer, Synthesizer
from agentic_retriever.synthesis.evidence import unrelated_questions
from agentic_retriever.synthesis.synthesizer import ForeignModel
from agentic_retriever.text import detect_language
from agentic_retriever.threads import Workers

logger = logging.getLogger(__name__)

EMBEDDING_CACHE_FILE: Final = "embeddings.sqlite"


# What training left beside each index, read again when it has changed.


def training_stamp(index: Index) -> tuple[tuple[int, int], ...]:
    """Return what changes whenever training changes how an index is searched; of one without a folder, nothing."""
    names = () if index.folder is None else (MEASURED_FILE, retrievers.FUSION_FILE)
    # As texts, since every query asks for them, and joining paths costs more than asking the file system.
    return tuple(last_change(f"{index.folder}/{name}") for name in names)


def measured(index: Index) -> tuple[MeasuredStrategies | None, tuple[Degradation, ...]]:
    """Return what a benchmark measured on an index; a file that cannot be read counts as missing and is told."""
    stamp = training_stamp(index)
    return _measured(index.folder, stamp) if index.folder is not None and any(map(any, stamp)) else (None, ())


@lru_cache(256)
def _measured(folder: Path, _stamp: object) -> tuple[MeasuredStrategies | None, tuple[Degradation, ...]]:
    try:
        return MeasuredStrategies.load(folder), ()
    except errors.StoreDamagedError as err:
        return None, (Degradation(step="stage_two.measured", reason=str(err), fallback="the signals alone"),)


class AttachedIndexes(dict[str, Index]):
    """The LlamaIndex indexes, query engines and retrievers of one router, by name; safe to use from many threads."""

    def catch_up(self, names: Collection[str] | None, timeout_s: float) -> tuple[Degradation, ...]:
        """Take notice of changes of some indexes or of all, within a time."""
        end, late = time.monotonic() + timeout_s, []
        for index in list(self.values()):
            if names is None or index.name in names:
                reason = index.catch_up(end - time.monotonic())
                if reason is not None:
                    fallback = "its nodes as they were read last"
                    late.append(Degradation(step=f"index.{index.name}", reason=reason, fallback=fallback))
        return tuple(late)

    def refuse(self, name: str) -> None:
        """See that a name is not that of an attached index."""
        if name in self:
            raise errors.IndexingError(
                f"index {name!r} is an attached LlamaIndex index: change it through LlamaIndex; it has no files, "
                "documents or views of its own"
            )


def left_out(failed: Mapping[str, errors.AgenticRetrieverError]) -> tuple[Degradation, ...]:
    """Tell of the indexes that failed where others answer."""
    others = "the other indexes"
    return tuple(Degradation(step=f"index.{name}", reason=str(err), fallback=others) for name, err in failed.items())


def _taken(name: str) -> errors.IndexExistsError:
    return errors.IndexExistsError(f"index {name!r} exists already; take another name, or remove_index({name!r}) first")


def _prepared(index: StoredIndex) -> StoredIndex:
    """Have what questions read built in the background where it is missing; whoever changes an index sees to that."""
    if not index.is_searchable:
        index.build_in_background()
    return index


class Resources:
    """The long-lived parts of one router; safe to use from many threads."""

    def __init__(
        self,
        config: RouterConfig,
        *,
        embedding: BaseEmbedding | None = None,
        packed: Sequence[VectorSource] = (),
        llm: LLM | None = None,
    ) -> None:
        self.config = config
        if llm is not None and not hasattr(llm, "complete"):
            raise errors.ConfigError(
                f"llm must be a LlamaIndex LLM, got {type(llm).__name__}; name a model by the setting llm, "
                "as in RouterConfig(llm='ollama:llama3:8b')"
            )
        # What describes documents and names their sections; the cloud tier stands in for it.
        named = config.with_changes(llm=config.section_mapping_model, llm_small="none")
        self.section_model = None if config.section_mapping_model == "none" else build_client(named)
        # The models that write answers: the given one and the configured ones, or none.
        self.model = build_client(config, models=None if llm is None else {Tier.PRIMARY: llm})
        # All settings in short, secrets as stars; where its files are differs from machine to machine.
        places = {"data_dir", "storage_folder"}
        self.config_key = cache_key(**{name: v for name, v in config.to_dict().items() if name not in places})
        self.storage = IndexStorage.from_config(config)
        self.attached = AttachedIndexes()
        self.redis = open_link(config)
        self._given = embedding
        self._packed = tuple(packed)
        self._lock = threading.RLock()
        self._embedding: EmbeddingModel | None = None
        self._adapters: dict[tuple[str, Strategy], retrievers.RetrieverAdapter] = {}
        self._closed = False
        self.workers = Workers(config.workers, "agentic-retrieval")  # for searches side by side

    def check_open(self) -> None:
        if self._closed:
            raise errors.StoreClosedError("this router is closed; make another one")

    def embedding(self) -> EmbeddingModel:
        """Return the embedding model, choosing it now if the settings leave that open."""
        with self._lock:
            self.check_open()
            if self._embedding is None:
                base = self._given or resolve_embedding(self.config, remembered=self._remembered())
                self._embedding = EmbeddingModel(
                    base,
                    name=embedding_name(base),
                    disk=embeddings.DiskVectorCache(self.config.data_dir / EMBEDDING_CACHE_FILE),
                    packed=self._packed,
                    shared=None if self.redis is None else RedisVectorCache(self.redis, ttl_s=MEMORY_TTL_S),
                )
            return self._embedding

    def unrelated(self, query: str, left_s: float) -> Vector | None:
        """Embed questions that hardly any document answers, in a question's language; the model remembers them."""
        try:
            model = self.embedding()
            limit = embedding_time_s(max(0.0, left_s), model)
            asked = unrelated_questions(detect_language(query))
            return np.array([model.embed_query(text, timeout_s=limit) for text in asked])
        except errors.AgenticRetrieverError as err:
            logger.debug("no questions to compare with: %s", err)
            return None

    def names(self) -> list[str]:
        self.check_open()
        return sorted({*self.storage.names(), *self.attached}) if self.attached else self.storage.names()

    def index(self, name: str) -> Index:
        """Return an index, opening it with its first use."""
        self.check_open()
        attached = self.attached.get(name)
        try:
            return self.stored(name) if attached is None else attached
        except errors.UnknownIndexError as err:
            raise errors.UnknownIndexError(errors.unknown_name("index", str(name), self.names())) from err

    def stored(self, name: str, *, to_change: bool = False) -> StoredIndex:
        """Return an index of the data directory, opened at first use; a copy where another process holds it."""
        self.check_open()
        self.attached.refuse(name)
        opened = self.storage.opened(name)
        if opened is not None and not (to_change and opened.copy):
            return opened if to_change else _prepared(opened)
        with self._lock:
            self.forget(name)
            self.storage.manifest(name)  # an unknown or damaged index is named before the embedding model is looked for
            index = self.storage.open(name, self.embedding(), to_change=to_change)
            return index if to_change else _prepared(index)

    def create(self, name: str, *, description: str, chunk_size: int | None = None) -> StoredIndex:
        """Make an index of the data directory."""
        size = self.config.chunk_size if chunk_size is None else chunk_size
        overlap, leaf = min(self.config.chunk_overlap, size // 2), min(LEAF_SIZE, size)
        chunks = ChunkSettings(chunk_size=size, chunk_overlap=overlap, leaf_size=leaf)
        return self.storage.create(name, self.embedding(), description=description, chunks=chunks)

    def usable(self, among: Collection[str] | None = None) -> tuple[list[Index], tuple[Degradation, ...]]:
        """Return the indexes (of some, if any are named) that can be opened, in order, and why the others cannot."""
        found: list[Index] = []
        problems: dict[str, errors.StoreError] = {}
        for name in self.names() if among is None else among:
            try:
                found.append(self.index(name))
            except errors.StoreError as err:  # noqa: PERF203 - a damaged index leaves the others usable
                problems[name] = err
        if problems and not found:
            raise next(iter(problems.values()))
        return found, left_out(problems)

    def attach(self, name: str, given: object, *, description: str, progress: Progress | None) -> IngestReport:
        name = check_index_name(name)
        if name in self.names():
            raise _taken(name)
        # This router in LlamaIndex's clothes, or in a retriever in the given object.
        if any(
            getattr(getattr(one, "_router", None), "resources", None) is self
            for one in (given, getattr(given, "_retriever", None))
        ):
            raise errors.IndexingError(
                f"index {name!r}: a {type(given).__name__} of this router would ask itself without end"
            )
        made = attach_index(
            name,
            recognise(name, given),
            description=description,
            created=uuid.uuid4().hex,
            router=self.embedding(),
            wrap=lambda base: EmbeddingModel(base, name=embedding_name(base)),  # what it makes is kept in memory only
            progress=progress,
        )
        if self.attached.setdefault(name, made) is not made:
            raise _taken(name)
        return IngestReport(added=len(made.doc_ids()), nodes=made.count() if made.doc_ids() else 0)

    def compares(self, index: Index) -> bool:
        """Tell whether an index's vectors are of the router's embedding model."""
        return not index.is_attached or index.embedding is self.embedding()

    def adapter(self, index: Index, strategy: Strategy) -> retrievers.RetrieverAdapter:
        """Return the adapter of a strategy over an index, made once."""
        key = index.name, strategy
        with self._lock:
            adapter = self._adapters.get(key)
            if adapter is None:
                adapter = self._adapters[key] = retrievers.build_adapter(strategy, index, self.adapter_settings())
            return adapter

    def adapter_settings(self) -> retrievers.AdapterSettings:
        config = self.config
        return retrievers.AdapterSettings(config=config, top_k=config.top_k, workers=self.workers, model=self.model)

    def forget(self, name: str) -> None:
        self.check_open()
        with self._lock:
            self._adapters = {key: adapter for key, adapter in self._adapters.items() if key[0] != name}

    def release(self) -> None:
        """Close every index and cache file, and let the embedding model go; a later use opens them again."""
        with self._lock:
            self._adapters.clear()
            self.storage.close()
            if self._embedding is not None:
                self._embedding.close()
                self._embedding = None  # with its model and the threads of its engine, where nobody else has them

    def close(self) -> None:
        """Release all that is open for good; a second call does nothing."""
        with self._lock:
            self._closed = True
            self.workers.close(wait=False)
            for model in (self.model, self.section_model):
                if model is not None:
                    model.close()
            self.release()
            if self.redis is not None:
                self.redis.close()

    def _remembered(self) -> str | None:
        known = self.storage.embeddings()
        if len(known) > 1 and self.config.embedding_model == "auto":
            raise errors.ConfigError(
                f"the indexes in {self.config.data_dir} have different embedding models ({', '.join(known)}); "
                "set embedding_model to one of them, or keep them in separate data directories"
            )
        return known[0] if known else None


# From the names in the settings to the parts of a router

_NEEDS_MODEL = "{setting} is {value}, which needs a model; set llm to a model, or take auto"

# Two indexes are searched when their probabilities differ by less; docs/routing.md has what other margins gave.
INDEX_MARGIN: Final = 0.4


def make_classifier(config: RouterConfig, resources: Resources) -> routing.IndexClassifier:
    """Return stage one."""
    kind = routing.EmbeddingClassifier if config.classifier == "embedding" else routing.ProfileClassifier
    profile, client = kind(INDEX_MARGIN, unrelated=resources.unrelated), resources.model
    if config.classifier in {"embedding", "profile"}:
        return profile
    model = None if client is None else routing.LLMClassifier(client, profile, index_margin=INDEX_MARGIN)
    if config.classifier == "auto":
        return routing.AutoClassifier(profile, model)
    if model is None:
        raise errors.ConfigError(_NEEDS_MODEL.format(setting="classifier", value=config.classifier))
    return model


def make_selector(config: RouterConfig, client: ModelClient | None) -> routing.StrategySelector:
    """Return stage two."""
    kind = config.selector
    if kind == "round_robin":
        return routing.RoundRobinSelector()
    # What decides where no language model does; where hybrid search is calibrated, it starts from that.
    calibrated = config.fusion == retrievers.Fusion.CALIBRATED.value
    heuristic = routing.HeuristicSelector(routing.fused_weights() if calibrated else None)
    if kind == "heuristic":
        return heuristic
    if kind == "auto":
        return routing.AutoSelector(heuristic, None if client is None else routing.LLMSelector(client, heuristic))
    if client is None:
        raise errors.ConfigError(_NEEDS_MODEL.format(setting="selector", value=kind))
    return routing.LLMSelector(client, heuristic, form="word" if kind == "llm_word" else "structured")


def make_synthesizer(resources: Resources, given: Synthesizer | BaseSynthesizer | None = None) -> Synthesizer:
    """Return what writes answers: the given one, else the model where there is one, else extraction."""
    config = resources.config
    model: LLMSynthesizer | ForeignSynthesizer | None = None
    if isinstance(given, BaseSynthesizer):
        model = ForeignSynthesizer(given, unsupported=config.unsupported_sentences)
    elif given is not None:
        if callable(getattr(given, "read", None)):
            return given
        got = type(given).__name__
        raise errors.ConfigError(f"synthesizer must be a Synthesizer or a LlamaIndex response synthesizer, got {got}")
    elif resources.model is not None:
        model = LLMSynthesizer(resources.model, unsupported=config.unsupported_sentences)
    # The embedding model is looked for with the first answer.
    rescores = config.answer_rescoring
    embed = (lambda texts, **limit: resources.embedding().embed_sentences(texts, **limit)) if rescores else None
    extractive = ExtractiveSynthesizer(embed=embed)
    return Synthesizer(extractive, model)


def writers_key(client: ModelClient | None, given: object, postprocessors: Sequence[BaseNodePostprocessor]) -> str:
    """Name what answers depend on besides settings and indexes; what has no stable form shares no cached answers."""
    names = ["none" if client is None else repr(client)]
    if isinstance(given, BaseSynthesizer):
        names.append(f"{ForeignModel(given).model} {_digest(given.get_prompts())}")
    elif given is not None:
        names.append(f"{type(given).__name__} {_digest(vars(given) if hasattr(given, '__dict__') else given)}")
    for one in postprocessors:
        settings = {name: value for name, value in one if name != "callback_manager"}
        names.append(f"{type(one).__name__} {_digest(settings)}")
    return ", ".join(names)


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode("utf-8", "replace")).hexdigest()[:16]


# Strategies that a program adds to the seven of the package

A = TypeVar("A", bound=type[retrievers.RetrieverAdapter])

_STRATEGY_NAME: Final = re.compile(r"(?!auto$)[a-z][a-z0-9_]{0,39}")


def register_strategy(
    name: str,
    *,
    description: str,
    needs: Sequence[View] = (View.CHUNKS,),
    cost: float = 1.0,
    typical_ms: float = 30.0,
    signals: Mapping[str, float] | None = None,
) -> Callable[[A], A]:
    """Add a strategy: a decorator for a class that inherits ``RetrieverAdapter`` and implements ``_search``.

    From then on every router of the process offers it to stage two, takes it by name (``strategy="recent"``), measures
    it in benchmarks and can learn when to choose it. Register before the first question is asked: a router keeps the
    retrievers it has made. Registering a name again replaces the strategy, which helps in notebooks.

    Args:
        name: Small letters, digits and ``_``, at most 40, a letter first; none of the seven.
        description: When to use it, one line that ends with a full stop; selectors, models and people read it.
        needs: The views of an index that it reads; it is offered by indexes that have them.
        cost: Relative work of one query, above 0; ``vector`` is 1.
        typical_ms: Typical latency in milliseconds, above 0.
        signals: How much each signal of a query (``agentic_retriever.routing.FEATURES``) speaks for it, as logarithm of
            odds at full strength. What is taken without any signal starts with 1.5, so 3 makes it likely.

    Returns:
        The decorator; it gives the class its ``strategy``.

    Raises:
        ConfigError: If a value is none of what is allowed.
    """
    signals = signals or {}
    _check(name, description, (cost, typical_ms))
    for signal, weight in signals.items():
        if signal not in routing.FEATURES:
            raise errors.ConfigError(errors.unknown_name("signal", signal, routing.FEATURES))
        if not is_finite(weight):
            raise errors.ConfigError(
                f"the weight of signal {signal!r} must be a finite number, got {str(weight)[:40]!r}"
            )
    for view in needs:
        if view not in tuple(View):
            raise errors.ConfigError(errors.unknown_name("view", view, [known.value for known in View]))

    def decorate(adapter: A) -> A:
        given: object = adapter
        if not (isinstance(given, type) and issubclass(given, retrievers.RetrieverAdapter)):
            raise errors.ConfigError(
                f"strategy {name!r} must be a class that inherits RetrieverAdapter, not {given!r:.80}"
            )
        adapter.strategy = added = strategy_named(name)
        retrievers.add_spec(
            retrievers.StrategySpec(
                strategy=added,
                description=description,
                needs=tuple(map(View, needs)),
                cost=cost,
                typical_ms=typical_ms,
                build=adapter,
                signals={signal: float(weight) for signal, weight in signals.items()},
            )
        )
        return adapter

    return decorate


def _check(name: str, description: str, positive: tuple[float, float]) -> None:
    if not _STRATEGY_NAME.fullmatch(name):
        raise errors.ConfigError(
            f"a strategy's name must be small letters, digits and _, a letter first, 40 at most, not {name[:60]!r}"
        )
    if name in {strategy.value for strategy in Strategy}:
        raise errors.ConfigError(f"strategy {name!r} is one of the package's own; give yours another name")
    if "\n" in description or not description.endswith("."):
        raise errors.ConfigError(f"the description of strategy {name!r} must be one line that ends with a full stop")
    if not all(math.isfinite(value) and value > 0 for value in positive):
        raise errors.ConfigError(f"cost and typical_ms of strategy {name!r} must be numbers above 0, got {positive}")
