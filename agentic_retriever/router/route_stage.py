"""The first hops of a query: which index, which strategy, how hard."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agentic_retriever.errors import (
    AgenticRetrieverError,
    NoEligibleStrategyError,
    OutOfScopeError,
    RoutingError,
    UnknownIndexError,
    unknown_name,
)
from agentic_retriever.retrievers.registry import check_served
from agentic_retriever.router.offers import offer
from agentic_retriever.router.questions import Routed
from agentic_retriever.router.spans import ROUTE, traced
from agentic_retriever.routing import DomainTerms, assess_complexity, complexity_reasons, query_features
from agentic_retriever.schema import Degradation, RouteDecision, Selection, Strategy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentic_retriever.embeddings.model import Vector
    from agentic_retriever.indices import RoutedIndex
    from agentic_retriever.router.questions import Question
    from agentic_retriever.router.resources import Resources
    from agentic_retriever.router.spending import Spending
    from agentic_retriever.routing import IndexClassifier, StrategySelector


class RouteStage:
    """Chooses the index and the strategy.

    Args:
        resources: Settings and indexes.
        classifier: Stage one.
        selector: Stage two.

    Raises:
        ConfigError: If the domain terms of the settings are none.
    """

    def __init__(self, resources: Resources, classifier: IndexClassifier, selector: StrategySelector) -> None:
        self._resources = resources
        self._classifier = classifier
        self._selector = selector
        self._terms = DomainTerms.parse(resources.config.domain_terms)

    @traced(ROUTE)
    def run(self, question: Question, spending: Spending, *, recorded: RouteDecision | None = None) -> Routed:
        """Decide.

        Args:
            question: The question.
            spending: The accounts of the query.
            recorded: A decision whose choices are taken over where they were made by chance or by a model.

        Raises:
            UnknownIndexError: If the pinned index is unknown.
            OutOfScopeError: If the question is about nothing in the indexes, and ``on_abstain`` is ``raise``.
            RoutingError: If there is no index to choose from.
            NoEligibleStrategyError: If the chosen index serves no strategy.
        """
        names = self._known(question)
        clock = spending.clock
        degraded: list[Degradation] = []
        vector = self._embed(question, spending, degraded)
        with clock.step("routing"):
            degraded.extend(self._resources.attached.catch_up(question.index, clock.remaining_s() / 2))
            index, versions = self._stage_one(question, names, vector, degraded, spending, recorded)
            chosen = self._resources.index(index.name)
            complexity, score = assess_complexity(question.query)
            features = query_features(question.query, chosen.profile(), score, domain_terms=self._terms)
            strategy, withheld = self._stage_two(question, chosen, features, spending, recorded)
        decision = RouteDecision(
            query=question.query,
            index=index,
            strategy=strategy,
            complexity=complexity,
            complexity_score=score,
            complexity_reasons=complexity_reasons(question.query),
            features=features,
            timings_ms=clock.timings_ms(),
            degraded=(*degraded, *index.degraded, *strategy.degraded),
            withheld=withheld,
            versions=versions,
        )
        return Routed(decision, _order(question, strategy), vector)

    def _known(self, question: Question) -> list[str]:
        names = self._resources.names()
        if question.index is not None and question.index not in names:
            raise UnknownIndexError(unknown_name("index", question.index, names))
        if not names:
            raise RoutingError(
                f"there is no index in {self._resources.config.data_dir}; add one with add_index() "
                "or: agentic-retriever index add NAME PATH"
            )
        return list(names)

    def _embed(self, question: Question, spending: Spending, degraded: list[Degradation]) -> Vector | None:
        """Embed the question once for routing and retrieval; without a vector both go on lexically."""
        clock = spending.clock
        with clock.step("embedding"):
            try:
                # Half of the time at most, so that a search by words can still follow.
                limit = clock.left_s("embedding the question") / 2
                return self._resources.embedding().embed_query(question.query, timeout_s=limit)
            except AgenticRetrieverError as err:
                if question.strategy is Strategy.VECTOR:
                    raise
                degraded.append(Degradation(step="embedding", reason=str(err), fallback="words only"))
                return None

    def _stage_one(
        self,
        question: Question,
        names: Sequence[str],
        vector: Vector | None,
        degraded: list[Degradation],
        spending: Spending,
        recorded: RouteDecision | None,
    ) -> tuple[Selection, dict[str, int]]:
        if question.index is not None:
            return _settled(question.index, "pinned", "the caller named it"), self._versions([question.index])
        if len(names) == 1:
            return _settled(names[0], "only", "it is the only index"), self._versions(names)
        indexes, lost = self._resources.usable()
        degraded.extend(lost)
        versions = {index.name: index.version for index in indexes}
        if recorded is not None and _unrepeatable(recorded.index) and set(recorded.index.names) <= set(versions):
            return recorded.index, versions
        selection = self._classifier.classify(
            question.query,
            [index.profile() for index in indexes],
            query_vector=vector,
            allowance=spending.allowance("choosing the index"),
        )
        spending.add(selection.spent)
        return self._settle_scope(selection, indexes), versions

    def _settle_scope(self, selection: Selection, indexes: Sequence[RoutedIndex]) -> Selection:
        """Apply the setting ``on_abstain`` to a question that seems to be about nothing in the indexes."""
        config = self._resources.config
        if not selection.abstained or config.on_abstain in {"answer", "decline"}:
            return selection
        if config.on_abstain == "raise":
            raise OutOfScopeError(
                f"the question seems to be about none of the {len(indexes)} indexes ({selection.reason}); "
                "ask something else, name an index, or set on_abstain to answer, all, default or decline"
            )
        if config.on_abstain == "default":
            known = [index.name for index in indexes]
            if config.default_index not in known:
                raise UnknownIndexError(unknown_name("index in the setting default_index", config.default_index, known))
            reason = f"out of scope, so the default index; {selection.reason}"
            return replace(selection, name=config.default_index, names=(config.default_index,), reason=reason)
        filled = {index.name for index in indexes if index.count() > 0}
        names = tuple(name for name in selection.scores if name in filled or name == selection.name)
        return replace(selection, names=names, reason=f"out of scope, so all indexes; {selection.reason}")

    def _stage_two(
        self,
        question: Question,
        index: RoutedIndex,
        features: Mapping[str, float],
        spending: Spending,
        recorded: RouteDecision | None,
    ) -> tuple[Selection, dict[str, str]]:
        if question.strategy is not None:
            check_served(question.strategy, index)
            return _settled(question.strategy.value, "pinned", "the caller named it"), {}
        trained = self._resources.trained(index)
        offered, withheld = offer(index, trained.measured, left_ms=spending.left_ms())
        if not offered:
            raise NoEligibleStrategyError(f"index {index.name!r} serves no registered strategy")
        names = {card.strategy.value for card in offered}
        if recorded is not None and _unrepeatable(recorded.strategy) and recorded.strategy.name in names:
            return recorded.strategy, withheld
        selection = self._selector.select(
            question.query, offered, features=features, allowance=spending.allowance("choosing the strategy")
        )
        spending.add(selection.spent)
        return replace(selection, degraded=(*trained.degraded, *selection.degraded)), withheld

    def _versions(self, names: Sequence[str]) -> dict[str, int]:
        return {name: self._resources.index(name).version for name in names}


def _order(question: Question, strategy: Selection) -> tuple[Strategy, ...]:
    others = () if question.strategy else tuple(name for name in strategy.scores if name != strategy.name)
    return tuple(Strategy(name) for name in (strategy.name, *others))


def _unrepeatable(selection: Selection) -> bool:
    """Tell whether a choice would come out otherwise next time although nothing changed."""
    return selection.escalated or selection.mode in {"llm", "round_robin"}


def _settled(name: str, mode: str, reason: str) -> Selection:
    return Selection(name=name, confidence=1.0, scores={name: 1.0}, margin=1.0, reason=reason, mode=mode)
