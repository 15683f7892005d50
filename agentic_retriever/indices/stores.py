"""Where the nodes of an index live: in its folder, or on a Qdrant server."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from agentic_retriever.errors import ConfigError, IndexExistsError, StoreDamagedError, StoreError
from agentic_retriever.indices.hierarchy import LEAVES
from agentic_retriever.indices.manifest import EMBEDDED, SERVER, damaged
from agentic_retriever.indices.summaries import SUMMARIES
from agentic_retriever.stores.edge.store import QdrantEdgeVectorStore
from agentic_retriever.stores.server.link import QdrantLink, open_server
from agentic_retriever.stores.sparse import SparseBM25

if TYPE_CHECKING:
    from pathlib import Path

    from agentic_retriever.config import RouterConfig
    from agentic_retriever.indices.manifest import Manifest
    from agentic_retriever.stores.node_store import NodeStore

CHUNKS: Final = "chunks"
COLLECTIONS: Final = (CHUNKS, LEAVES, SUMMARIES)


class IndexStores(Protocol):
    """The collections of one index."""

    @property
    def is_remote(self) -> bool:
        """Whether they are on a server, which several processes may use at a time."""

    def exists(self, name: str) -> bool:
        """Tell whether a collection is there."""

    def open(self, name: str, dimension: int, *, must_exist: bool = False) -> NodeStore:
        """Open a collection, or make it."""

    def discard(self, name: str) -> None:
        """Remove a collection that is not open; one that is not there is no error."""

    def gone(self, index: str, nodes: int) -> StoreDamagedError:
        """Make the error for chunks that should be there and are not."""


@dataclass(frozen=True, slots=True)
class EmbeddedStores:
    """Collections as folders beside the catalog."""

    folder: Path

    @property
    def is_remote(self) -> bool:
        """No."""
        return False

    def exists(self, name: str) -> bool:
        """Tell whether the folder is there."""
        return (self.folder / name).exists()

    def open(self, name: str, dimension: int, *, must_exist: bool = False) -> NodeStore:  # noqa: ARG002 - the engine tells by itself
        """Open the folder; raises as :class:`QdrantEdgeVectorStore`."""
        return QdrantEdgeVectorStore(self.folder, collection_name=name, dimension=dimension)

    def discard(self, name: str) -> None:
        """Remove the folder."""
        try:
            shutil.rmtree(self.folder / name)
        except FileNotFoundError:
            return
        except OSError as err:
            raise StoreError(f"cannot remove {self.folder / name}: {err.strerror or err}; check permissions") from err

    def gone(self, index: str, nodes: int) -> StoreDamagedError:
        """Name the folder."""
        return damaged(index, f"its {nodes:,} nodes are gone from {self.folder / CHUNKS}")


@dataclass(frozen=True, slots=True)
class StoreServer:
    """A Qdrant server, and how collections are made there."""

    link: QdrantLink
    prefix: str = ""
    shards: int = 0
    replicas: int = 0

    @classmethod
    def from_config(cls, config: RouterConfig) -> StoreServer | None:
        """Take the server that the settings name, or ``None``; calls nobody."""
        link = open_server(config)
        if link is None:
            return None
        return cls(link, config.qdrant_prefix)


@dataclass(frozen=True, slots=True)
class ServerStores:
    """Collections on a server; the folder keeps how words are weighed there."""

    server: StoreServer
    base: str
    folder: Path

    @property
    def is_remote(self) -> bool:
        """Yes."""
        return True

    def exists(self, name: str) -> bool:
        """Ask the server."""
        collection = self.name_of(name)
        return self.server.link.call("look for a collection", lambda client: client.collection_exists(collection))

    def open(self, name: str, dimension: int, *, must_exist: bool = False) -> NodeStore:
        """Describe the collection; calls nobody."""
        from agentic_retriever.stores.server.store import QdrantServerVectorStore  # noqa: PLC0415 - needs an extra

        has_words = name == CHUNKS
        store = QdrantServerVectorStore(
            self.server.link,
            self.name_of(name),
            dimension,
            keywords=has_words,
            sparse=SparseBM25.load(self.folder) if has_words else None,
            on_fitted=self.keep_words,
            shards=self.server.shards,
            replicas=self.server.replicas,
        )
        if must_exist:
            store.collection.expect()
        return store

    def discard(self, name: str) -> None:
        """Remove the collection from the server."""
        collection = self.name_of(name)
        self.server.link.call("remove a collection", lambda client: client.delete_collection(collection))

    def gone(self, index: str, nodes: int) -> StoreDamagedError:
        """Name the collection and the server."""
        return damaged(
            index,
            f"its {nodes:,} nodes are gone: Qdrant at {self.server.link.address} has no collection "
            f"{self.name_of(CHUNKS)!r} (is QDRANT_URL the server that the index was made on?)",
        )

    def keep_words(self, sparse: SparseBM25) -> None:
        """Write down how texts become sparse vectors."""
        sparse.save(self.folder)

    def name_of(self, name: str) -> str:
        """Return the name of a collection on the server."""
        return f"{self.base}-{name}"


def stores_of(folder: Path, manifest: Manifest, server: StoreServer | None) -> IndexStores:
    """Return where the nodes of an index live, as its manifest says."""
    if manifest.store == EMBEDDED:
        return EmbeddedStores(folder)
    if manifest.store != SERVER:
        raise damaged(manifest.name, f"its manifest names the store {manifest.store!r}")
    if server is None:
        raise StoreError(
            f"index {manifest.name!r} lives on a Qdrant server, in the collections {manifest.collection}-...; set "
            "QDRANT_URL (setting qdrant_url) to that server, and QDRANT_API_KEY if it wants a key"
        )
    return ServerStores(server, manifest.collection, folder)


def new_server_stores(folder: Path, name: str, server: StoreServer) -> ServerStores:
    """Choose collections for a new index on a server."""
    stores = ServerStores(server, f"{server.prefix}{name}", folder)
    if stores.exists(CHUNKS):
        raise IndexExistsError(
            f"Qdrant at {server.link.address} has a collection {stores.name_of(CHUNKS)!r} already, from another data "
            "directory perhaps; set qdrant_prefix to another text, or use another name"
        )
    return stores


def needed(server: StoreServer | None) -> StoreServer:
    """Return the server."""
    if server is None:
        raise ConfigError(
            "no Qdrant server is configured; set QDRANT_URL (setting qdrant_url), such as http://localhost:6333"
        )
    return server
