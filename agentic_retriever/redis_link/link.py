"""Calls to a Redis server, each within a total time, behind a breaker, and never raising."""

from __future__ import annotations

import importlib.util
import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from agentic_retriever.config import Secret
from agentic_retriever.errors import ConfigError, DeadlineExceededError
from agentic_retriever.redis_link.breaker import Breaker, Verdict
from agentic_retriever.threads import DeadlineCaller

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from agentic_retriever.config import RouterConfig

T = TypeVar("T")
D = TypeVar("D")

logger = logging.getLogger(__name__)

_SCHEMES = ("redis", "rediss", "unix")
_INSTALL = "install it with: pip install 'agentic-retriever[redis]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStats:
    """Counts since the link was made.

    Attributes:
        up: Whether calls are made; otherwise they are skipped until a probe succeeds.
        calls: Calls that the server answered.
        failures: Calls that it did not answer in time, or not as a Redis server does.
        refusals: Calls that it answered with an error, such as being full.
        skipped: Calls that were not made since the breaker was open.
        openings: How often the breaker opened.
    """

    up: bool
    calls: int
    failures: int
    refusals: int
    skipped: int
    openings: int


class RedisLink:
    """One Redis server, for any number of threads.

    Making one calls nobody. The first call also connects and may take ``connect_timeout_s``; each later one takes at
    most ``timeout_s``, whatever the server does: hang, drip or talk nonsense. After the first failure calls are
    skipped, and a probe in the background finds out when the server is back and answers in time.

    Args:
        url: ``redis://[[user]:password@]host[:port][/db]``, ``rediss://`` (TLS) or ``unix://``.
        timeout_s: Total seconds for one call.
        connect_timeout_s: Total seconds for a call that has to connect first.
        breaker: Decides whether calls are made.
        max_calls: Calls at once, each on a connection of its own.

    Raises:
        ConfigError: If the URL cannot be used or the package ``redis`` is not there; the message shows no password.
    """

    def __init__(
        self,
        url: Secret | str,
        *,
        timeout_s: float = 0.05,
        connect_timeout_s: float = 0.2,
        breaker: Breaker | None = None,
        max_calls: int = 16,
    ) -> None:
        text = url.reveal() if isinstance(url, Secret) else url
        self.address = _address(text)
        self.timeout_s = timeout_s
        self.connect_timeout_s = max(connect_timeout_s, timeout_s)
        self._client, self._refusal = _client(text, self.address, timeout_s, self.connect_timeout_s, max_calls)
        self._breaker = breaker or Breaker()
        self._caller = DeadlineCaller(f"Redis at {self.address}", max_calls=max_calls)
        self._lock = threading.Lock()
        self._met = False
        self._complained = False
        self._calls = self._failures = self._refusals = self._skipped = 0

    def __repr__(self) -> str:
        return f"RedisLink({self.address}, {'down' if self._breaker.is_open else 'up'})"

    def call(self, function: Callable[[redis.Redis], T], *, default: D, timeout_s: float | None = None) -> T | D:
        """Return what the function returns, or the default when the server fails, is slow, or is not asked.

        Args:
            function: What to do with the client; runs in a thread of its own.
            default: Returned instead of any failure.
            timeout_s: Total seconds, for what nobody waits for; ``timeout_s`` of the link by default.
        """
        verdict = self._breaker.ask()
        if verdict is not Verdict.CALL:
            if verdict is Verdict.PROBE:
                self._start_probe()
            with self._lock:
                self._skipped += 1
            return default
        limit = self.timeout_s if timeout_s is None else timeout_s
        try:
            result = self._caller.call(
                lambda: function(self._client), limit if self._met else max(limit, self.connect_timeout_s)
            )
        except DeadlineExceededError:
            self._failed(f"no answer within {limit * 1000:.0f} ms")
        except self._refusal as err:
            self._refused(err)
        except Exception as err:  # noqa: BLE001 - the seam to the client, whose parser raises anything on nonsense
            self._failed(type(err).__name__)
        else:
            with self._lock:
                self._calls += 1
                self._met, self._complained = True, False
            return result
        return default

    def stats(self) -> LinkStats:
        """Return the counts."""
        with self._lock:
            return LinkStats(
                up=not self._breaker.is_open,
                calls=self._calls,
                failures=self._failures,
                refusals=self._refusals,
                skipped=self._skipped,
                openings=self._breaker.openings,
            )

    def close(self) -> None:
        """Close the connections; a later call opens one again."""
        self._disconnect()

    def _failed(self, what: str) -> None:
        with self._lock:
            self._failures += 1
            self._met = False
        if self._breaker.failed():
            logger.warning(
                "Redis at %s failed (%s); going on without it until it answers in time again", self.address, what
            )
        # Closing the sockets ends the threads that still wait for them.
        self._disconnect()

    def _refused(self, err: Exception) -> None:
        with self._lock:
            self._refusals += 1
            first, self._complained = not self._complained, True
        if first:
            logger.warning(
                "Redis at %s refuses a call (%s); going on without what it refuses", self.address, _kind(err)
            )

    def _start_probe(self) -> None:
        try:
            threading.Thread(target=self._probe, name=f"Redis probe {self.address}", daemon=True).start()
        except RuntimeError:  # no more threads can be had: the machine is full, or the interpreter is ending
            self._breaker.probed(ok=False)

    def _probe(self) -> None:
        """Connect, and then see whether an answer comes in the time that callers grant."""
        well = False
        try:
            self._caller.call(self._client.ping, self.connect_timeout_s)
            self._caller.call(self._client.ping, self.timeout_s)
            well = True
        except Exception:  # noqa: BLE001 - whatever it is, the server does not work yet, and that has been told
            self._disconnect()
        if well:
            self._met = True
            logger.info("Redis at %s answers again", self.address)
        self._breaker.probed(ok=well)

    def _disconnect(self) -> None:
        try:
            self._client.connection_pool.disconnect()
        except Exception:  # noqa: BLE001 - closing what is broken may fail in any way, and nothing is lost by it
            logger.debug("closing connections to Redis at %s failed", self.address)


