"""Searching and listing the points of a server's collection; what a filter means is decided here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from qdrant_client import models

from agentic_retriever.errors import FilterError
from agentic_retriever.filters import predicate
from agentic_retriever.stores.node_text import embedded_text
from agentic_retriever.stores.payload import point_id, stored_node, unit_vector
from agentic_retriever.stores.points import (
    PAGE,
    TIE_MARGIN,
    WantedPoints,
    filter_keys,
    find_best,
    page_mark,
    page_start,
    rank,
    ranked_hits,
    read_embedded,
    read_hits,
    read_ids,
    read_nodes,
    source_ids,
    vector_table,
    warn_of_foreign,
)
from agentic_retriever.stores.server.collection import DENSE_VECTOR, SPARSE_VECTOR, server_filter
from agentic_retriever.stores.sparse import SparseBM25

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt
    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import MetadataFilters

    from agentic_retriever.stores.points import Hit
    from agentic_retriever.stores.server.collection import ServerCollection
    from agentic_retriever.stores.sparse import SparseRow

    PointId = int | str


Wanted: TypeAlias = WantedPoints[models.Filter]

MAX_SCANNED: Final = 100_000
"""Points that are read one by one, at most, to find those that satisfy what the server cannot check."""

_GRAPH_EFFORT: Final = 128  # candidates that a search through the graph keeps


@dataclass(frozen=True, slots=True)
class Side:
    """One way to search: by a dense or by a sparse vector."""

    query: list[float] | models.SparseVector
    using: str

    @classmethod
    def dense(cls, vector: Sequence[float]) -> Side:
        """Search by cosine."""
        return cls([float(x) for x in vector], DENSE_VECTOR)

    @classmethod
    def sparse(cls, row: SparseRow) -> Side:
        """Search by terms, with the server's inverse document frequency."""
        return cls(models.SparseVector(indices=row[0], values=row[1]), SPARSE_VECTOR)


def select(
    filters: MetadataFilters | None,
    kinds: Mapping[str, str],
    *,
    node_ids: Sequence[str] | None = None,
    doc_ids: Sequence[str] | None = None,
) -> Wanted:
    """Say which points are wanted; every restriction narrows the others."""
    accepts = predicate(filters)
    pushed, exact = server_filter(filters, kinds)
    must: list[Any] = []
    if node_ids is not None:
        must.append(models.HasIdCondition(has_id=sorted({point_id(node_id) for node_id in node_ids})))
    if doc_ids is not None:
        sources = source_ids(doc_ids)
        any_of = models.FieldCondition(key="doc_id", match=models.MatchAny(any=sources))
        must.append(any_of if sources else models.HasIdCondition(has_id=[]))
    if pushed is not None:
        must.append(pushed)
    condition = models.Filter(must=must) if must else None
    return WantedPoints(filter=condition, exact=exact, accepts=accepts, keys=filter_keys(filters))


def search(collection: ServerCollection, sides: Sequence[Side], top_k: int, wanted: Wanted) -> list[list[Hit]]:
    """Find the best wanted points of each side, all sides in one request."""
    read = partial(ranked_hits, accepts=wanted.accepts, top_k=top_k)
    return find_best(
        sides, top_k, wanted, ask=partial(_ask, collection), resolve=partial(_resolve, collection), read=read
    )


