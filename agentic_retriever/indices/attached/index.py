"""LlamaIndex indexes, query engines and retrievers as indexes of a router, each searched in its own store."""

from __future__ import annotations

import contextvars
import copy
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)

from agentic_retriever import errors
from agentic_retriever.embeddings import EmbeddingModel, embedding_name
from agentic_retriever.filters import is_empty, node_fields, predicate
from agentic_retriever.indices.attached.sources import NodeSource, Recognised, Vectors
from agentic_retriever.indices.derived import Progress, SilentProgress
from agentic_retriever.indices.fields import FieldDictionary
from agentic_retriever.indices.index import Index
from agentic_retriever.indices.keyword import KeywordIndex
from agentic_retriever.indices.prefilter.index import CandidateSet, MetadataIndex
from agentic_retriever.indices.profile import (
    DESCRIPTION_S,
    IndexProfile,
    Matrix,
    ProfiledNode,
    background,
    embed_description,
    make_profile,
    sample_ids,
)
from agentic_retriever.schema import Strategy, View
from agentic_retriever.stores.points import embedded_text
from agentic_retriever.text import Tokenizer
from agentic_retriever.threads import DeadlineCaller, guard, guarded

logger = logging.getLogger(__name__)

T = TypeVar("T")
Hit = tuple[BaseNode, float | None]

# A change is waited for that long from the moment that somebody began to look; after that the index stays as it was
# read last until it has been read again. After a failure it is not tried again for REST_S.
PATIENCE_S: Final = 2.0
REST_S: Final = 1.0
# How often what is dear to find out is looked at; less often where a look takes more than a hundredth of that.
LOOK_EVERY_S: Final = 1.0
_REST: Final = 100

MAX_EMBEDDED: Final = 100  # passages embedded for stage one, where the vectors are of another model than the router's
MAX_PASSAGE_CHARS: Final = 1_000
MAX_MEASURED: Final = 32  # passages embedded by the own model to weigh its cosines, where vectors cannot be read
_READ_FOR_BACKGROUND: Final = 256
_SAME_TEXT: Final = "are these two models the same?"
_SAME_COSINE: Final = 0.999

IDS_AT_MOST: Final = 500  # so many nodes a store is asked for them alone; beyond, for more nodes than are wanted
READ_S: Final = 5.0  # reading nodes or vectors by id is given up on after so many seconds
_MARGIN: Final = 2.0
_GROWTH: Final = 4

_WORDS_ALONE: Final = frozenset({Strategy.HYBRID, Strategy.PLANNER})


def attach_index(
    name: str,
    recognised: Recognised,
    *,
    description: str,
    created: str,
    router: EmbeddingModel,
    wrap: Callable[[BaseEmbedding], EmbeddingModel],
    progress: Progress | None = None,
) -> AttachedIndex | AttachedRetriever:
    """Make an attached index, and read what routing needs of it."""
    if recognised.source is None:
        if not description.strip():
            raise errors.IndexingError(
                f"index {name!r}: a {recognised.kind} needs a description=..., since its nodes cannot be listed and "
                "questions are routed by what is known of an index"
            )
        return AttachedRetriever(name, description, recognised, router, router, created)
    own = None if recognised.embedding is None else wrap(recognised.embedding)
    if own is not None and is_same_model(own, router):
        own = router
    made = AttachedIndex(name, description, recognised, router, own or router, created)
    held = made.load(progress).dimension
    if own is not None and held is not None and held != own.dimension:
        raise errors.EmbeddingMismatchError(
            f"index {name!r} holds vectors of dimension {held}, its embedding model {own.name} gives "
            f"{own.dimension}; load the index with the model that it was built with: embed_model=..."
        )
    return made