def open_link(config: RouterConfig) -> RedisLink | None:
    """Make the link that the settings name; the answer cache and the vector cache share it, and so one breaker.

    Args:
        config: ``redis_url`` and ``redis_timeout_ms``.

    Returns:
        The link, or ``None`` without a URL, or, with a warning, without the package ``redis``: ``REDIS_URL`` may have
        been set for another program.

    Raises:
        ConfigError: If the URL cannot be used.
    """
    if not config.redis_url:
        return None
    if importlib.util.find_spec("redis") is None:
        logger.warning("a Redis URL is set and the package redis is not there; %s; caching in memory only", _INSTALL)
        return None
    timeout_s = config.redis_timeout_ms / 1000
    return RedisLink(config.redis_url, timeout_s=timeout_s, connect_timeout_s=max(0.2, timeout_s))


def _address(url: str) -> str:
    """Return host, port and database of a URL, and never what may be a secret."""
    wrong = ConfigError(
        "setting redis_url must look like redis://[[user]:password@]host[:port][/db], rediss:// or unix://path; "
        "got something else (not shown, it may hold a password)"
    )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise wrong from None  # the cause would show the URL
    if parts.scheme not in _SCHEMES or not (host or (parts.scheme == "unix" and parts.path)):
        raise wrong
    if parts.scheme == "unix":
        return parts.path
    return f"{f'[{host}]' if ':' in host else host}:{port or 6379}/{parts.path.strip('/') or 0}"


def _client(
    url: str, address: str, timeout_s: float, connect_timeout_s: float, max_calls: int
) -> tuple[redis.Redis, type[Exception]]:
    try:
        import redis as package  # noqa: PLC0415 - an extra, only needed with a URL
        from redis.backoff import NoBackoff  # noqa: PLC0415
        from redis.retry import Retry  # noqa: PLC0415
    except ImportError as err:
        raise ConfigError(f"setting redis_url needs the package redis; {_INSTALL}") from err
    # What the URL's query says would win over keyword arguments, so this is set afterwards.
    ours: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": connect_timeout_s,
        "retry": Retry(NoBackoff(), 0),  # the default is ten retries with pauses between them
        "decode_responses": False,
    }
    try:
        pool = package.ConnectionPool.from_url(url, max_connections=max_calls, protocol=2)
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(  # the cause would show the URL
            f"the part of setting redis_url behind {address} cannot be used"
        ) from None
    pool.connection_kwargs.update(ours)
    return package.Redis(connection_pool=pool), package.ResponseError


def _kind(err: Exception) -> str:
    """Return the code word that a Redis error begins with, such as ``OOM``; never its text, which quotes commands."""
    word = str(err).split(" ", 1)[0]
    return word if word.isalpha() and word.isupper() else type(err).__name__
