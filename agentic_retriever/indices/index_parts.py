"""What an index lives on: the store of its chunks and its catalog, opened together and held against each other."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentic_retriever.indices.catalog import CATALOG_FILE, Catalog
from agentic_retriever.indices.manifest import damaged
from agentic_retriever.indices.stores import CHUNKS, stores_of

if TYPE_CHECKING:
    from pathlib import Path

    from agentic_retriever.indices.manifest import Manifest
    from agentic_retriever.indices.node_store import NodeStore
    from agentic_retriever.indices.stores import IndexStores, StoreServer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IndexParts:
    """The parts of an index that are not derived from others.

    Attributes:
        name: Name of the index.
        stores: Where its collections are.
        vector_store: The chunks with their vectors.
        catalog: Documents, source texts and the version.
    """

    name: str
    stores: IndexStores
    vector_store: NodeStore
    catalog: Catalog

    @classmethod
    def opened(cls, folder: Path, manifest: Manifest, server: StoreServer | None) -> IndexParts:
        """Open the parts, or make those of a new index.

        Args:
            folder: The index's folder.
            manifest: Its pins.
            server: The server that its collections may be on.

        Raises:
            StoreDamagedError: If files are missing or disagree.
            StoreBusyError: If another process holds the index.
            StoreError: If they cannot be opened.
        """
        stores = stores_of(folder, manifest, server)
        store_is_new = not stores.exists(CHUNKS)
        if not store_is_new and not (folder / CATALOG_FILE).exists():
            raise damaged(manifest.name, f"{folder / CATALOG_FILE} is missing")
        # The store's lock is what keeps a second process out, so it is taken before anything is written.
        vector_store = stores.open(CHUNKS, manifest.dimension, must_exist=not store_is_new)
        try:
            catalog = Catalog(folder, manifest.name, shared=stores.is_remote)
            parts = cls(manifest.name, stores, vector_store, catalog)
            try:
                parts._check_counts(store_is_new=store_is_new)
            except BaseException:
                catalog.close()
                raise
        except BaseException:
            vector_store.close()
            raise
        return parts

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        self.catalog.close()
        self.vector_store.close()

    def _check_counts(self, *, store_is_new: bool) -> None:
        counts, stored = self.catalog.counts(), self.vector_store.count()
        if store_is_new and counts.finished_nodes:
            raise self.stores.gone(self.name, counts.finished_nodes)
        if counts.unfinished:
            logger.warning(
                "index %r is incomplete: writing %d documents was cut off; add its sources again to finish",
                self.name,
                counts.unfinished,
            )
            if stored < counts.finished_nodes:
                raise damaged(self.name, f"{stored:,} nodes stored, {counts.finished_nodes:,} expected")
        elif stored != counts.nodes:
            raise damaged(self.name, f"{stored:,} nodes stored, {counts.nodes:,} expected")
