"""Searching and listing the points of a server's collection; what a filter means is decided here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from qdrant_client import models

from agentic_retriever.errors import FilterError
from agentic_retriever.filters import predicate
from agentic_retriever.indices.edge_payload import point_id
from agentic_retriever.indices.point_ranking import rank, ranked_hits, read_hits
from agentic_retriever.indices.point_reading import warn_of_foreign
from agentic_retriever.indices.point_search import PAGE, TIE_MARGIN, WantedPoints, filter_keys, find_best, source_ids
from agentic_retriever.indices.server_collection import DENSE_VECTOR, SPARSE_VECTOR
from agentic_retriever.indices.server_filters import server_filter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from llama_index.core.vector_stores.types import MetadataFilters

    from agentic_retriever.indices.point_ranking import Hit
    from agentic_retriever.indices.server_collection import ServerCollection
    from agentic_retriever.indices.sparse import SparseRow

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
    """Say which points are wanted; every restriction narrows the others.

    Args:
        filters: Metadata filters; ``None`` or empty for no restriction.
        kinds: The kind of payload index of each indexed field.
        node_ids: Only these nodes; an empty list is none.
        doc_ids: Only nodes of these sources; an empty list is none.

    Raises:
        FilterError: The filters cannot be evaluated.
    """
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
    """Find the best wanted points of each side, all sides in one request.

    Args:
        collection: Where.
        sides: How.
        top_k: How many of each at most, from 1.
        wanted: Which points to choose from.

    Returns:
        For each side hits by falling score and then by node id; fewer than ``top_k`` only where the server knows no
        more. More than 4,096 equal scores at the end of a list are cut by the server's order.

    Raises:
        FilterError: If the server cannot check the filter itself and more than 100,000 points would have to be read.
        StoreError: If the server failed.
    """
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

    Args:
        collection: Where.
        sides: How, each with a weight above 0; 1 is the usual one.
        top_k: How many at most.
        depth: How deep each side is searched.
        rrf_k: The usual constant, from 1.
        wanted: Which points to choose from, exactly.

    Returns:
        Hits by falling fused score and then by node id.
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
    """Go through the wanted points in the server's order, page by page.

    Args:
        collection: Where.
        wanted: Which points.
        size: How many points a page looks at; by default 1,000.
        whole: Whether the whole payload is needed, or just enough to decide.

    Yields:
        The points of a page.
    """
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
