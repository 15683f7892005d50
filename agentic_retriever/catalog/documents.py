"""The records of documents: made, listed, changed, and claimed by who processes them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from datetime import datetime, timedelta
from json import dumps
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from agentic_retriever import errors
from agentic_retriever.catalog.records import DocumentRecord, DocumentStatus, NodeRecord, utc_now
from agentic_retriever.catalog.tables import DOCUMENTS, FREE, INDEXES, NODES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentic_retriever.catalog.indexes import Indexes

CHANNEL: Final = "agentic_retriever_documents"  # PostgreSQL tells workers on it that there is something to do
_D: Final = DOCUMENTS.c
_COMPOSED: Final = frozenset({"index", "metadata"})
_COLUMNS: Final = [one.name for one in fields(DocumentRecord) if one.name not in _COMPOSED]
_RECORDS: Final = sa.select(*(_D[name] for name in (*_COLUMNS, "index_id", "metadata", "given")))
_SEARCHED: Final = ("title", "filename", "document_number")


class DocumentRecords:
    """The records of all documents that can be used from one data directory; safe to use from many threads."""

    def __init__(self, indexes: Indexes, *, clock: Callable[[], datetime] = utc_now) -> None:
        self.indexes = indexes
        self.clock = clock

    def add(self, index: str, document_id: str, **known: Any) -> tuple[DocumentRecord, bool]:  # noqa: ANN401 - columns
        """Make a record of a file, or return that of the same file in that index, and whether it is new."""
        index_id, now = self.indexes.row(index).id, self.clock()
        with self.indexes.changing() as connection:
            # Whoever adds the same file at the same time waits here, and then finds it.
            held = sa.select(INDEXES.c.id).where(INDEXES.c.id == index_id).with_for_update()
            if connection.execute(held).scalar() is None:
                raise errors.UnknownIndexError(errors.unknown_name("index", index, self.indexes.rows()))
            same = sa.select(_D.id).where(_D.index_id == index_id, _D.file_hash == known["file_hash"])
            found = connection.execute(same.order_by(_D.created_at).limit(1)).scalar()
            if found is None:
                row = {"id": document_id, "index_id": index_id, "doc_id": document_id, "created_at": now} | known
                connection.execute(sa.insert(DOCUMENTS).values(**row, updated_at=now))
                announce(connection)
        return self.get(found or document_id), found is None

    def get(self, document_id: str) -> DocumentRecord:
        found = self._select(_D.id == document_id, limit=1)
        if not found:
            raise _unknown(document_id)
        return found[0]

    def columns(self, document_id: str, *names: str) -> Sequence[Any]:
        """Return columns that only programs read, such as where a document was read, and its text."""
        with self.indexes.database.reading() as connection:
            found = connection.execute(sa.select(*(_D[name] for name in names)).where(_D.id == document_id)).first()
        if found is None:
            raise _unknown(document_id)
        return found

    def find(self, *, limit: int = 50, offset: int = 0, **filters: Any) -> list[DocumentRecord]:  # noqa: ANN401
        return self._select(*self._conditions(**filters), limit=limit, offset=offset)

    def count(self, **filters: Any) -> int:  # noqa: ANN401 - those of _conditions
        wanted = sa.select(sa.func.count()).select_from(DOCUMENTS).where(*self._usable(), *self._conditions(**filters))
        with self.indexes.database.reading() as connection:
            return int(connection.execute(wanted).scalar_one())

    def change(self, document_id: str, *conditions: sa.ColumnElement[bool], **changes: Any) -> bool:  # noqa: ANN401
        """Change columns of a record where the conditions hold, and tell whether it was there."""
        with self.indexes.changing() as connection:
            change = sa.update(DOCUMENTS).where(_D.id == document_id, *conditions)
            done = connection.execute(change.values(updated_at=self.clock(), **changes))
            if changes.get("status") == DocumentStatus.PENDING.value:
                announce(connection)
            return bool(done.rowcount)

    def remove(self, document_id: str) -> None:
        with self.indexes.changing() as connection:
            connection.execute(sa.delete(DOCUMENTS).where(_D.id == document_id))

    def requeue_cut_off(self) -> None:
        """Have documents written again whose writing was cut off and that no worker has."""
        waits = _D.status.not_in([DocumentStatus.PENDING.value, DocumentStatus.FAILED.value])
        cut_off = (_D.content_hash == "", _D.lease_until.is_(None), _D.kind != "nodes", _D.is_active)
        with self.indexes.changing() as connection:
            change = sa.update(DOCUMENTS).where(*self._usable(), waits, *cut_off)
            connection.execute(change.values(status=DocumentStatus.PENDING.value, updated_at=self.clock()))

    def nodes(self, document_id: str) -> list[NodeRecord]:
        names = [one.name for one in fields(NodeRecord)]
        wanted = sa.select(*(NODES.c[name] for name in names)).where(NODES.c.document_id == document_id)
        with self.indexes.database.reading() as connection:
            rows = connection.execute(wanted.order_by(NODES.c.position, NODES.c.node_id)).mappings().all()
        lists = ("page_numbers", "heading_hierarchy")
        return [NodeRecord(**{**row, **{name: tuple(row[name]) for name in lists}}) for row in rows]

    def _conditions(
        self,
        *,
        index: str | None = None,
        status: str | None = None,
        document_type: str | None = None,
        tag: str | None = None,
        search: str | None = None,
        is_active: bool | None = None,
    ) -> list[sa.ColumnElement[bool]]:
        same = {"document_type": document_type, "is_active": is_active}
        told: list[sa.ColumnElement[bool]] = [_D[name] == value for name, value in same.items() if value is not None]
        if index is not None:
            told.append(_D.index_id == self.indexes.row(index).id)
        if status is not None:
            known = [one.value for one in DocumentStatus]
            if status not in known:
                raise errors.IndexingError(errors.unknown_name("status", str(status), known))
            is_off = DocumentStatus(status) is DocumentStatus.INACTIVE
            told += [~_D.is_active] if is_off else [_D.is_active, _D.status == DocumentStatus(status).value]
        if tag is not None:
            told.append(_D.tags.cast(sa.Text).contains(dumps(tag), autoescape=True))
        if search:
            told.append(sa.or_(*(_D[name].icontains(search, autoescape=True) for name in _SEARCHED)))
        return told

    def _usable(self) -> tuple[sa.ColumnElement[bool], ...]:
        return (_D.index_id.in_([row.id for row in self.indexes.rows().values()]),)

    def _select(self, *conditions: sa.ColumnElement[bool], limit: int, offset: int = 0) -> list[DocumentRecord]:
        names = {row.id: name for name, row in self.indexes.rows().items()}
        if not names:
            return []
        wanted = _RECORDS.where(*self._usable(), *conditions).order_by(_D.created_at.desc(), _D.id)
        with self.indexes.database.reading() as connection:
            rows = connection.execute(wanted.limit(limit).offset(offset)).mappings().all()
        return [_record(dict(row), names) for row in rows]


def _unknown(document_id: str) -> errors.UnknownDocumentError:
    return errors.UnknownDocumentError(f"there is no document {document_id[:80]!r}; see documents list")


def _record(row: dict[str, Any], names: Mapping[int, str]) -> DocumentRecord:
    given = row.pop("given")
    said = {key: value for key, value in given.get("said", {}).items() if key != "title" and value is not None}
    metadata = {**given.get("found", {}), **row.pop("metadata"), **said}
    if given.get("origins"):
        metadata["_origins"] = given["origins"]
    row |= {"index": names[row.pop("index_id")], "metadata": metadata, "tags": tuple(row["tags"])}
    status = DocumentStatus(row["status"]) if row["is_active"] else DocumentStatus.INACTIVE
    return DocumentRecord(**row | {"status": status})


def announce(connection: sa.Connection) -> None:
    """Have PostgreSQL wake the workers that listen, once the transaction is confirmed."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_notify(CHANNEL, "")))


