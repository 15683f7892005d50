"""Values with a time to live on a Redis server; whatever the server does, reading is a miss at worst."""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import time
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from agentic_retriever.errors import ConfigError
from agentic_retriever.redis_link.envelope import Stored, opened, sealed
from agentic_retriever.redis_link.writer import WriteBehind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import redis

    from agentic_retriever.redis_link.link import RedisLink

logger = logging.getLogger(__name__)

NAMESPACE = "agentic-retriever"
"""What all keys begin with."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}(:[A-Za-z0-9_.-]{1,64})*")
_SCAN_BATCH = 500
_SLOW_TIMES = 10  # writes and sweeps are waited for by nobody, or by one who asked for them
_SWEEP_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """Counts since the store was made; ``up`` tells whether the server is asked at present.

    Attributes:
        up: Whether calls are made at present.
        hits: Values found.
        misses: Values not found, failures included.
        written: Values handed to the server.
        dropped: Values not written since the line was full, or the server failed.
        oversize: Values not written since they were too large.
        corrupt: Values found damaged or of another format, and deleted.
        failures: Calls that failed.
        skipped: Calls not made since the server was down.
    """

    up: bool
    hits: int
    misses: int
    written: int
    dropped: int
    oversize: int
    corrupt: int
    failures: int
    skipped: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return asdict(self)


class RedisStore:
    """A namespace of values on a Redis server, shared by all processes that use the same server and namespace.

    Keys are hashed, so that they hold nothing of a question. Values are JSON with a format number and a checksum; a
    damaged one, or one of another format, counts as absent and is deleted. Writing is done by a thread in the
    background and given up when it cannot keep pace.

    Args:
        link: The server.
        kind: What is kept, such as ``"answers"``; part of every key.
        namespace: What all keys begin with.
        max_value_bytes: Larger values are not written.
        clock: Seconds since 1970.

    Raises:
        ConfigError: If kind or namespace has other characters than letters, digits, ``_``, ``-``, ``.`` and ``:``.
    """

    def __init__(
        self,
        link: RedisLink,
        *,
        kind: str,
        namespace: str = NAMESPACE,
        max_value_bytes: int = 1_000_000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        for name in (kind, namespace):
            if not _NAME.fullmatch(name):
                raise ConfigError(
                    f"a Redis namespace must be letters, digits, '_', '-', '.' and ':', got {name[:80]!r}"
                )
        self._link = link
        self._prefix = f"{namespace}:{kind}:"
        self._max_bytes = max_value_bytes
        self._clock = clock
        self._writer = WriteBehind(f"Redis writer {kind}")
        self._lock = threading.Lock()
        self._owes_clear = False
        self._hits = self._misses = self._written = self._dropped = self._oversize = self._corrupt = 0

    def __repr__(self) -> str:
        return f"RedisStore({self._prefix}, {self._link!r})"

    def get(self, key: str) -> Stored | None:
        """Return a value, or ``None``; never raises for what the server does."""
        return self.get_many([key]).get(key)

    def get_many(self, keys: Sequence[str]) -> dict[str, Stored]:
        """Return those values that are there, in one call."""
        found: dict[str, Stored] = {}
        if self._owes_clear:
            # What clear() could not delete must not be seen again.
            self._writer.put(self._pay_clear)
        elif keys:
            names = [self._name(key) for key in keys]
            replies: Sequence[Any] = self._link.call(lambda client: client.mget(names), default=())
            found = self._readable(dict(zip(keys, replies, strict=False)))
        with self._lock:
            self._hits += len(found)
            self._misses += len(keys) - len(found)
        return found

    def set(self, key: str, data: bytes, ttl_s: float) -> None:
        """Keep a value, some time soon.

        Args:
            key: Any text.
            data: JSON in UTF-8.
            ttl_s: Seconds that it holds; nothing is kept for 0 or less.
        """
        self.set_many({key: data}, ttl_s)

    def set_many(self, values: Mapping[str, bytes], ttl_s: float) -> None:
        """Keep values, some time soon, in one call."""
        milliseconds = int(ttl_s * 1000)
        if milliseconds < 1:
            return
        until = self._clock() + ttl_s
        small = {self._name(key): sealed(data, until) for key, data in values.items() if len(data) <= self._max_bytes}
        with self._lock:
            self._oversize += len(values) - len(small)
        if small and not self._writer.put(lambda: self._write(small, milliseconds), sum(map(len, small.values()))):
            self._count(dropped=len(small))

    def delete(self, key: str) -> None:
        """Drop a value, some time soon."""
        name = self._name(key)
        self._writer.put(lambda: self._off_path(partial(_unlink, names=[name])))

    def clear(self, *, timeout_s: float = _SWEEP_S) -> int:
        """Drop all values of this namespace and kind, and no others.

        A server that is down cannot be cleared. Then this store finds nothing until it could be done after all.

        Args:
            timeout_s: Most seconds to take.

        Returns:
            How many values were dropped.
        """
        self._owes_clear = True
        self._writer.discard(self._link.timeout_s * _SLOW_TIMES)
        count, done = self._sweep(time.monotonic() + timeout_s)
        self._owes_clear = not done
        if not done:
            logger.warning("%r could not be cleared; it is not read until that is done", self)
        return count

    def flush(self, timeout_s: float = 0.5) -> bool:
        """Wait until what was set is written; return whether it is."""
        return self._writer.flush(timeout_s)

    def close(self) -> None:
        """Write what is still in line, within half a second; the link stays open."""
        self.flush()

    def stats(self) -> StoreStats:
        """Return the counts; failures and skipped calls are those of the whole link."""
        link = self._link.stats()
        with self._lock:
            return StoreStats(
                up=link.up,
                hits=self._hits,
                misses=self._misses,
                written=self._written,
                dropped=self._dropped,
                oversize=self._oversize,
                corrupt=self._corrupt,
                failures=link.failures + link.refusals,
                skipped=link.skipped,
            )

    def _name(self, key: str) -> str:
        return self._prefix + hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()

    def _count(self, *, written: int = 0, dropped: int = 0, corrupt: int = 0) -> None:
        with self._lock:
            self._written += written
            self._dropped += dropped
            self._corrupt += corrupt

    def _readable(self, replies: Mapping[str, object]) -> dict[str, Stored]:
        found: dict[str, Stored] = {}
        now = self._clock()
        for key, raw in replies.items():
            if not isinstance(raw, bytes):
                continue
            try:
                stored = opened(raw, now)
            except ValueError:
                self._count(corrupt=1)
                self.delete(key)
            else:
                if stored is not None:
                    found[key] = stored
        return found

    def _off_path(self, function: Callable[[redis.Redis], Any], default: object = None) -> Any:  # noqa: ANN401 - replies of the client are untyped
        return self._link.call(function, default=default, timeout_s=self._link.timeout_s * _SLOW_TIMES)

    def _write(self, values: Mapping[str, bytes], milliseconds: int) -> None:
        def write(client: redis.Redis) -> list[Any]:
            with client.pipeline(transaction=False) as pipeline:
                for name, raw in values.items():
                    pipeline.set(name, raw, px=milliseconds)
                replies = pipeline.execute(raise_on_error=False)
            if replies and all(isinstance(reply, Exception) for reply in replies):
                raise replies[0]
            return replies

        replies = self._off_path(write, default=())
        written = sum(reply is True for reply in replies)
        self._count(written=written, dropped=len(values) - written)

    def _pay_clear(self) -> None:
        if self._owes_clear:
            self._owes_clear = not self._sweep(time.monotonic() + _SWEEP_S)[1]

    def _sweep(self, ends: float) -> tuple[int, bool]:
        """Delete in batches; return how many values, and whether that was all."""
        count, cursor = 0, 0
        while time.monotonic() < ends:
            reply = self._off_path(partial(_scan, cursor=cursor, pattern=f"{self._prefix}*"))
            if reply is None:
                return count, False
            cursor, names = int(reply[0]), list(reply[1])
            if names:
                dropped = self._off_path(partial(_unlink, names=names))
                if dropped is None:
                    return count, False
                count += int(dropped)
            if cursor == 0:
                return count, True
        return count, False


def _scan(client: redis.Redis, *, cursor: int, pattern: str) -> Any:  # noqa: ANN401 - replies of the client are untyped
    return client.scan(cursor, match=pattern, count=_SCAN_BATCH)


def _unlink(client: redis.Redis, *, names: Sequence[Any]) -> Any:  # noqa: ANN401 - as above
    return client.unlink(*names)
