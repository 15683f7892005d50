"""A Qdrant server's REST interface on the loopback interface, on the client's own memory, well or badly behaved."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from pydantic import TypeAdapter
from qdrant_client import QdrantClient, models

VERSION = "1.18.2"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128


class QdrantServer:
    """Speaks as much of Qdrant's REST interface as the package uses.

    ``faults`` are served first, one a request: a status, ``"hang"`` or ``"html"``. ``always`` is served every time.
    """

    def __init__(self, *, key: str = "") -> None:
        self.client = QdrantClient(":memory:")
        self.key = key
        self.faults: list[int | str] = []
        self.always: int | str | None = None
        self.headers: dict[str, str] = {}
        self.requests: list[str] = []
        self.indexes: dict[str, dict[str, str]] = {}
        self.released = threading.Event()
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_any(self) -> None:
                length = int(self.headers.get("content-length", 0))
                body = json.loads(self.rfile.read(length) or b"null")
                with contextlib.suppress(OSError):
                    server._serve(self, body)

            do_GET = do_POST = do_PUT = do_DELETE = do_any  # noqa: N815 - names of the base class

            def log_message(self, *args: object) -> None:
                pass

        self._http = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self.released.set()
        self._http.shutdown()
        self._http.server_close()

    def _serve(self, handler: BaseHTTPRequestHandler, body: object) -> None:
        parts = urlsplit(handler.path)
        with self._lock:
            self.requests.append(f"{handler.command} {unquote(parts.path)}")
            fault = self.faults.pop(0) if self.faults else self.always
        if fault == "hang":
            self.released.wait(20)
            return
        if fault == "html":
            self._send(handler, 200, b"<html>hello</html>", "text/html")
            return
        if isinstance(fault, int):
            self._send(handler, fault, json.dumps({"status": {"error": f"fault {self.key}"}}).encode())
            return
        if self.key and handler.headers.get("api-key") != self.key:
            self._send(handler, 401, f"Must provide an API key, got not {self.key}".encode(), "text/plain")
            return
        try:
            with self._lock:
                result = self._answer(handler.command, unquote(parts.path), parse_qs(parts.query), body)
        except ValueError as err:
            status = 404 if "not found" in str(err) else 400
            self._send(handler, status, json.dumps({"status": {"error": str(err)}}).encode())
            return
        if parts.path == "/":
            self._send(handler, 200, json.dumps(result).encode())
            return
        answer = {"result": _plain(result), "status": "ok", "time": 0.0}
        self._send(handler, 200, json.dumps(answer).encode())

    def _send(
        self, handler: BaseHTTPRequestHandler, status: int, body: bytes, kind: str = "application/json"
    ) -> None:  # fmt: skip
        handler.send_response(status)
        for name, value in self.headers.items():
            handler.send_header(name, value)
        handler.send_header("content-type", kind)
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
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
        return _ROUTES[method, rest if not rest.startswith("/index/") else "/index/"](self, name, body, rest)

    def _create(self, name, body, _rest):
        asked = models.CreateCollection.model_validate(body)
        return self.client.create_collection(
            name, vectors_config=asked.vectors, sparse_vectors_config=asked.sparse_vectors
        )

    def _info(self, name, _body, _rest):
        info = self.client.get_collection(name).model_dump(mode="json")
        made = self.indexes.get(name, {})
        info["payload_schema"] = {path: {"data_type": kind, "points": 0} for path, kind in made.items()}
        return info

    def _upsert(self, name, body, _rest):
        return self.client.upsert(name, models.PointsList.model_validate(body).points)

    def _delete(self, name, body, _rest):
        selector = TypeAdapter(models.PointIdsList | models.FilterSelector).validate_python(body)
        return self.client.delete(name, selector)

    def _index(self, name, body, _rest):
        self.indexes.setdefault(name, {})[body["field_name"]] = body["field_schema"]
        return {"operation_id": 1, "status": "completed"}

    def _drop_index(self, name, _body, rest):
        del self.indexes[name][rest.removeprefix("/index/")]
        return {"operation_id": 1, "status": "completed"}

    def _query(self, name, body, _rest):
        asked = models.QueryRequest.model_validate(body)
        return {"points": self.client.query_batch_points(name, [asked])[0].points}

    def _batch(self, name, body, _rest):
        asked = models.QueryRequestBatch.model_validate(body)
        return [{"points": one.points} for one in self.client.query_batch_points(name, asked.searches)]

    def _scroll(self, name, body, _rest):
        asked = models.ScrollRequest.model_validate(body)
        points, following = self.client.scroll(
            name, scroll_filter=asked.filter, limit=asked.limit or 10, offset=asked.offset,
            with_payload=asked.with_payload, with_vectors=asked.with_vector or False,
        )  # fmt: skip
        return {"points": points, "next_page_offset": following}

    def _count(self, name, body, _rest):
        asked = models.CountRequest.model_validate(body)
        return self.client.count(name, count_filter=asked.filter)

    def _retrieve(self, name, body, _rest):
        asked = models.PointRequest.model_validate(body)
        return self.client.retrieve(name, asked.ids, asked.with_payload, asked.with_vector or False)

    def _update(self, name, body, _rest):
        return self.client.update_vectors(name, models.UpdateVectors.model_validate(body).points)


_ROUTES = {
    ("GET", "/exists"): lambda self, name, _b, _r: {"exists": self.client.collection_exists(name)},
    ("GET", ""): QdrantServer._info,
    ("PUT", ""): QdrantServer._create,
    ("DELETE", ""): lambda self, name, _b, _r: self.client.delete_collection(name),
    ("PUT", "/points"): QdrantServer._upsert,
    ("POST", "/points"): QdrantServer._retrieve,
    ("POST", "/points/delete"): QdrantServer._delete,
    ("POST", "/points/query"): QdrantServer._query,
    ("POST", "/points/query/batch"): QdrantServer._batch,
    ("POST", "/points/scroll"): QdrantServer._scroll,
    ("POST", "/points/count"): QdrantServer._count,
    ("PUT", "/points/vectors"): QdrantServer._update,
    ("PUT", "/index"): QdrantServer._index,
    ("DELETE", "/index/"): QdrantServer._drop_index,
}


def _plain(value):
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
