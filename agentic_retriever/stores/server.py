"""A Qdrant server or cluster: calls to it, and a LlamaIndex vector store with search by words on it."""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, ClassVar, Final, TypeAlias, TypeVar, cast
from urllib.parse import urlsplit

import numpy.typing as npt
import qdrant_edge as edge
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import MetadataFilters, VectorStoreQuery, VectorStoreQueryResult
from llama_index.vector_stores.qdrant import QdrantVectorStore
from llama_index.vector_stores.qdrant.utils import relative_score_fusion
from qdrant_client import QdrantClient, models
from qdrant_client.common.client_exceptions import ResourceExhaustedResponse
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse
from typing_extensions import Self

from agentic_retriever import errors
from agentic_retriever.config import RouterConfig, Secret, host_and_port
from agentic_retriever.stores import points
from agentic_retriever.stores.node_store import TIE_MARGIN, NodeStore, Offset, Page, Side, Vectors, found_result
from agentic_retriever.stores.sparse import SparseBM25, SparseRow
from agentic_retriever.threads import Breaker, BriefThread, DeadlineCaller, Ticket, Workers

T = TypeVar("T")
OnFitted: TypeAlias = Callable[[SparseBM25, SparseBM25 | None], SparseBM25]

TIMEOUT_S: Final = 10.0  # for one call with all its retries; a search of a million vectors needs far less
_TRIES: Final = 3
_PAUSE_S: Final = 0.2  # before the second try; twice as long before the third
_COOLDOWN_S: Final = 1.0  # before a server that does not answer is tried again
_MAX_CALLS: Final = 16
_WAITING: Final = 64
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class CollectionMissingError(errors.StoreError):
    """The server has no such collection."""


class _NoAnswerError(errors.StoreUnreachableError):
    """No connection, or no answer in time."""


class _Peer:
    """One node of a cluster, or a server alone, and the calls to it that are under way."""

    def __init__(self, address: str, client: QdrantClient | None) -> None:
        self.client = client
        self.caller = DeadlineCaller(f"Qdrant at {address}", max_calls=_MAX_CALLS, max_waiting=_WAITING)


