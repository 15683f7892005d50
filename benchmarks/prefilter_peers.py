"""Other ways to find the nodes that satisfy three clauses: each is built from metadata and called with filters."""

from __future__ import annotations

import tempfile
import warnings
from bisect import bisect_left
from collections import defaultdict
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index.core.vector_stores.types import MetadataFilters
    from typing_extensions import Self

    Items = Sequence[tuple[str, Mapping[str, Any]]]

_VECTOR = (1.0, 0.5)  # stores need one; as short as can be, since only the filter is measured


class Peer(Protocol):
    """Another way to filter.

    Attributes:
        name: What to call it in the table.
    """

    name: str

    def __call__(self, filters: MetadataFilters) -> int:
        """Return how many nodes satisfy an IN on the category, an EQ on the status and a GTE on the year."""


class PythonSets:
    """What one writes first: sets of row numbers by value, and a sorted list for the range."""

    name = "Python sets and a sorted list"

    def __init__(self, items: Items) -> None:
        self._sets: dict[tuple[str, object], set[int]] = defaultdict(set)
        for row, (_, metadata) in enumerate(items):
            for field in ("category", "status"):
                self._sets[field, metadata[field]].add(row)
        pairs = sorted((metadata["year"], row) for row, (_, metadata) in enumerate(items))
        self._years = [year for year, _ in pairs]
        self._rows = [row for _, row in pairs]

    def __call__(self, filters: MetadataFilters) -> int:
        """Count."""
        categories, status, year = _values(filters)
        found: set[int] = set().union(*(self._sets["category", name] for name in categories))
        found &= self._sets["status", status]
        found &= set(self._rows[bisect_left(self._years, year) :])
        return len(found)


class NumpyScan:
    """One array per field, compared as a whole; the texts are numbers already."""

    name = "numpy column scan"

    def __init__(self, items: Items) -> None:
        self._codes: dict[str, dict[str, int]] = {}
        self._columns: dict[str, Any] = {}
        for field in ("category", "status"):
            codes = self._codes.setdefault(field, {})
            self._columns[field] = np.fromiter(
                (codes.setdefault(metadata[field], len(codes)) for _, metadata in items), dtype=np.int16
            )
        self._columns["year"] = np.fromiter((metadata["year"] for _, metadata in items), dtype=np.int16)

    def __call__(self, filters: MetadataFilters) -> int:
        """Count."""
        categories, status, year = _values(filters)
        wanted = [self._codes["category"].get(name, -1) for name in categories]
        found = np.isin(self._columns["category"], wanted)
        found &= self._columns["status"] == self._codes["status"].get(status, -1)
        found &= self._columns["year"] >= year
        return len(np.flatnonzero(found))


class LlamaIndexInMemory:
    """What LlamaIndex's ``SimpleVectorStore`` does before it compares vectors."""

    name = "LlamaIndex SimpleVectorStore filter"

    def __init__(self, items: Items) -> None:
        self._metadata = dict(items)

    def __call__(self, filters: MetadataFilters) -> int:
        """Count."""
        from llama_index.core.vector_stores.utils import build_metadata_filter_fn

        accepts = build_metadata_filter_fn(self._metadata.__getitem__, filters)
        return sum(map(accepts, self._metadata))


class QdrantLocalMode:
    """The Qdrant client's local mode, counting with a filter."""

    name = "Qdrant local mode, count"

    def __init__(self, items: Items) -> None:
        from qdrant_client import QdrantClient
        from qdrant_client.models import Distance, PointStruct, VectorParams

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of its own slowness
            self._client = QdrantClient(":memory:")
            params = VectorParams(size=len(_VECTOR), distance=Distance.COSINE)
            self._client.create_collection("peer", vectors_config=params)
            points = [PointStruct(id=i, vector=list(_VECTOR), payload=dict(metadata)) for i, metadata in items]
            for start in range(0, len(points), 1_000):
                self._client.upsert("peer", points[start : start + 1_000])

    def __call__(self, filters: MetadataFilters) -> int:
        """Count."""
        from qdrant_client.models import FieldCondition, Filter, MatchAny, MatchValue, Range

        categories, status, year = _values(filters)
        condition = Filter(
            must=[
                FieldCondition(key="category", match=MatchAny(any=categories)),
                FieldCondition(key="status", match=MatchValue(value=status)),
                FieldCondition(key="year", range=Range(gte=year)),
            ]
        )
        return self._client.count("peer", count_filter=condition, exact=True).count


class QdrantEdgeCount:
    """Our own store's engine, counting with the filter pushed down to its payload indexes."""

    name = "Qdrant Edge, count"

    def __init__(self, items: Items) -> None:
        from llama_index.core.schema import TextNode

        from agentic_retriever.indices import QdrantEdgeVectorStore

        self._stack = ExitStack()
        folder = self._stack.enter_context(tempfile.TemporaryDirectory())
        self._store = self._stack.enter_context(QdrantEdgeVectorStore(folder, dimension=len(_VECTOR)))
        for start in range(0, len(items), 1_000):
            self._store.add([
                TextNode(id_=node_id, text="t", metadata=dict(metadata), embedding=list(_VECTOR))
                for node_id, metadata in items[start : start + 1_000]
            ])  # fmt: skip

    def __call__(self, filters: MetadataFilters) -> int:
        """Count."""
        return self._store.count(filters)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _values(filters: MetadataFilters) -> tuple[list[str], str, int]:
    categories, status, year = (clause.value for clause in filters.filters)  # type: ignore[union-attr]  # made of three
    return categories, status, year  # type: ignore[return-value]  # by three_clause_filters
