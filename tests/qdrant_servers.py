"""A Qdrant server's REST interface on the loopback interface, on the client's own memory, well or badly behaved."""

import json
import re
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote, urlsplit

from model_servers import LoopbackServer
from pydantic import TypeAdapter
from qdrant_client import QdrantClient, models

VERSION = "1.18.2"
DONE = {"operation_id": 1, "status": "completed"}


class QdrantServer(LoopbackServer):
    """Speaks Qdrant's REST interface, first with ``faults``: a status, ``"hang"``, ``"full"`` or ``"html"``."""

    protocol_version = "HTTP/1.1"

    def __init__(self, *, key: str = "") -> None:
        self.client = QdrantClient(":memory:")
        self.key = key
        self.faults: list[int | str] = []
        self.always: int | str | None = None
        self.requests: list[str] = []
        self.indexes: dict[str, dict[str, str]] = {}
        super().__init__()

    def serve(self, handler: BaseHTTPRequestHandler, body: object) -> None:
        parts = urlsplit(handler.path)
        with self._lock:
            self.requests.append(f"{handler.command} {unquote(parts.path)}")
            fault = self.faults.pop(0) if self.faults else self.always
        if fault == "hang":
            self.released.wait(20)
        elif fault == "full":
            self._send(handler, 500, {"status": {"error": f"No space left on device: WAL {self.key}"}})
        elif fault == "html":
            self._send(handler, 200, "<html>hello</html>", "text/html")
        elif isinstance(fault, int):
            self._send(handler, fault, {"status": {"error": f"fault {self.key}"}})
        elif self.key and handler.headers.get("api-key") != self.key:
            self._send(handler, 401, f"Must provide an API key, got not {self.key}", "text/plain")
        else:
            try:
                with self._lock:
                    result = self._answer(handler.command, unquote(parts.path), parse_qs(parts.query), body)
            except ValueError as err:
                self._send(handler, 404 if "not found" in str(err) else 400, {"status": {"error": str(err)}})
                return
            whole = {"result": _plain(result), "status": "ok", "time": 0.0}
            self._send(handler, 200, result if parts.path == "/" else whole)

    def _send(self, handler: BaseHTTPRequestHandler, status: int, answer, kind: str = "application/json") -> None:
        body = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        self.head(handler, status, kind, len(body))
        handler.wfile.write(body)

    def _answer(self, method: str, path: str, query: dict, body) -> object:
        if path == "/":
            return {"title": "qdrant - vector search engine", "version": VERSION}
        if path == "/collections":
            return self.client.get_collections()
        found = re.fullmatch(r"/collections/([^/]+)(/.*)?", path)
        if not found:
            raise ValueError(f"{path} not found")
        name, rest = found[1], found[2] or ""
        if method == "DELETE" and not rest:
            self.indexes.pop(name, None)
        if rest.startswith("/index/"):
            del self.indexes[name][rest.removeprefix("/index/")]
            return DONE
        kind, call = _ROUTES[method, rest]
        return call(self, name, body if kind is None else TypeAdapter(kind).validate_python(body))

    def _info(self, name, _asked):
        info = self.client.get_collection(name).model_dump(mode="json")
        made = self.indexes.get(name, {})
        info["payload_schema"] = {path: {"data_type": kind, "points": 0} for path, kind in made.items()}
        return info

    def _index(self, name, asked):
        self.indexes.setdefault(name, {})[asked["field_name"]] = asked["field_schema"]
        return DONE

    def _batch(self, name, asked):
        return [{"points": one.points} for one in self.client.query_batch_points(name, asked)]

    def _scroll(self, name, asked):
        points, following = self.client.scroll(
            name, scroll_filter=asked.filter, limit=asked.limit or 10, offset=asked.offset,
            with_payload=asked.with_payload, with_vectors=asked.with_vector or False,
        )  # fmt: skip
        return {"points": points, "next_page_offset": following}


# What a request's body is read as, and what is done with it.
_ROUTES = {
    ("GET", "/exists"): (None, lambda self, name, _: {"exists": self.client.collection_exists(name)}),
    ("GET", ""): (None, QdrantServer._info),
    ("PUT", ""): (
        models.CreateCollection,
        lambda self, name, asked: self.client.create_collection(
            name, vectors_config=asked.vectors, sparse_vectors_config=asked.sparse_vectors
        ),
    ),
    ("DELETE", ""): (None, lambda self, name, _: self.client.delete_collection(name)),
    ("PUT", "/points"): (models.PointsList, lambda self, name, asked: self.client.upsert(name, asked.points)),
    ("POST", "/points"): (
        models.PointRequest,
        lambda self, name, asked: self.client.retrieve(name, asked.ids, asked.with_payload, asked.with_vector or False),
    ),
    ("POST", "/points/delete"): (
        models.PointIdsList | models.FilterSelector,
        lambda self, name, asked: self.client.delete(name, asked),
    ),
    ("POST", "/points/query"): (models.QueryRequest, lambda self, name, asked: self._batch(name, [asked])[0]),
    ("POST", "/points/query/batch"): (
        models.QueryRequestBatch,
        lambda self, name, asked: self._batch(name, asked.searches),
    ),
    ("POST", "/points/scroll"): (models.ScrollRequest, QdrantServer._scroll),
    ("POST", "/points/count"): (
        models.CountRequest,
        lambda self, name, asked: self.client.count(name, count_filter=asked.filter),
    ),
    ("PUT", "/points/vectors"): (
        models.UpdateVectors,
        lambda self, name, asked: self.client.update_vectors(name, asked.points),
    ),
    ("PUT", "/index"): (None, QdrantServer._index),
}


def _plain(value):
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