def search_fused(
    collection: ServerCollection, sides: Sequence[tuple[Side, float]], top_k: int, *, depth: int, rrf_k: int,
    wanted: Wanted,
) -> list[Hit]:  # fmt: skip
    """Let the server merge the sides by reciprocal ranks, in one request.

    Its formula is ``1 / (rank / weight + k - 1)``, ranks from 1. With weights of 1 and ``k`` one higher that is the
    usual one.
    """
    prefetch = [
        models.Prefetch(
            query=side.query, using=side.using, filter=wanted.filter, limit=depth,
            params=_params(collection, side, depth),
        )
        for side, _weight in sides
    ]  # fmt: skip
    weights = [weight for _side, weight in sides]
    query = models.RrfQuery(rrf=models.Rrf(k=rrf_k + 1, weights=weights if len(set(weights)) > 1 else None))

    def ask(client: Any) -> Any:  # noqa: ANN401 - the client's types
        return client.query_points(
            collection.name, prefetch=prefetch, query=query, limit=top_k + TIE_MARGIN, with_payload=True
        )

    response = collection.read("search", ask, None)
    ranked, foreign = rank([] if response is None else response.points, wanted.accepts, whole=True)
    warn_of_foreign(foreign)
    return read_hits(ranked, top_k)


def scan(
    collection: ServerCollection, wanted: Wanted, *, size: int | None = None, whole: bool = False
) -> Iterator[list[Any]]:
    """Go through the wanted points in the server's order, page by page."""
    size = PAGE if size is None else size
    offset: PointId | None = None
    while True:
        records, offset = _page(collection, wanted, offset, size=size, whole=whole)
        yield wanted.among(records)
        if offset is None:
            return


def _page(
    collection: ServerCollection, wanted: Wanted, offset: PointId | None, *, size: int, whole: bool
) -> tuple[list[Any], PointId | None]:
    payload = True if whole else wanted.payload

    def scroll(client: Any) -> tuple[list[Any], PointId | None]:  # noqa: ANN401 - the client's types
        return client.scroll(  # type: ignore[no-any-return]  # the client's types
            collection.name, scroll_filter=wanted.filter, limit=size, offset=offset, with_payload=payload
        )

    nothing: tuple[list[Any], PointId | None] = ([], None)
    return collection.read("read nodes", scroll, nothing)


def _ask(
    collection: ServerCollection, sides: Sequence[Side], limit: int, wanted: Wanted
) -> list[list[models.ScoredPoint]]:
    requests = [
        models.QueryRequest(
            query=side.query, using=side.using, filter=wanted.filter, limit=limit, with_payload=True,
            params=_params(collection, side, limit),
        )
        for side in sides
    ]  # fmt: skip
    nothing: list[list[models.ScoredPoint]] = [[] for _ in sides]

    def ask(client: Any) -> list[list[models.ScoredPoint]]:  # noqa: ANN401 - the client's types
        return [response.points for response in client.query_batch_points(collection.name, requests)]

    return collection.read("search", ask, nothing)


def _params(collection: ServerCollection, side: Side, limit: int) -> models.SearchParams | None:
    if collection.link.in_process or side.using == SPARSE_VECTOR:
        return None  # there is no graph
    return models.SearchParams(hnsw_ef=max(_GRAPH_EFFORT, limit))


def _resolve(collection: ServerCollection, wanted: Wanted) -> Wanted:
    """Find out which points are wanted, and ask for exactly these from now on."""
    ids: list[Any] = []
    looked_at = 0
    offset: PointId | None = None
    while True:
        records, offset = _page(collection, wanted, offset, size=PAGE, whole=False)
        looked_at += len(records)
        ids += [record.id for record in wanted.among(records)]
        if offset is None:
            return wanted.narrowed(models.Filter(must=[models.HasIdCondition(has_id=ids)]))
        if looked_at >= MAX_SCANNED:
            raise FilterError(
                f"the filter on {', '.join(wanted.keys)[:200]} has a part that a Qdrant server cannot check, and more "
                f"than {MAX_SCANNED:,} nodes satisfy the rest; add a clause that narrows it, such as == or a range of "
                "numbers"
            )


# Reading nodes and vectors out of a server's collection, and deleting points.


def nodes(
    collection: ServerCollection, filters: MetadataFilters | None, node_ids: Sequence[str] | None, limit: int | None
) -> list[BaseNode]:
    """Read nodes, however many there are; in the order of ``node_ids`` where these are given."""
    if node_ids is not None:
        return _named_nodes(collection, filters, node_ids)[:limit]
    found: list[BaseNode] = []
    for records in scan(collection, select(filters, collection.kinds()), whole=True):
        found.extend(read_nodes(records))
        if limit is not None and len(found) >= limit:
            break
    return found[:limit]


