"""Bringing sources into an index: only what changed is cut, embedded and written; a second run ends a broken one."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path, PurePath
from typing import Any

from llama_index.core.schema import BaseNode, Document, TextNode

from agentic_retriever import ingestion
from agentic_retriever.catalog.contents import CatalogEntry
from agentic_retriever.config import RouterConfig
from agentic_retriever.errors import IndexingError
from agentic_retriever.indices.derived import Progress, SilentProgress
from agentic_retriever.indices.index import StoredIndex
from agentic_retriever.indices.stored_nodes import vector_checksums
from agentic_retriever.ingestion import enrichment
from agentic_retriever.ingestion.chunking import CHUNKING_VERSION, MAPPED_SECTION, chunk_document, count_tokens
from agentic_retriever.ingestion.documents import clean_text
from agentic_retriever.ingestion.sections import map_sections, title_sections
from agentic_retriever.llm import ModelClient
from agentic_retriever.show import drawn_by
from agentic_retriever.stores.points import embedded_text, plain_metadata, unit_vectors
from agentic_retriever.text.references import without_titles

FLUSH_NODES = 64  # nodes that are embedded and written together; also the most work that a crash can lose


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport:
    """What one run of indexing did."""

    added: int = 0
    updated: int = 0
    unchanged: int = 0
    removed: int = 0
    nodes: int = 0
    embedded: int = 0
    skipped: tuple[ingestion.SkippedSource, ...] = ()

    @property
    def unread(self) -> int:
        """How many of the skipped ought to be looked at: their text is in no index."""
        return sum(one.kind in {"unread", "unsupported"} for one in self.skipped)

    def skipped_lines(self) -> list[str]:
        """What was skipped, a line each; files of kinds that cannot be read are one line, counted by suffix."""
        suffixes = Counter(Path(one.source).suffix.lower() for one in self.skipped if one.kind == "unsupported")
        counts = ", ".join(f"{suffix or 'no suffix'} ({count:,})" for suffix, count in suffixes.most_common())
        files = f"{suffixes.total():,} file{'s' if suffixes.total() > 1 else ''}"
        kinds = [f"{files} of kinds that cannot be read: {counts}"] if suffixes else []
        return [f"{one.source}: {one.reason}" for one in self.skipped if one.kind != "unsupported"] + kinds

    def __add__(self, other: IngestReport) -> IngestReport:
        return IngestReport(**{one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)})

    _repr_html_, _repr_pretty_ = drawn_by("ingest_report.html", "report")


class Indexer:
    """Writes sources into one index; one at a time per index."""

    def __init__(
        self,
        index: StoredIndex,
        config: RouterConfig | None = None,
        progress: Progress | None = None,
        *,
        model: ModelClient | None = None,
        guard: Callable[[], None] = lambda: None,
    ) -> None:
        self._index = index
        self._model = model  # that describes documents and names their sections
        self._guard = guard  # raises where this writer may not write any more; asked under the lock of its writing
        self._patterns = enrichment.patterns_file(config.data_dir) if config else None
        self._said: dict[str, dict[str, Any]] = {}  # by callers, of documents
        self._inactive: set[str] = set()  # documents that are switched off
        self._facts: dict[str, dict[str, Any]] = {}  # what records are told of the documents that wait
        self._max_bytes = int((config.max_file_mb if config else 50.0) * 1_000_000)
        self._follow_links = config is not None and config.follow_links
        self._progress = progress or SilentProgress()
        self._pending: list[tuple[CatalogEntry, list[TextNode]]] = []  # documents waiting to be written together
        self._report = IngestReport()

    def add_path(self, path: str | Path) -> IngestReport:
        """Bring a file, or a folder with all below it, into the index and drop documents no longer found there."""
        root = Path(path).absolute()
        files = ingestion.discover(root, follow_links=self._follow_links)
        self._said, self._inactive = self._index.catalog.said(), self._index.catalog.inactive()
        self._index.catalog.begin_source(str(root))
        self._progress.files(len(files))
        seen: set[str] = set()
        broken: set[str] = set()
        digests, first = ingestion.digests_of_alike(files), dict[str, Path]()
        with ingestion.BoundedReader(patterns=self._patterns) as reader:
            for file in files:
                digest = digests.get(file, "")
                if digest in first:
                    again = ingestion.SkippedSource(str(file), f"is the same file as {first[digest]}", "duplicate")
                    self._report += IngestReport(skipped=(again,))
                    self._progress.file_done(str(file))
                    continue
                for item in reader.read(file, root=root, max_bytes=self._max_bytes, follow_links=self._follow_links):
                    if isinstance(item, ingestion.SkippedSource):
                        self._report += IngestReport(skipped=(item,))
                        broken.add(item.source)
                    else:
                        seen.add(self._take(item))
                        if digest:
                            first[digest] = file
                self._progress.file_done(str(file))
        self._flush()
        # What is no longer found below the root is dropped; a file that cannot be read today keeps its nodes.
        catalog = self._index.catalog
        entries = {i: catalog.get(i) for i in catalog.doc_ids(root=str(root)) if i not in seen}
        self._remove([i for i, entry in entries.items() if entry is None or entry.source not in broken])
        catalog.end_source(str(root))
        return self._finish()

    def add_documents(self, documents: Sequence[Document]) -> IngestReport:
        """Bring LlamaIndex documents into the index; one with a known id replaces the old one."""
        self._said, self._inactive = self._index.catalog.said(), self._index.catalog.inactive()
        for item in ingestion.from_llama_documents(documents):
            if isinstance(item, ingestion.SkippedSource):
                self._report += IngestReport(skipped=(item,))
            else:
                self._take(item)
        self._flush()
        return self._finish()

    def add_nodes(self, nodes: Sequence[BaseNode]) -> IngestReport:
        """Bring LlamaIndex nodes into the index as they are; all nodes of one document replace its old ones."""
        self._inactive = self._index.catalog.inactive()
        by_document: dict[str, list[TextNode]] = {}
        skipped: list[ingestion.SkippedSource] = []
        for node in ingestion.nodes_as_they_are(nodes, on_skip=skipped.append):
            by_document.setdefault(node.ref_doc_id or node.node_id, []).append(node)
        for doc_id, group in by_document.items():
            digest = hashlib.sha256("\0".join(f"{n.node_id}\0{n.hash}" for n in group).encode("utf-8", "replace"))
            title = str(group[0].metadata.get("title", ""))
            entry = CatalogEntry(doc_id, "", "", "nodes", title, {}, "", content_hash=digest.hexdigest())
            self._stage(entry, lambda g=group: g)  # type: ignore[misc]  # mypy cannot infer a lambda with a default
        self._flush()
        self._report += IngestReport(skipped=tuple(skipped))
        return self._finish()

    def remove_documents(self, doc_ids: Iterable[str]) -> IngestReport:
        wanted = list(dict.fromkeys(doc_ids))
        unknown = [doc_id for doc_id in wanted if self._index.catalog.get(doc_id) is None]
        if unknown:
            raise IndexingError(f"index {self._index.name!r} has no document {unknown[0][:80]!r}; see index show")
        self._remove(wanted)
        return self._finish()

    def _take(self, document: ingestion.SourceDocument) -> str:
        doc_id = document.doc_id
        taken = {entry.doc_id: entry for entry, _ in self._pending}
        known = taken.get(doc_id) or self._index.catalog.get(doc_id)
        # Documents of one id that come from two sources are kept apart; one that has moved keeps its id.
        if known is not None and known.source not in {"", document.source} and Path(known.source).exists():
            doc_id = f"{doc_id}~{hashlib.sha256(document.source.encode()).hexdigest()[:8]}"
        self._write(replace(document, doc_id=doc_id))
        return doc_id

    def add_document(self, document: ingestion.SourceDocument, said: Mapping[str, Any], note: str = "") -> None:
        """Bring one document into the index, whether or not it has changed.

        It survives the end of the process; the vector store's ``flush``, which is left to the caller, a power cut.
        ``said`` is what its caller says of it, ``note`` what of it could not be read.
        """
        self._said[document.doc_id] = dict(said)
        self._facts[document.doc_id] = {"error_message": note}
        self._write(document, anew=True)
        self._flush()
        for refused in self._report.skipped:
            if refused.kind == "unread":
                raise IndexingError(refused.reason)

    def replace_nodes(self, entry: CatalogEntry, nodes: Sequence[TextNode], facts: Mapping[str, Any]) -> None:
        """Let a document have these nodes and its record these columns; what has a vector is not embedded."""
        self._pending.append((entry, list(nodes)))
        self._facts[entry.doc_id] = dict(facts)
        self._flush()
        self._finish()

    def _write(self, document: ingestion.SourceDocument, *, anew: bool = False) -> None:
        doc_id = document.doc_id
        if self._said.get(doc_id):
            document = enrichment.with_metadata(document, self._said[doc_id], enrichment.CALLER)
        same = {name: getattr(document, name) for name in ("source", "root", "kind", "title", "metadata", "text")}
        entry = CatalogEntry(doc_id, **same, content_hash=f"{CHUNKING_VERSION}:{document.content_hash}")
        self._stage(entry, lambda: self._cut(document), anew=anew)

    def _cut(self, document: ingestion.SourceDocument) -> list[TextNode]:
        """Cut a document into nodes that have what is found in it, and keep what its record is told."""
        values, origins = enrichment.enrich(document, self._model)
        settings = self._index.manifest.chunk_settings
        nodes = chunk_document(replace(document, metadata=values), settings)
        titles: dict[str, str] = {}
        if document.kind not in enrichment.OWN_KINDS:
            enrichment.count_articles(nodes, values, origins)
            titles = map_sections(document.text, nodes, self._model)
            title_sections(nodes, titles)
        found = {key: value for key, value in values.items() if key not in document.metadata}
        given = {"said": self._said.get(document.doc_id, {}), "found": found, "origins": origins}
        facts = {"given": given, "section_mappings": titles, "total_pages": len(document.pages)}
        self._facts[document.doc_id] = self._facts.get(document.doc_id, {}) | facts | _told(document, values)
        return nodes

    def _stage(self, entry: CatalogEntry, make_nodes: Callable[[], list[TextNode]], *, anew: bool = False) -> None:
        try:
            plain_metadata(entry.metadata, entry.doc_id)
        except IndexingError as err:  # one value that cannot be stored costs no other document
            self._report += IngestReport(skipped=(ingestion.SkippedSource(entry.source or entry.doc_id, str(err)),))
            return
        if any(waiting.doc_id == entry.doc_id for waiting, _ in self._pending):
            self._flush()
        known = self._index.catalog.get(entry.doc_id)
        if known is not None and not anew and entry.doc_id in self._inactive:
            self._report += IngestReport(unchanged=1)  # what is switched off stays as it is until it is switched on
            return
        if known is not None and not anew and known.content_hash == entry.content_hash:
            if (known.source, known.root) != (entry.source, entry.root):
                with self._index.changing():
                    self._index.catalog.confirm([(entry, self._index.catalog.node_ids(entry.doc_id))])
            self._report += IngestReport(unchanged=1)
            return
        nodes = make_nodes()
        if not nodes:
            note = ingestion.SkippedSource(
                entry.doc_id, "the document has no text; it is listed, but there is nothing to search", "noted"
            )
            self._report += IngestReport(skipped=(note,))
        self._report += IngestReport(updated=1) if known is not None else IngestReport(added=1)
        self._pending.append((entry, nodes))
        self._progress.nodes(len(nodes))
        if sum(len(waiting) for _, waiting in self._pending) >= FLUSH_NODES:
            self._flush()

    def _flush(self) -> None:
        """Write what is pending: intent, nodes, removal of stale nodes, confirmation; each step can be done twice."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        nodes = [node for _, group in pending for node in group]
        ready, embedded = self._embedded(nodes)
        catalog, store = self._index.catalog, self._index.vector_store
        ids = [(entry, [node.node_id for node in group]) for entry, group in pending]
        with self._index.writing(*(entry.doc_id for entry, _ in pending)):
            self._guard()
            catalog.begin(ids)
            if ready:
                store.add(ready)
            new = {node.node_id for node in ready}
            stale = [i for entry, _ in ids for i in catalog.node_ids(entry.doc_id) if i not in new]
            if stale:
                store.delete_nodes(node_ids=stale)
            with self._index.changing(written=ready, removed=stale):
                details = {node.node_id: node_facts(node, at) for _, group in pending for at, node in enumerate(group)}
                for node, checksum in zip(ready, vector_checksums(unit_vectors(ready)) if ready else (), strict=True):
                    details[node.node_id]["checksum"] = checksum
                catalog.confirm(ids, details, self._facts)
        self._facts = {}
        self._report += IngestReport(nodes=len(nodes), embedded=embedded)

    def _embedded(self, nodes: Sequence[TextNode]) -> tuple[list[TextNode], int]:
        """Return the nodes with vectors, and how many of these the model had to compute."""
        missing = [node for node in nodes if node.embedding is None]
        vectors, computed = self._index.embedding.embed_passages(
            [without_titles(embedded_text(node)) for node in missing], on_progress=self._progress.nodes_done
        )
        made = {node.node_id: vector.tolist() for node, vector in zip(missing, vectors, strict=True)}
        ready = [node.model_copy(update={"embedding": made.get(node.node_id, node.embedding)}) for node in nodes]
        return ready, computed

    def _remove(self, doc_ids: Sequence[str]) -> None:
        if not doc_ids:
            return
        catalog = self._index.catalog
        with self._index.writing(*doc_ids):
            node_ids = [i for doc_id in doc_ids for i in catalog.node_ids(doc_id)]
            catalog.begin_removal(doc_ids)
            if node_ids:
                self._index.vector_store.delete_nodes(node_ids=node_ids)
            with self._index.changing(removed=node_ids):
                catalog.confirm_removal(doc_ids)
        self._report += IngestReport(removed=len(doc_ids))

    def _finish(self) -> IngestReport:
        self._index.vector_store.flush()
        report, self._report = self._report, IngestReport()
        return report


