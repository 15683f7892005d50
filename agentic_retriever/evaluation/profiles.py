"""The profile of an index that is not built: what stage one would know of a collection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from agentic_retriever.embeddings import PackedVectors, text_hash
from agentic_retriever.errors import EvaluationError
from agentic_retriever.evaluation.vectors import passage
from agentic_retriever.indices import embedded_text
from agentic_retriever.indices.profile import SAMPLE_SIZE, ProfiledNode, make_profile, sample_ids
from agentic_retriever.ingestion import ChunkSettings, SourceDocument, chunk_document, discover, read_source
from agentic_retriever.sample import SAMPLE_INDEXES, VECTORS

if TYPE_CHECKING:
    import numpy.typing as npt

    from agentic_retriever.evaluation.datasets import Dataset
    from agentic_retriever.evaluation.vectors import KnownVectors, Vector
    from agentic_retriever.indices import IndexProfile

    Matrix = npt.NDArray[np.float32]

SAMPLE_EMBEDDING: Final = "local:multilingual-e5-small-q4"
"""Identity of the embedding model that the sample's vectors come from."""

_NONE: Final = np.zeros(0, np.float32)


def dataset_profile(
    dataset: Dataset,
    known: KnownVectors | None,
    *,
    description: str = "",
    description_vector: Vector | None = None,
    sample_size: int = SAMPLE_SIZE,
) -> IndexProfile:
    """Make the profile of a BEIR folder: one node a document, as an index of short documents would have.

    Args:
        dataset: The folder.
        known: Vectors of its documents; ``None`` leaves the profile without a sample.
        description: What the collection holds.
        description_vector: Its unit vector, ``(dimension,)``, or ``None``.
        sample_size: Most documents in the sample; which they are depends on their ids alone.

    Returns:
        The profile, of version 1.
    """
    texts = {document.doc_id: passage(document) for document in dataset.documents}
    nodes = [
        ProfiledNode(document.doc_id, texts[document.doc_id], document.metadata)
        for document in dataset.documents
        if texts[document.doc_id]
    ]
    vectors = known.documents if known is not None else {}
    chosen = sample_ids([node.node_id for node in nodes if node.node_id in vectors], size=sample_size)
    dimension = known.dimension if known is not None else 0
    sample = np.stack([vectors[doc_id] for doc_id in chosen]) if chosen else np.zeros((0, dimension), np.float32)
    return make_profile(
        nodes,
        sample,
        name=dataset.name,
        description=description,
        description_vector=_NONE if description_vector is None else description_vector,
        version=1,
    )


def sample_profile(name: str, *, description_vector: Vector | None = None) -> IndexProfile:
    """Make the profile of an index of the sample corpus from the vectors that ship with it; nothing is built.

    Args:
        name: Name of the sample index.
        description_vector: Unit vector of its description, or ``None``.

    Returns:
        The profile, of version 1.

    Raises:
        EvaluationError: If there is no sample index of that name, or its vectors are not those of its text.
    """
    sample = next((index for index in SAMPLE_INDEXES if index.name == name), None)
    if sample is None:
        known = ", ".join(index.name for index in SAMPLE_INDEXES)
        raise EvaluationError(f"the sample has no index {name[:80]!r} (it has {known})")
    found = [document for file in discover(sample.folder) for document in read_source(file, root=sample.folder)]
    documents = [document for document in found if isinstance(document, SourceDocument)]
    nodes = [node for document in documents for node in chunk_document(document, ChunkSettings())]
    texts = {node.node_id: embedded_text(node) for node in nodes}
    chosen = sample_ids(list(texts))
    hashes = [text_hash(texts[node_id]) for node_id in chosen]
    packed = PackedVectors(VECTORS).get_many(SAMPLE_EMBEDDING, hashes)
    if not all(key in packed for key in hashes):
        raise EvaluationError(f"the packed vectors of the sample index {name!r} are not those of its text; pack anew")
    return make_profile(
        [ProfiledNode(node.node_id, texts[node.node_id], node.metadata) for node in nodes],
        np.stack([packed[key] for key in hashes]),
        name=name,
        description=sample.description,
        description_vector=_NONE if description_vector is None else description_vector,
        version=1,
    )
