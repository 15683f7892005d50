"""What routing is measured on: profiles to choose from, and questions with their vectors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agentic_retriever.evaluation.descriptions import Description
    from agentic_retriever.evaluation.problems import ProblemReport
    from agentic_retriever.evaluation.routing import RoutedQuery
    from agentic_retriever.evaluation.vectors import Vector
    from agentic_retriever.indices import IndexProfile
    from agentic_retriever.schema import Complexity, StrategyCard

MOST_DOCUMENTS: Final = 256
"""Documents of a collection that are embedded when there are no vectors of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingOptions:
    """How routing is to be measured.

    Attributes:
        vectors: Folder with ``NAME.npz``, or one such file; ``None`` computes what is needed.
        descriptions: Descriptions by name of the collection, before those that the data sets bring.
        also: Further indexes of the data directory to choose from.
        most_documents: Documents of each collection to embed where there are no vectors, from 1.
        limit: Most questions of each data set, drawn by the seed; ``None`` takes all.
        seed: For whatever is drawn.
        complexity: Complexity by data set, for questions that do not say it.
    """

    vectors: Path | None = None
    descriptions: Mapping[str, str] = field(default_factory=dict)
    also: tuple[str, ...] = ()
    most_documents: int = MOST_DOCUMENTS
    limit: int | None = None
    seed: int = 0
    complexity: Mapping[str, Complexity] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingMaterial:
    """What routing is measured on.

    Attributes:
        profiles: The indexes to choose from, by name.
        cards: The strategies that each of them offers.
        queries: Questions for stage one, with their vectors.
        unlabelled: Questions that do not say which index is right; for the judgment of complexity only.
        descriptions: What each index is said to hold, and who says so.
        passages: Unit vector of each description as a passage; empty where they could not be had.
        datasets: Facts of each data set.
        problems: What was wrong with the data sets and their vectors.
        notes: What a reader of the result must know.
        seed: Of whatever was drawn.
    """

    profiles: Mapping[str, IndexProfile]
    cards: Mapping[str, tuple[StrategyCard, ...]]
    queries: tuple[RoutedQuery, ...]
    unlabelled: tuple[RoutedQuery, ...]
    descriptions: Mapping[str, Description]
    passages: Mapping[str, Vector]
    datasets: tuple[dict[str, Any], ...]
    problems: ProblemReport
    notes: tuple[str, ...]
    seed: int
