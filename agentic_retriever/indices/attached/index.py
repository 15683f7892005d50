"""LlamaIndex indexes, query engines and retrievers as indexes of a router."""

from __future__ import annotations

import contextvars
import copy
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle
from llama_index.core.vector_stores.types import BasePydanticVectorStore, MetadataFilters

from agentic_retriever.embeddings import EmbeddingModel
from agentic_retriever.errors import AgenticRetrieverError, EmbeddingMismatchError, IndexingError, StoreError
from agentic_retriever.filters import node_fields, predicate
from agentic_retriever.indices.attached.sources import NodeSource, Recognised
from agentic_retriever.indices.attached.store import (
    AttachedVectorStore,
    Snapshot,
    SnapshotReader,
    SourceIndex,
    is_same_model,
)
from agentic_retriever.indices.derived import Progress
from agentic_retriever.indices.keyword import KeywordIndex
from agentic_retriever.indices.prefilter import CandidateSet, MetadataIndex
from agentic_retriever.indices.profile import IndexProfile, ProfiledNode, embed_description, make_profile
from agentic_retriever.schema import Strategy, View
from agentic_retriever.threads import DeadlineCaller, guarded

logger = logging.getLogger(__name__)

PATIENCE_S: Final = 2.0
"""A change is waited for that long from the moment that somebody began to look; after that the index stays as it was
read last until it has been read again.
"""

REST_S: Final = 1.0
"""After a failure it is not tried again for that long."""


LOOK_EVERY_S: Final = 1.0
"""How often what is dear to find out is looked at; less often where a look takes more than a hundredth of that."""

_REST: Final = 100


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
            raise IndexingError(
                f"index {name!r}: a {recognised.kind} needs a description=..., since its nodes cannot be listed and "
                "questions are routed by what is known of an index"
            )
        return AttachedRetriever(
            name=name, description=description, created=created, recognised=recognised, embedding=router
        )
    own = None if recognised.embedding is None else wrap(recognised.embedding)
    if own is not None and is_same_model(own, router):
        own = router
    made = AttachedIndex(
        name=name,
        description=description,
        created=created,
        source=recognised.source,
        vector_store=recognised.vector_store,
        router=router,
        own=own,
    )
    made.load(progress)
    held = made.dimension
    if own is not None and held is not None and held != own.dimension:
        raise EmbeddingMismatchError(
            f"index {name!r} holds vectors of dimension {held}, its embedding model {own.name} gives "
            f"{own.dimension}; load the index with the model that it was built with: embed_model=..."
        )
    return made


