"""Calls to a Qdrant server: each within a total time, retried where that helps, with errors of our own."""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from agentic_retriever.config import RouterConfig, Secret, host_and_port
from agentic_retriever.errors import (
    AgenticRetrieverError,
    ConfigError,
    DeadlineExceededError,
    StoreClosedError,
    StoreError,
    StoreUnreachableError,
)
from agentic_retriever.threads import DeadlineCaller

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

T = TypeVar("T")

_TRIES: Final = 3
_PAUSE_S: Final = 0.2  # before the second try; twice as long before the third
_MAX_CALLS: Final = 16
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_WAITING: Final = 64
TIMEOUT_S: Final = 10.0
"""Seconds for one call with all its retries; a search of a million vectors needs far less."""


class CollectionMissingError(StoreError):
    """The server has no such collection."""


class QdrantLink:
    """One Qdrant server, for any number of threads. Making one calls nobody; the first call connects.

    A call that the server refuses for good (401, 403, 404, a bad request) is made once. One that may work a moment
    later (429, 5xx, no connection) is made up to three times. All of it ends when ``timeout_s`` is over.
    """

    def __init__(
        self,
        url: str = "",
        *,
        api_key: Secret | None = None,
        timeout_s: float = TIMEOUT_S,
        client: QdrantClient | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._url = url
        options = {} if client is None else client.init_options
        #: Whether the client keeps the data itself and there is no server; it is slow, and for tests.
        self.in_process = bool(options.get("path")) or options.get("location") == ":memory:"
        self.address = "memory" if self.in_process else _address(url or str(options.get("url")))
        self.timeout_s = timeout_s
        self._api_key = api_key or Secret()
        self._client = client
        self._pause = pause
        self._lock = threading.RLock()
        self._caller = DeadlineCaller(f"Qdrant at {self.address}", max_calls=_MAX_CALLS, max_waiting=_WAITING)

    def __repr__(self) -> str:
        return f"QdrantLink({self.address})"

    def call(self, what: str, function: Callable[[QdrantClient], T], *, timeout_s: float | None = None) -> T:
        """Return what the function returns."""
        if self.in_process:
            return self._in_process(what, function)
        limit = self.timeout_s if timeout_s is None else timeout_s
        end = time.monotonic() + limit
        tries = 0
        while True:
            tries += 1
            try:
                return self._caller.call(lambda: function(self._connected()), max(0.0, end - time.monotonic()))
            except DeadlineExceededError as err:
                raise StoreUnreachableError(
                    f"cannot {what}: Qdrant at {self.address} gave no answer within {limit:.1f} s; check that it is "
                    "up and not overloaded"
                ) from err
            except AgenticRetrieverError:
                raise
            except Exception as err:  # noqa: BLE001 - the seam to the client, whose parser raises anything on nonsense
                error, wait_s = self._judged(what, err, tries)
                if wait_s is None or tries == _TRIES or time.monotonic() + wait_s >= end:
                    raise error from _without_body(err)
            self._pause(wait_s)

    def check(self, timeout_s: float) -> str:
        """Return the server's version."""

        def ask(client: QdrantClient) -> str:
            client.get_collections()  # needs the key, which the version does not
            return str(client.info().version)

        return self.call("list the collections", ask, timeout_s=timeout_s)

    def close(self) -> None:
        """Close the connections; a later call opens one again. A client that was handed in stays open."""
        with self._lock:
            if self._url and self._client is not None:
                self._client.close()
                self._client = None

    def _connected(self) -> QdrantClient:
        with self._lock:
            if self._client is None:
                from qdrant_client import QdrantClient  # noqa: PLC0415 - takes a second to load, only needed with a URL

                with warnings.catch_warnings():
                    if urlsplit(self._url).hostname in _LOOPBACK:  # a key does not leave the machine
                        warnings.filterwarnings("ignore", "Api key is used with an insecure connection")
                    # Its timeout is per read; the total is kept by the caller, so this only ends abandoned calls.
                    self._client = QdrantClient(
                        url=self._url,
                        api_key=self._api_key.reveal() or None,
                        timeout=max(1, math.ceil(self.timeout_s)),
                        check_compatibility=False,  # it would call the server from the constructor
                    )
            return self._client

    def _in_process(self, what: str, function: Callable[[Any], T]) -> T:
        # The client's own collections are not safe for threads, so one call at a time.
        with self._lock:
            try:
                return function(self._client)
            except AgenticRetrieverError:
                raise
            except ValueError as err:
                if "not found" in str(err):
                    raise CollectionMissingError(f"cannot {what}: there is no such collection in memory") from err
                raise StoreError(f"cannot {what} in the client's memory: {type(err).__name__}") from err
            except RuntimeError as err:
                raise StoreClosedError(f"cannot {what}: the client is closed") from err

    def _judged(self, what: str, err: Exception, tries: int) -> tuple[StoreError, float | None]:
        """Return the error to raise, and after how many seconds another try may help, or ``None``."""
        from qdrant_client.common.client_exceptions import ResourceExhaustedResponse  # noqa: PLC0415 - see above
        from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse  # noqa: PLC0415

        place, wait_s = f"Qdrant at {self.address}", _PAUSE_S * 2 ** (tries - 1)
        if isinstance(err, ResourceExhaustedResponse):
            told = f"cannot {what}: {place} is asked too much (429); ask less at once, or give it more resources"
            return StoreUnreachableError(told), max(wait_s, float(err.retry_after_s))
        if isinstance(err, UnexpectedResponse):
            return self._by_status(what, err.status_code or 0, wait_s)
        if isinstance(err, ResponseHandlingException):
            if isinstance(err.source, ValueError):
                return self._nonsense(what), None
            told = f"cannot {what}: no connection to {place} ({type(err.source).__name__}); check that it is up, and "
            return StoreUnreachableError(f"{told}QDRANT_URL"), wait_s
        return self._nonsense(what), None

    def _by_status(self, what: str, status: int, wait_s: float) -> tuple[StoreError, float | None]:
        place = f"Qdrant at {self.address}"
        if status in {401, 403}:
            return StoreUnreachableError(
                f"cannot {what}: {place} refuses the key ({status}); set QDRANT_API_KEY to a key that may write"
            ), None
        if status == 404:
            return CollectionMissingError(
                f"cannot {what}: {place} has no such collection (404); check QDRANT_URL"
            ), None
        if status == 429 or status >= 500:
            return StoreUnreachableError(f"cannot {what}: {place} fails ({status}); see its log"), wait_s
        return StoreUnreachableError(
            f"cannot {what}: {place} answers {status}; it may be too old (1.18 or newer is needed), see its log"
        ), None

    def _nonsense(self, what: str) -> StoreUnreachableError:
        return StoreUnreachableError(
            f"cannot {what}: what answers at {self.address} is no Qdrant server; check QDRANT_URL"
        )


def open_server(config: RouterConfig) -> QdrantLink | None:
    """Make the link that the settings name, or ``None`` without a URL."""
    if not config.qdrant_url:
        return None
    return QdrantLink(config.qdrant_url.reveal(), api_key=config.qdrant_api_key)


def _address(url: str) -> str:
    """Return host and port of a URL, and never what may be a secret."""
    wrong = ConfigError(
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
    for name in ("content", "message"):
        if hasattr(err, name):
            setattr(err, name, b"" if name == "content" else "not shown")
    if not isinstance(err, OSError):
        err.args = ()
    err.__context__ = err.__cause__ = None
    return err
