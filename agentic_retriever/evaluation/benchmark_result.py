"""The result of a benchmark: values, JSON, a table, plots, a report."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from agentic_retriever.errors import ConfigError
from agentic_retriever.evaluation.draw_benchmark import draw_benchmark
from agentic_retriever.evaluation.measures import MEASURES
from agentic_retriever.evaluation.regret import mean_choice
from agentic_retriever.evaluation.rows import percentile
from agentic_retriever.json_files import write_atomically
from agentic_retriever.schema.markup import short_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agentic_retriever.evaluation.answers import AnswerMeasures
    from agentic_retriever.evaluation.bench import RoutingBenchmark
    from agentic_retriever.evaluation.datasets import LabelledQuery
    from agentic_retriever.evaluation.options import BenchOptions
    from agentic_retriever.evaluation.problems import ProblemReport
    from agentic_retriever.evaluation.regret import MeanChoice, RoutingQuality
    from agentic_retriever.evaluation.rows import Against, Row

FORMAT: Final = 1
"""Version of the JSON; docs/benchmarks.md describes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetResult:
    """What was measured on one index.

    Attributes:
        target: Name of the data set, with the index behind a slash where it has several.
        index: Name of the index.
        facts: Documents, nodes, questions, language, embedding model, where the vectors come from.
        pseudo: Whether the questions were made of the corpus itself.
        rows: The strategies in declared order, ``auto``, ``oracle``, the peers.
        against: All rows against the baseline; ``None`` in round robin, or with one row.
        routing: How the router's own choice did; ``None`` where it did not take part.
        answers: How the answers did; ``None`` where none were asked for.
        queries: The questions, by id.
        embedding_ms: Milliseconds for each question that had to be embedded.
        not_served: Rows that could not take part, and why.
        problems: What was wrong with the data set and its vectors.
        notes: What a reader must know.
        seconds: How long asking took in this run.
        memory_mb: Resident memory of the process behind it (``resident``), and the most it ever had (``peak``).
    """

    target: str
    index: str
    facts: Mapping[str, Any]
    pseudo: bool
    rows: Mapping[str, Row]
    against: Against | None
    routing: RoutingQuality | None
    answers: AnswerMeasures | None
    queries: Mapping[str, LabelledQuery]
    embedding_ms: tuple[float, ...]
    not_served: Mapping[str, str]
    problems: ProblemReport
    notes: tuple[str, ...]
    seconds: float
    memory_mb: Mapping[str, float | None]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        spent = self.embedding_ms
        return {
            "index": self.index,
            **self.facts,
            "pseudo_queries": self.pseudo,
            "strategies": {name: row.to_dict() for name, row in self.rows.items()},
            "against": None if self.against is None else self.against.to_dict(),
            "routing": None if self.routing is None else self.routing.to_dict(),
            "answers": None if self.answers is None else self.answers.to_dict(),
            "question_embedding_ms": {
                "computed": len(spent),
                "p50": percentile(spent, 50) if spent else None,
                "p95": percentile(spent, 95) if spent else None,
            },
            "not_served": dict(self.not_served),
            "problems": self.problems.to_dict(),
            "notes": list(self.notes),
            "seconds": self.seconds,
            "memory_mb": dict(self.memory_mb),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """What a benchmark measured; Jupyter draws its table.

    Attributes:
        results: By target.
        options: How it was run.
        settings: Settings of the router, secrets as stars.
        machine: What it ran on.
        versions: Versions of the packages that matter.
        stage_one: How well the right index is chosen; ``None`` with one index only.
    """

    results: Mapping[str, TargetResult]
    options: BenchOptions
    settings: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str | None] = field(default_factory=dict)
    stage_one: RoutingBenchmark | None = None

    def means(self) -> dict[str, dict[str, float]]:
        """Return the mean over the targets of each measure, for rows that took part in all of them."""
        names = [name for name in self.names() if all(name in result.rows for result in self.results.values())]
        return {
            name: {
                measure: float(np.mean([result.rows[name].mean(measure) for result in self.results.values()]))
                for measure in MEASURES
            }
            for name in names
        }

    def choice(self) -> MeanChoice | None:
        """Hold ``auto`` against the best fixed strategy and the oracle, by their means over the targets.

        Returns:
            ``None`` where one of them did not take part everywhere.
        """
        peers = {name for result in self.results.values() for name, row in result.rows.items() if row.peer}
        means = {name: found[MEASURES[0]] for name, found in self.means().items() if name not in peers}
        return mean_choice(means)

    def names(self) -> list[str]:
        """Return the names of all rows, in their order."""
        return list(dict.fromkeys(name for result in self.results.values() for name in result.rows))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types; docs/benchmarks.md describes them.

        Without ``machine``, ``versions``, ``seconds``, ``memory_mb`` and whatever ends in ``ms`` or counts per second,
        the same questions, settings and seed give the same values.
        """
        choice = self.choice()
        return {
            "format": FORMAT,
            "seed": self.options.seed,
            "options": self.options.to_dict(),
            "machine": dict(self.machine),
            "versions": dict(self.versions),
            "settings": {name: value for name, value in self.settings.items() if name != "data_dir"},
            "datasets": {name: result.to_dict() for name, result in self.results.items()},
            "means": self.means(),
            "choice": None if choice is None else choice.to_dict(),
            "stage_one": None if self.stage_one is None else self.stage_one.to_dict(),
        }

    def to_json(self, path: Path | None = None) -> str:
        """Return the result as JSON, and write it into a file if one is named.

        Args:
            path: The file, replaced in one step.

        Raises:
            StoreError: If it cannot be written.
        """
        text = json.dumps(self.to_dict(), ensure_ascii=False, indent=2, allow_nan=False) + "\n"
        if path is not None:
            write_atomically(path, text.encode("utf-8", "surrogatepass"))
        return text

    def records(self) -> list[dict[str, Any]]:
        """Return one flat record per target and row: names, measures, interval of the first, latency, failures."""
        found = []
        for target, result in self.results.items():
            for name, row in result.rows.items():
                low, high = row.intervals[MEASURES[0]]
                found.append(
                    {
                        "dataset": target,
                        "strategy": name,
                        **{measure: row.mean(measure) for measure in MEASURES},
                        f"{MEASURES[0]} low": low,
                        f"{MEASURES[0]} high": high,
                        "p50_ms": row.percentile_ms(50),
                        "p95_ms": row.percentile_ms(95),
                        "queries": len(row.quality),
                        "failed": len(row.failures),
                        "peer": row.peer,
                        "pseudo": result.pseudo,
                    }
                )
        return found

    def to_frame(self) -> Any:  # noqa: ANN401 - pandas is optional and has no types here
        """Return ``records`` as a pandas data frame.

        Raises:
            ConfigError: If pandas is not installed.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as err:
            raise ConfigError("to_frame needs pandas: pip install pandas; records() gives the same as a list") from err
        return pandas.DataFrame(self.records())

    def plot(self, target: str | None = None) -> Any:  # noqa: ANN401 - of an optional library
        """Draw quality against latency, with the Pareto front.

        Args:
            target: Which data set; the first one by default.

        Returns:
            A matplotlib figure, which Jupyter shows.

        Raises:
            ConfigError: If the extra ``bench`` is not installed.
            EvaluationError: If there is no such data set.
        """
        from agentic_retriever.evaluation.plots import tradeoff_figure  # noqa: PLC0415 - needs an optional library

        return tradeoff_figure(self, target)

    def to_html(self, path: Path | None = None) -> str:
        """Return the report: one page without any other file; and write it if a file is named.

        Args:
            path: The file, replaced in one step.

        Raises:
            ConfigError: If the extra ``bench`` is not installed.
            StoreError: If it cannot be written.
        """
        from agentic_retriever.evaluation.report import report_html  # noqa: PLC0415 - needs an optional library

        text = report_html(self)
        if path is not None:
            write_atomically(path, text.encode("utf-8", "xmlcharrefreplace"))
        return text

    def _repr_html_(self) -> str:
        """Draw the tables and intervals in Jupyter: escaped, no assets, colours of the theme."""
        return draw_benchmark(self)

    _repr_pretty_ = short_text
