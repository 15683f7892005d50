"""The profile of a stored index, made from its nodes and saved beside them."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from agentic_retriever.errors import DeadlineExceededError, EmbeddingError, StoreError
from agentic_retriever.indices.node_text import embedded_text
from agentic_retriever.indices.profile import IndexProfile, ProfiledNode, make_profile, sample_ids

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from agentic_retriever.indices.index import Index

logger = logging.getLogger(__name__)


def index_profile(index: Index, version: int) -> IndexProfile:
    """Return the profile of a version: the saved one, else a new one.

    Args:
        index: The index.
        version: Its version now.

    Raises:
        StoreError: If the nodes cannot be read.
    """
    saved = IndexProfile.load(index.folder, version=version, description=index.description)
    return saved or _made(index, version)


def _made(index: Index, version: int) -> IndexProfile:
    nodes = [ProfiledNode(node.node_id, embedded_text(node), node.metadata) for node in index.known_nodes()]
    chosen = sample_ids([node.node_id for node in nodes])
    sample = index.vector_store.vectors(chosen)[1] if chosen else np.empty((0, index.manifest.dimension))
    described = _embedded_description(index)
    profile = make_profile(
        nodes,
        np.asarray(sample, dtype=np.float32),
        name=index.name,
        description=index.description,
        description_vector=np.empty(0, dtype=np.float32) if described is None else described,
        version=version,
    )
    if index.is_remote:
        profile = replace(profile, nodes=index.count())  # it may have been made from a part of them
    if described is not None or not index.description:
        save_derived(index, lambda: profile.save(index.folder), "profile")
    return profile


def _embedded_description(index: Index) -> npt.NDArray[np.float32] | None:
    """Embed the description; without it the rest of the profile still tells the indexes apart."""
    if not index.description:
        return None
    try:
        return index.embedding.embed_query(index.description)
    except (EmbeddingError, DeadlineExceededError) as err:
        logger.warning("index %r: its description could not be embedded: %s", index.name, err)
        return None


def save_derived(index: Index, save: Callable[[], None], what: str) -> None:
    """Save a derived view; without it the index works just as well, only the next start is slower."""
    try:
        save()
    except StoreError as err:
        logger.warning("index %r: the %s could not be saved (%s); it is built again next time", index.name, what, err)
