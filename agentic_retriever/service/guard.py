"""What every request passes: who sent it, whether it may come in, how large it is; and what every answer carries."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import secrets
import time
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from fastapi import Depends, Request
from limits import RateLimitItem, parse
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import MovingWindowRateLimiter
from limits.errors import StorageError
from limits.storage import storage_from_string
from limits.strategies import MovingWindowRateLimiter as SharedLimiter
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentic_retriever.errors import AgenticRetrieverError, ConfigError
from agentic_retriever.service.responses import Refused, busy, problem, problem_of
from agentic_retriever.service.settings import Caller, Role
from agentic_retriever.threads import usable_cores

if TYPE_CHECKING:
    from agentic_retriever.service.state import Service

logger = logging.getLogger(__name__)

COOKIE: Final = "agentic_retriever_session"
_PUBLIC: Final = ("/static/", "/v1/health/", "/api/health")  # for everybody: no data is behind them
_OPEN: Final = (*_PUBLIC, "/login")
_FREE: Final = (*_PUBLIC, "/metrics")  # not counted
LEAST_PLACES: Final = 2  # else one for each core: more answers that are computed here only make each other wait
WITH_MODEL: Final = 64  # where a model writes, which is mostly waited for
WAITING: Final = 8  # who may wait for each place
WAIT_S: Final = 5.0
WAIT_IN_CROWD_S: Final = 0.05
LASTING_S: Final = 0.5  # since somebody was turned away
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LOCAL_HOST: Final = re.compile(r"(localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)

# Scripts and styles are files of ours alone; drawings that notebooks share have style attributes, which are allowed.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),  # with none at all, browsers send the form that signs in without its origin
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


class Guard:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, service: Service, limits: Limits) -> None:
        self._app, self._service, self._limits = app, service, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        scope.setdefault("state", {}).update(request_id=request_id, caller=None)
        answer = _Answer(send, request_id, private=not scope["path"].startswith("/static/"))
        with self._service.metrics.request(scope, answer):
            try:
                response = await self._let_in(scope, headers)
                if response is None:
                    await self._pass_on(scope, headers, self._limits.bounded(receive, headers), answer.send)
                    return
            except ClientDisconnect:
                answer.status = 499  # for the figures: nobody is there to be answered
                return
            except Refused as err:
                response = problem(request_id, err.status_code, err.title, str(err.detail), err.headers)
            except AgenticRetrieverError as err:
                response = problem_of(request_id, err)
            except Exception as err:  # noqa: BLE001 - the last resort; what it says may hold a question or a key
                logger.error("request %s failed with %s", request_id, _place(err))  # noqa: TRY400 - no text, no stack
                response = problem(request_id, 500, "Unexpected error", "see the service's log for this request id")
            if not answer.begun:
                await response(scope, receive, answer.send)

    async def _pass_on(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        kind = kind_of(scope, headers)
        if kind == "requests":
            receive = await _read_ahead(receive, headers)
        async with self._limits.place(kind):
            await self._app(scope, receive, send)

    async def _let_in(self, scope: Scope, headers: Headers) -> Response | None:
        """Find out who calls; return what to answer instead where that is decided already."""
        path: str = scope["path"]
        if not path.startswith(_PUBLIC):  # which answer without the catalog, too
            await self._service.keys.refresh()
        caller = self._caller(scope, headers)
        scope["state"]["caller"] = caller
        if caller is None and not path.startswith(_OPEN):
            if scope["method"] == "GET" and "text/html" in headers.get("accept", ""):
                return RedirectResponse(f"/login?to={quote(path)}", 303)
            needed = "send a key as 'Authorization: Bearer KEY' (made by: agentic-retriever keys create)"
            raise Refused(401, "Key required", needed, {"WWW-Authenticate": "Bearer"})
        if caller is None or caller.by_cookie or not caller.key_id:
            _check_origin(scope, headers)
        if caller is not None and not path.startswith(_FREE):
            await self._limits.count(caller)
        return None

    def _caller(self, scope: Scope, headers: Headers) -> Caller | None:
        keys = self._service.keys
        given = headers.get("authorization", "")
        key = given[7:].strip() if given[:7].lower() == "bearer " else headers.get("x-api-key", "")
        if self._service.is_open:
            # Without keys, a name that somebody else has made point here must not be answered (DNS rebinding).
            if not _LOCAL_HOST.fullmatch(headers.get("host", "")):
                raise Refused(421, "Unknown host", "without keys the service answers to localhost alone")
            return Caller("", "local", Role.ADMIN)
        if key:
            return keys.caller(key)
        cookie = Request(scope).cookies.get(COOKIE, "")
        return keys.session_caller(cookie) if cookie else None


class _Answer:
    """The way out: what was sent, and the headers that every answer has."""

    def __init__(self, send: Send, request_id: str, *, private: bool) -> None:
        self._send = send
        self.status, self.begun = 500, False
        self._added = [*_HEADERS, (b"x-request-id", request_id.encode())]
        if private:
            self._added.append((b"cache-control", b"no-store"))

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun, self.status = True, message["status"]
            own = {name.lower() for name, _ in message["headers"]}
            message["headers"] = [*message["headers"], *(one for one in self._added if one[0] not in own)]
        await self._send(message)


def _place(err: BaseException) -> str:
    """Name an error by its kind and where it was raised."""
    at = traceback.extract_tb(err.__traceback__)[-1:]
    return " ".join([type(err).__name__, *(f"in {Path(one.filename).name}:{one.lineno}" for one in at)])


def _check_origin(scope: Scope, headers: Headers) -> None:
    """Refuse what another site makes a browser send with the rights of this one."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
    own = origin is None or urlsplit(origin).netloc == headers.get("host", "")
    if scope["method"] not in _SAFE and not (own and site in {"same-origin", "none"}):
        raise Refused(403, "Foreign origin", "another site may not change anything here; send a key instead")