class AttachedIndex(SourceIndex):
    """An index of LlamaIndex that a router searches where it is; nothing of it is written or copied to a disk.

    Words, metadata and profile are derived in memory, and again after a change, which :meth:`catch_up` looks for:
    additions, deletions and, in an in-memory docstore, new texts under known ids are seen. Of a Qdrant collection the
    number of points is looked at once a second; a point that was replaced is seen after :meth:`refresh`. All else
    reads what was derived last and never waits. Vectors are searched in the index's own store, by its own embedding
    model.

    Safe to use from many threads, as far as the index behind it is.
    """

    is_attached = True

    def __init__(
        self,
        *,
        name: str,
        description: str,
        created: str,
        source: NodeSource,
        vector_store: BasePydanticVectorStore | None,
        router: EmbeddingModel,
        own: EmbeddingModel | None,
    ) -> None:
        self.name = name
        self.description = description
        self.created = created
        self.source = source
        self.embedding = own or router
        self.vector_store = AttachedVectorStore(self, vector_store)
        self._is_dense = vector_store is not None
        self._reader = SnapshotReader(name, description, source, router, own)
        self._watched = WatchedVersion(name, source)
        self._lock = threading.RLock()
        self._snapshot: Snapshot | None = None
        self._catching_up = CatchingUp(f"reading index {name} again", self.load)

    @property
    def version(self) -> int:
        """The version that was read last; grows with every change that is seen."""
        return self._current().version

    @property
    def views(self) -> frozenset[View]:
        words = frozenset({View.KEYWORD, View.METADATA})
        return words | {View.CHUNKS} if self._is_dense else words

    @property
    def may_hang(self) -> bool:
        """True: nobody knows how long a foreign store takes."""
        return True

    def serves(self, strategy: Strategy, needs: Collection[View]) -> bool:
        """Tell whether it can serve a strategy with these needs; without vectors, those that can do with words."""
        return self.views.issuperset(needs) if self._is_dense else strategy in _WORDS_ALONE

    def load(self, progress: Progress | None = None) -> Snapshot:
        """Read the nodes and derive the views, if that was not done for the current version; may take any time."""
        with self._lock:
            version = self._watched.current()
            known = self._snapshot
            if known is None or known.version != version:
                known = self._snapshot = self._reader.read(version, before=known, progress=progress)
                self.dimension = known.dimension
            return known

    def catch_up(self, timeout_s: float) -> str | None:
        """Look for changes and read the nodes again if there are any, and wait for that at most so long.

        It goes on in a thread of its own; until it is done, everything stays as it was read last.
        """
        return self._catching_up.run(timeout_s) if self._watched.may_differ(self._current().version) else None

    def refresh(self) -> None:
        """Read everything anew with the next question, whether a change was seen or not."""
        self._watched.grow()

    def count(self) -> int:
        return self._current().nodes

    def doc_ids(self) -> list[str]:
        return list(self._current().doc_ids)

    def source_text(self, doc_id: str) -> str | None:
        """Return the text of a source document if the docstore has it, or of a node that stands for itself."""
        kept = guarded(f"reading index {self.name}", lambda: self.source.source_text(doc_id))
        if kept is not None:
            return kept
        found = guarded(f"reading index {self.name}", lambda: self.source.get([doc_id]))
        return next((node.get_content() for node in found if node.ref_doc_id is None), None)

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

    @property
    def has_prefilter(self) -> bool:
        return True

    def metadata(self) -> MetadataIndex:
        return self._current().metadata

    def candidates(self, filters: MetadataFilters | None, *, known_only: bool = False) -> CandidateSet:
        """Return the ids of the nodes that satisfy filters, exactly; with ``known_only`` a field must be known."""
        found = self.metadata().candidates(filters, known_only=known_only)
        if found.exact or not found:
            return found
        satisfies = predicate(filters)
        nodes = guarded(f"reading nodes of index {self.name}", lambda: self.source.get(list(found)))
        return found.narrowed(node.node_id for node in nodes if satisfies(node_fields(node)))

    def nodes(self) -> Iterable[BaseNode]:
        return self.source.nodes()

    def _current(self) -> Snapshot:
        return self._snapshot or self.load()


