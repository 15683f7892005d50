"""The metadata prefilter of a stored index: read, built, kept true while nodes change, and saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import MetadataFilters

from agentic_retriever.indices.derived import DerivedView
from agentic_retriever.indices.prefilter.index import MAX_IDS, CandidateSet, MetadataIndex
from agentic_retriever.stores.node_store import NodeStore

#: What filters may call a node's source, as LlamaIndex's stores do, beside ``doc_id``.
SOURCE_ALIASES: Final = {"document_id": "doc_id", "ref_doc_id": "doc_id"}


class MetadataView(DerivedView[MetadataIndex]):
    """The prefilter over the nodes of a vector store, saved in a folder; for any number of threads.

    ``version`` tells the version of the index, which grows with every change.
    """

    def __init__(self, store: NodeStore, folder: Path, version: Callable[[], int]) -> None:
        super().__init__(
            "metadata index",
            version,
            load=lambda version: MetadataIndex.load(folder, version, aliases=SOURCE_ALIASES),
            build=lambda version: MetadataIndex.build(_items(store.iter_nodes()), version, aliases=SOURCE_ALIASES),
            save=lambda view: view.save(folder),
        )
        self._store = store

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
            before = self._index_version()
            yield
            after = self._index_version()
            if after != before and self._view is not None and self._made_from == before:
                self._view.update(_items(written), removed, version=after)
                self._made_from, self._unsaved = after, True


def _items(nodes: Iterable[BaseNode]) -> Iterator[tuple[str, Mapping[str, object]]]:
    return ((node.node_id, {**node.metadata, "doc_id": node.ref_doc_id}) for node in nodes)
