"""The strategies, each a LlamaIndex retriever over one index: what they need, what they cost, and how they are built.

A new one is one file in this folder, one member of ``Strategy`` and one row in ``_SPECS``; all else reads it here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from agentic_retriever.errors import NoEligibleStrategyError, UnknownStrategyError, unknown_name
from agentic_retriever.indices import Index
from agentic_retriever.indices.profile import MeasuredStrategies
from agentic_retriever.retrievers.base import (
    AdapterSettings,
    RetrievalRequest,
    RetrieverAdapter,
    SearchResult,
    details,
    source_scores,
)
from agentic_retriever.retrievers.chunk_decoupling import ChunkDecouplingRetriever
from agentic_retriever.retrievers.hybrid import DEFAULT_FUSION, FUSION_FILE, Fusion, FusionModel, HybridRetriever
from agentic_retriever.retrievers.metadata import CLEAR, MetadataRetriever, stated
from agentic_retriever.retrievers.planner import PlannerRetriever, split_question
from agentic_retriever.retrievers.recursive import RecursiveRetriever
from agentic_retriever.retrievers.summary import SummaryRetriever
from agentic_retriever.retrievers.vector import AskedRetriever, VectorRetriever
from agentic_retriever.schema import Strategy, StrategyCard, View

__all__ = [
    "CLEAR", "DEFAULT_FUSION", "FUSION_FILE", "REGISTRY", "AdapterSettings", "ChunkDecouplingRetriever", "Fusion",
    "FusionModel", "HybridRetriever", "MetadataRetriever", "PlannerRetriever", "RecursiveRetriever",
    "RetrievalRequest", "RetrieverAdapter", "SearchResult", "StrategySpec", "SummaryRetriever", "VectorRetriever",
    "add_spec", "build_adapter", "cards", "check_served", "details", "source_scores", "spec_of", "split_question",
    "stated", "unregister_strategy",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategySpec(StrategyCard):
    """A strategy with what builds it, its milliseconds those of a small index with a local embedding model."""

    build: Callable[[Index, AdapterSettings], RetrieverAdapter]


# Retriever, view that it reads beside the chunks, cost, milliseconds, description; in declared order of reliability.
_SPECS: Final[tuple[tuple[type[RetrieverAdapter], View | None, float, float, str], ...]] = (
    (VectorRetriever, None, 1.0, 20.0,
     "Nearest chunks by meaning; for plain questions in natural words."),
    (HybridRetriever, View.KEYWORD, 1.5, 25.0,
     "Meaning and exact words together; for codes, names, numbers, quotations and terms of the field."),
    (RecursiveRetriever, View.HIERARCHY, 2.0, 30.0,
     "Finds passages, merges them into their sections and follows references; for rules and provisions."),
    (ChunkDecouplingRetriever, View.HIERARCHY, 2.0, 30.0,
     "Searches sentences and returns what is around them; for a detail that needs its context."),
    (PlannerRetriever, View.KEYWORD, 4.0, 80.0,
     "Splits the question and merges what its parts find; for comparisons and several questions in one."),
    (MetadataRetriever, View.METADATA, 1.2, 25.0,
     "Filters by what the question says of fields; for places, kinds, years, amounts and ranges."),
    (SummaryRetriever, View.SUMMARY, 1.5, 25.0,
     "Chooses documents by their summaries, then chunks of these; for overviews and broad subjects."),
)  # fmt: skip

_registered: Final[dict[Strategy, StrategySpec]] = {
    build.strategy: StrategySpec(
        strategy=build.strategy,
        description=description,
        needs=(View.CHUNKS,) if view is None else (View.CHUNKS, view),
        cost=cost,
        typical_ms=typical_ms,
        build=build,
    )
    for build, view, cost, typical_ms, description in _SPECS
}

REGISTRY: Final[Mapping[Strategy, StrategySpec]] = MappingProxyType(_registered)
"""Every strategy that can be built, in declared order of reliability, then those that were added."""


def cards(index: Index, *, measured: MeasuredStrategies | None = None) -> tuple[StrategyCard, ...]:
    """Return a card for each strategy that the index can serve, in declared order, as measured where it was."""
    known = {} if measured is None else measured.strategies
    found: list[StrategyCard] = []
    specs = dict(REGISTRY)  # a copy, since another thread may be adding a strategy
    for strategy in index.served({strategy: card.needs for strategy, card in specs.items()}):
        card, one = specs[strategy], known.get(strategy)
        found.append(card if one is None else replace(card, typical_ms=one.p50_ms, quality=one.quality, measured=True))
    return tuple(found)


def check_served(strategy: Strategy, index: Index) -> None:
    if index.is_attached and not index.served({strategy: spec_of(strategy).needs}):
        served = ", ".join(card.strategy.value for card in cards(index)) or "none"
        raise NoEligibleStrategyError(
            f"index {index.name!r} cannot serve the strategy {strategy.value!r}; it serves: {served}"
        )


def build_adapter(strategy: Strategy | str, index: Index, settings: AdapterSettings) -> RetrieverAdapter:
    spec = spec_of(strategy)
    check_served(spec.strategy, index)
    return AskedRetriever(index, settings) if index.only_asked else spec.build(index, settings)


def spec_of(strategy: Strategy | str) -> StrategySpec:
    name = strategy.value if isinstance(strategy, Strategy) else str(strategy)
    for known, spec in tuple(REGISTRY.items()):
        if known.value == name:
            return spec
    raise UnknownStrategyError(unknown_name("strategy", name, (known.value for known in REGISTRY)))


def add_spec(spec: StrategySpec) -> None:
    """Add a strategy for the whole process, or replace one that was added before."""
    _registered[spec.strategy] = spec


def unregister_strategy(strategy: Strategy | str) -> None:
    """Take away a strategy that was added."""
    spec = spec_of(strategy)
    if spec.strategy in tuple(Strategy):
        raise UnknownStrategyError(f"strategy {spec.strategy.value!r} is one of the package's own, which stay")
    del _registered[spec.strategy]
