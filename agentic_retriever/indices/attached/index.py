"""A LlamaIndex index whose nodes can be listed, as an index of a router."""

from __future__ import annotations

import contextvars
import logging
import os
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from agentic_retriever.errors import AgenticRetrieverError, EmbeddingMismatchError, IndexingError, StoreError
from agentic_retriever.filters import node_fields, predicate
from agentic_retriever.indices.attached.asked import AttachedRetriever
from agentic_retriever.indices.attached.snapshot import Sampler, Snapshot, SnapshotReader, is_same_model
from agentic_retriever.indices.attached.store import AttachedVectorStore
from agentic_retriever.indices.index import Index
from agentic_retriever.schema import Strategy, View
from agentic_retriever.threads import DeadlineCaller, guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterator

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import BasePydanticVectorStore, MetadataFilters

    from agentic_retriever.embeddings import EmbeddingModel
    from agentic_retriever.indices.attached.recognition import Recognised
    from agentic_retriever.indices.attached.sources import NodeSource
    from agentic_retriever.indices.derived import Progress
    from agentic_retriever.indices.keyword import KeywordIndex
    from agentic_retriever.indices.prefilter import CandidateSet, MetadataIndex
    from agentic_retriever.indices.profile import IndexProfile


# Taking notice of changes to an attached index in a thread of its own, which questions wait for only so long.

logger = logging.getLogger(__name__)

PATIENCE_S: Final = 2.0
"""A change is waited for that long from the moment that somebody began to look; after that the index stays as it was
read last until it has been read again.
"""

REST_S: Final = 1.0
"""After a failure it is not tried again for that long."""


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


# The version of an attached index: it grows when its nodes are seen to have changed.

LOOK_EVERY_S: Final = 1.0
"""How often what is dear to find out is looked at; less often where a look takes more than a hundredth of that."""

_REST: Final = 100


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


_WORDS_ALONE: Final = frozenset({Strategy.HYBRID, Strategy.PLANNER})


class AttachedIndex(Index):
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
        sampler: Sampler,
    ) -> None:
        self.name = name
        self.description = description
        self.created = created
        self.source = source
        self.embedding: EmbeddingModel = sampler.own or sampler.router
        self.vector_store: BasePydanticVectorStore = AttachedVectorStore(self, vector_store)
        self._is_dense = vector_store is not None
        self._reader = SnapshotReader(name, description, source, sampler)
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
        """What strategies may read."""
        words = frozenset({View.KEYWORD, View.METADATA})
        return words | {View.CHUNKS} if self._is_dense else words

    @property
    def may_hang(self) -> bool:
        """True: nobody knows how long a foreign store takes."""
        return True

    @property
    def dimension(self) -> int | None:
        """Length of the stored vectors, or ``None`` where they cannot be read."""
        return self._current().dimension

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
        """Return the number of nodes."""
        return self._current().nodes

    def doc_ids(self) -> list[str]:
        """Return the ids of the source documents, in order."""
        return list(self._current().doc_ids)

    def source_text(self, doc_id: str) -> str | None:
        """Return the text of a source document if the docstore has it, or of a node that stands for itself."""
        kept = guarded(f"reading index {self.name}", lambda: self.source.source_text(doc_id))
        if kept is not None:
            return kept
        found = guarded(f"reading index {self.name}", lambda: self.source.get([doc_id]))
        return next((node.get_content() for node in found if node.ref_doc_id is None), None)

    def keyword(self) -> KeywordIndex:
        """Return the BM25 view of the current version."""
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
        """It has one, in memory."""
        return True

    def metadata(self) -> MetadataIndex:
        """Return the prefilter of the current version."""
        return self._current().metadata

    def candidates(self, filters: MetadataFilters | None, *, known_only: bool = False) -> CandidateSet:
        """Return the ids of the nodes that satisfy filters, exactly; with ``known_only`` a field must be known."""
        found = self.metadata().candidates(filters, known_only=known_only)
        if found.exact or not found:
            return found
        satisfies = predicate(filters)
        nodes = guarded(f"reading nodes of index {self.name}", lambda: self.source.get(list(found)))
        return found.narrowed(node.node_id for node in nodes if satisfies(node_fields(node)))

    def nodes(self) -> Iterator[BaseNode]:
        """Yield every node."""
        yield from self.source.nodes()

    def _current(self) -> Snapshot:
        return self._snapshot or self.load()


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
        sampler=Sampler(router, own, batch_size=router.batch_size),
    )
    made.load(progress)
    held = made.dimension
    if own is not None and held is not None and held != own.dimension:
        raise EmbeddingMismatchError(
            f"index {name!r} holds vectors of dimension {held}, its embedding model {own.name} gives "
            f"{own.dimension}; load the index with the model that it was built with: embed_model=..."
        )
    return made