class QdrantLink:
    """One Qdrant server or cluster, for any number of threads. Making one calls nobody; the first call connects.

    A call that the server refuses for good (401, 403, 404, a bad request) is made once. One that may work a moment
    later (429, 5xx, no connection) is made up to three times. All of it ends when ``timeout_s`` is over. Of the nodes
    of a cluster, given with commas between their URLs, one is asked until it fails, and then the next. After three
    calls in a row without an answer from any, calls fail at once until a probe in the background is answered.
    """

    def __init__(
        self,
        url: str = "",
        *,
        api_key: Secret | None = None,
        timeout_s: float = TIMEOUT_S,
        client: QdrantClient | None = None,
        pause: Callable[[float], None] = time.sleep,
        breaker: Breaker | None = None,
    ) -> None:
        options = {} if client is None else client.init_options
        # Whether the client keeps the data itself and there is no server; it is slow, and for tests.
        self.in_process = bool(options.get("path")) or options.get("location") == ":memory:"
        self._urls = [part.strip() for part in (url or str(options.get("url"))).split(",")]
        self.address = "memory" if self.in_process else ", ".join(map(_address, self._urls))
        self.timeout_s = timeout_s
        self._api_key = api_key or Secret()
        self._client = client
        self._pause = pause
        self._lock = threading.RLock()
        self._peers = [_Peer(self.address, client) for _ in self._urls]
        self._asked = 0  # which of them
        self._breaker = breaker or Breaker(failures=3, cooldown_s=_COOLDOWN_S)

    @classmethod
    def from_config(cls, config: RouterConfig) -> QdrantLink:
        """Make the link that the settings name."""
        return cls(config.qdrant_url.reveal(), api_key=config.qdrant_api_key)

    def __repr__(self) -> str:
        return f"QdrantLink({self.address})"

    def call(self, what: str, function: Callable[[QdrantClient], T], *, timeout_s: float | None = None) -> T:
        """Return what the function returns."""
        if self.in_process:
            return self._in_process(what, function)
        ticket = self._breaker.enter()
        if ticket is None or ticket.is_probe:
            if ticket is not None:
                BriefThread(partial(self._probe, ticket), f"Qdrant probe {self.address}").start()
            raise errors.StoreUnreachableError(
                f"cannot {what}: Qdrant at {self.address} is not asked since it failed to answer several calls in a "
                "row; it is tried again every second; check that it is up, and QDRANT_URL"
            )
        limit = self.timeout_s if timeout_s is None else timeout_s
        return self._judge(ticket, partial(self._call, what, function, limit))

    def _judge(self, ticket: Ticket, call: Callable[[], T]) -> T:
        """Make a call and note whether anybody answered."""
        is_ok = None
        try:
            found, is_ok = call(), True
        except errors.StoreError as err:
            is_ok = not isinstance(err, _NoAnswerError)
            raise
        finally:
            self._breaker.leave(ticket, ok=is_ok)
        return found

    def _probe(self, ticket: Ticket) -> None:
        """Find out whether the server is back, so that no question waits for one that hangs."""
        with suppress(errors.AgenticRetrieverError):
            self._judge(ticket, partial(self._call, "probe", lambda client: client.info(), self.timeout_s))

    def _call(self, what: str, function: Callable[[QdrantClient], T], limit: float) -> T:
        """Make a call until it succeeds, must fail, or the time is over."""
        end, count, tries = time.monotonic() + limit, len(self._peers), 0
        while True:
            peer = self._asked
            left = end - time.monotonic()
            share = left / max(1, count - tries)  # what a node may take that hangs, so that others are asked, too
            tries += 1
            try:
                caller = self._peers[peer].caller
                return caller.call(partial(self._ask, peer, function), max(0.0, share))
            except (errors.DeadlineExceededError, errors.OverloadedError) as err:
                if tries >= count and isinstance(err, errors.OverloadedError):
                    raise
                error: errors.StoreError = _NoAnswerError(
                    f"cannot {what}: Qdrant at {self.address} gave no answer within {limit:.1f} s; check that it is "
                    "up and not overloaded"
                )
                cause: Exception = err
                wait_s = 0.0 if tries < count else None
            except errors.AgenticRetrieverError:
                raise
            except Exception as err:  # noqa: BLE001 - the seam to the client, whose parser raises anything on nonsense
                error, wait_s = self._judged(what, err, 0.0 if tries < count else _PAUSE_S * 2 ** (tries - 1))
                cause = _without_body(err)
            if wait_s is not None and self._asked == peer:
                self._asked = (peer + 1) % count
            if wait_s is None or tries == max(_TRIES, count) or time.monotonic() + wait_s >= end:
                raise error from cause
            self._pause(wait_s)

    def _ask(self, peer: int, function: Callable[[QdrantClient], T]) -> T:
        return function(self._connected(peer))

    def check(self, timeout_s: float) -> str:
        """Return the server's version."""

        def ask(client: QdrantClient) -> str:
            client.get_collections()  # needs the key, which the version does not
            return str(client.info().version)

        return self.call("list the collections", ask, timeout_s=timeout_s)

    def close(self) -> None:
        """Close the connections; a later call opens one again. A client that was handed in stays open."""
        with self._lock:
            for peer in self._peers:
                if peer.client is not None and peer.client is not self._client:
                    peer.client.close()
                    peer.client = None

    def _connected(self, number: int) -> QdrantClient:
        with self._lock:
            peer, url = self._peers[number], self._urls[number]
            if peer.client is None:
                with warnings.catch_warnings():
                    if urlsplit(url).hostname in _LOOPBACK:  # a key does not leave the machine
                        warnings.filterwarnings("ignore", "Api key is used with an insecure connection")
                    # Its timeout is per read; the total is kept by the caller, so this only ends abandoned calls.
                    peer.client = QdrantClient(
                        url=url,
                        api_key=self._api_key.reveal() or None,
                        timeout=max(1, math.ceil(self.timeout_s)),
                        check_compatibility=False,  # it would call the server from the constructor
                    )
            return peer.client

    def _in_process(self, what: str, function: Callable[[Any], T]) -> T:
        # The client's own collections are not safe for threads, so one call at a time.
        with self._lock:
            try:
                return function(self._client)
            except errors.AgenticRetrieverError:
                raise
            except ValueError as err:
                if "not found" in str(err):
                    raise CollectionMissingError(f"cannot {what}: there is no such collection in memory") from err
                raise errors.StoreError(f"cannot {what} in the client's memory: {type(err).__name__}") from err
            except RuntimeError as err:
                raise errors.StoreClosedError(f"cannot {what}: the client is closed") from err

    def _judged(self, what: str, err: Exception, wait_s: float) -> tuple[errors.StoreError, float | None]:
        """Return the error to raise, and after how many seconds another try may help, or ``None``."""
        place = f"cannot {what}: Qdrant at {self.address}"
        again_s: float | None = None
        if isinstance(err, ResourceExhaustedResponse):
            told = f"{place} is asked too much (429); ask less at once, or give it more resources"
            again_s = max(wait_s, float(err.retry_after_s))
        elif isinstance(err, UnexpectedResponse):
            status = err.status_code or 0
            if status == 404:
                return CollectionMissingError(f"{place} has no such collection (404); check QDRANT_URL"), None
            if status in {401, 403}:
                told = f"{place} refuses the key ({status}); set QDRANT_API_KEY to a key that may write"
            elif status == 429 or status >= 500:
                is_full = b"No space left" in err.content
                told = f"{place} {'has no disk space left; free some' if is_full else f'fails ({status}); see its log'}"
                again_s = wait_s
            else:
                told = f"{place} answers {status}; it may be too old (1.18 or newer is needed), see its log"
        elif isinstance(err, ResponseHandlingException) and not isinstance(err.source, ValueError):
            problem = f"no connection to Qdrant at {self.address} ({type(err.source).__name__})"
            return _NoAnswerError(f"cannot {what}: {problem}; check that it is up, and QDRANT_URL"), wait_s
        else:
            told = f"cannot {what}: what answers at {self.address} is no Qdrant server; check QDRANT_URL"
        return errors.StoreUnreachableError(told), again_s


