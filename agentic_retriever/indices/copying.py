"""Moving an index between the data directory and a Qdrant server, or copying it there under another name.

Vectors are read and written as they are, so nothing is embedded again. What was done is noted after each page, so that
a copy that was cut off goes on where it was. The source stays until the copy has been counted.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from agentic_retriever.embeddings import EmbeddingModel
from agentic_retriever.errors import ConfigError, IndexExistsError, IndexingError, StoreError, unknown_name
from agentic_retriever.indices.index import StoredIndex
from agentic_retriever.indices.keyword import fitted_words
from agentic_retriever.indices.profile import PROFILE_FILE
from agentic_retriever.indices.storage import IndexStorage
from agentic_retriever.indices.stored_nodes import (
    CATALOG_FILE,
    CHUNKS,
    COLLECTIONS,
    EMBEDDED,
    MANIFEST_FILE,
    SERVER,
    EmbeddedStores,
    IndexStores,
    ServerStores,
    check_index_name,
)
from agentic_retriever.json_files import model_bytes, write_atomically
from agentic_retriever.stores.node_store import NodeStore
from agentic_retriever.stores.sparse import SPARSE_FILE, SparseBM25

COPY_FILE: Final = "copy.json"
PAGE: Final = 256
_PASSES: Final = 3
_NOT_COPIED: Final = frozenset({MANIFEST_FILE, PROFILE_FILE, COPY_FILE, SPARSE_FILE, *COLLECTIONS})


class CopyProgress(Protocol):
    """Hears how far a copy is."""

    def begin(self, what: str, total: int) -> None:
        """A collection of so many nodes is begun, or gone on with."""

    def advance(self, done: int) -> None:
        """So many more of its nodes are copied."""


class _Silent:
    def begin(self, what: str, total: int) -> None: ...
    def advance(self, done: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReport:
    name: str
    to: str
    moved: bool
    nodes: dict[str, int]
    resumed: int = 0


@dataclass(slots=True)
class _State:
    """How far a copy is, in a file beside it."""

    to: str
    collection: str
    version: int
    marks: dict[str, str | None] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)
    finished: list[str] = field(default_factory=list)

    def save(self, folder: Path) -> None:
        write_atomically(folder / COPY_FILE, model_bytes(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> _State | None:
        try:
            return cls(**json.loads((folder / COPY_FILE).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None


def copy_index(
    storage: IndexStorage,
    name: str,
    embedding: EmbeddingModel,
    *,
    to: str,
    new_name: str | None = None,
    progress: CopyProgress | None = None,
) -> CopyReport:
    """Move an index to where it is not, or copy it under another name. Add nothing to it meanwhile."""
    if to not in {EMBEDDED, SERVER}:
        raise IndexingError(unknown_name("place", to, (EMBEDDED, SERVER)))
    source = storage.open(name, embedding)
    if new_name is None and source.manifest.store == to:
        raise IndexingError(f"index {name!r} is {to} already; name a copy with --as, or choose the other place")
    target = check_index_name(new_name) if new_name is not None else name
    if new_name is not None and target in storage.names():
        what = f"index {target!r} exists already in {storage.data_dir}; remove it, or take another name"
        raise IndexExistsError(what)
    folder = source.folder if new_name is None else source.folder.parent / f".copy-{target}"
    copying = _Copy(storage, source, folder, target, to, progress or _Silent())
    copying.run()
    if new_name is None:
        copying.finish()
    else:
        copying.publish(source.folder.parent / target)
    nodes = dict(copying.state.done)
    return CopyReport(name=target, to=to, moved=new_name is None, nodes=nodes, resumed=copying.resumed)


@dataclass(slots=True)
class _Copy:
    storage: IndexStorage
    source: StoredIndex
    folder: Path
    name: str
    to: str
    progress: CopyProgress
    resumed: int = 0
    state: _State = field(init=False)
    stores: IndexStores = field(init=False)

    def __post_init__(self) -> None:
        known = _State.load(self.folder)
        self.state = known if known is not None and known.to == self.to else _State(self.to, "", self.source.version)
        self.stores = self._target_stores()

    def run(self) -> None:
        for _ in range(_PASSES):
            if self.state.version != self.source.version:
                self.state = _State(self.state.to, self.state.collection, self.source.version)
            self.resumed = sum(self.state.done.values())
            for name in COLLECTIONS:
                if self.source.stores.exists(name):
                    self._collection(name)
            if self.state.version == self.source.version:
                return
        raise IndexingError(f"index {self.source.name!r} kept changing while it was copied; add nothing meanwhile")

    def finish(self) -> None:
        """Let the index live where its copy is, and drop what it had."""
        old, manifest = self.source.stores, self.source.manifest
        with self.source.exclusive("documents"):
            self.storage.shut(self.name)
            replace(manifest, store=self.state.to, collection=self.state.collection).write(self.folder)
        for name in COLLECTIONS:
            old.discard(name)
        (self.folder / COPY_FILE).unlink(missing_ok=True)
        if self.state.to == EMBEDDED:
            (self.folder / SPARSE_FILE).unlink(missing_ok=True)

    def publish(self, folder: Path) -> None:
        """Bring the copy's folder to its place, whole."""
        for item in self.source.folder.iterdir():
            if item.name in _NOT_COPIED or item.name.startswith((CATALOG_FILE, ".")) or item.suffix == ".lock":
                continue
            if item.is_dir():
                shutil.copytree(item, self.folder / item.name, dirs_exist_ok=True)
            else:
                shutil.copy2(item, self.folder / item.name)
        with (
            closing(sqlite3.connect(self.source.folder / CATALOG_FILE)) as there,
            closing(sqlite3.connect(self.folder / CATALOG_FILE)) as here,
        ):
            there.backup(here)
        pins = replace(self.source.manifest, name=self.name, store=self.state.to, collection=self.state.collection)
        pins.write(self.folder)
        (self.folder / COPY_FILE).unlink(missing_ok=True)
        try:
            self.folder.rename(folder)
        except OSError as err:
            raise StoreError(f"cannot rename {self.folder} to {folder}: {err.strerror or err}") from err

    def _target_stores(self) -> IndexStores:
        """Say where the copy goes; what a given-up copy left there is taken over or removed."""
        if self.state.to == EMBEDDED:
            stores = EmbeddedStores(self.folder)
            if not (self.folder / COPY_FILE).exists():
                for name in COLLECTIONS:
                    stores.discard(name)
                self.state.save(self.folder)
            return stores
        server = self.storage.server
        if server is None:
            what = "no Qdrant server is configured; set QDRANT_URL (setting qdrant_url), such as http://localhost:6333"
            raise ConfigError(what)
        if not self.state.collection:
            self.state.collection = ServerStores.choose(self.folder, self.name, server).base
            self.state.save(self.folder)
        return ServerStores(server, self.state.collection, self.folder)

    def _collection(self, name: str) -> None:
        dimension = self.source.manifest.dimension
        with ExitStack() as stack:
            if name == CHUNKS:
                there: NodeStore = self.source.vector_store
                if self.to == SERVER and SparseBM25.load(self.folder) is None:
                    fitted_words(self.source).save(self.folder)
            else:
                there = stack.enter_context(self.source.stores.open(name, dimension))
            here = stack.enter_context(self.stores.open(name, dimension))
            self.progress.begin(name, there.count() - self.state.done.get(name, 0))
            while name not in self.state.finished:
                nodes, following = there.export(self.state.marks.get(name), PAGE)
                here.add(nodes)
                self.state.marks[name] = following
                self.state.done[name] = self.state.done.get(name, 0) + len(nodes)
                if following is None:
                    self.state.finished.append(name)
                self.state.save(self.folder)
                self.progress.advance(len(nodes))
            _complete(there, here, f"the {name} of index {self.source.name!r}")
            here.flush()
            self.state.done[name] = here.count()


def _complete(there: NodeStore, here: NodeStore, what: str) -> None:
    """Compare a copy with its source and mend it; raises if the two still differ."""
    if here.count() == there.count():
        return
    wanted, found = set(there.node_ids()), set(here.node_ids())
    extra, missing = sorted(found - wanted), sorted(wanted - found)
    if extra:
        here.delete_nodes(node_ids=extra)
    for start in range(0, len(missing), PAGE):
        ids, rows = there.vectors(missing[start : start + PAGE])
        vectors = dict(zip(ids, rows.tolist(), strict=True))
        nodes = there.get_nodes(node_ids=ids)
        here.add([node.model_copy(update={"embedding": vectors[node.node_id]}) for node in nodes])
    if here.count() != len(wanted):
        raise StoreError(
            f"the copy of {what} is not whole: {here.count():,} nodes of {len(wanted):,}; the source is as before; "
            "run the copy again"
        )
