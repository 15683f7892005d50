"""Computed values kept for a while, and questions asked beforehand; of many callers that miss a key, one computes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, Literal, Protocol, TypeAlias, TypeVar, get_args

from cachetools import TLRUCache

from agentic_retriever.errors import AgenticRetrieverError, ConfigError, DeadlineExceededError, SourceError, StoreError
from agentic_retriever.schema import Record

V = TypeVar("V")
T = TypeVar("T")
Job: TypeAlias = Callable[[], None]
_Maker: TypeAlias = Callable[[], V]  # makes a copy of a value

logger = logging.getLogger(__name__)

MAX_FILE_BYTES: Final = 64_000_000  # of questions; larger files are refused
_ENCODE = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode


def cache_key(**parts: object) -> str:
    """Return a key for named JSON values; the order of names and of mapping keys does not matter, types do."""
    return hashlib.sha256(_ENCODE(parts).encode("utf-8", "surrogatepass")).hexdigest()


class _Store(Protocol):
    """Keeps bytes for a while outside of the process, such as :class:`agentic_retriever.redis.RedisStore`."""

    def get(self, key: str) -> tuple[bytes, float] | None: ...  # with the seconds that they still hold
    def set(self, key: str, data: bytes, ttl_s: float) -> None: ...  # now or soon
    def delete(self, key: str) -> None: ...  # after all that was set before
    def clear(self) -> int: ...  # what was set but not yet written included
    def stats(self) -> dict[str, Any]: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class CacheStats(Record):
    """Counts since the cache was made."""

    hits: int  # calls answered from memory
    misses: int  # calls that computed
    shared: int  # calls that waited for the computation of another
    entries: int  # values in memory now
    store_hits: int = 0  # calls answered from the second level
    failures: int = 0  # computations that failed
    unkept: int = 0  # values computed and not stored, such as degraded answers
    store_errors: int = 0  # errors of the second level or of reading from it; each counted as a miss
    store: dict[str, Any] | None = None

    @property
    def hit_rate(self) -> float:
        """Share of calls that did not compute, in [0, 1]; 0 before the first call."""
        free = self.hits + self.store_hits + self.shared
        return free / (free + self.misses) if free + self.misses else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {**Record.to_dict(self), "hit_rate": self.hit_rate}


class SingleFlightCache(Generic[V]):
    """Values in memory and on a second level, for any number of threads, and of tasks on any number of event loops.

    ``max_entries`` or ``ttl_s`` of 0 turns both levels off, but not single flight. Values are never pickled, as others
    may write to ``second``; ``prepare`` returns what hands out copies, so that no caller changes what is kept.
    """

    def __init__(
        self,
        *,
        max_entries: int,
        ttl_s: float,
        timer: Callable[[], float] = time.monotonic,
        second: tuple[_Store, Callable[[V], bytes], Callable[[bytes], V]] | None = None,
        prepare: Callable[[V], _Maker[V]] = lambda value: lambda: value,
    ) -> None:
        if max_entries < 0:
            raise ConfigError(f"max_entries must be 0 or more, got {max_entries}")
        if not 0 <= ttl_s < math.inf:
            raise ConfigError(f"ttl_s must be a finite number of seconds, 0 or more, got {ttl_s}")
        self._keeps = bool(max_entries and ttl_s)
        self._ttl_s = float(ttl_s)
        self._timer = timer
        self._prepare = prepare
        self._store: _Store | None = None
        if second is not None and self._keeps:
            self._store, self._encode, self._decode = second
        self._store_errors = 0
        self._lock = threading.Lock()  # guards all below
        # A value is kept with the time at which it ends, since those from a second level have less than the full time.
        self._memory: TLRUCache[str, tuple[_Maker[V], float]] = TLRUCache(
            max(1, max_entries), ttu=lambda _key, entry, _now: entry[1], timer=timer
        )
        self._flights: dict[str, _Flight[V]] = {}
        self.epoch = 0  # counts the times that the cache was cleared
        self._counts = dict.fromkeys(("hits", "misses", "shared", "store_hits", "failures", "unkept"), 0)

    def get_or_compute(
        self,
        key: str,
        compute: Callable[[], V],
        *,
        keep: Callable[[V], bool] = lambda _value: True,
        timeout_s: float | None = None,
    ) -> tuple[V, bool]:
        """Return the value of a key, computing it if need be, and whether it was there or another caller computed it.

        A value that ``keep`` does not want is not stored; a failure never is, and is raised for all who waited for it.
        """
        ends = None if timeout_s is None else self._timer() + timeout_s
        while True:
            flight, leads = self._board(key, leader=compute)
            if isinstance(flight, tuple):
                return flight[0](), True
            if leads:
                make, computed = self._lead(flight, compute, keep)
                return make(), not computed
            try:
                return flight.future.result(self._left(ends))[0](), True
            except _AbandonedError:
                continue
            except FutureTimeoutError as err:
                return self._late(flight, timeout_s, err, leads), True

    async def aget_or_compute(
        self,
        key: str,
        compute: Callable[[], V],
        *,
        submit: Callable[[Job], object],
        keep: Callable[[V], bool] = lambda _value: True,
        timeout_s: float | None = None,
        unwanted: Callable[[], None] = lambda: None,
    ) -> tuple[V, bool]:
        """Do as :meth:`get_or_compute` without holding a thread while waiting; ``submit`` starts a worker thread.

        Only if all tasks are cancelled is a computation dropped, or told by ``unwanted``. A thread that comes while it
        waits for a worker makes it itself, so that a pool whose workers all wait for it cannot come to a standstill.
        """
        ends = None if timeout_s is None else self._timer() + timeout_s
        while True:
            flight, leads = self._board(key, leader=None)
            if isinstance(flight, tuple):
                return flight[0](), True
            if leads:
                flight.unwanted = unwanted
                self._start(flight, compute, keep, submit)
            try:
                make, computed = await asyncio.wait_for(asyncio.wrap_future(flight.future), self._left(ends))
            except _AbandonedError:
                continue
            except asyncio.CancelledError:
                self._leave(flight)
                raise
            except asyncio.TimeoutError as err:
                return self._late(flight, timeout_s, err, leads), True
            return make(), not (leads and computed and flight.leader is flight)

    def peek(self, key: str) -> V | None:
        """Return the value of a key from either level, or ``None``; nobody is made to wait or to compute."""
        with self._lock:
            found, epoch = self._in_memory(key), self.epoch
        found = found or self._in_store(key, epoch)
        return None if found is None else found[0]()

    def put(self, key: str, value: V, *, epoch: int) -> None:
        """Keep a value that was made elsewhere, unless the cache was cleared since ``epoch`` was read."""
        with self._lock:
            self._counts["misses"] += 1
        if self._keep(key, self._prepare(value), epoch):
            self._share(key, value, epoch)

    def clear(self) -> int:
        """Drop every value of both levels, those being computed included.

        Returns how many there were: the larger of the counts of the two levels, as most values are in both.
        """
        with self._lock:
            count = len(self._memory)
            self._memory.clear()
            self._flights.clear()
            self.epoch += 1
        return max(count, self._attempt("clear", lambda store: store.clear(), 0))

    def close(self) -> None:
        """Let the second level write what is still in line; the cache can be used further."""
        self._attempt("close", lambda store: store.close(), None)

    def stats(self) -> CacheStats:
        store = self._attempt("count", lambda store: store.stats(), None)
        with self._lock:
            return CacheStats(**self._counts, entries=len(self._memory), store_errors=self._store_errors, store=store)

    def _board(self, key: str, *, leader: object | None) -> tuple[tuple[_Maker[V], float] | _Flight[V], bool]:
        """Find the value of a key, in a tuple, or its flight; and whether the caller has to see to the computation."""
        with self._lock:
            found = self._in_memory(key)
            if found is not None:
                return found, False
            flight = self._flights.get(key)
            if flight is None:
                flight = self._flights[key] = _Flight(key, self.epoch, leader)
                return flight, True
            flight.waiting += 1
            if leader is not None and flight.leader is None:
                flight.leader = leader
                return flight, True
            self._counts["shared"] += 1
            return flight, False

    def _start(
        self, flight: _Flight[V], compute: Callable[[], V], keep: Callable[[V], bool], submit: Callable[[Job], object]
    ) -> None:
        """Have a worker lead a flight, unless somebody begins it before."""

        def lead() -> None:
            if self._take(flight):
                with suppress(Exception):  # the flight hands it to all who wait; nobody looks at the future of this job
                    self._lead(flight, compute, keep)

        try:
            submit(lead)
        except BaseException as err:
            if self._take(flight):
                self._fail(flight, err)
            raise

    def _take(self, flight: _Flight[V]) -> bool:
        """Begin a flight on behalf of the task that made it, unless somebody began it already."""
        with self._lock:
            free = flight.leader is None
            if free:
                flight.leader = flight
            return free

    def _lead(self, flight: _Flight[V], compute: Callable[[], V], keep: Callable[[V], bool]) -> tuple[_Maker[V], bool]:
        """Find the value in the second level or compute it; return its copies, and whether it was computed."""
        kept = False
        try:
            found = self._in_store(flight.key, flight.epoch)
            if found is None:
                with self._lock:
                    self._counts["misses"] += 1
                value = compute()
                make = self._prepare(value)
                kept = self._keep(flight.key, make, flight.epoch, wanted=keep(value))
            else:
                make = found[0]
        except BaseException as err:
            self._fail(flight, err)
            raise
        with self._lock:
            self._forget(flight)
        flight.future.set_result((make, found is None))
        if kept:
            self._share(flight.key, value, flight.epoch)
        return make, found is None

    def _fail(self, flight: _Flight[V], err: BaseException) -> None:
        """End a flight with a failure, for all who wait; they compute for themselves if it is no ``Exception``."""
        with self._lock:
            self._counts["failures"] += 1
            self._forget(flight)
        flight.future.set_exception(err if isinstance(err, Exception) else _AbandonedError())

    def _leave(self, flight: _Flight[V]) -> None:
        """Note that a task was cancelled; the last one ends the flight, so that who comes then begins anew."""
        with self._lock:
            flight.waiting -= 1
            if flight.waiting or flight.future.done():
                return
            self._forget(flight)
        if self._take(flight):
            flight.future.set_exception(_AbandonedError())
        flight.unwanted()

    def _forget(self, flight: _Flight[V]) -> None:
        if self._flights.get(flight.key) is flight:
            del self._flights[flight.key]

    def _in_memory(self, key: str) -> tuple[_Maker[V], float] | None:
        entry = self._memory.get(key)
        self._counts["hits"] += entry is not None
        return entry

    def _in_store(self, key: str, epoch: int) -> tuple[_Maker[V], float] | None:
        """Return a value from the second level, and keep it in memory; of an old epoch there is none."""
        stored = self._attempt("read", lambda store: store.get(key), None)
        if stored is None:
            return None
        data, ttl_s = stored
        found = self._attempt("decode", lambda _store: (self._prepare(self._decode(data)), ttl_s), None)
        if found is None:
            self._attempt("delete", lambda store: store.delete(key), None)
            return None
        with self._lock:
            if epoch != self.epoch:
                return None
            self._counts["store_hits"] += 1
            self._remember(key, found[0], min(ttl_s, self._ttl_s))
        return found

    def _keep(self, key: str, make: _Maker[V], epoch: int, *, wanted: bool = True) -> bool:
        """Keep a value in memory if it is wanted and was begun after the last clearing; return whether it was kept."""
        with self._lock:
            kept = wanted and epoch == self.epoch
            self._counts["unkept"] += not kept
            if kept:
                self._remember(key, make, self._ttl_s)
        return kept

    def _remember(self, key: str, make: _Maker[V], ttl_s: float) -> None:
        if self._keeps and ttl_s > 0:
            self._memory[key] = (make, self._timer() + ttl_s)

    def _share(self, key: str, value: V, epoch: int) -> None:
        """Hand a value that was kept to the second level, and take it back if all was cleared meanwhile."""
        self._attempt("write", lambda store: store.set(key, self._encode(value), self._ttl_s), None)
        if epoch != self.epoch:
            self._attempt("delete", lambda store: store.delete(key), None)

    def _attempt(self, what: str, use: Callable[[_Store], T], default: T) -> T:
        """Use the second level, if there is one; whatever goes wrong in it is a miss."""
        if self._store is None:
            return default
        try:
            return use(self._store)
        except Exception as err:  # noqa: BLE001 - foreign code, and bytes of others; a cache must not fail a query
            self._store_errors += 1
            log = logger.warning if self._store_errors == 1 else logger.debug
            log("the second level of a cache could not %s a value (%s)", what, type(err).__name__)
            return default

    def _left(self, ends: float | None) -> float | None:
        return None if ends is None else max(0.0, ends - self._timer())

    def _late(self, flight: _Flight[V], timeout_s: float | None, err: Exception, leads: bool) -> V:
        # The computation may have ended just now, or have raised a TimeoutError of its own.
        if flight.future.done():
            return flight.future.result()[0]()
        what = "there was no answer" if leads else "the same question is still being answered for another caller"
        raise DeadlineExceededError(f"{what} after {timeout_s or 0:.1f} s; allow more time") from err


class _AbandonedError(Exception):
    """The caller that computed was interrupted; whoever waits computes for itself."""


@dataclass(eq=False, slots=True)
class _Flight(Generic[V]):
    """A computation under way, or about to be; all but its future is guarded by the lock of the cache."""

    key: str
    epoch: int
    leader: object | None  # who computes: the flight itself for a worker of the task that made it, else a thread
    waiting: int = 1
    unwanted: Callable[[], None] = lambda: None
    future: Future[tuple[_Maker[V], bool]] = field(default_factory=Future)  # the value, and whether it was computed

    def __post_init__(self) -> None:
        self.future.set_running_or_notify_cancel()  # so that no task that waits for it can cancel it


WarmOutcome: TypeAlias = Literal["cached", "stored", "not_kept"]  # what became of a question asked beforehand


@dataclass(frozen=True, slots=True)
class WarmFailure(Record):
    """A question that could not be answered, and why, in one line."""

    question: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmReport(Record):
    """What warming did, in numbers of questions."""

    asked: int
    cached: int  # answers that were there already
    stored: int  # answers that are there now
    not_kept: int  # answers not worth keeping, such as degraded ones
    failed: tuple[WarmFailure, ...]
    stopped: str = ""  # why warming ended before the last question


def read_questions(path: str | Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Read questions, each once and in order, and what is wrong with other lines; in JSON lines each is a ``query``."""
    file = Path(path)
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
    except OSError as err:
        raise SourceError(f"cannot read {file}: {err.strerror or err}; pass a text file, one question a line") from err
    if len(content) > MAX_FILE_BYTES:
        raise SourceError(f"{file} is larger than {MAX_FILE_BYTES // 1_000_000} MB; split it into several files")
    read = _json_question if file.suffix.lower() in {".jsonl", ".ndjson"} else str.strip
    questions: dict[str, None] = {}
    problems: list[str] = []
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            questions[read(line.decode("utf-8"))] = None
        except ValueError as err:
            problems.append(f"line {number}: {'not UTF-8' if isinstance(err, UnicodeDecodeError) else err}")
    return tuple(questions), tuple(problems)


def warm(
    ask: Callable[[str], WarmOutcome],
    questions: Sequence[str],
    *,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> WarmReport:
    """Ask questions one after another, to the end unless one raises a ``StoreError``, which all would meet."""
    counts: dict[WarmOutcome, int] = dict.fromkeys(get_args(WarmOutcome), 0)
    failed: list[WarmFailure] = []
    stopped = ""
    for done, question in enumerate(questions, start=1):
        try:
            counts[ask(question)] += 1
        except AgenticRetrieverError as err:
            failed.append(WarmFailure(question, str(err)))
            stopped = str(err) if isinstance(err, StoreError) else ""
        progress(done, len(questions))
        if stopped:
            break
    return WarmReport(asked=sum(counts.values()) + len(failed), failed=tuple(failed), stopped=stopped, **counts)


def _json_question(line: str) -> str:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as err:
        raise ValueError(f"not JSON ({err.msg})") from err
    except RecursionError as err:
        raise ValueError("nested too deeply") from err
    question = row.get("query") if isinstance(row, dict) else None
    if not isinstance(question, str) or not question.strip():
        raise ValueError("no object with a text under 'query'")
    return question.strip()