def is_same_model(own: EmbeddingModel, router: EmbeddingModel) -> bool:
    """Tell whether two models are one: the same object, or the same name and the same vector for one text."""
    if own.base is router.base:
        return True
    if embedding_name(own.base) != router.name:
        return False
    left, right = own.embed_query(_SAME_TEXT), router.embed_query(_SAME_TEXT)
    return left.shape == right.shape and float(left @ right) >= _SAME_COSINE


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is derived in memory from one version of an attached index."""

    doc_ids: tuple[str, ...]
    keyword: KeywordIndex
    metadata: MetadataIndex
    fields: FieldDictionary
    profile: IndexProfile
    background: tuple[float, float] | None
    dimension: int | None  # of the stored vectors, or None where they cannot be read


@dataclass(eq=False, repr=False)
class _Attached(Index):
    name: str
    description: str
    recognised: Recognised
    router: EmbeddingModel  # that routing is done with
    embedding: EmbeddingModel
    created: str
    dimension: int | None = field(default=None, init=False)  # of the stored vectors, None where they cannot be read

    is_attached = True

    def __post_init__(self) -> None:
        self.source = self.recognised.source or NodeSource()
        self.vector_store = AttachedVectorStore(self, self.recognised.vector_store)
        self._lock = threading.RLock()


class AttachedIndex(_Attached):
    """An index of LlamaIndex that is searched where it is, with nothing written to a disk; as thread-safe as it is.

    Of a Qdrant collection the number of points is looked at; a point that was replaced is seen after :meth:`refresh`.
    """

    has_prefilter = True
    may_hang = True  # nobody knows how long a foreign store takes

    def __post_init__(self) -> None:
        super().__post_init__()
        self._is_dense = self.recognised.vector_store is not None
        self._watched = WatchedVersion(self.name, self.source)
        self._snapshot: Snapshot | None = None
        self._catching_up = CatchingUp(f"reading index {self.name} again", self.load)

    @property
    def version(self) -> int:
        """The version that was read last; grows with every change that is seen."""
        return self._current().profile.version

    @property
    def views(self) -> frozenset[View]:
        words = frozenset({View.KEYWORD, View.METADATA})
        return words | {View.CHUNKS} if self._is_dense else words

    def served(self, needs: Mapping[Strategy, Collection[View]]) -> list[Strategy]:
        return super().served(needs) if self._is_dense else [strategy for strategy in needs if strategy in _WORDS_ALONE]

    def load(self, progress: Progress | None = None) -> Snapshot:
        """Read the nodes and derive the views, if that was not done for the current version; may take any time."""
        with self._lock:
            version, known = self._watched.current(), self._snapshot
            if known is None or known.profile.version != version:
                known = self._snapshot = self._read(version, known, progress or SilentProgress())
                self.dimension = known.dimension
            return known

    def catch_up(self, timeout_s: float) -> str | None:
        """Look for changes and read the nodes again in a thread of its own, and wait for that at most so long."""
        return self._catching_up.run(timeout_s) if self._watched.may_differ(self.version) else None

    def refresh(self) -> None:
        """Read everything anew with the next question, whether a change was seen or not."""
        self._watched.grow()

    def count(self) -> int:
        return self.profile().nodes

    def doc_ids(self) -> list[str]:
        return list(self._current().doc_ids)

    def source_text(self, doc_id: str) -> str | None:
        """Return the text of a source document if the docstore has it, or of a node that stands for itself."""
        with guard(f"reading index {self.name}"):
            kept = self.source.source_text(doc_id)
            found = self.source.get([doc_id]) if kept is None else []
            return next((node.get_content() for node in found if node.ref_doc_id is None), kept)

    def keyword(self) -> KeywordIndex:
        return self._current().keyword

    def profile(self) -> IndexProfile:
        """Return the profile of the current version; its vectors are by the router's model."""
        return self._current().profile

    def search_profile(self) -> IndexProfile:
        """Return the profile with what the cosines of searches, by the index's own model, are worth."""
        now = self._current()
        if now.background is None:
            return now.profile
        return replace(now.profile, background_mean=now.background[0], background_std=now.background[1])

    def metadata(self) -> MetadataIndex:
        return self._current().metadata

    def fields(self) -> FieldDictionary:
        return self._current().fields

    def candidates(self, filters: MetadataFilters | None) -> CandidateSet:
        found = self.metadata().candidates(filters)
        if found.exact or not found:
            return found
        satisfies = predicate(filters)
        nodes = guarded(f"reading nodes of index {self.name}", lambda: self.source.get(list(found)))
        return found.narrowed(node.node_id for node in nodes if satisfies(node_fields(node)))

    def nodes(self) -> Iterable[BaseNode]:
        return self.source.nodes()

    def _current(self) -> Snapshot:
        return self._snapshot or self.load()

    def _read(self, version: int, before: Snapshot | None, progress: Progress) -> Snapshot:
        nodes, sources = guarded(f"reading the nodes of index {self.name}", self._nodes)
        texts = {node.node_id: node.text for node in nodes}
        try:
            rows = self._sample(texts, progress)
            cosines = self._background(texts, progress)
        except (errors.EmbeddingError, errors.DeadlineExceededError) as err:
            if before is None:
                raise
            logger.warning("index %r: the sample for routing stays as it was: %s", self.name, err)
            rows, cosines = before.profile.sample, before.background
        vector = embed_description(self.router, self.name, self.description)
        profile = make_profile(nodes, rows, self.name, self.description, vector, version)
        found = ((node.node_id, {**node.metadata, "doc_id": sources[node.node_id]}) for node in nodes)
        first = stored_vectors(self.source, [node.node_id for node in nodes[:1]])[1]
        return Snapshot(
            doc_ids=tuple(sorted({doc_id or node_id for node_id, doc_id in sources.items()})),
            keyword=KeywordIndex.build(texts.items(), tokenizer=Tokenizer(language=profile.language), version=version),
            metadata=MetadataIndex.build(found, version),
            fields=FieldDictionary.build(node.metadata for node in nodes),
            profile=profile,
            background=cosines,
            dimension=first.shape[1] if len(first) else None,
        )

    def _nodes(self) -> tuple[list[ProfiledNode], dict[str, str | None]]:
        """Read all nodes, each id once, and the ids of their source documents."""
        nodes: list[ProfiledNode] = []
        sources: dict[str, str | None] = {}
        for node in self.source.nodes():
            if node.node_id not in sources:
                sources[node.node_id] = node.ref_doc_id
                nodes.append(ProfiledNode(node.node_id, embedded_text(node), dict(node.metadata)))
        return nodes, sources

    def _sample(self, texts: Mapping[str, str], progress: Progress) -> Matrix:
        """Choose nodes and return their vectors by the router's model: stored ones where they are its."""
        if self._is_dense and self.embedding is self.router:
            rows = stored_vectors(self.source, sample_ids(list(texts)))[1]
            if len(rows):
                return rows
        chosen = sample_ids(list(texts), MAX_EMBEDDED)
        return self._embedded(self.router, [texts[i] for i in chosen], progress)

    def _background(self, texts: Mapping[str, str], progress: Progress) -> tuple[float, float] | None:
        if self.embedding is self.router:
            return None
        rows = stored_vectors(self.source, sample_ids(list(texts), _READ_FOR_BACKGROUND))[1]
        if not len(rows):
            chosen = set(sample_ids(list(texts), MAX_MEASURED))
            rows = self._embedded(self.embedding, [text for i, text in texts.items() if i in chosen], progress)
        return background(rows)

    def _embedded(self, model: EmbeddingModel, texts: Sequence[str], progress: Progress) -> Matrix:
        """Embed the beginnings of passages without a trace on the disk."""
        progress.nodes(len(texts))
        parts, size = [], self.router.batch_size
        for at in range(0, len(texts), size):
            part = [text[:MAX_PASSAGE_CHARS] for text in texts[at : at + size]]
            parts.append(model.embed_sentences(part))
            progress.nodes_done(len(part))
        return np.concatenate(parts) if parts else np.empty((0, 0), dtype=np.float32)


