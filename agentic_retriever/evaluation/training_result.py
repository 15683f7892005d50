"""What a training found, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentic_retriever.evaluation.draw_benchmark import draw_training
from agentic_retriever.schema.markup import short_text

if TYPE_CHECKING:
    from agentic_retriever.evaluation.fusion_training import FusionTraining
    from agentic_retriever.evaluation.problems import ProblemReport
    from agentic_retriever.evaluation.strategies import StrategyRun


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """What a training found, and what became of it.

    Attributes:
        index: Name of the index.
        index_version: Its version.
        datasets: Facts of each data set.
        queries: Judged questions that were asked.
        runs: What every strategy did.
        fusion: The weights of hybrid search, and what became of them.
        verdict: One line: what became of the figures of the strategies.
        problems: What was wrong with the data sets.
        seed: Of everything that was drawn.
    """

    index: str
    index_version: int
    datasets: tuple[dict[str, Any], ...]
    queries: int
    runs: tuple[StrategyRun, ...]
    fusion: FusionTraining
    verdict: str
    problems: ProblemReport
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "format": 1,
            "index": self.index,
            "index_version": self.index_version,
            "datasets": [dict(facts) for facts in self.datasets],
            "queries": self.queries,
            "seed": self.seed,
            "strategies": {run.strategy.value: run.to_dict() for run in self.runs},
            "fusion": self.fusion.to_dict(),
            "verdict": self.verdict,
            "problems": self.problems.to_dict(),
        }

    def _repr_html_(self) -> str:
        """Draw the tables in Jupyter: escaped, no assets, colours of the theme."""
        return draw_training(self)

    _repr_pretty_ = short_text
