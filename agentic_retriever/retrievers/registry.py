"""The strategies that can be used: what they need, what they cost, and how they are built.

A new strategy is one file beside this one, one member of ``Strategy`` and one line in ``REGISTRY``; routing, the
command line and the contract suite read it from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from agentic_retriever.errors import UnknownStrategyError, unknown_name
from agentic_retriever.retrievers.chunk_decoupling import ChunkDecouplingRetriever
from agentic_retriever.retrievers.hybrid import HybridRetriever
from agentic_retriever.retrievers.metadata import MetadataRetriever
from agentic_retriever.retrievers.planner import PlannerRetriever
from agentic_retriever.retrievers.recursive import RecursiveRetriever
from agentic_retriever.retrievers.search import HasViews
from agentic_retriever.retrievers.summary import SummaryRetriever
from agentic_retriever.retrievers.vector import VectorRetriever
from agentic_retriever.schema import Strategy, StrategyCard, View

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agentic_retriever.indices.measured import MeasuredStrategies, StrategyMeasure
    from agentic_retriever.retrievers.base import RetrieverAdapter
    from agentic_retriever.retrievers.search import AdapterSettings, SearchableIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategySpec:
    """What is known of a strategy without any index.

    Attributes:
        strategy: Which one.
        description: When to use it, one line; selectors and people read it.
        needs: The views of an index that it reads.
        cost: Relative work of one query; ``vector`` is 1.
        typical_ms: Typical latency in milliseconds on a small index with a local embedding model.
        build: Makes the retriever for an index.
    """

    strategy: Strategy
    description: str
    needs: tuple[View, ...]
    cost: float
    typical_ms: float
    build: Callable[[SearchableIndex, AdapterSettings], RetrieverAdapter]

    def card(self, measure: StrategyMeasure | None = None) -> StrategyCard:
        """Return what stage two knows of the strategy, with quality and latency as measured if they were."""
        return StrategyCard(
            strategy=self.strategy,
            description=self.description,
            needs=self.needs,
            cost=self.cost,
            typical_ms=self.typical_ms if measure is None else measure.p50_ms,
            quality=None if measure is None else measure.quality,
            measured=measure is not None,
        )


_SPECS: Final = (
    StrategySpec(
        strategy=Strategy.VECTOR,
        description="Nearest chunks by meaning; for plain questions in natural words.",
        needs=(View.CHUNKS,),
        cost=1.0,
        typical_ms=20.0,
        build=VectorRetriever,
    ),
    StrategySpec(
        strategy=Strategy.HYBRID,
        description="Meaning and exact words together; for codes, names, numbers, quotations and terms of the field.",
        needs=(View.CHUNKS, View.KEYWORD),
        cost=1.5,
        typical_ms=25.0,
        build=HybridRetriever,
    ),
    StrategySpec(
        strategy=Strategy.RECURSIVE,
        description="Finds passages, merges them into their sections and follows references; for rules and provisions.",
        needs=(View.CHUNKS, View.HIERARCHY),
        cost=2.0,
        typical_ms=30.0,
        build=RecursiveRetriever,
    ),
    StrategySpec(
        strategy=Strategy.CHUNK_DECOUPLING,
        description="Searches sentences and returns what is around them; for a detail that needs its context.",
        needs=(View.CHUNKS, View.HIERARCHY),
        cost=2.0,
        typical_ms=30.0,
        build=ChunkDecouplingRetriever,
    ),
    StrategySpec(
        strategy=Strategy.PLANNER,
        description="Splits the question and merges what its parts find; for comparisons and several questions in one.",
        needs=(View.CHUNKS, View.KEYWORD),
        cost=4.0,
        typical_ms=80.0,
        build=PlannerRetriever,
    ),
    StrategySpec(
        strategy=Strategy.METADATA,
        description="Filters by what the question says of fields; for places, kinds, years, amounts and ranges.",
        needs=(View.CHUNKS,),
        cost=1.2,
        typical_ms=25.0,
        build=MetadataRetriever,
    ),
    StrategySpec(
        strategy=Strategy.SUMMARY,
        description="Chooses documents by their summaries, then chunks of these; for overviews and broad subjects.",
        needs=(View.CHUNKS, View.SUMMARY),
        cost=1.5,
        typical_ms=25.0,
        build=SummaryRetriever,
    ),
)

REGISTRY: Final[Mapping[Strategy, StrategySpec]] = MappingProxyType({spec.strategy: spec for spec in _SPECS})
"""Every strategy that can be built, in declared order of reliability."""

ALWAYS_THERE: Final = (View.CHUNKS, View.KEYWORD)
"""The views that any index has or builds when first asked."""


def cards(index: SearchableIndex, *, measured: MeasuredStrategies | None = None) -> tuple[StrategyCard, ...]:
    """Return a card for each strategy that the index can serve, in declared order.

    Args:
        index: The index; if it has ``views``, those count beside the ones that every index has.
        measured: What a benchmark measured on this index, or ``None``.
    """
    views = {*ALWAYS_THERE, *(index.views if isinstance(index, HasViews) else ())}
    known = {} if measured is None else measured.strategies
    return tuple(spec.card(known.get(strategy)) for strategy, spec in REGISTRY.items() if views.issuperset(spec.needs))


def build_adapter(strategy: Strategy | str, index: SearchableIndex, settings: AdapterSettings) -> RetrieverAdapter:
    """Make the retriever of a strategy for an index.

    Args:
        strategy: The strategy or its name.
        index: What it will search.
        settings: How it will search.

    Raises:
        UnknownStrategyError: If there is none of that name; the message lists those there are.
    """
    return spec_of(strategy).build(index, settings)


def spec_of(strategy: Strategy | str) -> StrategySpec:
    """Return what is known of a strategy.

    Raises:
        UnknownStrategyError: If there is none of that name; the message lists those there are.
    """
    name = strategy.value if isinstance(strategy, Strategy) else str(strategy)
    for known, spec in REGISTRY.items():
        if known.value == name:
            return spec
    raise UnknownStrategyError(unknown_name("strategy", name, (known.value for known in REGISTRY)))
