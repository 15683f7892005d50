"""One collection on a Qdrant server: made with the first nodes, its fields indexed; if it is gone, that is told."""

from __future__ import annotations

import datetime as dt
import threading
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import qdrant_edge as edge
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters
from qdrant_client import models

from agentic_retriever.errors import EmbeddingMismatchError, StoreClosedError, StoreDamagedError, StoreError
from agentic_retriever.stores.payload import (
    MAX_INDEXED_FIELDS,
    RESERVED_FIELDS,
    FieldKind,
    infer_kinds,
    path_field,
    payload_path,
    push_down,
)
from agentic_retriever.stores.server.link import CollectionMissingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from qdrant_client import QdrantClient

    from agentic_retriever.stores.server.link import QdrantLink


T = TypeVar("T")

#: What ``llama-index-vector-stores-qdrant`` calls them, so that it can read the collection.
DENSE_VECTOR: Final = "text-dense"
SPARSE_VECTOR: Final = "text-sparse-new"

_KINDS_FOR_S: Final = 10.0
"""How long the list of indexed fields is believed; another process may add one at any time."""

_SOURCE_FIELD: Final = "doc_id"
_SCHEMA: Final[dict[str, models.PayloadSchemaType]] = {
    "keyword": models.PayloadSchemaType.KEYWORD,
    "float": models.PayloadSchemaType.FLOAT,
    "bool": models.PayloadSchemaType.BOOL,
    "datetime": models.PayloadSchemaType.DATETIME,
}


class ServerCollection:
    """A collection by name, for any number of threads. Making the object calls nobody."""

    def __init__(
        self,
        link: QdrantLink,
        name: str,
        dimension: int | None,
        *,
        keywords: bool = False,
        shards: int = 0,
        replicas: int = 0,
    ) -> None:
        self.link = link
        self.name = name
        self.dimension = dimension
        self._keywords = keywords
        self._shards = shards
        self._replicas = replicas
        self._lock = threading.RLock()
        self._is_made: bool | None = None
        self._kinds: dict[str, str] = {}
        self._kinds_read = float("-inf")
        self._unindexed: set[str] = set()
        self._closed = False

    def call(self, what: str, function: Callable[[QdrantClient], T]) -> T:
        """Call the server about a collection that must be there."""
        self.check_open()
        try:
            result = self.link.call(what, function)
        except CollectionMissingError as err:
            if self._is_made:
                raise StoreDamagedError(
                    f"cannot {what}: the collection {self.name!r} is gone from Qdrant at {self.link.address}; restore "
                    "it from a snapshot, or add the sources again"
                ) from err
            raise
        self._is_made = True
        return result

    def read(self, what: str, function: Callable[[QdrantClient], T], default: T) -> T:
        """Call the server, or return the default where nothing was ever stored."""
        try:
            return self.call(what, function)
        except CollectionMissingError:
            return default

    def exists(self) -> bool:
        """Ask whether the collection is there."""
        self.check_open()
        found = self.link.call("look for a collection", lambda client: client.collection_exists(self.name))
        self._is_made = found or self._is_made
        return found

    def expect(self) -> None:
        """Treat the collection as one that must be there."""
        self._is_made = True

    def ensure(self, dimension: int) -> None:
        """Make the collection if it is not there."""
        with self._lock:
            if self.dimension is not None and self.dimension != dimension:
                raise self._mismatch(dimension, self.dimension)
            if not self._is_made and not self.exists():
                self.link.call("make a collection", lambda client: self._create(client, dimension))
                self._is_made = True
            if self._kinds_read == float("-inf"):
                self._read_info(dimension)
            self.dimension = dimension

    def drop(self) -> None:
        """Remove the collection and all in it; one that is not there is no error."""
        self.link.call("remove a collection", lambda client: client.delete_collection(self.name))
        self._is_made = None

    def kinds(self) -> Mapping[str, str]:
        """Return the kind of payload index of each indexed field."""
        with self._lock:
            if not self.link.in_process and time.monotonic() - self._kinds_read > _KINDS_FOR_S:
                self.read("read what a collection is like", lambda _client: self._read_info(self.dimension), None)
            return self._kinds

    def index_fields(self, payloads: Sequence[Mapping[str, object]]) -> None:
        """Index the source's id, and fields whose values are of one type, up to 64."""
        if self.link.in_process:  # which has no indexes, and warns of them
            return
        with self._lock:
            kinds = self.kinds()
            skip = RESERVED_FIELDS | self._unindexed | kinds.keys()
            wanted: dict[str, FieldKind | None] = {} if _SOURCE_FIELD in kinds else {_SOURCE_FIELD: "keyword"}
            wanted.update(infer_kinds(payloads, skip))
            for field, kind in wanted.items():
                path = payload_path(field)
                if kind is None or path is None or len(self._kinds) >= MAX_INDEXED_FIELDS:
                    self._unindexed.add(field)
                else:
                    self.index_field(field, path, kind)

    def index_field(self, field: str, path: str, kind: FieldKind) -> None:
        """Index one field, whose name is this path for the engine; an index of another kind is replaced."""
        if self._kinds.get(field) == kind:
            return

        def make(client: QdrantClient) -> None:
            if field in self._kinds:
                client.delete_payload_index(self.name, path)
            client.create_payload_index(self.name, path, field_schema=_SCHEMA[kind], wait=True)

        self.call("index a field", make)
        self._kinds = {**self._kinds, field: kind}

    def check_open(self) -> None:
        """Refuse use after :meth:`close`."""
        if self._closed:
            raise StoreClosedError(f"the collection {self.name!r} is closed; open it again")

    def close(self) -> None:
        """Take no more calls; the link stays open for others."""
        self._closed = True

    def _create(self, client: QdrantClient, dimension: int) -> None:
        # Looked at again here, since a try that seemed to fail may have made it.
        if client.collection_exists(self.name):
            return
        sparse = {SPARSE_VECTOR: models.SparseVectorParams(modifier=models.Modifier.IDF)} if self._keywords else None
        client.create_collection(
            self.name,
            vectors_config={DENSE_VECTOR: models.VectorParams(size=dimension, distance=models.Distance.COSINE)},
            sparse_vectors_config=sparse,
            shard_number=self._shards or None,
            replication_factor=self._replicas or None,
        )

    def _read_info(self, dimension: int | None) -> None:
        info = self.call("read what a collection is like", lambda client: client.get_collection(self.name))
        vectors: Any = info.config.params.vectors
        if not isinstance(vectors, dict) or DENSE_VECTOR not in vectors:
            raise StoreError(
                f"the collection {self.name!r} on Qdrant at {self.link.address} was made by another program: it has no "
                f"vector named {DENSE_VECTOR!r}; set qdrant_prefix so that names do not meet"
            )
        stored = int(vectors[DENSE_VECTOR].size)
        if dimension is not None and stored != dimension:
            raise self._mismatch(dimension, stored)
        self.dimension = stored
        names = {schema.value: kind for kind, schema in _SCHEMA.items()}
        self._kinds = {
            path_field(path): names.get(str(getattr(index.data_type, "value", "")), "other")
            for path, index in (info.payload_schema or {}).items()
        }
        self._kinds_read = time.monotonic()

    def _mismatch(self, got: int, stored: int) -> EmbeddingMismatchError:
        return EmbeddingMismatchError(
            f"the vectors have {got} dimensions, the collection {self.name!r} holds {stored}; use the embedding model "
            "that it was made with"
        )