def _address(url: str) -> str:
    """Return host and port of a URL, and never what may be a secret."""
    wrong = errors.ConfigError(
        "setting qdrant_url must look like http://host:6333 or https://host:6333, without a user or a key in it (that "
        "is qdrant_api_key); got something else (not shown, it may hold a secret)"
    )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise wrong from None  # the cause would show the URL
    if parts.scheme not in {"http", "https"} or not host or "@" in parts.netloc or parts.query:
        raise wrong
    return host_and_port(host, port or 6333)


def _without_body(err: Exception) -> Exception:
    """Take from an error of the client what the server said, which may repeat a key or a document."""
    for name, blank in (("content", b""), ("message", "not shown")):
        if hasattr(err, name):
            setattr(err, name, blank)
    if not isinstance(err, OSError):
        err.args = ()
    err.__context__ = err.__cause__ = None
    return err


_WORKERS: Final = 8
_STEP: Final = 128  # points in one request
GRAPH_EFFORT: Final = 256  # candidates that a search through the graph keeps; docs/scaling.md has how many are found
# No links for filters, which take most of the building and slow all searches. What a filter leaves of a segment is all
# compared up to 30 MB of vectors; beyond, neighbours' neighbours do, also where a half is guessed, as without an index.
_GRAPH: Final = models.HnswConfigDiff(payload_m=0, full_scan_threshold=30_000)
_FURTHER: Final = models.AcornSearchParams(enable=True, max_selectivity=0.5)
_KINDS_FOR_S: Final = 10.0  # how long the indexed fields are believed; another process may add one at any time
_ACTIONS: Final = {
    "client": "connect",
    "get_collection": "read what a collection is like",
    "upsert": "add nodes",
    "update_vectors": "revise the words",
    "delete": "delete nodes",
    "create_payload_index": "index a field",
    "delete_payload_index": "index a field",
    "query_points": "search",
    "query_batch_points": "search",
    "scroll": "read nodes",
    "retrieve": "read vectors",
    "count": "count the nodes",
}


