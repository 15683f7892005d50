"""Values and vectors shared by processes through a Redis server that may be slow or gone: every failure is a miss."""

from __future__ import annotations

import base64
import binascii
import hashlib
import importlib.util
import json
import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from agentic_retriever.config import RouterConfig, Secret, host_and_port
from agentic_retriever.errors import ConfigError, DeadlineExceededError
from agentic_retriever.threads import Breaker, BreakerState, BriefThread, DeadlineCaller, Ticket, Workers

if TYPE_CHECKING:
    import redis

Vector: TypeAlias = npt.NDArray[np.float32]

T = TypeVar("T")
D = TypeVar("D")

logger = logging.getLogger(__name__)

NAMESPACE = "agentic-retriever"  # what all keys begin with
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}(:[A-Za-z0-9_.-]{1,64})*")
_ENVELOPE = re.compile(rb'\{"v":1,"sum":"([0-9a-f]{32})",("until":(\d{1,15}),"value":(.*)\})', re.DOTALL)
_MAX_CALLS = 16  # at once, each on a connection of its own
_COOLDOWN_S, _MAX_COOLDOWN_S = 1.0, 30.0  # before the first probe of a server that is down, and between later ones
TIMEOUT_S = 0.05  # for one call
_SWEEP_S = 10.0
_MAX_JOBS, _MAX_BYTES = 1_024, 8_000_000  # that may wait to be written
_MAX_VALUE_BYTES = 1_000_000
_VECTORS_TOGETHER = 64
_FLOAT = np.dtype("<f4")


def open_link(config: RouterConfig) -> RedisLink | None:
    """Make the link that the settings name, one for all caches; none without a URL or, with a warning, the package."""
    if not config.redis_url:
        return None
    if importlib.util.find_spec("redis") is None:
        install = "install it with: pip install 'agentic-retriever[redis]'"
        logger.warning("a Redis URL is set and the package redis is not there; %s; caching in memory only", install)
        return None
    return RedisLink(config.redis_url, timeout_s=TIMEOUT_S)


class RedisLink:
    """One Redis server for any number of threads: after a failure no call is made until a probe got an answer."""

    def __init__(
        self,
        url: Secret | str,
        *,
        timeout_s: float = 0.05,
        connect_timeout_s: float = 0.2,
        breaker: Breaker | None = None,
    ) -> None:
        text = url.reveal() if isinstance(url, Secret) else url
        self.timeout_s = timeout_s
        self.connect_timeout_s = max(connect_timeout_s, timeout_s)
        self._client, self.address, self._refusal = _client(text, timeout_s, self.connect_timeout_s)
        self._breaker = breaker or Breaker(failures=1, cooldown_s=_COOLDOWN_S, max_cooldown_s=_MAX_COOLDOWN_S)
        self._caller = DeadlineCaller(f"Redis at {self.address}", max_calls=_MAX_CALLS)
        self._counts = _Counts("calls", "failures", "refusals", "skipped")
        self._met = False  # whether the next call finds a connection
        self._complained = False  # whether a refusal was warned of since the last call that went well

    def __repr__(self) -> str:
        return f"RedisLink({self.address}, {'up' if self.is_up else 'down'})"

    @property
    def is_up(self) -> bool:
        return self._breaker.state is BreakerState.CLOSED

    def call(self, function: Callable[[redis.Redis], T], *, default: D, timeout_s: float | None = None) -> T | D:
        """Return what the function returns, or the default when the server fails, is slow, or is not asked."""
        ticket = self._breaker.enter()
        if ticket is None or ticket.is_probe:
            if ticket is not None:
                self._probe(ticket)
            self._counts.add(skipped=1)
            return default
        limit = self.timeout_s if timeout_s is None else timeout_s
        granted = limit if self._met else max(limit, self.connect_timeout_s)
        try:
            result = self._caller.call(lambda: function(self._client), granted)
        except DeadlineExceededError:
            self._fail(ticket, f"no answer within {limit * 1000:.0f} ms")
        except self._refusal as err:
            self._counts.add(refusals=1)
            # The code word that a Redis error begins with, such as OOM; never its text, which quotes commands.
            word = str(err).split(" ", 1)[0]
            kind = word if word.isalpha() and word.isupper() else type(err).__name__
            log = logger.debug if self._complained else logger.warning
            log("Redis at %s refuses a call (%s); going on without what it refuses", self.address, kind)
            self._complained = True
        except Exception as err:  # noqa: BLE001 - the seam to the client, whose parser raises anything on nonsense
            self._fail(ticket, type(err).__name__)
        else:
            self._counts.add(calls=1)
            self._met, self._complained = True, False
            return result
        return default

    def stats(self) -> dict[str, Any]:
        return {"up": self.is_up, "openings": self._breaker.openings, **self._counts}

    def close(self) -> None:
        """Close the connections; a later call opens one again."""
        with suppress(Exception):  # closing what is broken may fail in any way, and nothing is lost by it
            self._client.connection_pool.disconnect()

    def _fail(self, ticket: Ticket, why: str) -> None:
        self._counts.add(failures=1)
        self._met = False
        if self._breaker.leave(ticket, ok=False):
            told = "Redis at %s failed (%s); going on without it until it answers in time again"
            logger.warning(told, self.address, why)
        self.close()  # closing the sockets ends the threads that still wait for them

    def _probe(self, ticket: Ticket) -> None:
        """Connect in the background, and then see whether an answer comes in the time that callers grant."""

        def probe() -> None:
            try:
                self._caller.call(self._client.ping, self.connect_timeout_s)
                self._caller.call(self._client.ping, self.timeout_s)
            except Exception:  # noqa: BLE001 - whatever it is, the server does not work yet, and that has been told
                self.close()
                self._breaker.leave(ticket, ok=False)
            else:
                self._met = True
                logger.info("Redis at %s answers again", self.address)
                self._breaker.leave(ticket, ok=True)

        try:
            BriefThread(probe, f"Redis probe {self.address}").start()
        except RuntimeError:  # no more threads can be had: the machine is full, or the interpreter is ending
            self._breaker.leave(ticket, ok=False)