class AttachedRetriever(_Attached):
    """A LlamaIndex retriever or query engine that a router asks; safe to use from many threads if that one is.

    Nothing tells when its nodes change, so its version is constant until :meth:`refresh` is called.
    """

    only_asked = True
    views: frozenset[View] = frozenset()  # it has no nodes to read
    version = 1
    _profile: IndexProfile | None = None

    def keyword(self) -> KeywordIndex:
        raise errors.StoreError(
            f"index {self.name!r} is a {self.recognised.kind}, whose nodes cannot be listed; register its index "
            "instead, or use the strategy vector"
        )

    def served(self, needs: Mapping[Strategy, Collection[View]]) -> list[Strategy]:
        return [strategy for strategy in needs if strategy is Strategy.VECTOR]

    def refresh(self) -> None:
        with self._lock:
            self.version += 1

    def count(self) -> int:
        """Return 1: how many nodes there are is not known, and an index without any would never be chosen."""
        return 1

    def profile(self) -> IndexProfile:
        known, version = self._profile, self.version
        if known is None or known.version != version:
            vector = embed_description(self.router, self.name, self.description, timeout_s=DESCRIPTION_S)
            rows = vector[None, :] if len(vector) else np.empty((0, 0), dtype=np.float32)
            nodes = [ProfiledNode(self.name, self.description, {})]
            known = replace(make_profile(nodes, rows, self.name, self.description, vector, version), whole=False)
            if len(vector):
                self._profile = known
        return known

    def ask(self, query: str, depth: int) -> list[NodeWithScore]:
        retriever = deepened(self.recognised.retriever, depth)
        what = f"the {self.recognised.kind} of index {self.name}"
        found = guarded(what, lambda: None if retriever is None else retriever.retrieve(QueryBundle(query))) or []
        if not isinstance(found, (list, tuple)):
            raise errors.StoreError(f"{what} returned {type(found).__name__}; a list of NodeWithScore is needed")
        others = [type(one).__name__ for one in found if one is not None]
        found = [one for one in found if isinstance(one, (NodeWithScore, BaseNode))]
        if others and not found:
            raise errors.StoreError(f"{what} returned a list of {others[0]}; a list of NodeWithScore is needed")
        nodes = [one if isinstance(one, NodeWithScore) else NodeWithScore(node=one) for one in found]
        if all(node.score is None for node in nodes):
            return [NodeWithScore(node=node.node, score=1 / (at + 1)) for at, node in enumerate(nodes)]
        return nodes


