"""A model server on the loopback interface that misbehaves on demand."""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class ModelServer:
    """Speaks Ollama's ``/api/chat`` and the chat completions of OpenRouter; ``mode`` says how."""

    def __init__(self) -> None:
        self.mode = "good"
        self.status = 200
        self.body = b""
        self.requests: list[tuple[str, dict]] = []
        self.released = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers.get("content-length", 0))
                server.requests.append((self.path, json.loads(self.rfile.read(length) or b"{}")))
                with contextlib.suppress(OSError):  # the client went away
                    server._answer(self)

            def log_message(self, *args: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        if self.mode == "hang":
            self.released.wait(20)
            return
        if self.mode == "close":
            handler.connection.close()
            return
        handler.send_response(self.status)
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", str(len(self.body)))
        handler.end_headers()
        if self.mode == "drip":
            for byte in self.body:
                handler.wfile.write(bytes([byte]))
                handler.wfile.flush()
                if self.released.wait(0.05):
                    return
        else:
            handler.wfile.write(self.body)

    def reply(self, value: object, status: int = 200) -> None:
        self.mode, self.status = "good", status
        self.body = value if isinstance(value, bytes) else json.dumps(value).encode()

    def close(self) -> None:
        self.released.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@pytest.fixture
def server(monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    model_server = ModelServer()
    yield model_server
    model_server.close()
