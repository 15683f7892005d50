"""What is derived in memory from one version of an attached index: words, metadata and profile."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from agentic_retriever.errors import DeadlineExceededError, EmbeddingError
from agentic_retriever.indices.keyword import KeywordIndex
from agentic_retriever.indices.node_text import embedded_text
from agentic_retriever.indices.prefilter.index import MetadataIndex
from agentic_retriever.indices.prefilter.view import SOURCE_ALIASES
from agentic_retriever.indices.profile import IndexProfile, ProfiledNode, make_profile
from agentic_retriever.indices.specimens import draw_specimens
from agentic_retriever.text import Tokenizer
from agentic_retriever.threads import guarded

if TYPE_CHECKING:
    import numpy.typing as npt

    from agentic_retriever.embeddings import EmbeddingModel
    from agentic_retriever.indices.attached.sampling import Sampler
    from agentic_retriever.indices.attached.sources import NodeSource
    from agentic_retriever.indices.ingest import Progress

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The derived views of one version.

    Attributes:
        version: The version.
        doc_ids: Ids of the source documents, in order; of a node without one, its own.
        keyword: The BM25 view.
        metadata: The prefilter.
        profile: What stage one reads; vectors by the router's model.
        background: Mean and deviation of the cosine of unrelated nodes by the index's own model; ``None`` where the
            profile's are those.
        dimension: Length of the stored vectors, or ``None`` where they cannot be read.
        sampled: Ids of the nodes whose vectors the profile has.
    """

    version: int
    doc_ids: tuple[str, ...]
    keyword: KeywordIndex
    metadata: MetadataIndex
    profile: IndexProfile
    background: tuple[float, float] | None
    dimension: int | None
    sampled: tuple[str, ...]

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return self.profile.nodes


@dataclass(frozen=True, slots=True)
class SnapshotReader:
    """Reads an attached index.

    Attributes:
        name: Its name.
        description: What it holds.
        source: Where its nodes are.
        sampler: Its models.
    """

    name: str
    description: str
    source: NodeSource
    sampler: Sampler

    def read(self, version: int, *, before: Snapshot | None = None, progress: Progress | None = None) -> Snapshot:
        """Read all nodes and derive the views.

        Args:
            version: The version that is read.
            before: The snapshot of an earlier version, whose sample stays where a new one cannot be embedded.
            progress: Hears how many passages are embedded.

        Raises:
            StoreError: If the nodes cannot be read.
            EmbeddingError: If the sample could not be embedded and there is none from before.
        """
        nodes, sources = self._nodes()
        found = ((node.node_id, {**node.metadata, "doc_id": sources[node.node_id]}) for node in nodes)
        profile, sampled, background = self._profile(nodes, version, before, progress)
        tokenizer = Tokenizer(language=profile.language)
        return Snapshot(
            version=version,
            doc_ids=tuple(sorted({doc_id or node_id for node_id, doc_id in sources.items()})),
            keyword=KeywordIndex.build(
                ((node.node_id, node.text) for node in nodes), tokenizer=tokenizer, version=version
            ),
            metadata=MetadataIndex.build(found, version, aliases=SOURCE_ALIASES),
            profile=profile,
            background=background,
            dimension=self._dimension(nodes),
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

    def _profile(
        self, nodes: list[ProfiledNode], version: int, before: Snapshot | None, progress: Progress | None
    ) -> tuple[IndexProfile, list[str], tuple[float, float] | None]:
        try:
            sampled, rows = self.sampler.sample(nodes, self.source, progress)
            background = self.sampler.background(nodes, self.source, progress)
        except (EmbeddingError, DeadlineExceededError) as err:
            if before is None:
                raise
            logger.warning("index %r: the sample for routing stays as it was: %s", self.name, err)
            sampled, rows, background = list(before.sampled), before.profile.sample, before.background
        described = described_by(self.sampler.router, self.name, self.description)
        profile = make_profile(
            nodes, rows, name=self.name, description=self.description, description_vector=described, version=version
        )
        here = {node.node_id for node in nodes}
        # Rows of the sample whose nodes are gone have no sentences to draw.
        specimens = draw_specimens(nodes, sampled, rows=len(rows)) if here.issuperset(sampled) else ()
        return replace(profile, specimens=specimens), sampled, background

    def _dimension(self, nodes: list[ProfiledNode]) -> int | None:
        first = [node.node_id for node in nodes[:1]]
        rows = guarded("reading a stored vector", lambda: self.source.vectors(first))[1]
        return rows.shape[1] if len(rows) else None


def described_by(model: EmbeddingModel, name: str, description: str) -> npt.NDArray[np.float32]:
    """Embed a description; without its vector the rest of the profile still tells the indexes apart."""
    if description:
        try:
            return model.embed_query(description)
        except (EmbeddingError, DeadlineExceededError) as err:
            logger.warning("index %r: its description could not be embedded: %s", name, err)
    return np.empty(0, dtype=np.float32)