class _CollectionClient:
    """The calls of a Qdrant client about one collection, each within its time, with errors of our own."""

    def __init__(self, link: QdrantLink, name: str, *, must_exist: bool) -> None:
        self.link = link
        self.name = name
        self.was_there = must_exist  # so that where it is missing, something was lost
        self.closed = False

    def __getattr__(self, method: str) -> Callable[..., Any]:
        """Return the client's method; whatever it is, it is called through the link."""

        def call(*args: object, **options: object) -> Any:  # noqa: ANN401 - what the client returns
            self.check_open()
            what = _ACTIONS.get(method, method.replace("_", " "))
            try:
                found = self.link.call(what, lambda client: getattr(client, method)(*args, **options))
            except CollectionMissingError as err:
                if self.was_there:
                    raise errors.StoreDamagedError(
                        f"cannot {what}: the collection {self.name!r} is gone from Qdrant at {self.link.address}; "
                        "restore it from a snapshot, or add the sources again"
                    ) from err
                raise
            self.was_there = True
            return found

        return call

    def ensure_made(self, **options: Any) -> None:  # noqa: ANN401 - the client's types
        """Make the collection where it is not there."""

        def create(client: QdrantClient) -> None:
            # Looked at in every try, since one that seemed to fail may have made it.
            if not client.collection_exists(self.name):
                client.create_collection(self.name, **options)

        if not self.was_there:
            self.link.call("make a collection", create)
            self.was_there = True

    def check_open(self) -> None:
        """Refuse use after the store was closed."""
        if self.closed:
            raise errors.StoreClosedError(f"the collection {self.name!r} is closed; open it again")


