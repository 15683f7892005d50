"""The metadata prefilter of a stored index: read, built, kept true while nodes change, and saved."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from agentic_retriever.errors import StoreDamagedError, StoreError
from agentic_retriever.indices.prefilter.index import MAX_IDS, MetadataIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import MetadataFilters

    from agentic_retriever.indices.prefilter.index import CandidateSet
    from agentic_retriever.stores.node_store import NodeStore

logger = logging.getLogger(__name__)

#: What filters may call a node's source, as LlamaIndex's stores do, beside ``doc_id``.
SOURCE_ALIASES: Final = {"document_id": "doc_id", "ref_doc_id": "doc_id"}


class MetadataView:
    """The prefilter over the nodes of a vector store, saved in a folder; for any number of threads.

    ``version`` tells the version of the index, which grows with every change.
    """

    def __init__(self, store: NodeStore, folder: Path, version: Callable[[], int]) -> None:
        self._store = store
        self._folder = folder
        self._version = version
        self._lock = threading.RLock()
        self._index: MetadataIndex | None = None
        self._unsaved = False

    def current(self) -> MetadataIndex:
        """Return the prefilter of the current version: the one in memory, else the saved one, else a new one."""
        with self._lock:
            version = self._version()
            if self._index is None or self._index.version != version:
                self._index = self._load(version) or self._build(version)
            return self._index

    def candidates(self, filters: MetadataFilters | None, *, known_only: bool = False) -> CandidateSet:
        """Find the nodes that satisfy filters, exactly; where texts are not indexed the store has the last word."""
        found = self.current().candidates(filters, known_only=known_only)
        if found.exact or not found:
            return found
        node_ids = list(found) if len(found) <= MAX_IDS else None
        return found.narrowed(node.node_id for node in self._store.get_nodes(node_ids=node_ids, filters=filters))

    @contextmanager
    def changing(self, written: Sequence[BaseNode], removed: Sequence[str]) -> Iterator[None]:
        """Change the prefilter together with the index's version, which is to be raised inside.

        ``written`` are nodes that are in the store by now, ``removed`` ids of nodes that are not any more.
        """
        with self._lock:
            before = self._version()
            yield
            after = self._version()
            if after != before and self._index is not None and self._index.version == before:
                self._index.update(_items(written), removed, version=after)
                self._unsaved = True

    def save(self) -> None:
        """Save what has changed; a disk that refuses costs no more than building it again next time."""
        with self._lock:
            if self._index is None or not self._unsaved:
                return
            try:
                self._index.save(self._folder)
                self._unsaved = False
            except StoreError as err:
                logger.warning("the metadata index could not be saved (%s); it is built again next time", err)

    def _load(self, version: int) -> MetadataIndex | None:
        try:
            return MetadataIndex.load(self._folder, version, aliases=SOURCE_ALIASES)
        except StoreDamagedError as err:
            logger.warning("%s; building the metadata index again", err)
            return None

    def _build(self, version: int) -> MetadataIndex:
        self._index = MetadataIndex.build(_items(self._store.iter_nodes()), version, aliases=SOURCE_ALIASES)
        self._unsaved = True
        self.save()
        return self._index


def _items(nodes: Iterable[BaseNode]) -> Iterator[tuple[str, Mapping[str, object]]]:
    return ((node.node_id, {**node.metadata, "doc_id": node.ref_doc_id}) for node in nodes)
