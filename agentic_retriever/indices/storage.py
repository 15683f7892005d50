"""The data directory: which indexes there are, opened once and shared."""

from __future__ import annotations

import os
import shutil
import threading
import time
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path

from agentic_retriever.config import RouterConfig
from agentic_retriever.embeddings import EmbeddingModel
from agentic_retriever.errors import (
    IndexExistsError,
    SourceError,
    StoreDamagedError,
    StoreError,
    UnknownIndexError,
    unknown_name,
)
from agentic_retriever.indices.index import StoredIndex
from agentic_retriever.indices.stored_nodes import (
    CHUNKS,
    COLLECTIONS,
    MANIFEST_FILE,
    SERVER,
    Manifest,
    ServerStores,
    StoreServer,
    check_index_name,
    stores_of,
)
from agentic_retriever.ingestion import ChunkSettings

INDEXES = "indexes"
_SETTLED_NS = 2_000_000_000


class IndexStorage:
    """The indexes below one data directory; each is opened with its first use and shared by all threads."""

    def __init__(self, data_dir: str | Path, *, server: StoreServer | None = None) -> None:
        self.data_dir = Path(data_dir)
        self.server = server
        self._indexes = str(self.data_dir / INDEXES)  # as text: joining paths costs more than asking the file system
        self._lock = threading.RLock()
        self._open: dict[str, StoredIndex] = {}
        self._listed: tuple[int, list[str]] = (-1, [])

    @classmethod
    def from_config(cls, config: RouterConfig) -> IndexStorage:
        """Take data directory and server from the settings; calls nobody."""
        return cls(config.data_dir, server=StoreServer.from_config(config))

    def names(self) -> list[str]:
        """Return the names of all indexes, in order; reads folder names only, and only when they have changed."""
        try:
            changed, names = os.stat(self._indexes).st_mtime_ns, self._listed[1]  # noqa: PTH116 - see above
            if changed != self._listed[0]:
                folders = Path(self._indexes).iterdir()
                names = sorted(c.name for c in folders if c.is_dir() and not c.name.startswith("."))
                # A folder that changed a moment ago may change again within the clock's resolution.
                self._listed = (changed if time.time_ns() - changed > _SETTLED_NS else -1, names)
            return list(names)
        except FileNotFoundError:
            return []
        except OSError as err:
            what = f"cannot list the data directory {self._indexes}: {err.strerror}; check the path"
            raise SourceError(what) from err

    def manifest(self, name: str) -> Manifest:
        return Manifest.read(self._folder(name))

    def embeddings(self) -> list[str]:
        """Return the identities of the embedding models that the readable indexes were built with, without repeats."""
        found: dict[str, None] = {}
        for name in self.names():
            with suppress(StoreDamagedError):  # opening that index will say so
                found[self.manifest(name).embedding] = None
        return list(found)

    def open(self, name: str, embedding: EmbeddingModel) -> StoredIndex:
        with self._lock:
            if name not in self._open:
                self._open[name] = StoredIndex(self._folder(name), embedding, server=self.server)
            return self._open[name]

    def opened(self, name: str) -> StoredIndex | None:
        return self._open.get(name)

    def create(self, name: str, embedding: EmbeddingModel, *, description: str, chunks: ChunkSettings) -> StoredIndex:
        name = check_index_name(name)
        folder = self.data_dir / INDEXES / name
        with self._lock:
            if (folder / MANIFEST_FILE).exists() or (folder / CHUNKS).exists():
                what = f"index {name!r} exists already in {self.data_dir}; add to it, or remove it first"
                raise IndexExistsError(what)
            manifest = Manifest(
                name=name,
                description=description.strip(),
                embedding=embedding.name,
                dimension=embedding.dimension,
                created=datetime.now(timezone.utc).isoformat(timespec="microseconds"),
                **asdict(chunks),
            )
            if self.server is not None:
                stores = ServerStores.choose(folder, name, self.server)
                manifest = replace(manifest, store=SERVER, collection=stores.base)
            manifest.write(folder)
            return self.open(name, embedding)

    def remove(self, name: str) -> None:
        with self._lock:
            folder = self._folder(name)
            self.shut(name)
            with suppress(StoreDamagedError):  # what it had on a server, if anything, cannot be told then
                manifest = Manifest.read(folder)
                for collection in COLLECTIONS if manifest.store == SERVER else ():
                    stores_of(folder, manifest, self.server).discard(collection)
            try:
                shutil.rmtree(folder)
            except OSError as err:
                raise StoreError(f"cannot remove {folder}: {err.strerror or err}; check the permissions") from err

    def shut(self, name: str) -> None:
        with self._lock:
            index = self._open.pop(name, None)
            if index is not None:
                index.close()

    def close(self) -> None:
        with self._lock:
            for name in list(self._open):
                self.shut(name)
            if self.server is not None:
                self.server.link.close()

    def _folder(self, name: str) -> Path:
        names = self.names()
        if name not in names:
            raise UnknownIndexError(unknown_name("index", str(name), names))
        return self.data_dir / INDEXES / name