_REDIS: Final[dict[str, Any]] = {"wrap_exceptions": True, "socket_timeout": 0.2, "socket_connect_timeout": 0.2}


class Places:
    """Places for what is under way at once, and a short wait for one, in turn; shorter while others are turned away."""

    def __init__(self, most: int, *, most_waiting: int = 0, timer: Callable[[], float] = time.monotonic) -> None:
        self.most, self.held = most, 0
        self._most_waiting, self._timer = most_waiting, timer
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._refused_at = -math.inf

    async def take(self) -> bool:
        """Take a place, which is to be given back; ``False`` if there is none."""
        if self.held < self.most:
            self.held += 1
            return True
        if len(self._waiting) >= self._most_waiting:
            self._refused_at = self._timer()
            return False
        lasting = self._timer() - self._refused_at < LASTING_S
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await asyncio.wait((turn,), timeout=WAIT_IN_CROWD_S if lasting else WAIT_S)
        except asyncio.CancelledError:
            if turn.done():
                self.give_back()
            raise
        finally:
            if not turn.done():
                self._waiting.remove(turn)
        if not turn.done():
            self._refused_at = self._timer()
        return turn.done()

    def give_back(self) -> None:
        """Let the next who waits have the place."""
        if self._waiting:
            self._waiting.popleft().set_result(None)
        else:
            self.held -= 1


def kind_of(scope: Scope, headers: Headers) -> str:
    """Return what a request counts as: ``""`` for nothing."""
    if scope["path"].startswith(_FREE):
        return ""
    if headers.get("content-type", "").startswith("multipart/"):
        return "uploads"
    return "watchers" if scope["path"].endswith("/events") else "requests"


async def _read_ahead(receive: Receive, headers: Headers) -> Receive:
    """Receive a whole body, so that nobody who sends slowly holds a place meanwhile."""
    if not _has_body(headers):
        return receive
    messages = deque([await receive()])
    while messages[-1].get("more_body"):
        messages.append(await receive())

    async def receive_rest() -> Message:
        return messages.popleft() if messages else await receive()

    return receive_rest


def _has_body(headers: Headers) -> bool:
    return headers.get("content-length", "") not in {"", "0"} or "transfer-encoding" in headers