def deepened(retriever: Any, depth: int) -> Any:  # noqa: ANN401 - a retriever or query engine of any class
    """Return a retriever that gives at least so many nodes where that can be asked for: itself, or a copy."""
    inner = getattr(retriever, "_retriever", None) if isinstance(retriever, BaseQueryEngine) else None
    if inner is not None:
        deeper = deepened(inner, depth)
        if deeper is inner:
            return retriever
        changed = copy.copy(retriever)
        changed._retriever = deeper  # noqa: SLF001 - LlamaIndex's engines offer no other way that keeps the rest
        return changed
    wanted = getattr(retriever, "similarity_top_k", None)
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted >= depth:
        return retriever
    changed = copy.copy(retriever)
    try:
        changed.similarity_top_k = depth
    except AttributeError:  # a property without a setter
        return retriever
    return changed


def stored_vectors(source: NodeSource, node_ids: Sequence[str]) -> Vectors:
    return guarded("reading stored vectors", lambda: source.vectors(node_ids))


class AttachedVectorStore(BasePydanticVectorStore):
    """Reads the nodes and vectors of an attached index, filtered by the index's own prefilter; writes nothing."""

    stores_text: bool = True
    _index: Any = PrivateAttr()
    _store: BasePydanticVectorStore | None = PrivateAttr()
    _caller: DeadlineCaller = PrivateAttr()

    def __init__(self, index: _Attached, store: BasePydanticVectorStore | None) -> None:
        super().__init__()  # type: ignore[call-arg]  # fields with defaults
        self._index = index
        self._store = store
        self._caller = DeadlineCaller(f"the store of index {index.name}", max_calls=32)

    @property
    def client(self) -> None:
        return None

    def add(self, nodes: Sequence[BaseNode], **kwargs: object) -> list[str]:  # noqa: ARG002 - LlamaIndex's signature
        raise self._read_only()

    def delete(self, ref_doc_id: str, **delete_kwargs: object) -> None:  # noqa: ARG002 - LlamaIndex's signature
        raise self._read_only()

    def _read_only(self) -> errors.StoreError:
        return errors.StoreError(f"index {self._index.name!r} is attached, so it is changed through LlamaIndex only")

    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        satisfies = predicate(filters)
        found = self._read(self._index.candidates(filters) if node_ids is None else node_ids)
        return [node for node in found if satisfies(node_fields(node))]

    def vectors(self, node_ids: Sequence[str]) -> Vectors:
        return self._in_time(lambda: stored_vectors(self._index.source, node_ids))

    def query(self, query: VectorStoreQuery, **kwargs: object) -> VectorStoreQueryResult:  # noqa: ARG002 - as above
        # The only nodes that may be found, or None for any.
        allowed: Collection[str] | None = None if is_empty(query.filters) else self._index.candidates(query.filters)
        if query.node_ids is not None:
            wanted = dict.fromkeys(query.node_ids)
            allowed = list(wanted) if allowed is None else [i for i in wanted if i in allowed]
        if self._store is None or (allowed is not None and not allowed):
            return VectorStoreQueryResult([], [], [])
        if query.mode is not VectorStoreQueryMode.DEFAULT or query.doc_ids is not None:
            raise errors.InvalidQueryError("an attached index is searched in the default mode, without doc_ids")
        if query.query_embedding is None:
            raise errors.InvalidQueryError("the question has no vector")
        vector, expected = list(query.query_embedding), self._index.dimension
        if expected is not None and len(vector) != expected:
            raise errors.EmbeddingMismatchError(
                f"index {self._index.name!r} holds vectors of dimension {expected}, the question's has {len(vector)}; "
                "the embedding model of the index is another one than its vectors come from"
            )
        nodes = self._searched(vector, query.similarity_top_k, allowed)[: query.similarity_top_k]
        # Scores that are no numbers are left for the strategies to rank last.
        scores = [math.nan if score is None else float(score) for _, score in nodes]
        return VectorStoreQueryResult([node for node, _ in nodes], scores, [node.node_id for node, _ in nodes])

    def _searched(self, vector: list[float], depth: int, allowed: Collection[str] | None) -> list[Hit]:
        if allowed is None:
            return self._asked(vector, depth, None)
        if self._index.source.takes_ids and len(allowed) <= IDS_AT_MOST:
            return [hit for hit in self._asked(vector, depth, list(allowed)) if hit[0].node_id in allowed]
        wanted, total = min(depth, len(allowed)), self._index.count()
        fetched = math.ceil(_MARGIN * wanted * total / len(allowed))
        while True:
            hits = self._asked(vector, min(fetched, total), None)
            kept = [hit for hit in hits if hit[0].node_id in allowed]
            if len(kept) >= wanted or fetched >= total:
                return kept
            fetched *= _GROWTH

    def _asked(self, vector: list[float], depth: int, node_ids: list[str] | None) -> list[Hit]:
        store = self._store
        if store is None:
            return []
        wanted = VectorStoreQuery(query_embedding=vector, similarity_top_k=depth, node_ids=node_ids)
        result = guarded(f"the vector store of index {self._index.name}", lambda: store.query(wanted))
        nodes: list[BaseNode | None] = list(result.nodes or ())
        if not nodes and result.ids:  # stores that keep no text answer with ids only
            ids = [self._index.source.node_id(i) for i in result.ids]
            known = {node.node_id: node for node in self._read(ids)}
            nodes = [known.get(i) for i in ids]
        scores: list[float | None] = [*(result.similarities or ())]
        scores += [None] * (len(nodes) - len(scores))
        return [(node, score) for node, score in zip(nodes, scores, strict=False) if node is not None]

    def _read(self, node_ids: Iterable[str]) -> list[BaseNode]:
        wanted = list(dict.fromkeys(node_ids))
        if not wanted:
            return []
        what = f"reading nodes of index {self._index.name}"
        return self._in_time(lambda: list(guarded(what, lambda: self._index.source.get(wanted))))

    def _in_time(self, call: Callable[[], T]) -> T:
        """Read from a store that may hang: what is done with nodes that were found has no deadline of its own."""
        try:
            return self._caller.call(call, READ_S)
        except errors.DeadlineExceededError as err:
            raise errors.StoreError(str(err)) from err


