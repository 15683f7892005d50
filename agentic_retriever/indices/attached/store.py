"""The vector store of an attached index as strategies see it: one meaning of filters and ids, whatever is behind it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)

from agentic_retriever.embeddings import EmbeddingModel, embedding_name
from agentic_retriever.errors import (
    DeadlineExceededError,
    EmbeddingError,
    EmbeddingMismatchError,
    InvalidQueryError,
    StoreError,
)
from agentic_retriever.filters import is_empty, node_fields, predicate
from agentic_retriever.indices.attached.sources import NodeSource, Vectors
from agentic_retriever.indices.derived import Progress, SilentProgress
from agentic_retriever.indices.index import Index
from agentic_retriever.indices.keyword import KeywordIndex
from agentic_retriever.indices.prefilter import SOURCE_ALIASES, MetadataIndex
from agentic_retriever.indices.profile import (
    IndexProfile,
    ProfiledNode,
    background,
    embed_description,
    make_profile,
    sample_ids,
)
from agentic_retriever.stores.payload import embedded_text
from agentic_retriever.text import Tokenizer
from agentic_retriever.threads import DeadlineCaller, guarded

# What is derived in memory from one version of an attached index: words, metadata and profile.

Matrix: TypeAlias = "npt.NDArray[np.float32]"

logger = logging.getLogger(__name__)

MAX_EMBEDDED: Final = 100
"""Passages that are embedded for stage one, where the vectors of the index are of another model than the router's."""

MAX_PASSAGE_CHARS: Final = 1_000
MAX_MEASURED: Final = 32
"""Passages that are embedded by the index's own model to learn what its cosines are worth, where its vectors cannot be
read."""

_READ_FOR_BACKGROUND: Final = 256
_SAME_TEXT: Final = "are these two models the same?"
_SAME_COSINE: Final = 0.999


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The derived views of one version."""

    version: int
    doc_ids: tuple[str, ...]
    keyword: KeywordIndex
    metadata: MetadataIndex
    profile: IndexProfile
    background: tuple[float, float] | None
    dimension: int | None  # Length of the stored vectors, or None where they cannot be read
    sampled: tuple[str, ...]

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return self.profile.nodes


@dataclass(frozen=True, slots=True)
class SnapshotReader:
    """Reads an attached index; ``own`` is the embedding model of its vectors, if it has one."""

    name: str
    description: str
    source: NodeSource
    router: EmbeddingModel
    own: EmbeddingModel | None = None

    def read(self, version: int, *, before: Snapshot | None = None, progress: Progress | None = None) -> Snapshot:
        """Read all nodes and derive the views."""
        nodes, sources = self._nodes()
        found = ((node.node_id, {**node.metadata, "doc_id": sources[node.node_id]}) for node in nodes)
        try:
            sampled, rows = self._sample(nodes, progress or SilentProgress())
            cosines = self._background(nodes, progress or SilentProgress())
        except (EmbeddingError, DeadlineExceededError) as err:
            if before is None:
                raise
            logger.warning("index %r: the sample for routing stays as it was: %s", self.name, err)
            sampled, rows, cosines = list(before.sampled), before.profile.sample, before.background
        profile = make_profile(
            nodes,
            rows,
            name=self.name,
            description=self.description,
            description_vector=embed_description(self.router, self.name, self.description),
            version=version,
        )
        tokenizer = Tokenizer(language=profile.language)
        first = stored_vectors(self.source, [node.node_id for node in nodes[:1]])[1]
        return Snapshot(
            version=version,
            doc_ids=tuple(sorted({doc_id or node_id for node_id, doc_id in sources.items()})),
            keyword=KeywordIndex.build(
                ((node.node_id, node.text) for node in nodes), tokenizer=tokenizer, version=version
            ),
            metadata=MetadataIndex.build(found, version, aliases=SOURCE_ALIASES),
            profile=profile,
            background=cosines,
            dimension=first.shape[1] if len(first) else None,
            sampled=tuple(sampled),
        )

    def _nodes(self) -> tuple[list[ProfiledNode], dict[str, str | None]]:
        """Read all nodes, each id once, and the ids of their source documents."""

        def read() -> tuple[list[ProfiledNode], dict[str, str | None]]:
            nodes: list[ProfiledNode] = []
            sources: dict[str, str | None] = {}
            for node in self.source.nodes():
                if node.node_id not in sources:
                    sources[node.node_id] = node.ref_doc_id
                    nodes.append(ProfiledNode(node.node_id, embedded_text(node), dict(node.metadata)))
            return nodes, sources

        return guarded(f"reading the nodes of index {self.name}", read)

    def _sample(self, nodes: Sequence[ProfiledNode], progress: Progress) -> tuple[list[str], Matrix]:
        """Choose nodes and return their vectors by the router's model: stored ones where they are its."""
        node_ids = [node.node_id for node in nodes]
        if self.own is self.router:
            found, rows = stored_vectors(self.source, sample_ids(node_ids))
            if found:
                return found, rows
        texts = {node.node_id: node.text for node in nodes}
        chosen = sample_ids(node_ids, MAX_EMBEDDED)
        return chosen, self._embedded(self.router, [texts[i] for i in chosen], progress)

    def _background(self, nodes: Sequence[ProfiledNode], progress: Progress) -> tuple[float, float] | None:
        """Return mean and deviation of the cosine of unrelated nodes by the index's own model, if it is another."""
        if self.own is None or self.own is self.router:
            return None
        node_ids = [node.node_id for node in nodes]
        rows = stored_vectors(self.source, sample_ids(node_ids, _READ_FOR_BACKGROUND))[1]
        if not len(rows):
            chosen = set(sample_ids(node_ids, MAX_MEASURED))
            rows = self._embedded(self.own, [node.text for node in nodes if node.node_id in chosen], progress)
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