class QdrantServerVectorStore(NodeStore, QdrantVectorStore):  # type: ignore[misc]  # theirs also take a shard's key
    """Nodes and their vectors in a collection of a Qdrant server, with metadata filters that the server checks.

    Filters mean what :mod:`agentic_retriever.filters` says: they are pushed down as far as the server's meaning is the
    same, and every hit is checked once more. Safe for many threads and many processes. What ``add`` has returned is in
    the server's write-ahead log. Making the store calls nobody.

    Payloads and vectors are named as LlamaIndex's ``QdrantVectorStore`` names them, so that it can read these
    collections. It is not left alone with: its constructor, which calls the server; ids and filters, of which it reads
    an empty list as "everything", and "and" as "or" where both are given; ids that are no UUIDs; lists of more than
    9,999 nodes; points that others have written, one of which fails a whole query; ties; and half-written batches.

    Example:
        >>> link = QdrantLink("http://localhost:6333")  # doctest: +SKIP
        >>> with QdrantServerVectorStore(link, "papers") as store:
        ...     index = VectorStoreIndex.from_vector_store(store, embed_model=embed_model)
    """

    _step: ClassVar[int] = _STEP
    _finds_substrings: ClassVar[bool] = False  # a server without a text index does, one with it finds tokens
    _max_scanned: ClassVar[float] = 100_000

    _collection: _CollectionClient = PrivateAttr()
    _words: ServerWords | None = PrivateAttr()
    _options: dict[str, Any] = PrivateAttr()
    _lock: Any = PrivateAttr(default_factory=threading.RLock)
    _indexed: dict[str, str] = PrivateAttr(default_factory=dict)
    _indexed_read: float = PrivateAttr(default=float("-inf"))
    _has_links: bool = PrivateAttr(default=True)

    def __init__(
        self,
        link: QdrantLink,
        collection_name: str,
        dimension: int | None = None,
        *,
        keywords: bool = False,
        sparse: SparseBM25 | None = None,
        on_fitted: OnFitted | None = None,
        must_exist: bool = False,
    ) -> None:
        """Describe the store.

        Args:
            link: The server.
            collection_name: Name of the collection, made with the first nodes.
            dimension: Length of the vectors; by default what is stored, or what the first vectors have.
            keywords: Whether words can be searched too, by sparse vectors.
            sparse: How texts become sparse vectors; by default as suits the first nodes.
            on_fitted: Is told how, once that is decided or changed, and how before; what it returns holds.
            must_exist: Whether a collection that is not there is damage, and not one to be made.
        """
        client = _CollectionClient(link, collection_name, must_exist=must_exist)
        # As if the client were the async one, since with the other its constructor would call the server.
        QdrantVectorStore.__init__(self, collection_name, aclient=cast("Any", client))
        self._client, self._aclient = cast("QdrantClient", client), cast("Any", None)
        self._collection = client
        self.dimension = dimension
        self._words = ServerWords(self, sparse, on_fitted) if keywords else None
        self._options = {"keywords": keywords, "on_fitted": on_fitted}
        self._workers = Workers(_WORKERS, f"vector-store-{collection_name}")

    @property
    def client(self) -> QdrantClient:
        """The client itself, for what this class does not offer."""
        self._collection.check_open()
        return self._collection.link.call("connect", lambda client: client)

    @property
    def words(self) -> ServerWords | None:
        """Search by words, and by both; ``None`` in a store that was not made with ``keywords=True``."""
        return self._words

    def clear(self) -> None:
        with suppress(CollectionMissingError):  # the collection stays, since other processes may have it open
            self._collection.delete(self.collection_name, models.FilterSelector(filter=models.Filter()), wait=True)

    def flush(self) -> None:
        self._check_open()  # and no more: what a write has returned is in the server's log

    def close(self) -> None:
        super().close()
        self._collection.closed = True  # the link stays open for others

    def _check_open(self) -> None:
        self._collection.check_open()

    @contextmanager
    def _writing(self, what: str, dimension: int | None = None, points: int = 0) -> Iterator[None]:  # noqa: ARG002
        self._check_open()
        if dimension is not None:
            with self._lock:
                if self.dimension is not None and self.dimension != dimension:
                    raise self._mismatch(dimension, self.dimension)
                dense = models.VectorParams(size=dimension, distance=models.Distance.COSINE, hnsw_config=_GRAPH)
                sparse = {self.sparse_vector_name: models.SparseVectorParams(modifier=models.Modifier.IDF)}
                named = {self.dense_vector_name: dense}
                self._collection.ensure_made(vectors_config=named, sparse_vectors_config=sparse)
                if self._indexed_read == float("-inf"):
                    self._read_info(dimension)
                self.dimension = dimension
        yield

    def _prepare(self, nodes: Sequence[BaseNode], vectors: Vectors, payloads: Sequence[dict[str, Any]]) -> None:
        del vectors
        if self._words is not None:
            self._words.ensure_fitted(nodes)
        if not self._collection.link.in_process:  # which has no indexes, and warns of them
            with self._lock:
                self._index_fields(payloads)

    def _put(self, nodes: Sequence[BaseNode], vectors: Vectors, payloads: Sequence[dict[str, Any]]) -> None:
        named: list[dict[str, Any]] = [{self.dense_vector_name: row.tolist()} for row in vectors]
        if self._words is not None:
            sparse = self._words.ensure_fitted(nodes)
            for row, node in zip(named, nodes, strict=True):
                words = _sparse_vector(sparse.document(points.searched_text(node)))
                if words.indices:
                    row[self.sparse_vector_name] = words
        rows = [
            models.PointStruct(id=points.point_id(node.node_id), vector=row, payload=payload)
            for node, row, payload in zip(nodes, named, payloads, strict=True)
        ]
        self._collection.upsert(self.collection_name, rows, wait=True)

    def _remove(self, point_ids: list[Any]) -> None:
        QdrantVectorStore.delete_nodes(self, node_ids=point_ids)

    def _kinds(self) -> Mapping[str, str]:
        with self._lock:
            if not self._collection.link.in_process and time.monotonic() - self._indexed_read > _KINDS_FOR_S:
                with suppress(CollectionMissingError):
                    self._read_info(self.dimension)
            return self._indexed

    def _make_index(self, path: str, kind: points.FieldKind, *, replace: bool) -> None:
        if replace:
            self._collection.delete_payload_index(self.collection_name, path)
        schema = models.PayloadSchemaType(kind)
        self._collection.create_payload_index(self.collection_name, path, field_schema=schema, wait=True)
        self._indexed = {**self._indexed, points.path_field(path): kind}

    def _read_info(self, dimension: int | None) -> None:
        info = self._collection.get_collection(self.collection_name)
        vectors: Any = info.config.params.vectors
        if not isinstance(vectors, dict) or self.dense_vector_name not in vectors:
            raise errors.StoreError(
                f"the collection {self.collection_name!r} on Qdrant at {self._collection.link.address} was made by "
                f"another program: it has no vector named {self.dense_vector_name!r}; set qdrant_prefix so that names "
                "do not meet"
            )
        dense = vectors[self.dense_vector_name]
        if dimension is not None and dense.size != dimension:
            raise self._mismatch(dimension, dense.size)
        self.dimension = dense.size
        self._has_links = dense.hnsw_config is None or dense.hnsw_config.payload_m != 0
        schema = info.payload_schema or {}
        found = {points.path_field(path): getattr(index.data_type, "value", "") for path, index in schema.items()}
        self._indexed = {field: kind if kind in points.FIELD_KINDS else "other" for field, kind in found.items()}
        self._indexed_read = time.monotonic()

    def _mismatch(self, got: int, stored: int) -> errors.EmbeddingMismatchError:
        return errors.EmbeddingMismatchError(
            f"the vectors have {got} dimensions, the collection {self.collection_name!r} holds {stored}; use the "
            "embedding model that it was made with"
        )

    def _scroll(self, condition: edge.Filter | None, offset: Offset, size: int, payload: points.Payload) -> Page:
        options = {"limit": size, "offset": offset, "with_payload": payload, "scroll_filter": client_filter(condition)}
        with suppress(CollectionMissingError):
            page: Page = self._collection.scroll(self.collection_name, **options)
            return page
        return [], None

    def _vectors(self, point_ids: list[str]) -> Mapping[str, npt.ArrayLike]:
        name = self.dense_vector_name
        options = {"with_payload": False, "with_vectors": [name]}
        with suppress(CollectionMissingError):
            records = self._collection.retrieve(self.collection_name, point_ids, **options)
            return {str(record.id): record.vector[name] for record in records}
        return {}

    def _count(self, condition: edge.Filter | None) -> int:
        with suppress(CollectionMissingError):
            asked = client_filter(condition)
            return int(self._collection.count(self.collection_name, count_filter=asked, exact=True).count)
        return 0

    def _ask(
        self, sides: Sequence[Side], limit: int, condition: edge.Filter | None, payload: bool
    ) -> Sequence[Sequence[points.EnginePoint]]:
        self._kinds()  # a collection of other vectors is an error of ours, and none of the server's
        common = dict[str, Any](filter=client_filter(condition), limit=limit, params=self._params(limit, condition))
        requests = [models.QueryRequest(**common, **self._near(side), with_payload=payload) for side in sides]
        with suppress(CollectionMissingError):
            answers = self._collection.query_batch_points(collection_name=self.collection_name, requests=requests)
            return [answer.points for answer in answers]
        return [[] for _ in sides]

    def _hybrid(
        self, query: VectorStoreQuery, vector: Vectors, top_k: int, wanted: points.WantedPoints
    ) -> VectorStoreQueryResult:
        if self._words is None:
            return super()._hybrid(query, vector, top_k, wanted)
        asked, by_words = self._words._question(query.query_str or ""), query.sparse_top_k or top_k
        sides = [vector, asked] if asked.indices and top_k else [vector]
        [dense, *words] = self._find(sides, max(top_k, by_words) if top_k else 0, wanted)
        results = found_result(dense[:top_k]), found_result(words[0][:by_words] if words else [])
        alpha = 0.5 if query.alpha is None else query.alpha
        fused = relative_score_fusion(*results, alpha=alpha, top_k=query.hybrid_top_k or top_k)
        return fused if fused.nodes else found_result([])

    def _near(self, side: Side) -> dict[str, Any]:
        if isinstance(side, models.SparseVector):
            return {"query": side, "using": self.sparse_vector_name}
        return {"query": side.tolist(), "using": self.dense_vector_name}

    def _params(self, limit: int, condition: edge.Filter | None) -> models.SearchParams | None:
        further = condition is not None and not self._has_links  # looking along these, too, takes ten times as long
        wanted = models.SearchParams(hnsw_ef=max(GRAPH_EFFORT, limit), acorn=_FURTHER if further else None)
        return None if self._collection.link.in_process else wanted

    def __copy__(self) -> Self:
        sparse = None if self._words is None else self._words.sparse
        return type(self)(self._collection.link, self.collection_name, self.dimension, sparse=sparse, **self._options)

    def __reduce__(self) -> Any:  # noqa: ANN401 - never returns
        raise TypeError("a store on a server cannot be pickled, for that would write down its key; make it anew")