class RedisStore:
    """Values with a time to live on a Redis server, below hashed keys; one that is damaged counts as absent."""

    def __init__(
        self, link: RedisLink, *, kind: str, namespace: str = NAMESPACE, clock: Callable[[], float] = time.time
    ) -> None:
        wrong = next((name for name in (kind, namespace) if not _NAME.fullmatch(name)), None)
        if wrong is not None:
            raise ConfigError(f"a Redis namespace must be letters, digits, '_', '-', '.' and ':', got {wrong[:80]!r}")
        self._link = link
        self._prefix = f"{namespace}:{kind}:"
        self._clock = clock
        self._lock = threading.Lock()
        self._writer = Workers(1, f"Redis writer {kind}")
        self._pending: dict[Future[object], int] = {}  # jobs in line or under way, and their bytes
        self._owes_clear = False
        self._slow_s = 10 * link.timeout_s  # nobody waits for writes
        self._counts = _Counts("hits", "misses", "written", "dropped", "oversize", "corrupt")

    def __repr__(self) -> str:
        return f"RedisStore({self._prefix}, {self._link!r})"

    def get(self, key: str) -> tuple[bytes, float] | None:
        return self.get_many([key]).get(key)

    def get_many(self, keys: Sequence[str]) -> dict[str, tuple[bytes, float]]:
        """Return those values that are there, as they were written, and the seconds that they still hold."""
        replies: Sequence[Any] = ()
        if self._owes_clear:
            self._write_later(self._pay_clear)  # what clear() could not delete must not be seen again
        elif keys:
            names = [self._name(key) for key in keys]
            replies = self._link.call(lambda client: client.mget(names), default=())
        found: dict[str, tuple[bytes, float]] = {}
        for key, raw in zip(keys, replies, strict=False):
            if isinstance(raw, bytes):
                try:
                    data, until = unseal(raw)
                except ValueError:
                    self._counts.add(corrupt=1)
                    self.delete(key)
                    continue
                ttl_s = until - self._clock()
                if ttl_s > 0:
                    found[key] = data, ttl_s
        self._counts.add(hits=len(found), misses=len(keys) - len(found))
        return found

    def set(self, key: str, data: bytes, ttl_s: float) -> None:
        self.set_many({key: data}, ttl_s)

    def set_many(self, values: Mapping[str, bytes], ttl_s: float) -> None:
        """Keep JSON in UTF-8 for some seconds, some time soon; for 0 or less not at all."""
        milliseconds = int(ttl_s * 1000)
        if milliseconds < 1:
            return
        until = self._clock() + ttl_s
        small = {self._name(key): seal(data, until) for key, data in values.items() if len(data) <= _MAX_VALUE_BYTES}
        self._counts.add(oversize=len(values) - len(small))
        if small:
            self._write_later(lambda: self._write(small, milliseconds), list(small.values()))

    def delete(self, key: str) -> None:
        name, slow_s = self._name(key), self._slow_s
        self._write_later(lambda: self._link.call(lambda client: client.unlink(name), default=None, timeout_s=slow_s))

    def clear(self) -> int:
        """Drop and count the values of this namespace and kind; while that fails, the store finds nothing."""
        self._owes_clear = True
        for job in list(self._pending):
            job.cancel()
        self.flush(self._slow_s)  # for the one under way
        count, done = self._sweep()
        self._owes_clear = not done
        if not done:
            logger.warning("%r could not be cleared; it is not read until that is done", self)
        return count

    def flush(self, timeout_s: float = 0.5) -> bool:
        """Wait until what was set is written; return whether it is."""
        return not wait(list(self._pending), timeout_s).not_done

    def close(self) -> None:
        """Write what is still in line, within half a second; the link stays open, and the store can be used further."""
        self.flush()
        with self._lock:
            self._writer.close(wait=False)
            self._writer = Workers(1, self._writer.name)

    def stats(self) -> dict[str, Any]:
        """Return the counts since the store was made; failures and skipped calls are those of the whole link."""
        link = self._link.stats()
        failures = link["failures"] + link["refusals"]
        return {"up": link["up"], **self._counts, "failures": failures, "skipped": link["skipped"]}

    def _name(self, key: str) -> str:
        return self._prefix + hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()

    def _write_later(self, job: Callable[[], object], values: Sequence[bytes] = ()) -> None:
        """Put a job in line for the thread that writes; nobody waits, and a line that is too long takes no more."""
        size = sum(map(len, values))
        with self._lock, suppress(RuntimeError):  # no more threads can be had: the machine is full, or all is ending
            if len(self._pending) < _MAX_JOBS and sum(self._pending.values()) + size <= _MAX_BYTES:
                future = self._writer.submit(job)
                self._pending[future] = size
                future.add_done_callback(lambda done: self._pending.pop(done, None))
                return
        self._counts.add(dropped=len(values))

    def _write(self, values: Mapping[str, bytes], milliseconds: int) -> None:
        def write(client: redis.Redis) -> list[Any]:
            pipeline = client.pipeline(transaction=False)
            for name, raw in values.items():
                pipeline.set(name, raw, px=milliseconds)
            replies = pipeline.execute(raise_on_error=False)
            if replies and all(isinstance(reply, Exception) for reply in replies):
                raise replies[0]
            return replies

        written = sum(reply is True for reply in self._link.call(write, default=(), timeout_s=self._slow_s))
        self._counts.add(written=written, dropped=len(values) - written)

    def _pay_clear(self) -> None:
        self._owes_clear = self._owes_clear and not self._sweep()[1]

    def _sweep(self) -> tuple[int, bool]:
        """Delete in batches for ten seconds at most; return how many values, and whether that was all."""
        ends = time.monotonic() + _SWEEP_S

        def sweep(client: redis.Redis) -> tuple[int, bool]:
            count, cursor = 0, None
            while cursor != 0 and time.monotonic() < ends:
                reply: Any = client.scan(cursor or 0, match=f"{self._prefix}*", count=500)
                cursor, names = reply
                count += int(client.unlink(*names)) if names else 0
            return count, cursor == 0

        return self._link.call(sweep, default=(0, False), timeout_s=_SWEEP_S + 1)


