"""Bringing a derived view up to date by difference."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.schema import MetadataMode, TextNode

from agentic_retriever.errors import StoreError
from agentic_retriever.indices.view_state import DocumentState, ViewState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from llama_index.core.schema import BaseNode

    from agentic_retriever.indices.index import Index
    from agentic_retriever.indices.ingest import Progress
    from agentic_retriever.indices.node_store import NodeStore

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
    """How a view is made.

    Attributes:
        derive: Makes the view's nodes from a document's id and its chunks, given in reading order.
        is_outdated: Tells from the facts of an unchanged document whether it is to be derived again all the same.
        batch_nodes: Nodes that are embedded and written together.
    """

    derive: Callable[[str, Sequence[TextNode]], Derived]
    is_outdated: Callable[[Mapping[str, Any]], bool] = lambda _facts: False
    batch_nodes: int = BATCH_NODES


class ViewUpdate:
    """One run over what differs between an index and a view of it.

    Attributes:
        documents: What the view holds of each document; grows as the run goes on.
        changes: How many documents have to be derived again or dropped.
    """

    def __init__(
        self,
        index: Index,
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
        """Make the changes.

        Args:
            save: Saves an unfinished state.
            check: Called before each document; raises when there is to be an end.

        Raises:
            EmbeddingError: If nodes could not be embedded; what was done before is saved.
            StoreError: If the disk failed.
        """
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
