"""One collection on a Qdrant server: made with the first nodes, its fields indexed; if it is gone, that is told."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from qdrant_client import models

from agentic_retriever.errors import EmbeddingMismatchError, StoreClosedError, StoreDamagedError, StoreError
from agentic_retriever.indices.edge_fields import MAX_INDEXED_FIELDS, FieldKind, infer_kinds, path_field, payload_path
from agentic_retriever.indices.edge_payload import RESERVED_FIELDS
from agentic_retriever.indices.qdrant_link import CollectionMissingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from qdrant_client import QdrantClient

    from agentic_retriever.indices.qdrant_link import QdrantLink

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
    """A collection by name, for any number of threads. Making the object calls nobody.

    Args:
        link: The server.
        name: Name of the collection.
        dimension: Length of the vectors; ``None`` until it is known.
        keywords: Whether a new collection gets a sparse vector for BM25.
        shards: Shards of a new collection; 0 leaves that to the server.
        replicas: Copies of each shard of a new collection; 0 leaves that to the server.
    """

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
        """Call the server about a collection that must be there.

        Raises:
            StoreDamagedError: If the collection was there and is gone.
            CollectionMissingError: If it never was.
            StoreError: As :meth:`QdrantLink.call`.
        """
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
        """Make the collection if it is not there.

        Raises:
            EmbeddingMismatchError: If it holds vectors of another dimension.
            StoreError: If the server failed, or another program made the collection.
        """
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
        """Refuse use after :meth:`close`.

        Raises:
            StoreClosedError: If it was closed.
        """
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
