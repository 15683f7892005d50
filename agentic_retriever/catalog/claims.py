"""Who processes which document: claims that end by themselves when their worker does.

Time is that of the database where it is a server, so that machines agree on it. A clock that jumps forward ends claims
early: whoever lost one notices when it renews it, or before it writes. One that jumps back would make claims last; a
claim that ends later than any could is taken as ended.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from agentic_retriever.catalog.documents import DocumentRecords
from agentic_retriever.catalog.records import DocumentRecord, DocumentStatus
from agentic_retriever.catalog.tables import DOCUMENTS, FREE

if TYPE_CHECKING:
    from collections.abc import Sequence

LEASE_S: Final = 60.0
MAX_TRIES: Final = 3
PAUSE_S = 2.0  # before the second try; twice that before the third
_D: Final = DOCUMENTS.c
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
            if not is_spent:
                return self.records.get(found.id)
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
        mine = [_D.lease_owner == self.owner, _D.status == _PROCESSING]
        with self.records.indexes.changing() as connection:
            change = sa.update(DOCUMENTS).where(*mine, *([_D.id == document_id] if document_id else []))
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