# Metadata filters as conditions of a Qdrant server.
#
# The translation is that for the engine in this process (:mod:`agentic_retriever.stores.payload`), which is the
# same engine, written in the client's types. One operator is held back: a server without a text index finds
# substrings,
# one with it finds tokens, so ``text_match`` is left to the evaluator.

_SIDES: Final = ("gt", "gte", "lt", "lte")


def server_filter(filters: MetadataFilters | None, kinds: Mapping[str, str]) -> tuple[models.Filter | None, bool]:
    """Translate filters as far as the server's meaning is ours."""
    pushed = push_down(None if filters is None else _without_substrings(filters), kinds)
    if pushed.condition is None:
        return None, pushed.exact
    condition = _condition(pushed.condition)
    return condition if isinstance(condition, models.Filter) else models.Filter(must=[condition]), pushed.exact


def _without_substrings(group: MetadataFilters) -> MetadataFilters:
    """Replace substrings by their wider kind, which is never pushed down; the evaluator has the last word anyway."""
    parts = [_without_substrings(p) if isinstance(p, MetadataFilters) else _without_substring(p) for p in group.filters]
    return MetadataFilters.model_construct(filters=parts, condition=group.condition)


def _without_substring(clause: MetadataFilter) -> MetadataFilter:
    if clause.operator is not FilterOperator.TEXT_MATCH:
        return clause
    return clause.model_copy(update={"operator": FilterOperator.TEXT_MATCH_INSENSITIVE})


def _condition(condition: Any) -> Any:  # noqa: ANN401 - one of four types there, and of four others here
    if isinstance(condition, edge.Filter):
        parts = {name: _conditions(getattr(condition, name)) for name in ("must", "should", "must_not")}
        return models.Filter(must=parts["must"], should=parts["should"], must_not=parts["must_not"])
    if isinstance(condition, edge.HasIdCondition):
        return models.HasIdCondition(has_id=sorted(str(one) for one in condition.point_ids))
    if isinstance(condition, edge.IsEmptyCondition):
        return models.IsEmptyCondition(is_empty=models.PayloadField(key=condition.key))
    if condition.match is not None:
        return models.FieldCondition(key=condition.key, match=_match(condition.match))
    return models.FieldCondition(key=condition.key, range=_range(condition.range))


def _conditions(conditions: Any) -> list[Any] | None:  # noqa: ANN401 - as above
    return [_condition(one) for one in conditions] if conditions else None


def _match(match: edge.MatchValue | edge.MatchAny) -> models.MatchValue | models.MatchAny:
    if isinstance(match, edge.MatchAny):
        return models.MatchAny(any=[str(value) for value in match.value])
    return models.MatchValue(value=match.value)


def _range(bounds: edge.RangeFloat | edge.RangeDateTime) -> models.Range | models.DatetimeRange:
    given = {side: value for side in _SIDES if (value := getattr(bounds, side)) is not None}
    if isinstance(bounds, edge.RangeDateTime):
        return models.DatetimeRange(**{side: _moment(value) for side, value in given.items()})
    return models.Range(**given)


def _moment(text: str) -> dt.datetime:
    """Read what the engine writes: ``2020-01-31 10:00:00.5 UTC``."""
    day, time, _zone = text.split(" ")
    whole, _, fraction = time.partition(".")
    moment = dt.datetime.fromisoformat(f"{day}T{whole}+00:00")
    return moment.replace(microsecond=int(fraction[:6].ljust(6, "0")) if fraction else 0)
