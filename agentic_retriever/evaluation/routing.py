"""Measuring both stages of routing and the judgment of complexity on labelled questions."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from agentic_retriever.errors import EvaluationError
from agentic_retriever.evaluation.choices import told
from agentic_retriever.evaluation.classification import compare
from agentic_retriever.evaluation.reliability import measure_reliability
from agentic_retriever.evaluation.results import (
    Abstention,
    ComplexityMeasures,
    Failure,
    Latency,
    StageOneMeasures,
    StageTwoMeasures,
)
from agentic_retriever.routing import assess_complexity, query_features

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentic_retriever.evaluation.choices import Choice
    from agentic_retriever.evaluation.reliability import Reliability
    from agentic_retriever.evaluation.vectors import Vector
    from agentic_retriever.indices import IndexProfile
    from agentic_retriever.routing import DomainTerms, IndexClassifier, StrategySelector
    from agentic_retriever.schema import Complexity, Strategy, StrategyCard

FAILED: Final = "(failed)"
"""Stands for the choice of a question on which something raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A way to choose the index that is to be measured.

    Attributes:
        classifier: The way.
        probabilities: Whether its confidence is a probability, so that its calibration can be measured.
        peer: Whether it is somebody else's.
        note: What to know of it, or ``""``.
    """

    classifier: IndexClassifier
    probabilities: bool = True
    peer: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedQuery:
    """A question for both stages, with what is right.

    Attributes:
        query_id: Unique over all data sets.
        text: The question.
        dataset: Name of its data set.
        vector: The embedded question, ``(dimension,)``, or ``None``.
        index: The index that answers it; ``None`` where none does.
        strategy: The strategy that suits it, or ``None`` where that is not known.
        complexity: How hard it is, or ``None`` where that is not known.
    """

    query_id: str
    text: str
    dataset: str
    vector: Vector | None
    index: str | None
    strategy: Strategy | None = None
    complexity: Complexity | None = None


def measure_choices(
    queries: Sequence[RoutedQuery], choices: Sequence[Choice], contender: Contender
) -> StageOneMeasures:
    """Hold choices against what is right.

    Args:
        queries: The questions.
        choices: One per question, in their order.
        contender: Who chose.

    Returns:
        The measures.
    """
    inside = [(query.index, choice) for query, choice in zip(queries, choices, strict=True) if query.index]
    gold = [index for index, _ in inside]
    outside = [query.index is None for query in queries]
    reliability, macro_ece = _calibration(inside) if contender.probabilities else (None, None)
    return StageOneMeasures(
        outcomes=compare(gold, [choice.name or FAILED for _, choice in inside]),
        reliability=reliability,
        macro_ece=macro_ece,
        reached=_mean([index in choice.names for index, choice in inside]),
        searched=_mean([len(choice.names) for _, choice in inside]),
        abstention=Abstention(
            asked=len(queries),
            out_of_scope=sum(outside),
            abstained=sum(choice.abstained for choice in choices),
            right=sum(choice.abstained and out for choice, out in zip(choices, outside, strict=True)),
        ),
        escalation_rate=sum(choice.escalated for choice in choices) / len(queries),
        latency=_latency([choice.ms for choice in choices]),
        llm_calls=sum(choice.llm_calls for choice in choices),
        failures=tuple(Failure(query_id=choice.query_id, error=choice.error) for choice in choices if choice.error),
        peer=contender.peer,
        note=contender.note,
    )


def _calibration(inside: Sequence[tuple[str, Choice]]) -> tuple[Reliability, float | None]:
    """Reliability with each question counting the same, and the error with each index counting the same."""
    made = [(index, choice) for index, choice in inside if choice.name]
    sure = [min(1.0, max(0.0, choice.confidence)) for _, choice in made]
    right = [choice.name == index for index, choice in made]
    sizes = Counter(index for index, _ in made)
    macro = measure_reliability(sure, right, weights=[1 / sizes[index] for index, _ in made])
    return measure_reliability(sure, right), macro.ece


def evaluate_stage_two(
    queries: Sequence[RoutedQuery],
    profiles: Mapping[str, IndexProfile],
    cards: Mapping[str, Sequence[StrategyCard]],
    selector: StrategySelector,
    *,
    domain_terms: DomainTerms | None = None,
    timer: Callable[[], float] = time.perf_counter,
) -> StageTwoMeasures | None:
    """Let one way to choose the strategy answer every question that says which strategy suits it.

    Each is asked of its own index, so that an error of stage one counts once only.

    Args:
        queries: The questions; those without an index or a strategy are passed over.
        profiles: The indexes by name.
        cards: The strategies that each index offers, by its name.
        selector: The way.
        domain_terms: Terms of the field, as they are set.
        timer: Seconds, for latencies: signals of the question and choice together.

    Returns:
        The measures, or ``None`` when no question says which strategy suits it.
    """
    gold: list[str] = []
    chosen: list[str] = []
    failures: list[Failure] = []
    spent: list[float] = []
    escalated = 0
    for query in queries:
        if query.strategy is None or query.index is None:
            continue
        start = timer()
        try:
            _, score = assess_complexity(query.text)
            features = query_features(query.text, profiles[query.index], score, domain_terms=domain_terms)
            selection = selector.select(query.text, cards[query.index], features=features)
            picked, escalated = selection.name, escalated + selection.escalated
        except Exception as err:  # noqa: BLE001 - the seam to any selector; one question must not end the run
            picked = FAILED
            failures.append(Failure(query_id=query.query_id, error=told(err)))
        spent.append((timer() - start) * 1000)
        gold.append(query.strategy.value)
        chosen.append(picked)
    if not gold:
        return None
    return StageTwoMeasures(
        outcomes=compare(gold, chosen),
        latency=_latency(spent),
        escalation_rate=escalated / len(gold),
        failures=tuple(failures),
    )


def evaluate_complexity(
    queries: Sequence[RoutedQuery],
    *,
    assess: Callable[[str], tuple[Complexity, float]] = assess_complexity,
) -> ComplexityMeasures | None:
    """Judge the complexity of every question that says what it is.

    Args:
        queries: The questions; those that do not say are passed over.
        assess: The judgment.

    Returns:
        The measures, or ``None`` when no question says how hard it is.
    """
    labelled = [(query, query.complexity) for query in queries if query.complexity is not None]
    if not labelled:
        return None
    chosen = [assess(query.text)[0] for query, _ in labelled]
    right: dict[str, list[bool]] = {}
    for (query, gold), found in zip(labelled, chosen, strict=True):
        right.setdefault(query.dataset, []).append(found is gold)
    return ComplexityMeasures(
        outcomes=compare([gold.value for _, gold in labelled], [found.value for found in chosen]),
        by_dataset={name: sum(found) / len(found) for name, found in right.items()},
    )


def check_queries(queries: Sequence[RoutedQuery], profiles: Sequence[IndexProfile]) -> None:
    """See that there are questions and that each can be answered rightly.

    Args:
        queries: The questions.
        profiles: The indexes to choose from.

    Raises:
        EvaluationError: If there is no question, or one belongs to an index that cannot be chosen.
    """
    if not queries:
        raise EvaluationError("there is no question to measure with; name a data set that has some")
    known = {profile.name for profile in profiles}
    for query in queries:
        if query.index is not None and query.index not in known:
            raise EvaluationError(
                f"{query.query_id} belongs to the index {query.index[:80]!r}, which is not among those to choose from "
                f"({', '.join(sorted(known))})"
            )


def _latency(spent_ms: Sequence[float]) -> Latency:
    if not spent_ms:
        return Latency(p50_ms=None, p95_ms=None)
    return Latency(p50_ms=float(np.percentile(spent_ms, 50)), p95_ms=float(np.percentile(spent_ms, 95)))


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
