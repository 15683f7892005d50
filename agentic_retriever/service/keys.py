"""Keys of the service: made and revoked on the command line, kept hashed, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Final, Protocol

from agentic_retriever.errors import ConfigError
from agentic_retriever.schema import Record
from agentic_retriever.service.settings import Caller, Role
from agentic_retriever.threads import Workers

FRESH_S: Final = 1.0  # a key that is revoked elsewhere holds no longer than this
SESSION_S: Final = 12 * 3_600
_ID_CHARS: Final = 8
_PREFIX: Final = "ar_"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord(Record):
    """A key as it is kept."""

    id: str
    name: str
    role: Role
    digest: str  # SHA-256 of the key, which is random enough to need no slow hash
    created_at: datetime
    revoked_at: datetime | None = None


class KeyTable(Protocol):
    """Where keys are kept."""

    def all(self) -> list[KeyRecord]: ...
    def add(self, record: KeyRecord) -> None: ...
    def revoke(self, key_id: str, at: datetime) -> bool: ...  # whether there was one to revoke


class MemoryKeys:
    """Keys of a process alone, as for tests and services that are embedded in a program."""

    def __init__(self) -> None:
        self._records: dict[str, KeyRecord] = {}

    def all(self) -> list[KeyRecord]:
        return list(self._records.values())

    def add(self, record: KeyRecord) -> None:
        self._records[record.id] = record

    def revoke(self, key_id: str, at: datetime) -> bool:
        found = self._records.get(key_id)
        if found is None or found.revoked_at is not None:
            return False
        self._records[key_id] = replace(found, revoked_at=at)
        return True


def create_key(table: KeyTable, name: str, role: Role, *, now: Callable[[], datetime] | None = None) -> str:
    """Make a key and return it: it is shown this once, and kept as its hash."""
    if not name.strip() or len(name) > 100:
        raise ConfigError(f"the name of a key must have 1 to 100 characters, got {len(name.strip())}")
    key_id = secrets.token_hex(_ID_CHARS // 2)
    key = f"{_PREFIX}{key_id}_{secrets.token_urlsafe(32)}"
    created = now() if now else datetime.now(timezone.utc)
    table.add(KeyRecord(id=key_id, name=name.strip(), role=role, digest=_digest(key), created_at=created))
    return key


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


class KeyRing:
    """The keys as the service looks at them: read anew when older than a second, in a worker thread."""

    def __init__(
        self, table: KeyTable, workers: Workers, *, timer: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._table, self._workers, self._timer, self._clock = table, workers, timer, clock
        self._records: dict[str, KeyRecord] = {}
        self._read_at: float | None = None

    def load(self) -> None:
        """Read the keys now."""
        self._take(self._table.all())

    async def refresh(self) -> None:
        """Read the keys if what is known of them is old."""
        if self._read_at is None or self._timer() - self._read_at > FRESH_S:
            self._read_at = self._timer()  # one reader at a time
            self._take(await self._workers.run(self._table.all))

    @property
    def is_empty(self) -> bool:
        """Whether no key was ever made; one that is revoked counts, so that revoking the last opens no door."""
        return not self._records

    def caller(self, key: str) -> Caller | None:
        """Return whose key this is."""
        record = self._records.get(key[len(_PREFIX) : len(_PREFIX) + _ID_CHARS])
        fits = hmac.compare_digest(_digest(key), record.digest if record else _digest(""))
        return _caller(record) if record is not None and fits else None

    # A session is signed with the hash of its key, so that it ends with the key and holds in every process.

    def session(self, caller: Caller) -> str:
        """Return the value of a cookie that stands for a key."""
        until = str(int(self._clock()) + SESSION_S)
        return f"{caller.key_id}.{until}.{self._signature(caller.key_id, until)}"

    def session_caller(self, cookie: str) -> Caller | None:
        """Return whose session a cookie stands for."""
        key_id, _, rest = cookie.partition(".")
        until, _, signature = rest.partition(".")
        fits = hmac.compare_digest(signature.encode(), self._signature(key_id, until).encode())
        record = self._records.get(key_id)
        if record is None or not fits or not re.fullmatch("[0-9]{1,12}", until) or int(until) < self._clock():
            return None
        return _caller(record, by_cookie=True)

    def _signature(self, key_id: str, until: str) -> str:
        record = self._records.get(key_id)
        secret = record.digest if record else _digest("")
        return hmac.new(secret.encode(), f"session {key_id} {until}".encode(), "sha256").hexdigest()

    def _take(self, records: Iterable[KeyRecord]) -> None:
        self._records = {record.id: record for record in records}
        self._read_at = self._timer()


def _caller(record: KeyRecord, *, by_cookie: bool = False) -> Caller | None:
    if record.revoked_at is not None:
        return None
    return Caller(record.id, record.name, record.role, by_cookie)