class ServerWords:
    """Search by words on a server, and by words and meaning together: BM25 as sparse vectors."""

    def __init__(
        self, store: QdrantServerVectorStore, sparse: SparseBM25 | None = None, on_fitted: OnFitted | None = None
    ) -> None:
        self._store = store
        self._on_fitted = on_fitted
        self.sparse = sparse

    def search_words(self, text: str, top_k: int, filters: MetadataFilters | None = None) -> list[points.Hit]:
        """Find nodes by words: BM25 with the server's document frequencies."""
        wanted, words = self._store._select(filters), self._question(text)
        return self._store._find([words], top_k, wanted)[0] if words.indices else []

    def search_both(
        self, vector: Sequence[float], text: str, top_k: int, filters: MetadataFilters | None = None
    ) -> tuple[list[points.Hit], list[points.Hit]]:
        """Find nodes by cosine and by words, in one request."""
        asked = self._question(text)
        sides: list[Side] = [self._unit(vector), *([asked] if asked.indices else [])]
        [dense, *words] = self._store._find(sides, top_k, self._store._select(filters))
        return dense, words[0] if words else []

    def search_fused(
        self, vector: Sequence[float], text: str, top_k: int, *, depth: int, alpha: float, rrf_k: int,
        filters: MetadataFilters | None = None,
    ) -> list[points.Hit] | None:  # fmt: skip
        """Let the server merge both by ``1 / (rank / weight + k - 1)``, ranks from 1; ``None`` where it cannot."""
        store, words = self._store, self._question(text)
        wanted = store._select(filters)
        if not words.indices or not wanted.exact or not 0 < alpha < 1:
            return None
        prefetch = partial(models.Prefetch, filter=client_filter(wanted.filter), limit=depth)
        dense = {**store._near(self._unit(vector)), "params": store._params(depth, wanted.filter)}
        weights = None if alpha == 0.5 else [2 * alpha, 2 * (1 - alpha)]
        with suppress(CollectionMissingError):
            found = store._collection.query_points(
                store.collection_name,
                prefetch=[prefetch(**dense), prefetch(**store._near(words))],
                query=models.RrfQuery(rrf=models.Rrf(k=rrf_k + 1, weights=weights)),
                limit=top_k + TIE_MARGIN,
                with_payload=True,
            )
            hits, foreign = points.rank_points(found.points, whole=True, accepts=wanted.accepts, top_k=top_k)
            points.warn_of_foreign(foreign)
            return hits
        return []

    def ensure_fitted(self, nodes: Sequence[BaseNode]) -> SparseBM25:
        """Return how texts become sparse vectors, which the first nodes decide, unless it is known."""
        return self.sparse or self._keep(SparseBM25.fitted([points.searched_text(node) for node in nodes]))

    def revise(self, sparse: SparseBM25, on_done: Callable[[int], None] = lambda _done: None) -> None:
        """Make all sparse vectors again, page by page; the dense ones stay."""
        store = self._store
        for records in store._pages(store._select(None), size=_STEP, whole=True):
            rows = []
            for record in records:
                node = points.stored_node(record.payload)
                if node is not None:
                    words = _sparse_vector(sparse.document(points.searched_text(node)))
                    rows.append(models.PointVectors(id=record.id, vector={store.sparse_vector_name: words}))
            if rows:
                store._collection.update_vectors(store.collection_name, rows, wait=True)
            on_done(len(records))
        self._keep(sparse)

    def _question(self, text: str) -> models.SparseVector:
        return _sparse_vector(([], []) if self.sparse is None else self.sparse.query(text))

    def _unit(self, vector: Sequence[float]) -> Vectors:
        return points.unit_vector(vector, self._store.dimension)

    def _keep(self, sparse: SparseBM25) -> SparseBM25:
        self.sparse = sparse if self._on_fitted is None else self._on_fitted(sparse, self.sparse)
        return self.sparse


