"""A retriever or query engine as an index of a router: it is asked, and nothing else is known of it."""

from __future__ import annotations

import copy
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle

from agentic_retriever.errors import StoreError
from agentic_retriever.indices.attached.snapshot import described_by
from agentic_retriever.indices.attached.sources import NoNodes
from agentic_retriever.indices.attached.store import AttachedVectorStore
from agentic_retriever.indices.index import Index
from agentic_retriever.indices.profile import ProfiledNode, make_profile
from agentic_retriever.schema import Strategy, View
from agentic_retriever.threads import guarded

if TYPE_CHECKING:
    from collections.abc import Collection

    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.vector_stores.types import BasePydanticVectorStore

    from agentic_retriever.embeddings import EmbeddingModel
    from agentic_retriever.indices.attached.recognition import Recognised
    from agentic_retriever.indices.attached.sources import NodeSource
    from agentic_retriever.indices.keyword import KeywordIndex
    from agentic_retriever.indices.profile import IndexProfile


class AttachedRetriever(Index):
    """A LlamaIndex retriever or query engine that a router asks; safe to use from many threads if that one is.

    Its profile is its description. Nothing tells when its nodes change, so its version is constant until
    :meth:`refresh` is called; until then answers stay in the cache for their time to live.
    """

    is_attached = True
    only_asked = True

    def __init__(
        self, *, name: str, description: str, created: str, recognised: Recognised, embedding: EmbeddingModel
    ) -> None:
        self.name = name
        self.description = description
        self.created = created
        self.kind = recognised.kind
        self.embedding = embedding
        self.source: NodeSource = NoNodes()
        #: Has no nodes, so that what is done with neighbours and vectors of nodes finds none.
        self.vector_store: BasePydanticVectorStore = AttachedVectorStore(self, None)
        self._retriever = recognised.retriever
        self._lock = threading.Lock()
        self._version = 1
        self._profile: IndexProfile | None = None

    @property
    def version(self) -> int:
        """Grows with every call of :meth:`refresh`."""
        return self._version

    @property
    def views(self) -> frozenset[View]:
        """None: it has no nodes to read."""
        return frozenset()

    @property
    def dimension(self) -> int | None:
        """Not known."""
        return None

    def keyword(self) -> KeywordIndex:
        """Refuse: there are no nodes to read."""
        raise self._unlisted()

    def serves(self, strategy: Strategy, needs: Collection[View]) -> bool:  # noqa: ARG002 - as other indexes
        """Tell whether it can serve a strategy: ``vector``, by being asked."""
        return strategy is Strategy.VECTOR

    def refresh(self) -> None:
        """Count as changed."""
        with self._lock:
            self._version += 1

    def count(self) -> int:
        """Return 1: how many nodes there are is not known, and an index without any would never be chosen."""
        return 1

    def profile(self) -> IndexProfile:
        """Return a profile made from the description alone."""
        known, version = self._profile, self._version
        if known is None or known.version != version:
            vector = described_by(self.embedding, self.name, self.description)
            made = make_profile(
                [ProfiledNode(self.name, self.description, {})],
                vector[None, :] if len(vector) else np.empty((0, 0), dtype=np.float32),
                name=self.name,
                description=self.description,
                description_vector=vector,
                version=version,
            )
            known = replace(made, whole=False)
            if len(vector):
                self._profile = known
        return known

    def ask(self, query: str, depth: int) -> list[NodeWithScore]:
        """Ask for nodes."""
        retriever = deepened(self._retriever, depth)
        what = f"the {self.kind} of index {self.name}"
        found = guarded(what, lambda: _retrieved(retriever, query))
        if found is None:
            found = []
        if not isinstance(found, (list, tuple)):
            raise StoreError(f"{what} returned {type(found).__name__}; a list of NodeWithScore is needed")
        nodes = [node for node in map(_as_scored, found) if node is not None]
        if any(one is not None for one in found) and not nodes:
            first = next(type(one).__name__ for one in found if one is not None)
            raise StoreError(f"{what} returned a list of {first}; a list of NodeWithScore is needed")
        if all(node.score is None for node in nodes):
            return [NodeWithScore(node=node.node, score=1 / (at + 1)) for at, node in enumerate(nodes)]
        return nodes

    def _unlisted(self) -> StoreError:
        return StoreError(
            f"index {self.name!r} is a {self.kind}, whose nodes cannot be listed; register its index instead, "
            "or use the strategy vector"
        )


def deepened(retriever: Any, depth: int) -> Any:  # noqa: ANN401 - a retriever or query engine of any class
    """Return a retriever that gives at least so many nodes where that can be asked for: itself, or a copy."""
    inner = getattr(retriever, "_retriever", None) if isinstance(retriever, BaseQueryEngine) else None
    if inner is not None:
        deeper = deepened(inner, depth)
        if deeper is inner:
            return retriever
        changed = copy.copy(retriever)
        changed._retriever = deeper  # noqa: SLF001 - LlamaIndex's engines offer no other way that keeps the rest
        return changed
    wanted = getattr(retriever, "similarity_top_k", None)
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted >= depth:
        return retriever
    changed = copy.copy(retriever)
    try:
        changed.similarity_top_k = depth
    except AttributeError:  # a property without a setter
        return retriever
    return changed


def _retrieved(retriever: BaseRetriever | BaseQueryEngine | None, query: str) -> object:
    return None if retriever is None else retriever.retrieve(QueryBundle(query))


def _as_scored(found: object) -> NodeWithScore | None:
    if isinstance(found, NodeWithScore):
        return found
    return NodeWithScore(node=found) if isinstance(found, BaseNode) else None