def _named_nodes(
    collection: ServerCollection, filters: MetadataFilters | None, node_ids: Sequence[str]
) -> list[BaseNode]:
    unique = list(dict.fromkeys(node_ids))
    by_id: dict[str, BaseNode] = {}
    for start in range(0, len(unique), PAGE):
        wanted = select(filters, collection.kinds(), node_ids=unique[start : start + PAGE])
        for records in scan(collection, wanted, whole=True):
            by_id.update((node.node_id, node) for node in read_nodes(records))
    return [by_id[node_id] for node_id in unique if node_id in by_id]


def node_ids(collection: ServerCollection) -> list[str]:
    """Return the ids of all nodes, sorted."""
    pages = scan(collection, select(None, {}), whole=True)
    return read_ids(record for records in pages for record in records)


def vectors(
    collection: ServerCollection, wanted: Sequence[str], dimension: int
) -> tuple[list[str], npt.NDArray[np.float32]]:
    """Return the ids that were found, in the given order without repetition, and their unit vectors ``(n, dim)``."""
    unique = list(dict.fromkeys(wanted))
    rows: dict[str, list[float]] = {}
    for start in range(0, len(unique), PAGE):
        ids = [point_id(node_id) for node_id in unique[start : start + PAGE]]

        def retrieve(client: Any, ids: list[str] = ids) -> Any:  # noqa: ANN401 - the client's types
            return client.retrieve(collection.name, ids, with_payload=False, with_vectors=[DENSE_VECTOR])

        records: list[Any] = collection.read("read vectors", retrieve, [])
        rows.update((str(record.id), dense(record.vector)) for record in records)
    return vector_table(unique, rows, dimension)


def export(collection: ServerCollection, after: str | None, size: int) -> tuple[list[BaseNode], str | None]:
    """Read a page of nodes with their vectors, and give the mark of the next page."""
    offset = page_start(after)

    def scroll(client: Any) -> Any:  # noqa: ANN401 - the client's types
        return client.scroll(collection.name, limit=size, offset=offset, with_payload=True, with_vectors=[DENSE_VECTOR])

    nothing: tuple[list[Any], Any] = ([], None)
    records, following = collection.read("read nodes with their vectors", scroll, nothing)
    return read_embedded(records, lambda record: dense(record.vector)), page_mark(following)


def count(collection: ServerCollection, filters: MetadataFilters | None) -> int:
    """Count the nodes that satisfy the filters."""
    wanted = select(filters, {} if filters is None else collection.kinds())
    if not wanted.exact:
        return sum(len(records) for records in scan(collection, wanted))

    def ask(client: Any) -> int:  # noqa: ANN401 - the client's types
        return int(client.count(collection.name, count_filter=wanted.filter, exact=True).count)

    return collection.read("count the nodes", ask, 0)


def delete(collection: ServerCollection, wanted: Wanted) -> None:
    """Delete points, named one by one: a filter that was translated too widely must not delete too much."""
    found = [record.id for records in scan(collection, wanted) for record in records]
    for start in range(0, len(found), PAGE):
        selector = models.PointIdsList(points=found[start : start + PAGE])

        def remove(client: Any, selector: models.PointIdsList = selector) -> None:  # noqa: ANN401 - the client's types
            client.delete(collection.name, selector, wait=True)

        collection.call("delete nodes", remove)


def clear(collection: ServerCollection) -> None:
    """Delete every point."""
    everything = models.FilterSelector(filter=models.Filter())

    def remove(client: Any) -> None:  # noqa: ANN401 - the client's types
        client.delete(collection.name, everything, wait=True)

    collection.read("clear the index", remove, None)