class RedisVectorCache:
    """Vectors by model and text hash on a Redis server, with a time to live."""

    def __init__(self, link: RedisLink, *, ttl_s: float = 86_400.0, namespace: str = NAMESPACE) -> None:
        self.store = RedisStore(link, kind="vectors", namespace=namespace)
        self._ttl_s = ttl_s

    def get_many(self, model: str, hashes: Sequence[bytes]) -> dict[bytes, Vector]:
        """Return the vectors known for these text hashes under this model."""
        found: dict[bytes, Vector] = {}
        for i in range(0, len(hashes), _VECTORS_TOGETHER):
            keys = {f"{model}\0{one.hex()}": one for one in hashes[i : i + _VECTORS_TOGETHER]}
            for key, (data, _ttl_s) in self.store.get_many(list(keys)).items():
                vector = decode_vector(data)
                if vector is None:
                    self.store.delete(key)
                else:
                    found[keys[key]] = vector
        return found

    def put_many(self, model: str, vectors: Mapping[bytes, Vector]) -> None:
        """Keep vectors for later; nobody waits for it."""
        items = [(f"{model}\0{one.hex()}", encode_vector(vector)) for one, vector in vectors.items()]
        for i in range(0, len(items), _VECTORS_TOGETHER):
            self.store.set_many(dict(items[i : i + _VECTORS_TOGETHER]), self._ttl_s)

    def close(self) -> None:
        self.store.close()


