"""The indexes of a router: made, brought up to date, removed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from llama_index.core.schema import BaseNode, Document

from agentic_retriever.errors import IndexingError
from agentic_retriever.indices import Indexer, IngestReport
from agentic_retriever.ingestion import ChunkSettings, discover

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentic_retriever.indices import Index, Progress
    from agentic_retriever.router.resources import Resources


class IndexLibrary:
    """The part of a router that looks after its indexes.

    Attributes:
        resources: Settings, embedding model and open indexes.
    """

    def __init__(self, resources: Resources) -> None:
        self.resources = resources

    def index_names(self) -> list[str]:
        """Return the names of all indexes, in order."""
        return self.resources.storage.names()

    def index(self, name: str) -> Index:
        """Return an index.

        Raises:
            UnknownIndexError: If there is none of that name.
            StoreError: If it cannot be opened.
        """
        return self.resources.index(name)

    def add_index(
        self,
        name: str,
        source: str | Path | Sequence[str | Path] | Sequence[Document] | Sequence[BaseNode],
        *,
        description: str = "",
        progress: Progress | None = None,
    ) -> IngestReport:
        """Make an index from sources, or bring an existing one up to date with them.

        Args:
            name: Name of the index: letters, digits, ``_``, ``-`` and ``.``.
            source: A file or folder, several of them, or LlamaIndex documents or nodes.
            description: What the index holds; used when it is made.
            progress: Hears how far it is.

        Returns:
            What was added, changed, left alone, removed and skipped.

        Raises:
            IndexingError: If the name or a source cannot be used.
            EmbeddingError: If the embedding model failed; run again to go on.
            StoreError: If the index cannot be opened or written.
        """
        items = _as_list(source)
        for path in items:
            if isinstance(path, (str, Path)):
                discover(Path(path))  # a path that is not there must not leave an empty index behind
        is_new = name not in self.resources.storage.names()
        index = self._create(name, description) if is_new else self.resources.index(name)
        indexer = Indexer(index, max_file_mb=self.resources.config.max_file_mb, progress=progress)
        paths = [item for item in items if isinstance(item, (str, Path))]
        documents = [item for item in items if isinstance(item, Document)]
        nodes = [item for item in items if isinstance(item, BaseNode) and not isinstance(item, Document)]
        report = IngestReport()
        for path in paths:
            report += indexer.add_path(path)
        if documents:
            report += indexer.add_documents(documents)
        if nodes:
            report += indexer.add_nodes(nodes)
        if is_new and not index.count():
            self.remove_index(name)
            reasons = "; ".join(f"{s.source}: {s.reason}" for s in report.skipped[:3]) or "no supported files"
            raise IndexingError(f"nothing could be indexed, so index {name!r} was not made ({reasons})")
        return report

    def build_views(self, name: str, *, progress: Progress | None = None) -> None:
        """Build what some strategies need of an index: leaves, and summaries written by the model where there is one.

        Args:
            name: The index.
            progress: Hears how far it is.

        Raises:
            UnknownIndexError: If there is no such index.
            EmbeddingError: If something could not be embedded; run again to go on.
            StoreError: If the disk failed.
        """
        index, model = self.resources.index(name), self.resources.model
        index.keyword()
        index.build_views(progress, write_summary=None if model is None else lambda text: model.complete(text).text)

    def remove_documents(self, name: str, doc_ids: Sequence[str]) -> IngestReport:
        """Drop documents from an index.

        Raises:
            UnknownIndexError: If there is no such index.
            IndexingError: If a document is not in it; nothing is removed then.
        """
        return Indexer(self.resources.index(name)).remove_documents(doc_ids)

    def remove_index(self, name: str) -> None:
        """Delete an index and everything in it.

        Raises:
            UnknownIndexError: If there is none of that name.
        """
        self.resources.forget(name)
        self.resources.storage.remove(name)

    def _create(self, name: str, description: str) -> Index:
        c = self.resources.config
        chunks = ChunkSettings(chunk_size=c.chunk_size, chunk_overlap=c.chunk_overlap, leaf_size=c.leaf_size)
        return self.resources.storage.create(name, self.resources.embedding(), description=description, chunks=chunks)


def _as_list(source: object) -> list[str | Path | BaseNode]:
    items = [source] if isinstance(source, (str, Path, BaseNode)) else list(source) if _is_list(source) else []  # type: ignore[call-overload]  # a sequence
    wrong = [item for item in items if not isinstance(item, (str, Path, BaseNode))]
    if not items or wrong:
        got = type(wrong[0] if wrong else source).__name__
        raise IndexingError(f"a source must be a path or LlamaIndex documents or nodes, at least one; got {got}")
    return items


def _is_list(source: object) -> bool:
    return isinstance(source, (list, tuple))