class Limits:
    """How many requests, how many at once, and how large."""

    def __init__(self, service: Service) -> None:
        self._service, self._settings = service, service.settings
        self._rate = parse_rate(service.settings.rate)
        redis = service.router.config.redis_url.reveal()
        self._memory = MovingWindowRateLimiter(MemoryStorage())
        # Redis counts for all processes; while it is down each counts for itself.
        self._shared = SharedLimiter(storage_from_string(redis, **_REDIS)) if redis else None
        answering = self._settings.max_requests or (
            max(LEAST_PLACES, usable_cores()) if service.router.resources.model is None else WITH_MODEL
        )
        self.places = {
            "requests": Places(answering, most_waiting=WAITING * answering),
            "uploads": Places(self._settings.max_uploads),
            "watchers": Places(max(answering, WITH_MODEL)),
        }

    async def count(self, caller: Caller) -> None:
        """Count a request; ``Refused`` with 429 when there were too many."""
        if self._rate is None or not caller.key_id:
            return
        allowed: bool | None = None
        if self._shared is not None:
            with suppress(StorageError):
                allowed = await self._service.run(self._shared.hit, self._rate, caller.key_id)
        if allowed is None:
            allowed = await self._memory.hit(self._rate, caller.key_id)
        if not allowed:
            wait = self._rate.get_expiry()
            raise Refused(429, "Too many requests", f"a key may send {self._rate}", {"Retry-After": str(wait)})

    @asynccontextmanager
    async def place(self, kind: str) -> AsyncIterator[None]:
        """Hold one of the places for requests, uploads or watchers; ``Refused`` with 503 when there is none."""
        places = self.places.get(kind)
        if places is None:
            yield
            return
        if not await places.take():
            raise busy(f"{places.most} {kind} are under way; try again soon")
        try:
            yield
        finally:
            places.give_back()

    def bounded(self, receive: Receive, headers: Headers) -> Receive:
        """Return what receives no more than is allowed, and waits no longer than is allowed."""
        upload = headers.get("content-type", "").startswith("multipart/")
        mb = self._service.router.config.max_file_mb
        most = int(mb * 1_000_000) + 100_000 if upload else self._settings.max_body_bytes
        announced = headers.get("content-length", "")
        if announced.isdecimal() and (len(announced) > 15 or int(announced) > most):
            raise too_large(most)
        if not _has_body(headers):
            return receive
        seen, more = 0, True

        async def receive_bounded() -> Message:
            nonlocal seen, more
            if not more:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), self._settings.idle_s)
            except asyncio.TimeoutError:
                raise Refused(408, "Too slow", f"nothing came for {self._settings.idle_s:g} s") from None
            seen += len(message.get("body", b""))
            more = message.get("more_body", False)
            if seen > most:
                raise too_large(most)
            return message

        return receive_bounded


def too_large(most: int) -> Refused:
    """Say that a body is too large."""
    return Refused(413, "Too large", f"the body may have {most:,} bytes")


def parse_rate(text: str) -> RateLimitItem | None:
    """Read a rate such as ``600/minute``; ``ConfigError`` if it is none."""
    if not text.strip():
        return None
    try:
        return parse(text)
    except ValueError:
        raise ConfigError(f"a rate must be written as 600/minute, got {text[:40]!r}") from None


def allow(role: Role) -> Any:  # noqa: ANN401 - as FastAPI declares dependencies
    """Return a dependency that lets those in who have at least this role, and gives who it is."""

    async def check(request: Request) -> Caller:
        return _allowed(request.state.caller, role)

    return Depends(check)


def _allowed(caller: Caller | None, role: Role) -> Caller:
    if caller is None or caller.role < role:
        raise Refused(403, "Not allowed", f"this needs a key with the role {role.name.lower()}")
    return caller


def guarded(app: ASGIApp, role: Role) -> ASGIApp:
    """Wrap an application that is mounted, which dependencies do not reach."""

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            _allowed(scope["state"]["caller"], role)
        await app(scope, receive, send)

    return checked
