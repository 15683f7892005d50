"""Who takes part in a benchmark, which questions each is asked, and who cannot take part and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from agentic_retriever.evaluation.options import ALL, AUTO
from agentic_retriever.evaluation.peer_retrievers import peer_contestants
from agentic_retriever.evaluation.runner import RouterContestant, take_turns
from agentic_retriever.indices import Index
from agentic_retriever.indices.views import BUILT_IN_QUERY
from agentic_retriever.retrievers import REGISTRY, cards
from agentic_retriever.schema import View

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentic_retriever.evaluation.datasets import LabelledQuery
    from agentic_retriever.evaluation.options import BenchOptions
    from agentic_retriever.evaluation.runner import Contestant
    from agentic_retriever.evaluation.targets import Target
    from agentic_retriever.evaluation.watching import Watcher
    from agentic_retriever.indices import RoutedIndex
    from agentic_retriever.schema import Strategy

_BUILT: Final = frozenset({View.HIERARCHY, View.SUMMARY})
_UNBUILT_WHY: Final = "its views are not built; leave out --no-views"
_AUTO_WHY: Final = (
    "the router would build the missing views within a question, and their time would count as its own; leave out "
    "--no-views"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrants:
    """Who takes part.

    Attributes:
        contestants: In the order of the table.
        shares: The questions of each, by name.
        not_served: Strategies and rows that cannot take part, and why.
        facts: What is to be known of the index.
    """

    contestants: tuple[Contestant, ...]
    shares: Mapping[str, Sequence[LabelledQuery]]
    not_served: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


def enter(target: Target, options: BenchOptions, watcher: Watcher) -> Entrants:
    """Gather who takes part, and build the views that they need.

    Args:
        target: The index and its questions.
        options: How to run.
        watcher: Hears how far it is.

    Returns:
        The contestants.

    Raises:
        EmbeddingError: If a view could not be embedded; what was done is kept.
        StoreError: If the index cannot be read or written.
        ConfigError: If a peer is not installed.
    """
    index = target.router.index(target.index)
    wanted = [s for s in REGISTRY if options.strategies is None or s.value in options.strategies]
    not_served = {s.value: _UNBUILT_WHY for s in wanted if not options.views and _BUILT & {*REGISTRY[s].needs}}
    not_served |= _refused(index, wanted)
    served = [strategy for strategy in wanted if strategy.value not in not_served]
    with_auto = options.mode == ALL and (options.strategies is None or AUTO in options.strategies)
    if with_auto and not options.views and _BUILT & index.views:
        not_served[AUTO], with_auto = _AUTO_WHY, False
    views_ms = _prepare(index, list(REGISTRY) if with_auto and options.views else served, watcher)
    names: list[str | None] = [strategy.value for strategy in served]
    contestants: list[Contestant] = [
        RouterContestant(target.router, target.index, name, name=name or AUTO, depth=options.depth, owned=target.owned)
        for name in (*names, *([None] if with_auto else []))
    ]
    if options.peers:
        contestants += peer_contestants(target.router, target.index, served, depth=options.depth)
    order = [contestant.name for contestant in contestants]
    shares = (
        {name: list(target.queries) for name in order} if options.mode == ALL else take_turns(order, target.queries)
    )
    return Entrants(
        contestants=tuple(contestants),
        shares=shares,
        not_served=not_served,
        facts={
            "documents": len(index.doc_ids()),
            "nodes": index.count(),
            "language": index.language,
            "embedding": index.embedding.name,
            "index_version": index.version,
            "views": sorted(view.value for view in views_ms),
        },
    )


def _refused(index: RoutedIndex, wanted: Sequence[Strategy]) -> dict[str, str]:
    """Say which strategies an attached index cannot serve."""
    served = {card.strategy for card in cards(index)}
    unserved = [] if isinstance(index, Index) else [strategy for strategy in wanted if strategy not in served]
    return {strategy.value: "the attached index cannot serve it" for strategy in unserved}


def _prepare(index: RoutedIndex, strategies: Sequence[Strategy], watcher: Watcher) -> frozenset[View]:
    """Build what strategies need, so that no question pays for it; summaries are never written by a model here."""
    needed = {view for strategy in strategies for view in REGISTRY[strategy].needs}
    index.profile()
    if not isinstance(index, Index):
        return frozenset(needed & index.views)  # what it has was read when it was attached
    if View.KEYWORD in needed:
        watcher.begin(f"words of {index.name}", 1)
        index.keyword()
    if View.HIERARCHY in needed or (View.SUMMARY in needed and index.count() > BUILT_IN_QUERY):
        index.build_views(_Documents(watcher, index))
        needed |= _BUILT
    elif View.SUMMARY in needed:
        watcher.begin(f"summaries of {index.name}", 1)
        index.summaries()
    return frozenset(needed)


class _Documents:
    """Hears of views being built, document by document, and tells a watcher."""

    def __init__(self, watcher: Watcher, index: RoutedIndex) -> None:
        self._watcher = watcher
        self._name = index.name
        self._total = len(index.doc_ids())
        self._done = 0

    def files(self, total: int) -> None:
        """Ignore it."""

    def file_done(self, path: str) -> None:
        """Ignore it."""

    def nodes(self, found: int) -> None:  # noqa: ARG002 - one call a document
        """Tell of one document; leaves come first, then summaries."""
        if self._done in {0, self._total}:
            what = "leaves" if self._done == 0 else "summaries"
            self._watcher.begin(f"{what} of {self._name}", self._total)
        self._done += 1
        self._watcher.advance(1)

    def nodes_done(self, done: int) -> None:
        """Ignore it."""
