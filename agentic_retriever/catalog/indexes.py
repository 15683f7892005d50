"""Which indexes a catalog has, as one data directory sees them, and their versions."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid4

import sqlalchemy as sa

from agentic_retriever import errors
from agentic_retriever.catalog.address import Address
from agentic_retriever.catalog.database import Database, put_rows
from agentic_retriever.catalog.tables import DOCUMENTS, INDEXES, NODES, VIEWS
from agentic_retriever.json_files import write_atomically

HOME_FILE: Final = "home"  # what a shared catalog calls a data directory
PAGE: Final = 500
# Many versions are looked at in the course of one question, which begins with a look at what others have changed; who
# asks nothing sees their changes after that time at the latest.
_FRESH_S: Final = 0.01


class IndexRow(NamedTuple):
    """One index as the catalog knows it."""

    id: int
    home: str  # the data directory that its vectors lie in, if the catalog is shared
    name: str
    manifest: str  # in JSON
    version: int
    words: dict[str, Any] | None
    views: dict[str, Any]


class Indexes:
    """The indexes of a catalog that can be used from one data directory; safe to use from many threads."""

    def __init__(
        self,
        data_dir: Path,
        address: Address | None = None,
        *,
        prepare: Callable[["Indexes"], None] = lambda _indexes: None,  # before anything is read
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.database = Database(address or Address.in_folder(data_dir))
        self.data_dir = data_dir
        self._prepare = prepare
        self._timer = timer
        self._lock = threading.RLock()
        self._rows: Mapping[str, IndexRow] = {}
        self._read_at: float | None = None
        self._read_version: object = None  # of the file, when the rows were read
        self._is_prepared = False

    def rows(self) -> Mapping[str, IndexRow]:
        """Return all indexes by their names, in order, as they are now."""
        read_at, now = self._read_at, self._timer()
        return self._rows if read_at is not None and now - read_at < _FRESH_S else self.read_anew(now)

    def read_anew(self, since: float | None = None) -> Mapping[str, IndexRow]:
        """Have all that others confirmed until now seen, or until a time on the timer."""
        since = self._timer() if since is None else since
        with self._lock:
            if self._read_at is not None and self._read_at >= since:
                return self._rows  # by another thread meanwhile
            if not self._is_prepared:
                self._prepare(self)
                self._is_prepared = True
            if not self.database.exists:
                return {}
            now, version = self._timer(), self.database.file_version()
            if version is None or version != self._read_version or self._read_at is None:
                with self.database.reading() as connection:
                    self._rows = self.all(connection)
            self._read_at, self._read_version = now, version
            return self._rows

    def row(self, name: str) -> IndexRow:
        row = self.rows().get(name)
        if row is None:
            raise errors.UnknownIndexError(errors.unknown_name("index", str(name), list(self.rows())))
        return row

    def create(self, name: str, manifest: str, *, embedded: bool, words: object = None) -> None:
        """Note a new index; one that is embedded belongs to this data directory."""
        with self.changing() as connection:
            self.insert(connection, name, manifest, embedded=embedded, words=words)

    def insert(self, connection: sa.Connection, name: str, manifest: str, *, embedded: bool, **known: object) -> int:
        """Add the row of a new index, with more columns if they are known, and return its id."""
        if name in self.all(connection):
            raise errors.IndexExistsError(f"index {name!r} exists already in {self.database.what}; take another name")
        row = {"home": self.home(make=True) if embedded else "", "name": name, "manifest": manifest, **known}
        return int(connection.execute(sa.insert(INDEXES).values(row).returning(INDEXES.c.id)).scalar_one())

    def update(self, row: IndexRow, *, embedded: bool | None = None, **changes: Any) -> None:  # noqa: ANN401 - columns
        if embedded is not None:
            changes["home"] = self.home(make=True) if embedded else ""
        with self.changing() as connection:
            connection.execute(sa.update(INDEXES).where(INDEXES.c.id == row.id).values(**changes))

    def remove(self, row: IndexRow) -> None:
        with self.changing() as connection:
            connection.execute(sa.delete(INDEXES).where(INDEXES.c.id == row.id))

    def settle_words(self, row: IndexRow, words: Mapping[str, Any]) -> dict[str, Any]:
        """Keep how words are weighed unless another process was faster, and return what holds."""
        with self.changing() as connection:
            mine = sa.update(INDEXES).where(INDEXES.c.id == row.id, INDEXES.c.words.is_(None)).values(words=dict(words))
            connection.execute(mine)
            return dict(connection.execute(sa.select(INDEXES.c.words).where(INDEXES.c.id == row.id)).scalar_one())

    def view(self, row: IndexRow, name: str) -> Any:  # noqa: ANN401 - JSON
        """Return what a collection derived from an index holds, or ``None``."""
        wanted = sa.select(VIEWS.c.state).where(VIEWS.c.index_id == row.id, VIEWS.c.name == name)
        with self.database.reading() as connection:
            return connection.execute(wanted).scalar()

    def save_view(self, row: IndexRow, name: str, header: Mapping[str, Any], state: object) -> None:
        with self.changing() as connection:
            put_rows(connection, VIEWS, [{"index_id": row.id, "name": name, "state": state}], "index_id", "name")
            held = sa.select(INDEXES.c.views).where(INDEXES.c.id == row.id).with_for_update()
            views = {**connection.execute(held).scalar_one(), name: dict(header)}
            connection.execute(sa.update(INDEXES).where(INDEXES.c.id == row.id).values(views=views))

    @contextmanager
    def changing(self) -> Iterator[sa.Connection]:
        """Open a writing transaction, after which all is read anew."""
        try:
            with self.database.writing() as connection:
                yield connection
        finally:
            with self._lock:  # or a read that began before would count as made after
                self._read_at = None

    def locked(
        self, row: IndexRow, what: str, parts: Sequence[str], *, timeout_s: float
    ) -> AbstractContextManager[None]:
        """Exclude other machines from a part of an index: from some documents of it, if any are named, or from all."""
        whole = _lock_number(f"{row.id} {what}")
        numbers = [_lock_number(f"{row.id} {what} {part}") for part in parts]
        return self.database.locked(*(numbers or [whole]), shared=whole if parts else None, timeout_s=timeout_s)

    def home(self, *, make: bool = False) -> str:
        """Return what a shared catalog calls this data directory; empty where it has none, or the catalog is in it."""
        path = self.data_dir / HOME_FILE
        if not self.database.address.is_shared:
            return ""
        try:
            return path.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            if not make:
                return ""
        write_atomically(path, uuid4().hex.encode())
        return path.read_text(encoding="utf-8").strip()

    def close(self) -> None:
        with self._lock:
            self._read_at = None
            self._is_prepared = False
            self.database.close()

    def all(self, connection: sa.Connection) -> dict[str, IndexRow]:
        """Read all indexes that can be used from here."""
        wanted = sa.select(*(INDEXES.c[name] for name in IndexRow._fields)).order_by(INDEXES.c.name)
        found = connection.execute(wanted.where(INDEXES.c.home.in_({"", self.home()})))
        return {row.name: IndexRow(*row) for row in found}


def _lock_number(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big", signed=True)


def copy_index_rows(
    source: Indexes, name: str, target: Indexes, new_name: str, manifest: str, *, embedded: bool
) -> None:
    """Copy all that a catalog knows of an index, as it is at one moment, within the catalog or to another one."""
    with source.database.reading() as before, target.changing() as after:
        row = before.execute(sa.select(INDEXES).where(INDEXES.c.id == source.row(name).id)).mappings().one()
        copy_contents(before, row, after, target, new_name, manifest, embedded=embedded)


def copy_contents(
    before: sa.Connection,
    row: sa.RowMapping,
    after: sa.Connection,
    target: Indexes,
    name: str,
    manifest: str,
    *,
    embedded: bool,
) -> None:
    """Copy an index between two open transactions, page by page; within one catalog its documents get other ids."""
    known = {column: row[column] for column in ("version", "adding", "words", "views")}
    new_id = target.insert(after, name, manifest, embedded=embedded, **known)
    for view in before.execute(sa.select(VIEWS).where(VIEWS.c.index_id == row["id"])).mappings():
        after.execute(sa.insert(VIEWS).values({**view, "index_id": new_id}))
    is_same, last = before.engine is after.engine, ""
    while True:
        some = sa.select(DOCUMENTS).where(DOCUMENTS.c.index_id == row["id"], DOCUMENTS.c.id > last)
        documents = before.execute(some.order_by(DOCUMENTS.c.id).limit(PAGE)).mappings().all()
        if not documents:
            return
        ids = {document["id"]: str(uuid4()) if is_same else document["id"] for document in documents}
        last = documents[-1]["id"]
        rows = [{**document, "id": ids[document["id"]], "index_id": new_id} for document in documents]
        after.execute(sa.insert(DOCUMENTS), rows)
        nodes = before.execute(sa.select(NODES).where(NODES.c.document_id.in_(list(ids)))).mappings()
        for part in nodes.partitions(PAGE):
            rows = [{**node, "document_id": ids[node["document_id"]], "index_id": new_id} for node in part]
            after.execute(sa.insert(NODES), rows)