def stored_vectors(source: NodeSource, node_ids: Sequence[str]) -> Vectors:
    """Read stored vectors."""
    return guarded("reading stored vectors", lambda: source.vectors(node_ids))


def is_same_model(own: EmbeddingModel, router: EmbeddingModel) -> bool:
    """Tell whether two models are one: the same object, or the same name and the same vector for one text."""
    if own.base is router.base:
        return True
    if embedding_name(own.base) != router.name:
        return False
    left, right = own.embed_query(_SAME_TEXT), router.embed_query(_SAME_TEXT)
    return left.shape == right.shape and float(left @ right) >= _SAME_COSINE


IDS_AT_MOST: Final = 500
"""Up to so many nodes a store is asked for them alone; beyond, it is asked for more nodes than are wanted."""

READ_S: Final = 5.0
"""Reading nodes or vectors by id is given up on after so many seconds."""

_MARGIN: Final = 2.0
_GROWTH: Final = 4

T = TypeVar("T")
Hit = tuple[BaseNode, float | None]


class SourceIndex(Index):
    """An attached index as its vector store needs it."""

    source: NodeSource
    dimension: int | None = None  # length of the stored vectors, or None where they cannot be read


class AttachedVectorStore(BasePydanticVectorStore):
    """Reads the nodes and vectors of an attached index; writes nothing.

    Filters are answered by the index's own prefilter and never reach the foreign store, whose meaning of them may be
    another one.
    """

    stores_text: bool = True
    _index: Any = PrivateAttr()
    _store: BasePydanticVectorStore | None = PrivateAttr()
    _caller: DeadlineCaller = PrivateAttr()

    def __init__(self, index: SourceIndex, store: BasePydanticVectorStore | None) -> None:
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

    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        satisfies = predicate(filters)
        if node_ids is None:
            node_ids = list(self._index.candidates(filters))
        found = self._read(node_ids)
        return [node for node in found if satisfies(node_fields(node))]

    def vectors(self, node_ids: Sequence[str]) -> tuple[list[str], npt.NDArray[np.float32]]:
        return self._in_time(lambda: stored_vectors(self._index.source, node_ids))

    def query(self, query: VectorStoreQuery, **kwargs: object) -> VectorStoreQueryResult:  # noqa: ARG002 - as above
        allowed = self._allowed(query)
        if self._store is None or (allowed is not None and not allowed):
            return VectorStoreQueryResult([], [], [])
        if query.mode is not VectorStoreQueryMode.DEFAULT or query.doc_ids is not None:
            raise InvalidQueryError("an attached index is searched in the default mode, without doc_ids")
        vector = self._checked(query.query_embedding)
        hits = self._searched(vector, query, allowed)[: query.similarity_top_k]
        return VectorStoreQueryResult(
            [node for node, _ in hits], [_finite(score) for _, score in hits], [node.node_id for node, _ in hits]
        )

    def _allowed(self, query: VectorStoreQuery) -> Collection[str] | None:
        """Return the only nodes that may be found, or ``None`` for any."""
        allowed: Collection[str] | None = None if is_empty(query.filters) else self._index.candidates(query.filters)
        if query.node_ids is None:
            return allowed
        wanted = dict.fromkeys(query.node_ids)
        return list(wanted) if allowed is None else [i for i in wanted if i in allowed]

    def _checked(self, embedding: Sequence[float] | None) -> list[float]:
        if embedding is None:
            raise InvalidQueryError("the question has no vector")
        vector, expected = list(embedding), self._index.dimension
        if expected is not None and len(vector) != expected:
            raise EmbeddingMismatchError(
                f"index {self._index.name!r} holds vectors of dimension {expected}, the question's has {len(vector)}; "
                "the embedding model of the index is another one than its vectors come from"
            )
        return vector

    def _searched(self, vector: list[float], query: VectorStoreQuery, allowed: Collection[str] | None) -> list[Hit]:
        depth, total = query.similarity_top_k, self._index.count()
        if allowed is None:
            return self._asked(vector, depth, None)
        if self._index.source.takes_ids and len(allowed) <= IDS_AT_MOST:
            return [hit for hit in self._asked(vector, depth, list(allowed)) if hit[0].node_id in allowed]
        wanted = min(depth, len(allowed))
        fetched = math.ceil(_MARGIN * wanted * total / len(allowed))
        while True:
            hits = self._asked(vector, min(fetched, total), None)
            kept = [hit for hit in hits if hit[0].node_id in allowed]
            if len(kept) >= wanted or fetched >= total:
                return kept
            fetched *= _GROWTH

    def _asked(self, vector: list[float], depth: int, node_ids: list[str] | None) -> list[Hit]:
        """Ask the foreign store."""
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
        except DeadlineExceededError as err:
            raise StoreError(str(err)) from err

    def _read_only(self) -> StoreError:
        return StoreError(f"index {self._index.name!r} is attached, so it is changed through LlamaIndex only")


def _finite(score: float | None) -> float:
    """Scores that are no numbers are left for the strategies to rank last."""
    return math.nan if score is None else float(score)