def _told(document: ingestion.SourceDocument, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a record that its document tells, with a hash of its file where that lies."""
    tags = values.get("tags") or ()
    told: dict[str, Any] = {name: str(values.get(name) or "") for name in ("document_type", "document_number")}
    told |= {"tags": list(map(str, tags if isinstance(tags, (list, tuple)) else [tags]))}
    told |= {"extraction_method": document.kind, "filename": PurePath(document.source).name}
    path = Path(document.source)
    if document.kind not in enrichment.OWN_KINDS and path.is_absolute():
        with suppress(OSError):
            told["file_hash"] = hashlib.sha256(path.read_bytes()).hexdigest()
    return told


def node_facts(node: TextNode, position: int) -> dict[str, object]:
    """Return what the catalog has of a node, as its columns."""
    known, text = node.metadata, clean_text(node.text)
    pages = known.get("page_numbers") or [page for page in [known.get("page")] if page is not None]
    return {
        "position": position,
        "content": text,
        "content_hash": str(known.get("content_hash") or hashlib.sha256(text.encode()).hexdigest()),
        "page_numbers": list(pages) if isinstance(pages, (list, tuple)) else [pages],
        "section_title": _line(known.get(MAPPED_SECTION) or str(known.get("section", "")).rpartition(" > ")[2]),
        "article_number": _line(known.get("article_number", "")),
        "heading_hierarchy": list(known.get("heading_hierarchy") or ()),
        "char_count": len(text),
        "token_count": count_tokens(text),
        "chunk_type": str(known.get("chunk_type", "")),
    }


def _line(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
