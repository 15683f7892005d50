"""The LlamaIndex indexes, query engines and retrievers that were registered with a router."""

from __future__ import annotations

import threading
import time
import uuid
from typing import TYPE_CHECKING

from agentic_retriever.embeddings import EmbeddingModel, embedding_name
from agentic_retriever.errors import IndexExistsError, IndexingError
from agentic_retriever.indices import IngestReport
from agentic_retriever.indices.attached import AttachedIndex, attach_index, recognise
from agentic_retriever.indices.manifest import check_index_name
from agentic_retriever.schema import Degradation

if TYPE_CHECKING:
    from typing import TypeAlias

    from llama_index.core.base.embeddings.base import BaseEmbedding

    from agentic_retriever.config import RouterConfig
    from agentic_retriever.indices import Progress
    from agentic_retriever.indices.attached import AttachedRetriever
    from agentic_retriever.router.resources import Resources

    Attached: TypeAlias = AttachedIndex | AttachedRetriever


class AttachedIndexes:
    """The attached indexes of one router, by name; safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, Attached] = {}

    def names(self) -> list[str]:
        """Return their names."""
        return list(self._known)

    def get(self, name: str) -> Attached | None:
        """Return one, or ``None``."""
        return self._known.get(name)

    def add(self, index: Attached) -> None:
        """Add one.

        Raises:
            IndexExistsError: If the name is taken.
        """
        with self._lock:
            if index.name in self._known:
                raise _taken(index.name)
            self._known[index.name] = index

    def remove(self, name: str) -> bool:
        """Let go of one, and tell whether there was one."""
        with self._lock:
            return self._known.pop(name, None) is not None

    def catch_up(self, name: str | None, timeout_s: float) -> tuple[Degradation, ...]:
        """Take notice of changes.

        Args:
            name: Of the only index that is wanted; ``None`` for all.
            timeout_s: Seconds to wait at most; reading goes on after them.

        Returns:
            What is still as it was before, and why.
        """
        end, late = time.monotonic() + timeout_s, []
        for index in list(self._known.values()):
            if isinstance(index, AttachedIndex) and name in {None, index.name}:
                reason = index.catch_up(end - time.monotonic())
                if reason is not None:
                    fallback = "its nodes as they were read last"
                    late.append(Degradation(step=f"index.{index.name}", reason=reason, fallback=fallback))
        return tuple(late)

    def refuse(self, name: str) -> None:
        """See that a name is not that of an attached index.

        Raises:
            IndexingError: If it is.
        """
        if name in self._known:
            raise IndexingError(
                f"index {name!r} is an attached LlamaIndex index: change it through LlamaIndex; it has no files, "
                "documents or views of its own"
            )


def attach(
    resources: Resources, name: str, given: object, *, description: str, progress: Progress | None
) -> IngestReport:
    """Attach an index to a router.

    Args:
        resources: The parts of the router.
        name: Name that it is to have.
        given: A LlamaIndex index, query engine or retriever.
        description: What it holds.
        progress: Hears how many passages are embedded for routing.

    Returns:
        How many documents and nodes there are; both 0 for a retriever, which does not tell.

    Raises:
        IndexExistsError: If the name is taken.
        IndexingError: If the name or the object cannot be used.
        EmbeddingError: If passages could not be embedded.
        StoreError: If the nodes cannot be read.
    """
    name = check_index_name(name)
    if name in resources.names():
        raise _taken(name)
    if _asks_itself(resources, given):
        raise IndexingError(f"index {name!r}: a {type(given).__name__} of this router would ask itself without end")
    made = attach_index(
        name,
        recognise(name, given),
        description=description,
        created=uuid.uuid4().hex,
        router=resources.embedding(),
        wrap=lambda base: _model(base, resources.config),
        progress=progress,
    )
    resources.attached.add(made)
    return IngestReport(added=len(made.doc_ids()), nodes=made.count() if made.doc_ids() else 0)


def _asks_itself(resources: Resources, given: object) -> bool:
    """Tell whether an object, or the retriever in it, is this router in LlamaIndex's clothes."""
    asked = (given, getattr(given, "_retriever", None))
    return any(getattr(getattr(one, "_router", None), "resources", None) is resources for one in asked)


def _model(base: BaseEmbedding, config: RouterConfig) -> EmbeddingModel:
    """Wrap the embedding of an attached index; what it makes is kept in memory only."""
    return EmbeddingModel(
        base,
        name=embedding_name(base),
        batch_size=config.embedding_batch_size,
        timeout_s=config.embedding_timeout_s,
        memory_size=config.embedding_cache_size,
        memory_ttl_s=config.embedding_cache_ttl_s,
    )


def _taken(name: str) -> IndexExistsError:
    return IndexExistsError(f"index {name!r} exists already; take another name, or remove_index({name!r}) first")
