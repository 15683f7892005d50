"""Bringing a derived view up to date by difference."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.schema import MetadataMode, TextNode

from agentic_retriever.errors import StoreDamagedError, StoreError
from agentic_retriever.stores.files import read_files, read_header, write_sealed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from llama_index.core.schema import BaseNode

    from agentic_retriever.indices.ingest import Progress
    from agentic_retriever.indices.stored import StoredIndex
    from agentic_retriever.stores.node_store import NodeStore


# What a derived view remembers of the documents it was made from.

logger = logging.getLogger(__name__)

INCOMPLETE: Final = -1
"""The version of a view while it is being brought up to date."""

_FORMAT: Final = 1
_FILE: Final = "documents.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentState:
    """What a view holds of one document."""

    content_hash: str
    node_ids: tuple[str, ...]
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ViewState:
    """What a view holds."""

    version: int = INCOMPLETE
    documents: Mapping[str, DocumentState] = field(default_factory=dict)

    def node_ids(self) -> set[str]:
        """Return the ids of all nodes that the view should hold."""
        return {node_id for document in self.documents.values() for node_id in document.node_ids}


def save_state(folder: Path, state: ViewState, *, made_with: str) -> None:
    """Seal the state into a folder of its own."""
    header = {"format": _FORMAT, "version": state.version, "made_with": made_with}
    documents = {
        doc_id: {"hash": known.content_hash, "ids": known.node_ids, "facts": dict(known.facts)}
        for doc_id, known in state.documents.items()
    }
    content = json.dumps(documents, ensure_ascii=False).encode("utf-8", "surrogatepass")
    write_sealed(folder, header, {_FILE: content})


def load_state(folder: Path, *, made_with: str) -> ViewState:
    """Read the state back; an empty one where there is none, it cannot be read, or it was made with something else."""
    version = saved_version(folder, made_with=made_with)
    if version is None:
        return ViewState()
    try:
        saved = json.loads(read_files(folder, [_FILE])[_FILE].decode("utf-8", "surrogatepass"))
    except StoreDamagedError as err:
        logger.warning("%s; making the view again", err)
        return ViewState()
    documents = {
        doc_id: DocumentState(content_hash=known["hash"], node_ids=tuple(known["ids"]), facts=known["facts"])
        for doc_id, known in saved.items()
    }
    return ViewState(version, documents)


def saved_version(folder: Path, *, made_with: str) -> int | None:
    """Return the version of a saved state without reading all of it, or ``None`` where there is none to use."""
    try:
        header = read_header(folder)
    except StoreDamagedError as err:
        logger.warning("%s; making the view again", err)
        return None
    if header is None or (header.get("format"), header.get("made_with")) != (_FORMAT, made_with):
        return None
    return int(header["version"])


BATCH_NODES: Final = 64
"""Nodes of a view that are embedded and written together."""

SAVED_EVERY: Final = 2_000
"""Nodes after which the state is saved, so that a crash loses no more work than that."""


@dataclass(frozen=True, slots=True)
class Derived:
    """What a view makes of one document: nodes with ids that stay the same, and facts in plain JSON types."""

    nodes: Sequence[TextNode]
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Derivation:
    """How a view is made."""

    derive: Callable[[str, Sequence[TextNode]], Derived]
    is_outdated: Callable[[Mapping[str, Any]], bool] = lambda _facts: False
    batch_nodes: int = BATCH_NODES


class ViewUpdate:
    """One run over what differs between an index and a view of it."""

    def __init__(
        self,
        index: StoredIndex,
        state: ViewState,
        store: NodeStore,
        derivation: Derivation,
        progress: Progress | None,
    ) -> None:
        self.documents: dict[str, DocumentState] = dict(state.documents)
        self._index = index
        self._store = store
        self._derivation = derivation
        self._progress = progress
        wanted = {entry.doc_id: entry.content_hash for entry in index.catalog.documents()}
        self._gone = [doc_id for doc_id in self.documents if doc_id not in wanted]
        self._changed = [doc_id for doc_id, content_hash in wanted.items() if self._differs(doc_id, content_hash)]
        self.changes = len(self._gone) + len(self._changed)

    def run(self, *, save: Callable[[ViewState], None], check: Callable[[], None]) -> None:
        """Make the changes."""
        for doc_id in (*self._gone, *self._changed):
            if doc_id in self.documents:
                self.documents[doc_id] = replace(self.documents[doc_id], content_hash="")
        save(ViewState(documents=self.documents))
        try:
            self._drop()
            self._write(save, check)
        except BaseException:
            with suppress(StoreError):  # the first error is the one to tell
                save(ViewState(documents=self.documents))
            raise

    def _differs(self, doc_id: str, content_hash: str) -> bool:
        known = self.documents.get(doc_id)
        # A document without a hash is being written; whether it is as before cannot be told.
        if known is None or not content_hash or known.content_hash != content_hash:
            return True
        return self._derivation.is_outdated(known.facts)

    def _drop(self) -> None:
        for doc_id in self._gone:
            self._delete(self.documents[doc_id].node_ids)
            del self.documents[doc_id]

    def _write(self, save: Callable[[ViewState], None], check: Callable[[], None]) -> None:
        batch: dict[str, tuple[str, Derived]] = {}
        waiting = unsaved = 0
        for doc_id in self._changed:
            check()
            content_hash, chunks = self._chunks(doc_id)
            derived = self._derivation.derive(doc_id, chunks)
            batch[doc_id] = content_hash, derived
            waiting += len(derived.nodes)
            if self._progress is not None:
                self._progress.nodes(len(derived.nodes))
            if waiting >= self._derivation.batch_nodes:
                self._flush(batch)
                unsaved, waiting, batch = unsaved + waiting, 0, {}
            if unsaved >= SAVED_EVERY:
                save(ViewState(documents=self.documents))
                unsaved = 0
        self._flush(batch)

    def _chunks(self, doc_id: str) -> tuple[str, list[TextNode]]:
        """Read a document's chunks in order, and the hash of its content, ``""`` while that is changing."""
        catalog = self._index.catalog
        before = catalog.get(doc_id)
        node_ids = catalog.node_ids(doc_id)
        nodes = self._index.vector_store.get_nodes(node_ids=node_ids) if node_ids else []
        after = catalog.get(doc_id)
        is_settled = before is not None and after is not None and before.content_hash == after.content_hash
        return (before.content_hash if before is not None and is_settled else ""), in_reading_order(nodes)

    def _flush(self, batch: Mapping[str, tuple[str, Derived]]) -> None:
        """Write a batch: new nodes, removal of old ones, what is now held; each step can be done twice."""
        nodes = [node for _, derived in batch.values() for node in derived.nodes]
        if nodes:
            vectors, _ = self._index.embedding.embed_passages(
                [node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes],
                on_progress=self._progress.nodes_done if self._progress is not None else None,
            )
            self._store.add(
                [node.model_copy(update={"embedding": v.tolist()}) for node, v in zip(nodes, vectors, strict=True)]
            )
        new = {node.node_id for node in nodes}
        self._delete([i for d in batch if d in self.documents for i in self.documents[d].node_ids if i not in new])
        for doc_id, (content_hash, derived) in batch.items():
            node_ids = tuple(node.node_id for node in derived.nodes)
            self.documents[doc_id] = DocumentState(content_hash=content_hash, node_ids=node_ids, facts=derived.facts)

    def _delete(self, node_ids: Sequence[str]) -> None:
        if node_ids:
            self._store.delete_nodes(node_ids=list(node_ids))


def in_reading_order(nodes: Sequence[BaseNode]) -> list[TextNode]:
    """Sort a document's text nodes by their place in its source, as far as they know it, then by id."""
    texts = [node for node in nodes if isinstance(node, TextNode)]
    return sorted(texts, key=lambda node: (node.start_char_idx or 0, node.node_id))