class CatchingUp:
    """Runs one piece of work at a time, however many wait for it; one that hangs is waited for no longer."""

    def __init__(self, what: str, work: Callable[[], object], *, timer: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._work = work
        self._timer = timer
        # Two places, since a piece of work is done a moment before its thread ends.
        self._caller = DeadlineCaller(what, max_calls=2)
        self._lock = threading.Lock()
        self._running: Future[str | None] = Future()
        self._running.set_result(None)
        self._since = self._rest_until = 0.0
        self._pid = os.getpid()

    def run(self, timeout_s: float) -> str | None:
        with self._lock:
            running = self._running
            is_over = self._pid != os.getpid()  # a fork leaves its threads behind
            if not is_over and running.done():
                is_over = running.result() is None or self._timer() >= self._rest_until
            if is_over:
                self._since, self._pid = self._timer(), os.getpid()
                # In a context of its own: it is no part of the question that happened to come first.
                done = partial(contextvars.Context().run, self._done)
                running = self._running = self._caller.start(done, PATIENCE_S)
            since = self._since
        try:
            return running.result(timeout=max(0.0, min(timeout_s, since + PATIENCE_S - self._timer())))
        except FutureTimeoutError:
            return f"{self._what} is under way since {self._timer() - since:.1f} s"

    def _done(self) -> str | None:
        try:
            self._work()
        except errors.AgenticRetrieverError as err:
            self._rest_until = self._timer() + REST_S
            logger.warning("%s failed, so it stays as it was: %s", self._what, err)
            return str(err)
        return None


class WatchedVersion:
    """Looks at a source's mark when asked, at its imprint now and then; waits for no thread, and ignores a failure."""

    def __init__(self, name: str, source: NodeSource, *, timer: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._source = source
        self._timer = timer
        self._lock = threading.Lock()  # never held while the source is looked at, which may hang
        self._version = 1
        self._mark = self._seen(source.mark, None)
        self._imprint: Hashable = None
        self._next_look = 0.0
        self._imprint = self._look()

    def may_differ(self, version: int) -> bool:
        """Tell, in no time, whether :meth:`current` may return another version than this one."""
        is_due = self._timer() >= self._next_look
        return is_due or version != self._version or self._seen(self._source.mark, self._mark) != self._mark

    def current(self) -> int:
        """Look, which may take any time, and return the version."""
        mark, imprint = self._seen(self._source.mark, self._mark), self._imprint
        if mark != self._mark or self._timer() >= self._next_look:
            imprint = self._look()
        with self._lock:
            if (mark, imprint) != (self._mark, self._imprint):
                self._mark, self._imprint = mark, imprint
                self._version += 1
            return self._version

    def grow(self) -> int:
        with self._lock:
            self._version += 1
            return self._version

    def _look(self) -> Hashable:
        start = self._timer()
        imprint = self._seen(self._source.imprint, self._imprint)
        end = self._timer()
        self._next_look = end + max(LOOK_EVERY_S, _REST * (end - start))
        return imprint

    def _seen(self, look: Callable[[], Hashable], before: Hashable) -> Hashable:
        try:
            return guarded(f"index {self._name}", look)
        except errors.StoreError as err:
            logger.debug("changes of index %r cannot be seen: %s", self._name, err)
            return before