class AttachedRetriever(SourceIndex):
    """A LlamaIndex retriever or query engine that a router asks; safe to use from many threads if that one is.

    Its profile is its description. Nothing tells when its nodes change, so its version is constant until
    :meth:`refresh` is called; until then answers stay in the cache for their time to live.
    """

    is_attached = True
    only_asked = True

    def __init__(
        self, *, name: str, description: str, created: str, recognised: Recognised, embedding: EmbeddingModel
    ) -> None:
        self.name = name
        self.description = description
        self.created = created
        self.kind = recognised.kind
        self.embedding = embedding
        self.source = NodeSource()
        #: Has no nodes, so that what is done with neighbours and vectors of nodes finds none.
        self.vector_store = AttachedVectorStore(self, None)
        self._retriever = recognised.retriever
        self._lock = threading.Lock()
        self._version = 1
        self._profile: IndexProfile | None = None

    @property
    def version(self) -> int:
        return self._version

    @property
    def views(self) -> frozenset[View]:
        """None: it has no nodes to read."""
        return frozenset()

    def keyword(self) -> KeywordIndex:
        raise StoreError(
            f"index {self.name!r} is a {self.kind}, whose nodes cannot be listed; register its index instead, "
            "or use the strategy vector"
        )

    def serves(self, strategy: Strategy, needs: Collection[View]) -> bool:  # noqa: ARG002 - as other indexes
        """Tell whether it can serve a strategy: ``vector``, by being asked."""
        return strategy is Strategy.VECTOR

    def refresh(self) -> None:
        with self._lock:
            self._version += 1

    def count(self) -> int:
        """Return 1: how many nodes there are is not known, and an index without any would never be chosen."""
        return 1

    def profile(self) -> IndexProfile:
        """Return a profile made from the description alone."""
        known, version = self._profile, self._version
        if known is None or known.version != version:
            vector = embed_description(self.embedding, self.name, self.description)
            made = make_profile(
                [ProfiledNode(self.name, self.description, {})],
                vector[None, :] if len(vector) else np.empty((0, 0), dtype=np.float32),
                name=self.name,
                description=self.description,
                description_vector=vector,
                version=version,
            )
            known = replace(made, whole=False)
            if len(vector):
                self._profile = known
        return known

    def ask(self, query: str, depth: int) -> list[NodeWithScore]:
        retriever = deepened(self._retriever, depth)
        what = f"the {self.kind} of index {self.name}"
        found = guarded(what, lambda: None if retriever is None else retriever.retrieve(QueryBundle(query)))
        if found is None:
            found = []
        if not isinstance(found, (list, tuple)):
            raise StoreError(f"{what} returned {type(found).__name__}; a list of NodeWithScore is needed")
        nodes = [node for node in map(_as_scored, found) if node is not None]
        if any(one is not None for one in found) and not nodes:
            first = next(type(one).__name__ for one in found if one is not None)
            raise StoreError(f"{what} returned a list of {first}; a list of NodeWithScore is needed")
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


def _as_scored(found: object) -> NodeWithScore | None:
    if isinstance(found, NodeWithScore):
        return found
    return NodeWithScore(node=found) if isinstance(found, BaseNode) else None


# Taking notice of changes.


class CatchingUp:
    """Runs one piece of work at a time, however many wait for it; one that hangs is waited for no longer."""

    def __init__(self, what: str, work: Callable[[], object], *, timer: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._work = work
        self._timer = timer
        # Two places, since a piece of work is done a moment before its thread ends.
        self._caller = DeadlineCaller(what, max_calls=2)
        self._lock = threading.Lock()
        self._running: Future[str | None] | None = None
        self._since = self._rest_until = 0.0
        self._pid = os.getpid()

    def run(self, timeout_s: float) -> str | None:
        """Do the work, or wait for whoever does it already."""
        running, since = self._started()
        try:
            return running.result(timeout=max(0.0, min(timeout_s, since + PATIENCE_S - self._timer())))
        except FutureTimeoutError:
            return f"{self._what} is under way since {self._timer() - since:.1f} s"

    def _started(self) -> tuple[Future[str | None], float]:
        with self._lock:
            running = self._running
            is_over = running is None or self._pid != os.getpid()  # a fork leaves its threads behind
            if running is not None and not is_over and running.done():
                is_over = running.result() is None or self._timer() >= self._rest_until
            if running is None or is_over:
                self._since, self._pid = self._timer(), os.getpid()
                # In a context of its own: it is no part of the question that happened to come first.
                done = partial(contextvars.Context().run, self._done)
                running = self._running = self._caller.start(done, PATIENCE_S)
            return running, self._since

    def _done(self) -> str | None:
        try:
            self._work()
        except AgenticRetrieverError as err:
            self._rest_until = self._timer() + REST_S
            logger.warning("%s failed, so it stays as it was: %s", self._what, err)
            return str(err)
        return None


class WatchedVersion:
    """Looks at a source: at its mark whenever it is asked, at its imprint now and then. Never waits for another thread.

    A source that cannot be looked at keeps its version; searching it will say what is wrong.
    """

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
        """Count as changed, and return the new version."""
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
        except StoreError as err:
            logger.debug("changes of index %r cannot be seen: %s", self._name, err)
            return before
