"""A model server on the loopback interface that answers well or misbehaves on demand."""

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = "sk-or-canary-4711"
OLLAMA = {"model": "some/model:1b", "created_at": "2025-01-01T00:00:00Z"}
OPENROUTER = {"id": "1", "created": 1, "model": "some/model:1b"}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256  # with the default of 5, connections at the same moment wait a second or are refused


class LoopbackServer:
    """An HTTP server on the loopback interface; ``serve(handler, body)`` answers, with the JSON of the request."""

    protocol_version = "HTTP/1.0"

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.released = threading.Event()
        self.open_connections = 0
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = server.protocol_version

            def setup(self) -> None:
                super().setup()
                with server._lock:
                    server.open_connections += 1

            def finish(self) -> None:
                with contextlib.suppress(OSError):
                    super().finish()
                with server._lock:
                    server.open_connections -= 1

            def do_any(self) -> None:
                length = int(self.headers.get("content-length", 0))
                body = json.loads(self.rfile.read(length) or b"null")
                with contextlib.suppress(OSError):  # the client went away
                    server.serve(self, body)

            do_GET = do_POST = do_PUT = do_DELETE = do_any  # noqa: N815 - names of the base class

            def log_message(self, *args: object) -> None:
                pass

        self._http = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def serve(self, handler: BaseHTTPRequestHandler, body) -> None:
        raise NotImplementedError

    def head(self, handler: BaseHTTPRequestHandler, status: int, kind: str, length: int) -> None:
        handler.send_response(status)
        for name, value in (*self.headers.items(), ("content-type", kind), ("content-length", str(length))):
            handler.send_header(name, value)
        handler.end_headers()

    def close(self) -> None:
        """Let go of every connection and end."""
        self.released.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class ModelServer(LoopbackServer):
    """Speaks Ollama's ``/api/chat`` and OpenRouter's chat completions as ``mode`` says, or well in ``healthy``."""

    def __init__(self) -> None:
        self.mode, self.status = "good", 200
        self.body = self.rest = b""
        self.first: list[tuple[int, bytes]] = []
        self.healthy: dict[str, str] = {}
        self.listing = b"{}"
        self.requests: list[tuple[str, dict]] = []
        super().__init__()

    def serve(self, handler: BaseHTTPRequestHandler, body) -> None:
        self.authorization = handler.headers.get("authorization")
        if handler.command == "POST":
            self.requests.append((handler.path, body or {}))
            self._answer(handler, body or {})
        elif self.mode == "hang":
            self.released.wait(20)
        else:
            self._send(handler, self.status, self.listing)

    def _send(self, handler: BaseHTTPRequestHandler, status: int, body: bytes, length: int | None = None) -> None:
        self.head(handler, status, _kind(body), len(body) if length is None else length)
        for part in map(bytes, zip(body, strict=False)) if self.mode == "drip" else [body]:
            handler.wfile.write(part)
            handler.wfile.flush()
            if self.mode == "drip" and self.released.wait(0.05):
                return

    def _answer(self, handler: BaseHTTPRequestHandler, asked: dict) -> None:
        if asked.get("model") in self.healthy:
            provider = "ollama" if handler.path == "/api/chat" else "openrouter"
            text = self.healthy[asked["model"]]
            pieces = [word + " " for word in text.split(" ")]
            body = stream_body(provider, pieces) if asked.get("stream") else json.dumps(chat(provider, text)).encode()
            self.head(handler, 200, _kind(body), len(body))
            handler.wfile.write(body)
        elif self.first:
            self._send(handler, *self.first.pop(0))
        elif self.mode == "hang":
            self.released.wait(20)
        elif self.mode == "close":
            handler.connection.close()
        elif self.mode in {"cut", "stall"}:  # the body ends in the middle; with "stall" the connection stays
            self._send(handler, self.status, self.body, len(self.body) + 1_000)
            if self.mode == "stall":
                self.released.wait(20)
        elif self.mode == "hold":  # the rest comes when it is released
            self._send(handler, self.status, self.body, len(self.body) + len(self.rest))
            self.released.wait(20)
            handler.wfile.write(self.rest)
        else:
            self._send(handler, self.status, self.body)

    def reply(self, value: object, status: int = 200) -> None:
        """Answer every request with this, as JSON unless it is bytes."""
        self.mode, self.status = "good", status
        self.body = value if isinstance(value, bytes) else json.dumps(value).encode()


def _kind(body: bytes) -> str:
    return "text/event-stream" if body.startswith(b"data:") else "application/json"


def chat(provider: str, content: str | None, *, finish: str = "stop", tokens: tuple[int, int] = (11, 3)) -> dict:
    """The body of a whole reply."""
    message = {"role": "assistant", "content": content}
    if provider == "ollama":
        counts = {"prompt_eval_count": tokens[0], "eval_count": tokens[1]}
        return OLLAMA | {"message": message, "done": True, "done_reason": finish} | counts
    choice = {"index": 0, "finish_reason": finish, "message": message}
    usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)}
    return OPENROUTER | {"object": "chat.completion", "choices": [choice], "usage": usage}


def stream_body(provider: str, pieces: list[str], *, finish: str | None = "stop", error: str | None = None) -> bytes:
    """The body of a streamed reply; without ``finish`` it ends as if it were not done."""
    if provider == "ollama":
        lines = [OLLAMA | {"message": {"role": "assistant", "content": piece}, "done": False} for piece in pieces]
        if error:
            lines.append({"error": error})
        elif finish:
            lines.append(chat("ollama", "", finish=finish))
        return "".join(json.dumps(line) + "\n" for line in lines).encode()
    chunk = OPENROUTER | {"object": "chat.completion.chunk"}
    events = [
        chunk | {"choices": [{"index": 0, "delta": {"role": "assistant", "content": piece}, "finish_reason": None}]}
        for piece in pieces
    ]
    if error:
        events.append(chunk | {"error": {"message": error, "code": 502}, "choices": []})
    elif finish:
        events.append(chunk | {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        usage = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
        events.append(chunk | {"choices": [], "usage": usage})
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    return (text + ("data: [DONE]\n\n" if finish and not error else "")).encode()
