"""A LlamaIndex index whose nodes can be listed, as an index of a router."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from agentic_retriever.errors import EmbeddingMismatchError, IndexingError
from agentic_retriever.filters import node_fields, predicate
from agentic_retriever.indices.attached.asked import AttachedRetriever
from agentic_retriever.indices.attached.catching_up import CatchingUp
from agentic_retriever.indices.attached.sampling import Sampler, is_same_model
from agentic_retriever.indices.attached.snapshot import Snapshot, SnapshotReader
from agentic_retriever.indices.attached.store import AttachedVectorStore
from agentic_retriever.indices.attached.version import WatchedVersion
from agentic_retriever.schema import Strategy, View
from agentic_retriever.threads import guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import BasePydanticVectorStore, MetadataFilters

    from agentic_retriever.embeddings import EmbeddingModel
    from agentic_retriever.indices.attached.recognition import Recognised
    from agentic_retriever.indices.attached.sources import NodeSource
    from agentic_retriever.indices.ingest import Progress
    from agentic_retriever.indices.keyword import KeywordIndex
    from agentic_retriever.indices.prefilter.candidates import CandidateSet
    from agentic_retriever.indices.prefilter.index import MetadataIndex
    from agentic_retriever.indices.profile import IndexProfile

_WORDS_ALONE: Final = frozenset({Strategy.HYBRID, Strategy.PLANNER})


class AttachedIndex:
    """An index of LlamaIndex that a router searches where it is; nothing of it is written or copied to a disk.

    Words, metadata and profile are derived in memory, and again after a change, which :meth:`catch_up` looks for:
    additions, deletions and, in an in-memory docstore, new texts under known ids are seen. Of a Qdrant collection the
    number of points is looked at once a second; a point that was replaced is seen after :meth:`refresh`. All else
    reads what was derived last and never waits. Vectors are searched in the index's own store, by its own embedding
    model.

    Safe to use from many threads, as far as the index behind it is.

    Args:
        name: Name of the index.
        description: What it holds.
        created: What tells this registration from every other one.
        source: Where the nodes are.
        vector_store: Where they are searched by vectors, or ``None``.
        sampler: The embedding models.

    Attributes:
        embedding: The model that questions to this index are embedded with.
    """

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
    def language(self) -> str:
        """The language of most nodes."""
        return self.profile().language

    @property
    def dimension(self) -> int | None:
        """Length of the stored vectors, or ``None`` where they cannot be read."""
        return self._current().dimension

    def serves(self, strategy: Strategy, needs: Collection[View]) -> bool:
        """Tell whether it can serve a strategy with these needs; without vectors, those that can do with words."""
        return self.views.issuperset(needs) if self._is_dense else strategy in _WORDS_ALONE

    def load(self, progress: Progress | None = None) -> Snapshot:
        """Read the nodes and derive the views, if that was not done for the current version; may take any time.

        Args:
            progress: Hears how many passages are embedded.

        Raises:
            StoreError: If the nodes cannot be read.
            EmbeddingError: If the sample for routing could not be embedded the first time.
        """
        with self._lock:
            version = self._watched.current()
            known = self._snapshot
            if known is None or known.version != version:
                known = self._snapshot = self._reader.read(version, before=known, progress=progress)
            return known

    def catch_up(self, timeout_s: float) -> str | None:
        """Look for changes and read the nodes again if there are any, and wait for that at most so long.

        It goes on in a thread of its own; until it is done, everything stays as it was read last.

        Args:
            timeout_s: Seconds; in any case not more than 2 since the look began.

        Returns:
            Why the index may not be up to date, for people; ``None`` if it is.
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

    def metadata(self) -> MetadataIndex:
        """Return the prefilter of the current version."""
        return self._current().metadata

    def candidates(self, filters: MetadataFilters | None, *, known_only: bool = False) -> CandidateSet:
        """Return the ids of the nodes that satisfy filters, exactly; with ``known_only`` a field must be known."""
        found = self.metadata().candidates(filters, known_only=known_only)
        if found.exact or not found:
            return found
        satisfies = predicate(filters)
        nodes = guarded(f"reading nodes of index {self.name}", lambda: self.source.get(found.node_ids()))
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
    """Make an attached index, and read what routing needs of it.

    Args:
        name: Name of the index.
        recognised: What it is made of.
        description: What it holds; needed for a retriever, which tells nothing else.
        created: What tells this registration from every other one.
        router: The router's embedding model.
        wrap: Makes a model of the index's own embedding.
        progress: Hears how many passages are embedded.

    Raises:
        IndexingError: If a retriever comes without a description.
        EmbeddingError: If the sample for routing could not be embedded, or the index's own model fails.
        EmbeddingMismatchError: If the index's own model is another one than its vectors come from.
        StoreError: If the nodes cannot be read.
    """
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