def _sparse_vector(row: SparseRow) -> models.SparseVector:
    return models.SparseVector(indices=row[0], values=row[1])


def client_filter(condition: edge.Filter | None) -> models.Filter | None:
    """Write a condition of the engine in this process, which is the same engine, in the client's types."""
    if condition is None:
        return None
    parts = {name: getattr(condition, name) for name in ("must", "should", "must_not")}
    given: dict[str, Any] = {name: list(map(_condition, part)) for name, part in parts.items() if part}
    return models.Filter(**given)


def _condition(condition: Any) -> Any:  # noqa: ANN401 - one of four types there, and of four others here
    if isinstance(condition, edge.Filter):
        return client_filter(condition)
    if isinstance(condition, edge.HasIdCondition):
        ids = [one if isinstance(one, int) else str(one) for one in condition.point_ids]
        return models.HasIdCondition(has_id=sorted(ids, key=str))
    if isinstance(condition, edge.IsEmptyCondition):
        return models.IsEmptyCondition(is_empty=models.PayloadField(key=condition.key))
    match = condition.match
    if match is None:
        bounds = condition.range
        sides = {side: getattr(bounds, side) for side in ("gt", "gte", "lt", "lte")}
        given = {side: value for side, value in sides.items() if value is not None}
        if isinstance(bounds, edge.RangeFloat):
            return models.FieldCondition(key=condition.key, range=models.Range(**given))
        # The engine writes ``2020-01-31 10:00:00.5 UTC``.
        moments = {side: value.replace(" UTC", "Z") for side, value in given.items()}
        return models.FieldCondition(key=condition.key, range=models.DatetimeRange(**moments))
    is_any = isinstance(match, edge.MatchAny)
    wanted = models.MatchAny(any=list(map(str, match.value))) if is_any else models.MatchValue(value=match.value)
    return models.FieldCondition(key=condition.key, match=wanted)
