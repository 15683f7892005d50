"""What is derived in memory from one version of an attached index: words, metadata and profile."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from agentic_retriever.embeddings import EmbeddingModel, embedding_name
from agentic_retriever.errors import DeadlineExceededError, EmbeddingError
from agentic_retriever.indices.attached.sources import NodeSource, Vectors
from agentic_retriever.indices.derived import Progress, SilentProgress
from agentic_retriever.indices.keyword import KeywordIndex
from agentic_retriever.indices.prefilter import SOURCE_ALIASES, MetadataIndex
from agentic_retriever.indices.profile import (
    IndexProfile,
    ProfiledNode,
    background,
    embed_description,
    make_profile,
    sample_ids,
)
from agentic_retriever.stores.payload import embedded_text
from agentic_retriever.text import Tokenizer
from agentic_retriever.threads import guarded

Matrix: TypeAlias = "npt.NDArray[np.float32]"

logger = logging.getLogger(__name__)

MAX_EMBEDDED: Final = 100
"""Passages that are embedded for stage one, where the vectors of the index are of another model than the router's."""

MAX_PASSAGE_CHARS: Final = 1_000
MAX_MEASURED: Final = 32
"""Passages that are embedded by the index's own model to learn what its cosines are worth, where its vectors cannot be
read."""

_READ_FOR_BACKGROUND: Final = 256
_SAME_TEXT: Final = "are these two models the same?"
_SAME_COSINE: Final = 0.999


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The derived views of one version."""

    version: int
    doc_ids: tuple[str, ...]
    keyword: KeywordIndex
    metadata: MetadataIndex
    profile: IndexProfile
    background: tuple[float, float] | None
    dimension: int | None  # Length of the stored vectors, or None where they cannot be read
    sampled: tuple[str, ...]

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return self.profile.nodes


@dataclass(frozen=True, slots=True)
class SnapshotReader:
    """Reads an attached index; ``own`` is the embedding model of its vectors, if it has one."""

    name: str
    description: str
    source: NodeSource
    router: EmbeddingModel
    own: EmbeddingModel | None = None

    def read(self, version: int, *, before: Snapshot | None = None, progress: Progress | None = None) -> Snapshot:
        """Read all nodes and derive the views."""
        nodes, sources = self._nodes()
        found = ((node.node_id, {**node.metadata, "doc_id": sources[node.node_id]}) for node in nodes)
        try:
            sampled, rows = self._sample(nodes, progress or SilentProgress())
            cosines = self._background(nodes, progress or SilentProgress())
        except (EmbeddingError, DeadlineExceededError) as err:
            if before is None:
                raise
            logger.warning("index %r: the sample for routing stays as it was: %s", self.name, err)
            sampled, rows, cosines = list(before.sampled), before.profile.sample, before.background
        profile = make_profile(
            nodes,
            rows,
            name=self.name,
            description=self.description,
            description_vector=embed_description(self.router, self.name, self.description),
            version=version,
        )
        tokenizer = Tokenizer(language=profile.language)
        first = stored_vectors(self.source, [node.node_id for node in nodes[:1]])[1]
        return Snapshot(
            version=version,
            doc_ids=tuple(sorted({doc_id or node_id for node_id, doc_id in sources.items()})),
            keyword=KeywordIndex.build(
                ((node.node_id, node.text) for node in nodes), tokenizer=tokenizer, version=version
            ),
            metadata=MetadataIndex.build(found, version, aliases=SOURCE_ALIASES),
            profile=profile,
            background=cosines,
            dimension=first.shape[1] if len(first) else None,
            sampled=tuple(sampled),
        )

    def _nodes(self) -> tuple[list[ProfiledNode], dict[str, str | None]]:
        """Read all nodes, each id once, and the ids of their source documents."""

        def read() -> tuple[list[ProfiledNode], dict[str, str | None]]:
            nodes: list[ProfiledNode] = []
            sources: dict[str, str | None] = {}
            for node in self.source.nodes():
                if node.node_id not in sources:
                    sources[node.node_id] = node.ref_doc_id
                    nodes.append(ProfiledNode(node.node_id, embedded_text(node), dict(node.metadata)))
            return nodes, sources

        return guarded(f"reading the nodes of index {self.name}", read)

    def _sample(self, nodes: Sequence[ProfiledNode], progress: Progress) -> tuple[list[str], Matrix]:
        """Choose nodes and return their vectors by the router's model: stored ones where they are its."""
        node_ids = [node.node_id for node in nodes]
        if self.own is self.router:
            found, rows = stored_vectors(self.source, sample_ids(node_ids))
            if found:
                return found, rows
        texts = {node.node_id: node.text for node in nodes}
        chosen = sample_ids(node_ids, MAX_EMBEDDED)
        return chosen, self._embedded(self.router, [texts[i] for i in chosen], progress)

    def _background(self, nodes: Sequence[ProfiledNode], progress: Progress) -> tuple[float, float] | None:
        """Return mean and deviation of the cosine of unrelated nodes by the index's own model, if it is another."""
        if self.own is None or self.own is self.router:
            return None
        node_ids = [node.node_id for node in nodes]
        rows = stored_vectors(self.source, sample_ids(node_ids, _READ_FOR_BACKGROUND))[1]
        if not len(rows):
            chosen = set(sample_ids(node_ids, MAX_MEASURED))
            rows = self._embedded(self.own, [node.text for node in nodes if node.node_id in chosen], progress)
        return background(rows)

    def _embedded(self, model: EmbeddingModel, texts: Sequence[str], progress: Progress) -> Matrix:
        """Embed the beginnings of passages without a trace on the disk."""
        progress.nodes(len(texts))
        parts, size = [], self.router.batch_size
        for at in range(0, len(texts), size):
            part = [text[:MAX_PASSAGE_CHARS] for text in texts[at : at + size]]
            parts.append(model.embed_sentences(part))
            progress.nodes_done(len(part))
        return np.concatenate(parts) if parts else np.empty((0, 0), dtype=np.float32)


def stored_vectors(source: NodeSource, node_ids: Sequence[str]) -> Vectors:
    """Read stored vectors."""
    return guarded("reading stored vectors", lambda: source.vectors(node_ids))


def is_same_model(own: EmbeddingModel, router: EmbeddingModel) -> bool:
    """Tell whether two models are one: the same object, or the same name and the same vector for one text."""
    if own.base is router.base:
        return True
    if embedding_name(own.base) != router.name:
        return False
    left, right = own.embed_query(_SAME_TEXT), router.embed_query(_SAME_TEXT)
    return left.shape == right.shape and float(left @ right) >= _SAME_COSINE
