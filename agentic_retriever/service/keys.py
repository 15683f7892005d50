"""Keys of the service: made and revoked on the command line, kept hashed, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import sqlalchemy as sa

from agentic_retriever.catalog.database import Database
from agentic_retriever.catalog.records import utc_now
from agentic_retriever.catalog.tables import API_KEYS
from agentic_retriever.errors import ConfigError
from agentic_retriever.service.settings import Caller, Role
from agentic_retriever.threads import Workers

FRESH_S: Final = 1.0  # a key that is revoked elsewhere holds no longer than this
SESSION_S: Final = 12 * 3_600
_ID_CHARS: Final = 8
_MAX_NAME: Final = 100
_PREFIX: Final = "ar_"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """A key as it is kept."""

    id: str
    name: str
    role: Role
    digest: str = field(repr=False)  # SHA-256 of the key, which is random enough to need no slow hash
    created_at: datetime
    revoked_at: datetime | None = None

    def shown(self) -> dict[str, str]:
        """Return what people may see of it."""
        times = {"created": self.created_at, "revoked": self.revoked_at}
        told = {name: at.isoformat(timespec="seconds") if at else "" for name, at in times.items()}
        return {"id": self.id, "name": self.name, "role": self.role.name.lower(), **told}


class KeyTable:
    """Where keys are kept: a table of the catalog."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> list[KeyRecord]:
        """Return every key, revoked ones included, the oldest first."""
        if not self._database.exists:
            return []
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(API_KEYS).order_by(API_KEYS.c.created_at)).mappings().all()
        return [KeyRecord(**{**row, "role": Role(row["role"])}) for row in rows]

    def create(self, name: str, role: Role) -> str:
        """Make a key and return it: it is shown this once, and kept as its hash."""
        if not 1 <= len(name.strip()) <= _MAX_NAME:
            raise ConfigError(f"the name of a key must have 1 to {_MAX_NAME} characters, got {len(name.strip())}")
        key_id = secrets.token_hex(_ID_CHARS // 2)
        key = f"{_PREFIX}{key_id}_{secrets.token_urlsafe(32)}"
        row = {"id": key_id, "name": name.strip(), "role": int(role), "digest": _digest(key), "created_at": utc_now()}
        with self._database.writing() as connection:
            connection.execute(sa.insert(API_KEYS).values(row))
        return key

    def revoke(self, key_id: str) -> KeyRecord:
        """Make a key worthless for good; ``ConfigError`` if there is none of that id that still holds."""
        found = next((one for one in self.all() if one.id == key_id and one.revoked_at is None), None)
        if found is None:
            raise ConfigError(f"no key {key_id[:20]!r} is in use; 'agentic-retriever keys list' shows their ids")
        with self._database.writing() as connection:
            connection.execute(sa.update(API_KEYS).where(API_KEYS.c.id == key_id).values(revoked_at=utc_now()))
        return found


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