def encode_vector(vector: Vector) -> bytes:
    """Write a vector as JSON: its length, and its numbers as base64 of little-endian float32."""
    numbers = np.ascontiguousarray(vector, dtype=_FLOAT).tobytes()
    return b'{"n":%d,"f32":"%s"}' % (len(vector), base64.b64encode(numbers))


def decode_vector(data: bytes) -> Vector | None:
    """Read a vector again; ``None`` if these bytes are none."""
    try:
        row = json.loads(data)
        numbers = np.frombuffer(base64.b64decode(row["f32"], validate=True), dtype=_FLOAT)
    except (ValueError, TypeError, KeyError, RecursionError, binascii.Error):
        return None
    return numbers.astype(np.float32) if len(numbers) == row.get("n") and len(numbers) else None


def seal(data: bytes, until_s: float) -> bytes:
    """Put a value into its envelope, JSON like itself, with the time since 1970 until which it holds."""
    payload = b'"until":%d,"value":%s}' % (max(0, int(until_s * 1000)), data)
    return b'{"v":1,"sum":"%s",%s' % (_checksum(payload), payload)


def unseal(raw: bytes) -> tuple[bytes, float]:
    """Take a value out of its envelope, with the time until which it holds; ``ValueError`` if it is damaged."""
    parts = _ENVELOPE.fullmatch(raw)
    if parts is None or _checksum(parts[2]) != parts[1]:
        raise ValueError("not a value of this format, or a damaged one")
    return parts[4], int(parts[3]) / 1000


class _Counts(Counter[str]):
    """Counts by name that many threads may add to."""

    def __init__(self, *names: str) -> None:
        super().__init__(dict.fromkeys(names, 0))
        self._lock = threading.Lock()

    def add(self, **more: int) -> None:
        with self._lock:
            self.update(more)


def _client(url: str, timeout_s: float, connect_timeout_s: float) -> tuple[redis.Redis, str, type[Exception]]:
    """Return a client that has called nobody yet, its address without secrets, and the class of refusals."""
    import redis as package  # noqa: PLC0415 - an extra, only needed with a URL
    from redis.backoff import NoBackoff  # noqa: PLC0415
    from redis.retry import Retry  # noqa: PLC0415

    wrong = ConfigError(
        "setting redis_url must look like redis://[[user]:password@]host[:port][/db], rediss:// or unix://path; "
        "got something else, or options that cannot be used (not shown, it may hold a password)"
    )
    try:
        pool = package.ConnectionPool.from_url(url, max_connections=_MAX_CALLS, protocol=2)
    except (ValueError, TypeError, AttributeError):
        raise wrong from None  # the cause would show the URL
    settings = pool.connection_kwargs
    host, address = settings.get("host") or "", settings.get("path") or ""
    if host:
        address = f"{host_and_port(host, settings.get('port', 6379))}/{settings.get('db', 0)}"
    if not address:
        raise wrong
    # What the URL's query says would win over keyword arguments, so this is set afterwards.
    settings.update(
        socket_timeout=timeout_s,
        socket_connect_timeout=connect_timeout_s,
        retry=Retry(NoBackoff(), 0),  # the default is ten retries with pauses between them
        decode_responses=False,
    )
    return package.Redis(connection_pool=pool), address, package.ResponseError


def _checksum(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=16).hexdigest().encode("ascii")
