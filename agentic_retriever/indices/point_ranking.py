"""From points that an engine found to hits in order; the same for the engine in this process and on a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from agentic_retriever.indices.edge_payload import payload_fields, stored_node, stored_node_id
from agentic_retriever.indices.point_reading import HasPayload, warn_of_foreign

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from llama_index.core.schema import BaseNode

    from agentic_retriever.filters import Predicate

    Ranked = tuple[float, str, Mapping[str, Any]]


class Scored(HasPayload, Protocol):
    """A point that was found."""

    @property
    def score(self) -> float:
        """How good, the higher the better."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A node that was found.

    Attributes:
        node: The node.
        score: Cosine with the query, in [-1, 1], or BM25's score.
    """

    node: BaseNode
    score: float


def rank(points: Sequence[Scored], accepts: Predicate, *, whole: bool) -> tuple[list[Ranked], int]:
    """Put points in order.

    Args:
        points: Points by falling score, with their payload.
        accepts: Decides on the metadata of a point.
        whole: Whether there are no more than these; else those with the lowest score are left out, for more points may
            have it, and cannot be put in order yet.

    Returns:
        Score, node id and payload, by falling score and then by id; and how many points are not ours.
    """
    floor = float("-inf") if whole or not points else points[-1].score
    ranked: list[Ranked] = []
    foreign = 0
    for point in points:
        if point.score <= floor:
            break
        payload = point.payload or {}
        node_id = stored_node_id(payload)
        if node_id is None:
            foreign += 1
        elif accepts(payload_fields(payload)):
            ranked.append((point.score, node_id, payload))
    ranked.sort(key=lambda item: (-item[0], item[1]))
    return ranked, foreign


def ranked_hits(points: Sequence[Scored], whole: bool, *, accepts: Predicate, top_k: int) -> tuple[list[Hit], int]:
    """Put points in order and read the first ``top_k``; otherwise as :func:`rank` and :func:`read_hits`."""
    ranked, foreign = rank(points, accepts, whole=whole)
    return read_hits(ranked, top_k), foreign


def read_hits(ranked: Iterable[Ranked], top_k: int) -> list[Hit]:
    """Read the nodes of the first points; broken ones are left out with one warning.

    Args:
        ranked: Points in order.
        top_k: How many nodes at most.

    Returns:
        The nodes with their scores.
    """
    hits: list[Hit] = []
    broken = 0
    for score, _, payload in ranked:
        if len(hits) == top_k:
            break
        node = stored_node(payload)
        if node is None:
            broken += 1
        else:
            hits.append(Hit(node, score))
    warn_of_foreign(broken)
    return hits
