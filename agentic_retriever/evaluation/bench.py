"""One run over both stages of routing, and its result."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from agentic_retriever import __version__
from agentic_retriever.evaluation.choices import Choice, choose
from agentic_retriever.evaluation.draw_benchmark import draw_routing_benchmark
from agentic_retriever.evaluation.journal import fingerprint
from agentic_retriever.evaluation.problems import ProblemReport
from agentic_retriever.evaluation.routing import (
    check_queries,
    evaluate_complexity,
    evaluate_stage_two,
    measure_choices,
)
from agentic_retriever.evaluation.watching import SilentWatcher
from agentic_retriever.schema.markup import short_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentic_retriever.evaluation.contenders import Field
    from agentic_retriever.evaluation.descriptions import Description
    from agentic_retriever.evaluation.journal import Journal
    from agentic_retriever.evaluation.material import RoutingMaterial
    from agentic_retriever.evaluation.results import ComplexityMeasures, StageOneMeasures, StageTwoMeasures
    from agentic_retriever.evaluation.watching import Watcher
    from agentic_retriever.routing import DomainTerms, StrategySelector

FORMAT: Final = 1
"""Version of the JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingBenchmark:
    """What one run measured.

    Attributes:
        stage_one: Choosing the index, by way to do so.
        stage_two: Choosing the strategy, by way to do so; empty without labelled questions.
        complexity: The judgment of complexity; ``None`` without labelled questions.
        indexes: Nodes, sampled nodes, language and description of every index to choose from.
        datasets: Facts of each data set.
        descriptions: What each index is said to hold, and who says so.
        left_out: Ways that could not take part, and why.
        problems: What was wrong with the data sets.
        notes: What a reader must know.
        seed: Of whatever was drawn.
    """

    stage_one: Mapping[str, StageOneMeasures]
    stage_two: Mapping[str, StageTwoMeasures] = field(default_factory=dict)
    complexity: ComplexityMeasures | None = None
    indexes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    datasets: tuple[dict[str, Any], ...] = ()
    descriptions: Mapping[str, Description] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    problems: ProblemReport = field(default_factory=ProblemReport)
    notes: tuple[str, ...] = ()
    seed: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types; but for latencies the same questions, settings and seed give the same values."""
        return {
            "format": FORMAT,
            "seed": self.seed,
            "datasets": [dict(facts) for facts in self.datasets],
            "indexes": {
                name: {
                    **facts,
                    "description": self.descriptions[name].text,
                    "description_from": self.descriptions[name].origin,
                }
                for name, facts in self.indexes.items()
            },
            "stage_one": {mode: measures.to_dict() for mode, measures in self.stage_one.items()},
            "stage_two": {mode: measures.to_dict() for mode, measures in self.stage_two.items()},
            "complexity": None if self.complexity is None else self.complexity.to_dict(),
            "left_out": dict(self.left_out),
            "problems": self.problems.to_dict(),
            "notes": list(self.notes),
        }

    def _repr_html_(self) -> str:
        """Draw the tables in Jupyter: escaped, no assets, colours of the theme."""
        return draw_routing_benchmark(self)

    _repr_pretty_ = short_text


def bench_routing(
    material: RoutingMaterial,
    runners: Field,
    selectors: Mapping[str, StrategySelector],
    *,
    domain_terms: DomainTerms | None = None,
    journal: Journal | None = None,
    timer: Callable[[], float] = time.perf_counter,
    watcher: Watcher | None = None,
) -> RoutingBenchmark:
    """Measure both stages of routing and the judgment of complexity.

    Args:
        material: Profiles and questions.
        runners: The ways to choose the index.
        selectors: The ways to choose the strategy, by name.
        domain_terms: Terms of the field, as they are set.
        journal: Keeps what is done, and what it has is not done again.
        timer: Seconds, for latencies.
        watcher: Hears how far it is.

    Returns:
        The measures.

    Raises:
        EvaluationError: If there is no question, or one belongs to an index that cannot be chosen.
        StoreError: If the journal cannot be written.
    """
    watch = watcher or SilentWatcher()
    profiles = list(material.profiles.values())
    check_queries(material.queries, profiles)
    stage_one = {}
    for name, contender in runners.contenders.items():
        watch.begin(f"stage one, {name}", len(material.queries))
        choices = choose(
            material.queries,
            profiles,
            contender.classifier,
            known=_known(journal, name),
            timer=timer,
            on_progress=watch.advance,
            keep=None if journal is None else partial(_keep, journal, name),
        )
        stage_one[name] = measure_choices(material.queries, choices, contender)
    stage_two = {}
    for name, selector in selectors.items():
        measured = evaluate_stage_two(
            material.queries, material.profiles, material.cards, selector, domain_terms=domain_terms, timer=timer
        )
        if measured is not None:
            stage_two[name] = measured
    return RoutingBenchmark(
        stage_one=stage_one,
        stage_two=stage_two,
        complexity=evaluate_complexity([*material.queries, *material.unlabelled]),
        indexes={p.name: {"nodes": p.nodes, "sampled": len(p.sample), "language": p.language} for p in profiles},
        datasets=material.datasets,
        descriptions=material.descriptions,
        left_out=runners.left_out,
        problems=material.problems,
        notes=material.notes,
        seed=material.seed,
    )


def material_key(material: RoutingMaterial, settings: Mapping[str, Any]) -> str:
    """Stand for all that the choices of one run depend on, so that only such a run goes on with them.

    Args:
        material: Profiles and questions.
        settings: Settings of the router, secrets left out.

    Returns:
        The key of a :class:`Journal`.
    """
    profiles = [
        (p.name, p.version, p.nodes, p.terms_total, p.description, hashlib.sha256(p.sample.tobytes()).hexdigest())
        for p in material.profiles.values()
    ]
    return fingerprint([__version__, profiles, [(q.query_id, q.text, q.index) for q in material.queries], settings])


def _keep(journal: Journal, name: str, choices: Sequence[Choice]) -> None:
    journal.keep(name, {"choices": [choice.to_dict() for choice in choices]})


def _known(journal: Journal | None, name: str) -> dict[str, Choice]:
    """Read the choices of an interrupted run; those that failed or cannot be read are made again."""
    part = {} if journal is None else journal.parts.get(name, {})
    try:
        choices = [Choice.from_dict(data) for data in part["choices"]]
    except (KeyError, TypeError):
        return {}
    return {choice.query_id: choice for choice in choices if not choice.error}