# Claims, which end by themselves when their worker does.
# Time is that of the database where it is a server, so that machines agree on it. A clock that jumps forward ends
# claims early: whoever lost one notices when it renews it, or before it writes. One that jumps back would make claims
# last; a claim that ends later than any could is taken as ended.

LEASE_S: Final = 60.0
MAX_TRIES: Final = 3
PAUSE_S = 2.0  # before the second try; twice that before the third
_PENDING, _PROCESSING, _FAILED = (
    one.value for one in (DocumentStatus.PENDING, DocumentStatus.PROCESSING, DocumentStatus.FAILED)
)
CUT_OFF: Final = (
    f"processing was cut off {MAX_TRIES} times, each time with its worker; it may need more memory than there is: "
    "split the document, or process it again with: agentic-retriever documents reprocess"
)


class Claims:
    """The claims of one worker, named by ``owner``; safe to use from many threads."""

    def __init__(self, records: DocumentRecords, owner: str, *, lease_s: float = LEASE_S) -> None:
        self.records = records
        self.owner = owner
        self._lease = timedelta(seconds=lease_s)

    def take(self, *, without: Collection[str] = ()) -> DocumentRecord | None:
        """Claim a document that waits, or whose claim has ended: the one tried least, then the oldest."""
        rows = self.records.indexes.rows()
        usable = [row.id for name, row in rows.items() if name not in without]
        while usable:
            with self.records.indexes.changing() as connection:
                now = self._now(connection)
                found = connection.execute(self._due(usable, now)).one_or_none()
                if found is None:
                    return None
                is_spent = found.tries >= MAX_TRIES
                if is_spent:
                    changes = {"status": _FAILED, "error_message": CUT_OFF, **FREE}
                else:
                    changes = {"status": _PROCESSING, "processing_progress": 0, "tries": found.tries + 1}
                    changes |= {"lease_owner": self.owner, "lease_until": now + self._lease}
                change = sa.update(DOCUMENTS).where(_D.id == found.id)
                connection.execute(change.values(**changes, updated_at=now))
                claimed = connection.execute(_RECORDS.where(_D.id == found.id)).mappings().one()
            if not is_spent:
                return _record(dict(claimed), {row.id: name for name, row in rows.items()})
        return None

    def renew(self, progress: dict[str, int]) -> set[str]:
        """Go on with claims, by ``progress`` of each document in percent; return those that were lost meanwhile."""
        lost: set[str] = set()
        with self.records.indexes.changing() as connection:
            until = self._now(connection) + self._lease
            for document_id, done in progress.items():
                change = sa.update(DOCUMENTS).where(_D.id == document_id, *self._held())
                renewed = connection.execute(change.values(lease_until=until, processing_progress=done))
                if not renewed.rowcount:
                    lost.add(document_id)
        return lost

    def holds(self, document_id: str) -> bool:
        wanted = sa.select(_D.id).where(_D.id == document_id, *self._held())
        with self.records.indexes.database.reading() as connection:
            return connection.execute(wanted).scalar() is not None

    def fail(self, record: DocumentRecord, message: str, *, passes: bool) -> None:
        """Note why a document could not be processed; it waits for another try where the reason may pass."""
        with self.records.indexes.changing() as connection:
            now, mine = self._now(connection), (_D.id == record.id, *self._held())
            tries = connection.execute(sa.select(_D.tries).where(*mine)).scalar()
            if tries is None:
                return
            changes = {"status": _FAILED, "error_message": message, **FREE}
            if passes and tries < MAX_TRIES:
                changes |= {"status": _PENDING, "lease_until": now + timedelta(seconds=PAUSE_S * tries)}
            connection.execute(sa.update(DOCUMENTS).where(*mine).values(**changes, updated_at=now))

    def release(self, document_id: str | None = None) -> None:
        """Give back one claim, or all: somebody else may take them at once, and no try was spent."""
        with self.records.indexes.changing() as connection:
            change = sa.update(DOCUMENTS).where(*self._held(), *([_D.id == document_id] if document_id else []))
            connection.execute(change.values(status=_PENDING, tries=_D.tries - 1, **FREE))

    def _held(self) -> Sequence[sa.ColumnElement[bool]]:
        return _D.lease_owner == self.owner, _D.status == _PROCESSING

    def _due(self, index_ids: Sequence[int], now: datetime) -> sa.Select[Any]:
        ended = sa.or_(_D.lease_until <= now, _D.lease_until > now + 2 * self._lease)
        waits = sa.and_(_D.status == _PENDING, sa.or_(_D.lease_until.is_(None), ended))
        is_due = sa.or_(waits, sa.and_(_D.status == _PROCESSING, ended))
        wanted = sa.select(_D.id, _D.tries).where(_D.index_id.in_(index_ids), _D.is_active, is_due)
        return wanted.order_by(_D.tries, _D.created_at, _D.id).limit(1).with_for_update(skip_locked=True)

    def _now(self, connection: sa.Connection) -> datetime:
        if connection.dialect.name != "postgresql":
            return self.records.clock()
        now: datetime = connection.execute(sa.select(sa.func.clock_timestamp())).scalar_one()
        return now
