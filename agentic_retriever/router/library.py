"""The indexes of a router: made, brought up to date, removed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_index.core.schema import BaseNode, Document

from agentic_retriever.errors import AgenticRetrieverError, IndexingError
from agentic_retriever.indices import Indexer, IngestReport
from agentic_retriever.indices.attached import AttachedIndex, AttachedRetriever
from agentic_retriever.indices.copying import copy_index
from agentic_retriever.ingestion import ChunkSettings, discover
from agentic_retriever.router.attached import attach

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.base.base_query_engine import BaseQueryEngine
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.indices.base import BaseIndex

    from agentic_retriever.indices import Index, Progress, RoutedIndex
    from agentic_retriever.indices.copying import CopyProgress, CopyReport
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
        return self.resources.names()

    def descriptions(self) -> dict[str, str]:
        """Return what each index holds, by its name, without opening any; ``""`` where that cannot be read."""
        return {name: self._description(name) for name in self.index_names()}

    def index(self, name: str) -> RoutedIndex:
        """Return an index, stored or attached; changes to an attached one are waited for, two seconds at most.

        Raises:
            UnknownIndexError: If there is none of that name.
            StoreError: If it cannot be opened.
        """
        self.resources.attached.catch_up(name, self.resources.config.deadline_s)
        return self.resources.index(name)

    def stored_index(self, name: str) -> Index:
        """Return an index of the data directory, with its folder, documents and files.

        Raises:
            IndexingError: If it is an attached one, which has none.
            UnknownIndexError: If there is none of that name.
            StoreError: If it cannot be opened.
        """
        return self.resources.stored(name)

    def refresh_index(self, name: str) -> None:
        """Have an attached index read anew by the next question, for changes that cannot be seen from outside.

        A stored index is always up to date.

        Raises:
            UnknownIndexError: If there is none of that name.
        """
        index = self.resources.index(name)
        if isinstance(index, (AttachedIndex, AttachedRetriever)):
            index.refresh()

    def add_index(
        self,
        name: str,
        source: str | Path | Sequence[str | Path] | Sequence[Document] | Sequence[BaseNode] | None = None,
        *,
        index: BaseIndex[Any] | BaseQueryEngine | BaseRetriever | None = None,
        description: str = "",
        progress: Progress | None = None,
    ) -> IngestReport:
        """Make an index from sources, bring an existing one up to date with them, or attach one of LlamaIndex.

        An attached index is searched where it is, lives in this router only, and is not copied: nothing is written.

        Args:
            name: Name of the index: letters, digits, ``_``, ``-`` and ``.``.
            source: A file or folder, several of them, or LlamaIndex documents or nodes.
            index: A LlamaIndex index, query engine or retriever to attach, instead of a source.
            description: What the index holds; used when it is made.
            progress: Hears how far it is.

        Returns:
            What was added, changed, left alone, removed and skipped.

        Raises:
            IndexingError: If the name, a source or what is to be attached cannot be used, or both or none are given.
            IndexExistsError: If an index is to be attached under a name that is taken.
            EmbeddingError: If the embedding model failed; run again to go on.
            StoreError: If the index cannot be opened, read or written.
        """
        if index is not None or source is None:
            if source is not None or index is None:
                raise IndexingError(f"index {name!r} needs either a source or index=..., and exactly one of them")
            return attach(self.resources, name, index, description=description, progress=progress)
        self.resources.attached.refuse(name)
        return self._add_sources(name, source, description, progress)

    def _add_sources(self, name: str, source: object, description: str, progress: Progress | None) -> IngestReport:
        items = _as_list(source)
        for path in items:
            if isinstance(path, (str, Path)):
                discover(Path(path))  # a path that is not there must not leave an empty index behind
        is_new = name not in self.resources.storage.names()
        index = self._create(name, description) if is_new else self.resources.stored(name)
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
        index, model = self.resources.stored(name), self.resources.model
        index.keyword()
        index.build_views(progress, write_summary=None if model is None else lambda text: model.complete(text).text)

    def copy_index(
        self, name: str, *, to: str, new_name: str | None = None, progress: CopyProgress | None = None
    ) -> CopyReport:
        """Move an index between the data directory and the Qdrant server, or copy it there; nothing is embedded again.

        A copy that was cut off goes on when it is started again. The source is kept until the copy has been counted.
        Add nothing to the index meanwhile.

        Args:
            name: The index.
            to: ``server`` or ``embedded``.
            new_name: Name of the copy; without one the index itself moves.
            progress: Hears how far it is.

        Returns:
            What was done.

        Raises:
            UnknownIndexError: If there is no such index.
            IndexingError: If it is there already, kept changing, or the new name is taken.
            ConfigError: If no server is configured.
            StoreError: If either side failed; the source is as before.
        """
        self.resources.attached.refuse(name)
        report = copy_index(
            self.resources.storage, name, self.resources.embedding(), to=to, new_name=new_name, progress=progress
        )
        if report.moved:
            self.resources.forget(name)
        return report

    def remove_documents(self, name: str, doc_ids: Sequence[str]) -> IngestReport:
        """Drop documents from an index.

        Raises:
            UnknownIndexError: If there is no such index.
            IndexingError: If a document is not in it; nothing is removed then.
        """
        return Indexer(self.resources.stored(name)).remove_documents(doc_ids)

    def remove_index(self, name: str) -> None:
        """Delete an index and everything in it; an attached one is only let go of, and stays as it is.

        Raises:
            UnknownIndexError: If there is none of that name.
        """
        self.resources.forget(name)
        if not self.resources.attached.remove(name):
            self.resources.storage.remove(name)

    def _description(self, name: str) -> str:
        storage = self.resources.storage
        try:
            attached = self.resources.attached.get(name)
            return storage.manifest(name).description if attached is None else attached.description
        except AgenticRetrieverError:  # using that index will say so
            return ""

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
