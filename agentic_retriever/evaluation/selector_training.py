"""Fitting the strategy selector of an index on what every strategy did on judged questions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agentic_retriever.routing import (
    TrainedOn,
    TrainingRow,
    assess_complexity,
    cross_validate,
    fit_strategy_model,
    probe_features,
    query_features,
)
from agentic_retriever.routing.training import MIN_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentic_retriever.evaluation.strategies import JudgedQuery, StrategyRun
    from agentic_retriever.indices import Index
    from agentic_retriever.routing import CrossValidation, DomainTerms, StrategyModel, StrategySelector

_FOLDS: Final = 5
_ROWS_PER_FOLD: Final = 5


def training_rows(
    index: Index,
    queries: Sequence[JudgedQuery],
    runs: Sequence[StrategyRun],
    *,
    domain_terms: DomainTerms | None = None,
) -> list[TrainingRow]:
    """Put the signals of every question beside what the strategies did on it.

    Args:
        index: The index that was searched.
        queries: The questions.
        runs: What every strategy did on them.
        domain_terms: Terms of the field, as they are set.

    Returns:
        One row per question, in their order.
    """
    profile = index.profile()
    rows = []
    for query in queries:
        _, score = assess_complexity(query.text)
        rows.append(
            TrainingRow(
                query_id=query.query_id,
                features={
                    **query_features(query.text, profile, score, domain_terms=domain_terms),
                    **probe_features(query.text, profile, query.vector),
                },
                quality={run.strategy: run.quality[query.query_id] for run in runs},
                latency_ms={run.strategy: run.latency_ms[query.query_id] for run in runs},
            )
        )
    return rows


def fit_selector(
    index: Index,
    rows: Sequence[TrainingRow],
    label: str,
    seed: int,
    today: Callable[[], str],
    *,
    heuristic: StrategySelector,
) -> tuple[CrossValidation | None, StrategyModel | None]:
    """Fit a selector, and tell by cross-validation whether it helps.

    Args:
        index: The index.
        rows: From :func:`training_rows`.
        label: Name of the questions.
        seed: Of all that is drawn.
        today: Gives the date, ISO 8601.
        heuristic: What decides as long as no model is installed.

    Returns:
        What it reaches on questions that it was not trained on, and the model trained on all; ``None`` for both when
        there are too few.
    """
    if len(rows) < MIN_ROWS:
        return None, None
    folds = min(_FOLDS, len(rows) // _ROWS_PER_FOLD)
    validation = cross_validate(rows, folds=folds, seed=seed, heuristic=heuristic)
    trained_on = TrainedOn(dataset=label, index=index.name, index_version=index.version, rows=0, date=today())
    return validation, fit_strategy_model(rows, trained_on=trained_on, seed=seed)


def selector_verdict(validation: CrossValidation | None, queries: int, *, dry_run: bool, had_one: bool) -> str:
    """Say in one line what became of a selector, and why.

    Args:
        validation: What it reaches; ``None`` when there were too few questions.
        queries: How many there were.
        dry_run: Whether nothing is installed.
        had_one: Whether the index had a selector before.
    """
    if validation is None:
        return (
            f"not trained: {queries} judged questions are too few, {MIN_ROWS} are the least; the figures of the "
            f"strategies were {'not kept (dry run)' if dry_run else 'kept'}"
        )
    gains = _gain("the best fixed strategy", validation.gain, validation.gain_low, validation.gain_high)
    if validation.over_heuristic is not None:
        gains += " and " + _gain("the heuristic", *validation.over_heuristic)
    if not validation.helps:
        stays = "; the model that was there stays" if had_one else ""
        return f"not installed, since it does not help: {gains}{stays}"
    return f"{'would be installed, but this is a dry run' if dry_run else 'installed'}: {gains}"


def _gain(over: str, gain: float, low: float, high: float) -> str:
    return f"{gain:+.3f} nDCG@10 [{low:+.3f}, {high:+.3f}] over {over}"
