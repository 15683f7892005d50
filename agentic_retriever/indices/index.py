"""What an index is to all who search it or route to it; those of a data directory, and the directory itself."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from filelock import FileLock
from llama_index.core.schema import BaseNode, NodeWithScore
from llama_index.core.vector_stores.types import BasePydanticVectorStore, MetadataFilters

from agentic_retriever import errors
from agentic_retriever.catalog.address import CATALOG_FILE, Address
from agentic_retriever.catalog.contents import Catalog
from agentic_retriever.catalog.indexes import Indexes, copy_index_rows
from agentic_retriever.catalog.takeover import FOLDER, MANIFEST_FILE, take_over
from agentic_retriever.config import RouterConfig
from agentic_retriever.embeddings import EmbeddingModel
from agentic_retriever.indices import derived, stored_nodes
from agentic_retriever.indices.fields import FieldDictionary, fields_view
from agentic_retriever.indices.keyword import KeywordIndex, fitted_words, keyword_view, revise_words, server_words
from agentic_retriever.indices.prefilter import index as prefilter
from agentic_retriever.indices.profile import PROFILE_FILE, IndexProfile, profile_view, unprofiled
from agentic_retriever.ingestion.chunking import ChunkSettings
from agentic_retriever.json_files import model_bytes, write_atomically
from agentic_retriever.schema import Strategy, View
from agentic_retriever.stores.edge import check_space, edge_errors, read_collection
from agentic_retriever.stores.node_store import NodeStore
from agentic_retriever.threads import BriefThread

if TYPE_CHECKING:
    from agentic_retriever.stores.server import ServerWords  # its package takes a second to load

logger = logging.getLogger(__name__)

# The views of an index that does not say what it has.
ALWAYS_THERE = frozenset({View.CHUNKS, View.KEYWORD, View.METADATA})


class Index(ABC):
    """A named collection of nodes that questions can be routed to and searched in.

    A subclass says what it has; what it does not say has the default of an index that keeps vectors and words only.
    """

    #: Whether it belongs to somebody else: it has no files, documents or derived views of its own.
    is_attached: ClassVar[bool] = False
    #: Whether it can only be asked in words, by :meth:`ask`.
    only_asked: ClassVar[bool] = False
    _always: ClassVar[frozenset[View]] = ALWAYS_THERE

    name: str
    description: str
    created: str = ""  # what tells it from another index of that name, before or after it
    embedding: EmbeddingModel  # that questions to it are embedded with
    vector_store: BasePydanticVectorStore
    folder: Path | None = None  # where its files are, if it has any
    #: Whether somebody else's code may take any time, so that searches must be given up when theirs is over.
    may_hang: bool = False
    #: Whether it knows what satisfies filters before anything is searched; a server checks them itself.
    has_prefilter: bool = False

    @property
    @abstractmethod
    def version(self) -> int:
        """Grows with every change."""

    @abstractmethod
    def count(self) -> int:
        """Return the number of nodes."""

    @abstractmethod
    def keyword(self) -> KeywordIndex | ServerWords:
        """Return the search by words in the current version: an index in memory, or that of a server."""

    @abstractmethod
    def profile(self) -> IndexProfile:
        """Return the profile of the current version, by which questions are routed."""

    @property
    def language(self) -> str:
        return self.profile().language

    def search_profile(self) -> IndexProfile | None:
        """Return the profile with what cosines of searches are worth, or ``None`` where nobody knows."""
        return self.profile()

    def doc_ids(self) -> list[str]:
        return []

    def source_text(self, doc_id: str) -> str | None:  # noqa: ARG002 - for those that know
        """Return the source text that citations of a document point into, or ``None`` if it is not known."""
        return None

    def nodes(self) -> Iterable[BaseNode]:
        return self.vector_store.get_nodes()

    def known_nodes(self) -> Iterable[BaseNode]:
        """Go through all nodes, or through a fair sample of very many."""
        return self.nodes()

    # What strategies may use.

    @property
    def views(self) -> frozenset[View]:
        return ALWAYS_THERE

    def served(self, needs: Mapping[Strategy, Collection[View]]) -> list[Strategy]:
        """Return those of some strategies, with the views that they need, that can be used now."""
        views = self._always.union(self.views)
        return [strategy for strategy, needed in needs.items() if views.issuperset(needed)]

    def ask(self, query: str, depth: int) -> Sequence[NodeWithScore]:  # noqa: ARG002 - for those that can
        """Ask for nodes in words, about so many."""
        raise errors.StoreError(f"index {self.name!r} cannot be asked in words")

    # What makes filters fast.

    def metadata(self) -> prefilter.MetadataIndex:
        raise errors.StoreError(f"index {self.name!r} has no prefilter")

    def candidates(self, filters: MetadataFilters | None) -> AbstractSet[str]:  # noqa: ARG002 - for those that know
        """Return the ids of the nodes that satisfy filters, exactly; without a prefilter, none."""
        return frozenset()

    def vector_rows(self) -> prefilter.VectorRows | None:
        """Return the vectors of the current version, or ``None`` while they are not in memory."""
        return None

    def both_sides(self) -> ServerWords | None:
        """Return the search by meaning and words in one request, where a server offers it."""
        return None

    # What is derived from the nodes.

    def fields(self) -> FieldDictionary:
        """Return the fields of the metadata with their values, which questions name."""
        return FieldDictionary.build(node.metadata for node in self.known_nodes())

    def hierarchy(self) -> derived.HierarchyView:
        """Return the leaves of the current version."""
        raise errors.StoreError(f"index {self.name!r} keeps no leaves; use one of this package for this strategy")

    def summaries(self) -> derived.SummaryView:
        """Return the summaries of the current version."""
        raise errors.StoreError(f"index {self.name!r} keeps no summaries; use one of this package for this strategy")

    def build_views(  # noqa: B027 - a default
        self, progress: derived.Progress | None = None, *, write_summary: derived.SummaryWriter | None = None
    ) -> None:
        """Bring all that is derived from the nodes up to date; an index without that has nothing to do."""

    def build_search(self, progress: derived.Progress | None = None) -> None:  # noqa: B027 - a default
        """Bring up to date what every question reads; an index that reads it when it is attached has nothing to do."""

    # Changes that happen elsewhere.

    def catch_up(self, timeout_s: float) -> str | None:  # noqa: ARG002 - for those that change elsewhere
        """Take notice of changes within so many seconds, and return why that was not possible."""
        return None

    def refresh(self) -> None:  # noqa: B027 - a default
        """Have it read anew by the next question, where changes cannot be seen."""


class StoredIndex(stored_nodes.StoredNodes, Index):
    """A named collection of nodes with several views, each built again when the index changed.

    Safe to use from many threads; one process at a time holds it, and others read a copy of their own, unless its nodes
    are on a server: then processes of this machine share it.
    """

    folder: Path
    vector_store: NodeStore
    _always = frozenset()

    def __init__(
        self,
        folder: Path,
        embedding: EmbeddingModel,
        catalog: Catalog,
        *,
        server: stored_nodes.StoreServer | None = None,
        copy: tempfile.TemporaryDirectory[str] | None = None,
    ) -> None:
        super().__init__(folder, embedding, catalog, server)
        self.copy = copy  # the folder is in it, while another process holds the index itself
        self.may_hang = self.is_remote
        version = self.catalog.version
        self._fields = fields_view(self)
        self._profile = profile_view(
            self, lambda version, rows: self._fields.take(FieldDictionary.build(rows), version)
        )
        self._keyword = keyword_view(self, lambda: self.language)
        self._metadata = prefilter.MetadataView(self.vector_store, folder / "metadata", version)
        self._vector_rows = prefilter.VectorRowsView(self.vector_store, version, lambda: self.metadata().numbering)
        self._leaves = derived.hierarchy_collection(self)
        self._summaries = derived.summary_collection(self)
        self._starting = threading.Lock()
        self._one_writer = threading.RLock()
        self._held = threading.local()  # the documents that a thread changes
        self._builder: BriefThread | None = None
        self._searchable_at: int | None = None  # the version for which all was found to be there

    @property
    def views(self) -> frozenset[View]:
        ready = {
            View.KEYWORD: self.is_remote or self._keyword.ready() is not None,
            View.METADATA: self._fields.ready() is not None,
            View.HIERARCHY: self._leaves.is_usable(),
            View.SUMMARY: self._summaries.is_usable(),
        }
        return frozenset({View.CHUNKS, *(view for view, is_there in ready.items() if is_there)})

    @property
    def has_prefilter(self) -> bool:  # type: ignore[override]  # until it is there, the store checks filters itself
        return not self.is_remote and self._metadata.ready() is not None

    @property
    def is_searchable(self) -> bool:
        """Whether all is there that a question to it reads; no question builds it."""
        version = self.version
        if self._searchable_at != version:  # asked for every index with each question
            read = (self._profile.ready(), self._fields.ready(), self.is_remote or self._keyword.ready())
            self._searchable_at = version if all(view is not None for view in read) else None
        return self._searchable_at == version

    def keyword(self) -> KeywordIndex | ServerWords:
        words = server_words(self)
        if words is None:
            view = self._keyword.ready()
            if view is None:
                raise derived.not_built("words", self.name)
            return view
        if words.sparse is not None and not words.sparse.is_current:
            raise errors.StoreError(
                f"the words of index {self.name!r} on its server were cut by another version; bring them up to date "
                f"with: agentic-retriever index build {self.name}"
            )
        return words

    def both_sides(self) -> ServerWords | None:
        return server_words(self)

    def profile(self) -> IndexProfile:
        """Return the profile, or while it is being built, the one before it or what can be told without."""
        return self._profile.ready() or self._profile.last or unprofiled(self)

    def fields(self) -> FieldDictionary:
        view = self._fields.ready()
        if view is None:
            raise derived.not_built("values", self.name)
        return view

    def metadata(self) -> prefilter.MetadataIndex:
        return self._metadata.current()

    def candidates(self, filters: MetadataFilters | None) -> prefilter.CandidateSet:
        return self._metadata.candidates(filters)

    def vector_rows(self) -> prefilter.VectorRows | None:
        return None if self.is_remote else self._vector_rows.current(self.count())

    def hierarchy(self) -> derived.HierarchyView:
        return self._leaves.current()

    def summaries(self) -> derived.SummaryView:
        return self._summaries.current()

    def build_views(
        self, progress: derived.Progress | None = None, *, write_summary: derived.SummaryWriter | None = None
    ) -> None:
        self._derive(progress, write_summary)
        self.build_graphs(progress)

    def _derive(self, progress: derived.Progress | None, write_summary: derived.SummaryWriter | None = None) -> None:
        self.build_search(progress)
        self._leaves.refresh(progress)
        derivation = None if write_summary is None else derived.summary_derivation(write_summary)
        self._summaries.refresh(progress, derivation=derivation)

    def build_graphs(self, progress: derived.Progress | None = None, *, wait: bool = True) -> None:
        """Have a graph built of each collection that is too large to compare a question with all of its nodes."""
        progress = progress or derived.SilentProgress()
        for store in self.collections().values():
            while self.copy is None and (built := store.build_graph(progress.nodes, wait=wait)):
                progress.nodes_done(built)

    def collections(self) -> dict[str, NodeStore]:
        views = (view for view in (self._leaves, self._summaries) if self.stores.exists(view.name))
        return {stored_nodes.CHUNKS: self.vector_store, **{view.name: view.store for view in views}}

    def build_search(self, progress: derived.Progress | None = None) -> None:
        """Bring what every question reads up to date: profile, values, words and prefilter."""
        self._profile.current()
        self._fields.current()
        with self.exclusive("keyword"):
            revise_words(self, progress)
        if not self.is_remote:
            self._keyword.current()
            self._metadata.current()

    def build_in_background(self, progress: derived.Progress | None = None) -> None:
        """Have what questions read made by a thread of its own, which also sees what is added meanwhile."""

        def is_done() -> bool:
            with self._starting:
                done = self.is_searchable and {View.HIERARCHY, View.SUMMARY} <= self.views
                self._builder = None if done else self._builder
                return done

        def build() -> None:
            try:
                while not is_done():
                    self._derive(progress)
                self.build_graphs(progress, wait=False)  # meanwhile another thread may see to what is added
            except errors.AgenticRetrieverError as err:
                with self._starting:
                    self._builder = None if self._builder is threading.current_thread() else self._builder
                if not isinstance(err, errors.StoreClosedError):  # closed while it was under way
                    logger.warning("not all views of index %r are built: %s; index build goes on", self.name, err)

        with self._starting:
            if self._builder is None:
                self._builder = BriefThread(build, f"views of {self.name}", at_exit=self.close)
                self._builder.start()

    @contextmanager
    def writing(self, *doc_ids: str) -> Iterator[None]:
        """Keep others from changing some documents meanwhile; a thread may do so again inside.

        Where a server has the locks, writers of other documents go on; elsewhere there is one at a time.
        """
        held: set[str] = self._held.__dict__.setdefault("doc_ids", set())
        missing = set(doc_ids) - held
        with ExitStack() as stack:
            if not (self.is_remote and self.catalog.indexes.database.address.is_shared):
                stack.enter_context(self._one_writer)
            if missing:
                stack.enter_context(self.exclusive("documents", *sorted(missing)))
            held |= missing
            try:
                yield
            finally:
                held -= missing

    def changing(
        self, *, written: Sequence[BaseNode] = (), removed: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        """Raise the version in this block, after these nodes were written or removed: the prefilter follows at once."""
        return self._metadata.changing(written, removed)

    def close(self) -> None:
        self._leaves.close()
        self._summaries.close()
        if self._builder is not None:
            self._builder.join(derived.CLOSING_PATIENCE_S)
        self._metadata.save()
        super().close()
        if self.copy is not None:
            self.catalog.indexes.close()
            self.copy.cleanup()


# The data directory: which indexes there are, opened once and shared.


class IndexStorage:
    """The indexes that a data directory can use; each is opened with its first use and shared by all threads."""

    def __init__(
        self, data_dir: str | Path, *, server: stored_nodes.StoreServer | None = None, address: Address | None = None
    ) -> None:
        self.data_dir = Path(data_dir)
        self.server = server
        self.indexes = Indexes(self.data_dir, address, prepare=take_over)
        self._lock = threading.RLock()
        self._open: dict[str, StoredIndex] = {}

    @classmethod
    def from_config(cls, config: RouterConfig) -> IndexStorage:
        """Take data directory, catalog and server from the settings; calls nobody."""
        server = stored_nodes.StoreServer.from_config(config)
        return cls(config.data_dir, server=server, address=Address.from_config(config))

    def names(self) -> list[str]:
        """Return the names of all indexes, in order: those here, and those on the server of a shared catalog."""
        return list(self.indexes.rows())

    def holds(self, name: str) -> bool:
        return name in self.indexes.rows()

    def manifest(self, name: str) -> stored_nodes.Manifest:
        return stored_nodes.Manifest.from_json(name, self.indexes.row(name).manifest)

    def embeddings(self) -> list[str]:
        """Return the identities of the embedding models that the readable indexes were built with, without repeats."""
        found: dict[str, None] = {}
        for name in self.names():
            with suppress(errors.StoreDamagedError):  # opening that index will say so
                found[self.manifest(name).embedding] = None
        return list(found)

    def open(self, name: str, embedding: EmbeddingModel, *, to_change: bool = False) -> StoredIndex:
        """Open an index, or a copy to read where another process holds it and it is not to be changed."""
        with self._lock:
            opened = self.opened(name)
            if to_change and opened is not None and opened.copy is not None:
                self.shut(name)
            if name not in self._open:
                folder = self._prepared_folder(name)
                try:
                    catalog = Catalog(self.indexes, name)
                    self._open[name] = StoredIndex(folder, embedding, catalog, server=self.server)
                except errors.StoreBusyError as err:
                    if to_change:
                        raise
                    self._open[name] = _copy_to_read(folder, embedding, self.indexes, err)
            return self._open[name]

    def opened(self, name: str) -> StoredIndex | None:
        """Return an index that is open, unless another process has removed, replaced or moved it since."""
        index = self._open.get(name)
        if index is None:
            return None
        row = self.indexes.rows().get(name)
        if row is None or row.manifest != index.manifest_text:
            self.shut(name)
            return None
        return index

    def create(self, name: str, embedding: EmbeddingModel, *, description: str, chunks: ChunkSettings) -> StoredIndex:
        name = stored_nodes.check_index_name(name)
        folder = self._folder(name)
        with self._lock:
            if self.holds(name):
                what = f"index {name!r} exists already in {self.data_dir}, or is being made; add to it"
                raise errors.IndexExistsError(what)
            if (folder / stored_nodes.CHUNKS).exists():
                raise stored_nodes.damaged(name, f"{folder} holds nodes that the catalog does not know")
            manifest = stored_nodes.Manifest(
                name=name,
                description=description.strip(),
                embedding=embedding.name,
                dimension=embedding.dimension,
                created=datetime.now(timezone.utc).isoformat(timespec="microseconds"),
                **asdict(chunks),
            )
            if self.server is not None:
                stores = stored_nodes.ServerStores.choose(name, self.server, stored_nodes.NO_WORDS)
                manifest = replace(manifest, store=stored_nodes.SERVER, collection=stores.base)
            self.indexes.create(name, manifest.to_json(), embedded=self.server is None)
            return self.open(name, embedding)

    def remove(self, name: str) -> None:
        with self._lock, ExitStack() as held:
            folder, row = self._folder(name), self.indexes.rows().get(name)
            if row is None and not folder.exists():
                raise errors.UnknownIndexError(errors.unknown_name("index", str(name), self.names()))
            self.shut(name)
            with edge_errors("remove the index", folder):
                for lock in folder.rglob("*.lock"):  # another process may have it open, or change it
                    held.enter_context(FileLock(lock, blocking=False))
            with suppress(errors.StoreDamagedError):  # what it had on a server, if anything, cannot be told then
                manifest = None if row is None else stored_nodes.Manifest.from_json(name, row.manifest)
                if manifest is not None and manifest.store == stored_nodes.SERVER:
                    stores = stored_nodes.stores_of(folder, manifest, self.server, stored_nodes.NO_WORDS)
                    for collection in stored_nodes.COLLECTIONS:
                        stores.discard(collection)
            _discard_folder(folder)
            if row is not None:
                self.indexes.remove(row)

    def shut(self, name: str) -> None:
        with self._lock:
            index = self._open.pop(name, None)
            if index is not None:
                index.close()

    def close(self) -> None:
        with self._lock:
            for name in list(self._open):
                self.shut(name)
            self.indexes.close()
            if self.server is not None:
                self.server.link.close()

    def _folder(self, name: str) -> Path:
        return self.data_dir / FOLDER / name

    def _prepared_folder(self, name: str) -> Path:
        """Return the folder of an index, with its manifest, and without what was derived from one since replaced."""
        row, folder = self.indexes.row(name), self._folder(name)
        file, manifest = folder / MANIFEST_FILE, stored_nodes.Manifest.from_json(name, row.manifest)
        try:
            known = file.read_text(encoding="utf-8")
        except (OSError, ValueError):
            known = ""
        if known != row.manifest:
            if manifest.store == stored_nodes.SERVER and json.dumps(manifest.created) not in known:
                _discard_folder(folder)
            write_atomically(file, row.manifest.encode("utf-8", "surrogatepass"))
        return folder


def _discard_folder(folder: Path) -> None:
    """Remove a folder, whole or not at all, whatever comes between."""
    with edge_errors("remove the index", folder):
        doomed = folder.with_name(f".{folder.name}.removed")
        shutil.rmtree(doomed, ignore_errors=True)
        if folder.exists():
            shutil.rmtree(folder.replace(doomed))


# Reading an index that another process holds. The engine opens a folder once, so its files are copied, at a moment when
# nothing changes them: every change takes the count from ``collection.json`` before, and puts it back when all is on
# disk, each time in a new file.

_COPY_TRIES: Final = 5
_ZEROS: Final = bytes(1 << 20)


def _copy_to_read(folder: Path, embedding: EmbeddingModel, indexes: Indexes, busy: Exception) -> StoredIndex:
    place = tempfile.TemporaryDirectory(prefix="agentic-retriever-", ignore_cleanup_errors=True)
    with ExitStack() as undo:
        undo.callback(place.cleanup)
        check_space("read a copy of the index", Path(place.name))
        for number in range(_COPY_TRIES):
            copy, before = Path(place.name, str(number), folder.name), _settled(folder)
            try:
                if before and _copied(folder, copy, indexes) and _settled(folder) == before:
                    opened = StoredIndex(copy, embedding, Catalog(Indexes(copy.parent), folder.name), copy=place)
                    undo.pop_all()
                    logger.warning("index %r is in use by another process; a copy of it is read", folder.name)
                    return opened
            except OSError as err:  # a file was replaced meanwhile, or there is no room
                busy = err
        again = f"index {folder.name!r} is being changed by another process; try again when it is done"
        raise errors.StoreBusyError(again) from busy


def _settled(folder: Path) -> dict[Path, tuple[int, int]]:
    """Tell one state of the collections from the next; empty while one of them is being changed."""
    files = {path: path.stat() for path in folder.glob("*/collection.json")}
    known = [read_collection(path.parent) for path in files]
    is_settled = all(one is not None and one.points is not None for one in known)
    return {path: (file.st_ino, file.st_mtime_ns) for path, file in files.items()} if is_settled else {}


def _copied(folder: Path, copy: Path, indexes: Indexes) -> bool:
    left_out = shutil.ignore_patterns("*.lock", f"{CATALOG_FILE}*", ".*")
    shutil.copytree(folder, copy, ignore=left_out, copy_function=_copy_sparse)
    there, manifest = Indexes(copy.parent), indexes.row(folder.name).manifest
    copy_index_rows(indexes, folder.name, there, folder.name, manifest, embedded=True)
    there.close()
    return True


def _copy_sparse(source: str, target: str) -> None:
    """Copy a file without its blocks of zeros, which are nearly all of what the engine sets aside."""
    with Path(source).open("rb") as there, Path(target).open("wb") as here:
        while block := there.read(len(_ZEROS)):
            if block == _ZEROS[: len(block)]:
                here.seek(len(block), os.SEEK_CUR)
            else:
                here.write(block)
        here.truncate()


# Moving an index between the data directory and a Qdrant server, or copying it there under another name. Vectors are
# read and written as they are, so nothing is embedded again. What a copy that was cut off has written is taken over, as
# long as the index is of the same version. The source stays until the copy has been counted.

COPY_FILE: Final = "copy.json"
PAGE: Final = 256
_PASSES: Final = 3
_NOT_COPIED: Final = frozenset({MANIFEST_FILE, PROFILE_FILE, COPY_FILE, *stored_nodes.COLLECTIONS})


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReport:
    name: str
    to: str
    moved: bool
    nodes: dict[str, int]
    resumed: int = 0


@dataclass(slots=True)
class _State:
    """Where a copy goes and which version it is of, in a file beside it."""

    to: str
    collection: str
    version: int
    words: dict[str, Any] | None = None  # how those of an index that goes to a server are weighed there

    def save(self, folder: Path) -> None:
        write_atomically(folder / COPY_FILE, model_bytes(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> _State | None:
        try:
            data = json.loads((folder / COPY_FILE).read_text(encoding="utf-8"))
            # What an earlier version has written, which noted each page, may be of several versions of the index.
            version = -1 if "marks" in data else data["version"]
            return cls(data["to"], data["collection"], version, data.get("words"))
        except (OSError, ValueError, TypeError, KeyError):
            return None


def copy_index(
    storage: IndexStorage,
    name: str,
    embedding: EmbeddingModel,
    *,
    to: str,
    new_name: str | None = None,
    progress: derived.Watcher | None = None,
) -> CopyReport:
    """Move an index to where it is not, or copy it under another name. Add nothing to it meanwhile."""
    if to not in {stored_nodes.EMBEDDED, stored_nodes.SERVER}:
        raise errors.IndexingError(errors.unknown_name("place", to, (stored_nodes.EMBEDDED, stored_nodes.SERVER)))
    source = storage.open(name, embedding, to_change=True)
    if new_name is None and source.manifest.store == to:
        raise errors.IndexingError(f"index {name!r} is {to} already; name a copy with --as, or choose the other place")
    target = stored_nodes.check_index_name(new_name) if new_name is not None else name
    if new_name is not None and target in storage.names():
        what = f"index {target!r} exists already in {storage.data_dir}; remove it, or take another name"
        raise errors.IndexExistsError(what)
    folder = source.folder if new_name is None else source.folder.parent / f".copy-{target}"
    copying = _Copy(storage, source, folder, target, to, progress or derived.SILENT)
    copying.run()
    if new_name is None:
        copying.finish()
    else:
        copying.publish(source.folder.parent / target)
    return CopyReport(name=target, to=to, moved=new_name is None, nodes=copying.nodes, resumed=copying.resumed)


@dataclass(slots=True)
class _Copy:
    storage: IndexStorage
    source: StoredIndex
    folder: Path
    name: str
    to: str
    progress: derived.Watcher
    nodes: dict[str, int] = field(default_factory=dict)
    resumed: int = 0
    state: _State = field(init=False)
    stores: stored_nodes.IndexStores = field(init=False)

    def __post_init__(self) -> None:
        known = _State.load(self.folder)
        self.state = known if known is not None and known.to == self.to else _State(self.to, "", self.source.version)
        self.stores = self._target_stores()

    def run(self) -> None:
        for _ in range(_PASSES):
            if self.state.version != self.source.version:
                for name in stored_nodes.COLLECTIONS:
                    self.stores.discard(name)
                self.state.version = self.source.version
                self.state.save(self.folder)
            self.resumed = 0
            for name in stored_nodes.COLLECTIONS:
                if self.source.stores.exists(name):
                    self._collection(name)
            if self.state.version == self.source.version:
                return
        raise errors.IndexingError(f"index {self.source.name!r} kept changing while it was copied; add nothing then")

    def finish(self) -> None:
        """Let the index live where its copy is, and drop what it had."""
        old, manifest = self.source.stores, self.source.manifest
        with self.source.exclusive("documents"):
            row = self.source.catalog.row
            self.storage.shut(self.name)
            pins = replace(manifest, store=self.state.to, collection=self.state.collection).to_json()
            is_embedded = self.state.to == stored_nodes.EMBEDDED
            self.storage.indexes.update(row, manifest=pins, embedded=is_embedded, words=self.state.words)
        for name in stored_nodes.COLLECTIONS:
            old.discard(name)
        (self.folder / COPY_FILE).unlink(missing_ok=True)

    def publish(self, folder: Path) -> None:
        """Bring the copy's folder to its place, whole."""
        for item in self.source.folder.iterdir():
            if item.name in _NOT_COPIED or item.name.startswith(".") or item.suffix == ".lock":
                continue
            if item.is_dir():
                shutil.copytree(item, self.folder / item.name, dirs_exist_ok=True)
            else:
                shutil.copy2(item, self.folder / item.name)
        try:
            if (folder / COPY_FILE).exists():  # of a copy that was cut off here
                shutil.rmtree(folder)
            self.folder.rename(folder)
        except OSError as err:
            raise errors.StoreError(f"cannot rename {self.folder} to {folder}: {err.strerror or err}") from err
        pins = replace(self.source.manifest, name=self.name, store=self.state.to, collection=self.state.collection)
        indexes, is_embedded = self.storage.indexes, self.state.to == stored_nodes.EMBEDDED
        copy_index_rows(indexes, self.source.name, indexes, self.name, pins.to_json(), embedded=is_embedded)
        indexes.update(indexes.row(self.name), words=self.state.words)
        (folder / COPY_FILE).unlink(missing_ok=True)

    def _target_stores(self) -> stored_nodes.IndexStores:
        """Say where the copy goes; what a given-up copy left there is taken over or removed."""
        if self.state.to == stored_nodes.EMBEDDED:
            stores = stored_nodes.EmbeddedStores(self.folder)
            if not (self.folder / COPY_FILE).exists():
                for name in stored_nodes.COLLECTIONS:
                    stores.discard(name)
                self.state.save(self.folder)
            return stores
        server = self.storage.server
        if server is None:
            what = "no Qdrant server is configured; set QDRANT_URL (setting qdrant_url), such as http://localhost:6333"
            raise errors.ConfigError(what)
        if not self.state.collection:
            self.state.collection = stored_nodes.ServerStores.choose(self.name, server, stored_nodes.NO_WORDS).base
            self.state.save(self.folder)
        if self.state.words is None:
            self.state.words = asdict(fitted_words(self.source))
            self.state.save(self.folder)
        return stored_nodes.ServerStores(server, self.state.collection, stored_nodes.Words(None, self.state.words))

    def _collection(self, name: str) -> None:
        dimension = self.source.manifest.dimension
        with ExitStack() as stack:
            if name == stored_nodes.CHUNKS:
                there: NodeStore = self.source.vector_store
            else:
                there = stack.enter_context(self.source.stores.open(name, dimension))
            here = stack.enter_context(self.stores.open(name, dimension))
            wanted, found = set(there.node_ids()), set(here.node_ids())
            extra, missing = sorted(found - wanted), sorted(wanted - found)
            if extra:
                here.delete_nodes(node_ids=extra)
            self.resumed += len(wanted) - len(missing)
            self.progress.begin(name, len(missing))
            for start in range(0, len(missing), PAGE):
                ids, rows = there.vectors(missing[start : start + PAGE])
                vectors = dict(zip(ids, rows.tolist(), strict=True))
                nodes = there.get_nodes(node_ids=ids)
                here.add([node.model_copy(update={"embedding": vectors[node.node_id]}) for node in nodes])
                self.progress.advance(len(nodes))
            here.flush()
            self.nodes[name] = here.count()
            if self.nodes[name] != len(wanted):
                raise errors.StoreError(
                    f"the copy of the {name} of index {self.source.name!r} is not whole: {self.nodes[name]:,} nodes of "
                    f"{len(wanted):,}; the source is as before; run the copy again"
                )