def dense(vector: Any) -> list[float]:  # noqa: ANN401 - one of the client's many kinds of vectors
    """Take the dense vector out of a point's vectors."""
    row = vector[DENSE_VECTOR] if isinstance(vector, dict) else vector
    return [float(x) for x in row]


# Search by words on a server, and by words and meaning together: BM25 as sparse vectors.

_STEP: Final = 128  # points in one request


class ServerWords:
    """The sparse vectors of a collection."""

    def __init__(
        self,
        collection: ServerCollection,
        sparse: SparseBM25 | None = None,
        on_fitted: Callable[[SparseBM25], None] | None = None,
    ) -> None:
        self._collection = collection
        self._on_fitted = on_fitted
        self.sparse = sparse

    def vectors(self, texts: Sequence[str]) -> list[models.SparseVector]:
        """Make the sparse vectors of some texts; the first texts decide how, unless that is known."""
        if self.sparse is None:
            self._keep(SparseBM25.fitted(texts))
        return [_vector(self.sparse, text) for text in texts] if self.sparse is not None else []

    def search_words(self, text: str, top_k: int, filters: MetadataFilters | None = None) -> list[Hit]:
        """Find nodes by words: BM25 with the server's document frequencies."""
        side = self._side(text)
        wanted = select(filters, self._collection.kinds())
        return [] if side is None else search(self._collection, [side], top_k, wanted)[0]

    def search_both(
        self, vector: Sequence[float], text: str, top_k: int, filters: MetadataFilters | None = None
    ) -> tuple[list[Hit], list[Hit]]:
        """Find nodes by cosine and by words, in one request."""
        words = self._side(text)
        sides = [self._meaning(vector), *([words] if words else [])]
        found = search(self._collection, sides, top_k, select(filters, self._collection.kinds()))
        return found[0], found[1] if words else []

    def search_fused(
        self, vector: Sequence[float], text: str, top_k: int, *, depth: int, alpha: float, rrf_k: int,
        filters: MetadataFilters | None = None,
    ) -> list[Hit] | None:  # fmt: skip
        """Let the server find nodes by cosine and by words and merge them by reciprocal ranks, in one request."""
        words = self._side(text)
        wanted = select(filters, self._collection.kinds())
        if words is None or not wanted.exact or not 0 < alpha < 1:
            return None
        sides = [(self._meaning(vector), 2 * alpha), (words, 2 * (1 - alpha))]
        return search_fused(self._collection, sides, top_k, depth=depth, rrf_k=rrf_k, wanted=wanted)

    def revise(self, sparse: SparseBM25, on_done: Callable[[int], None] = lambda _done: None) -> None:
        """Make all sparse vectors again, page by page; the dense ones stay."""
        for records in scan(self._collection, select(None, {}), size=_STEP, whole=True):
            nodes = [(record.id, node) for record in records if (node := stored_node(record.payload)) is not None]
            points = [
                models.PointVectors(id=i, vector={SPARSE_VECTOR: _vector(sparse, embedded_text(node))})
                for i, node in nodes
            ]

            def update(client: Any, points: list[models.PointVectors] = points) -> None:  # noqa: ANN401 - the client's types
                client.update_vectors(self._collection.name, points, wait=True)

            if points:
                self._collection.call("revise the words", update)
            on_done(len(records))
        self._keep(sparse)

    def _meaning(self, vector: Sequence[float]) -> Side:
        return Side.dense(unit_vector(vector, self._collection.dimension).tolist())

    def _side(self, text: str) -> Side | None:
        row = ([], []) if self.sparse is None else self.sparse.query(text)
        return Side.sparse(row) if row[0] else None

    def _keep(self, sparse: SparseBM25) -> None:
        if self._on_fitted is not None:
            self._on_fitted(sparse)
        self.sparse = sparse


def _vector(sparse: SparseBM25, text: str) -> models.SparseVector:
    numbers, weights = sparse.document(text)
    return models.SparseVector(indices=numbers, values=weights)
