"""Which vectors stage one reads of an attached index, and what cosines are worth in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from agentic_retriever.embeddings import EmbeddingModel, embedding_name
from agentic_retriever.indices.profile import background, sample_ids
from agentic_retriever.threads import guarded

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from agentic_retriever.indices.attached.sources import NodeSource, Vectors
    from agentic_retriever.indices.ingest import Progress
    from agentic_retriever.indices.profile import ProfiledNode

    Matrix = npt.NDArray[np.float32]

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
class Sampler:
    """The models of an attached index.

    Attributes:
        router: The router's model, whose vectors stage one compares.
        own: The model that the index's vectors come from; ``None`` where it is not searched by vectors.
        batch_size: Passages embedded at a time.
    """

    router: EmbeddingModel
    own: EmbeddingModel | None = None
    batch_size: int = 16

    @property
    def shares(self) -> bool:
        """Whether the index's vectors come from the router's model."""
        return self.own is self.router

    def sample(
        self, nodes: Sequence[ProfiledNode], source: NodeSource, progress: Progress | None = None
    ) -> tuple[list[str], Matrix]:
        """Choose nodes and return their vectors by the router's model: stored ones where they are its, else new ones.

        Args:
            nodes: All nodes.
            source: Holds the stored vectors.
            progress: Hears how many passages are embedded.

        Returns:
            Ids, and unit vectors ``(n, dimension)`` in their order.

        Raises:
            EmbeddingError: If the passages could not be embedded.
            StoreError: If stored vectors could not be read.
        """
        node_ids = [node.node_id for node in nodes]
        if self.shares:
            found, rows = stored_vectors(source, sample_ids(node_ids))
            if found:
                return found, rows
        texts = {node.node_id: node.text[:MAX_PASSAGE_CHARS] for node in nodes}
        chosen = sample_ids(node_ids, MAX_EMBEDDED)
        return chosen, self._embedded(self.router, [texts[i] for i in chosen], progress)

    def background(
        self, nodes: Sequence[ProfiledNode], source: NodeSource, progress: Progress | None = None
    ) -> tuple[float, float] | None:
        """Return mean and deviation of the cosine of unrelated nodes by the index's own model, if that is another one.

        Raises:
            EmbeddingError: If passages had to be embedded and could not.
            StoreError: If stored vectors could not be read.
        """
        if self.own is None or self.shares:
            return None
        node_ids = [node.node_id for node in nodes]
        rows = stored_vectors(source, sample_ids(node_ids, _READ_FOR_BACKGROUND))[1]
        if not len(rows):
            chosen = set(sample_ids(node_ids, MAX_MEASURED))
            texts = [node.text[:MAX_PASSAGE_CHARS] for node in nodes if node.node_id in chosen]
            rows = self._embedded(self.own, texts, progress)
        return background(rows)

    def _embedded(self, model: EmbeddingModel, texts: Sequence[str], progress: Progress | None) -> Matrix:
        """Embed passages without a trace on the disk."""
        if progress is not None:
            progress.nodes(len(texts))
        parts = []
        for at in range(0, len(texts), self.batch_size):
            part = texts[at : at + self.batch_size]
            parts.append(model.embed_sentences(part))
            if progress is not None:
                progress.nodes_done(len(part))
        return np.concatenate(parts) if parts else np.empty((0, 0), dtype=np.float32)


def stored_vectors(source: NodeSource, node_ids: Sequence[str]) -> Vectors:
    """Read stored vectors.

    Raises:
        StoreError: If they could not be read.
    """
    return guarded("reading stored vectors", lambda: source.vectors(node_ids))


def is_same_model(own: EmbeddingModel, router: EmbeddingModel) -> bool:
    """Tell whether two models are one: the same object, or the same name and the same vector for one text.

    Raises:
        EmbeddingError: If one of them could not embed it.
    """
    if own.base is router.base:
        return True
    if embedding_name(own.base) != router.name:
        return False
    left, right = own.embed_query(_SAME_TEXT), router.embed_query(_SAME_TEXT)
    return left.shape == right.shape and float(left @ right) >= _SAME_COSINE
