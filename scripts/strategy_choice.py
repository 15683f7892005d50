"""Tell what the choice of the strategy would reach, from a benchmark that is there already; asks nothing again.

Usage: python scripts/strategy_choice.py RESULT DATA_FOLDER KEPT

RESULT is the JSON of a benchmark, DATA_FOLDER holds ``collections/NAME``, KEPT is the folder that the benchmark kept
its indexes in. The word ``sample`` stands for the packaged questions. Printed: the weights by the wording against
those that start from hybrid; what each switch away from hybrid gains, and what is left of it when the other
collections decide whether to switch; and what the weights with the measured qualities reach on questions that these
were not measured on.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from agentic_retriever.config import RouterConfig
from agentic_retriever.evaluation.datasets import load_dataset
from agentic_retriever.router import AgenticRouter
from agentic_retriever.routing import (
    HeuristicSelector,
    StrategyWeights,
    assess_complexity,
    fused_weights,
    packaged_weights,
    query_features,
)
from agentic_retriever.schema import Strategy, StrategyCard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

BASE = Strategy.HYBRID
CUTS = 5


@dataclass(frozen=True, slots=True)
class Measured:
    """nDCG@10 of every strategy on every question of one index, ``(questions, strategies)``, and their signals."""

    name: str
    strategies: tuple[Strategy, ...]
    quality: Array
    features: Sequence[Mapping[str, float]]

    def column(self, strategy: Strategy) -> Array:
        """Return the figures of one strategy."""
        found: Array = self.quality[:, self.strategies.index(strategy)]
        return found

    def picks(self, weights: StrategyWeights, quality: Array | None = None) -> list[Strategy]:
        """Return what a table picks for every question, with a measured quality of each strategy or without."""
        known = [None] * len(self.strategies) if quality is None else quality.tolist()
        cards = [
            StrategyCard(strategy=s, description="", needs=(), cost=1.0, typical_ms=1.0, quality=one)
            for s, one in zip(self.strategies, known, strict=True)
        ]
        selector = HeuristicSelector(weights)
        return [Strategy(selector.select("", cards, features=row).name) for row in self.features]

    def reached(self, picks: Sequence[Strategy]) -> float:
        """Return the mean of what was picked."""
        return float(np.mean([self.quality[at, self.strategies.index(s)] for at, s in enumerate(picks)]))


def read(result: Path, data: Path, kept: Path) -> list[Measured]:
    """Read the figures of a benchmark and find the signals of its questions again."""
    found = []
    for target, told in json.loads(result.read_text(encoding="utf-8"))["datasets"].items():
        dataset = load_dataset("sample" if target.startswith("sample") else data / "collections" / target)
        rows = {
            name: row["per_query"] for name, row in told["strategies"].items() if name in {s.value for s in Strategy}
        }
        asked = list(next(iter(rows.values())))
        texts = {query.query_id: query.text for query in dataset.queries}
        folder = kept / ("sample" if target.startswith("sample") else target)
        with AgenticRouter(RouterConfig(data_dir=folder, embedding_model="local", query_log="none")) as router:
            profile = router.index(told["index"]).profile()
            features = [query_features(texts[query], profile, assess_complexity(texts[query])[1]) for query in asked]
        quality = np.array([[row[query]["nDCG@10"] for row in rows.values()] for query in asked])
        found.append(Measured(target, tuple(Strategy(name) for name in rows), quality, features))
    return found


def show_tables(collections: Sequence[Measured]) -> None:
    """Print what the two tables of weights reach."""
    _line("collection", "wording", "from hybrid", "best fixed", "oracle", "picked")
    means = []
    for one in collections:
        picks = one.picks(fused_weights())
        by_strategy, oracle = one.quality.mean(axis=0), one.quality.max(axis=1).mean()
        best = one.strategies[int(by_strategy.argmax())].value
        wording, ours = one.reached(one.picks(packaged_weights())), one.reached(picks)
        means.append((wording, ours, float(one.column(BASE).mean()), float(oracle)))
        counts = ", ".join(f"{s.value} {n}" for s, n in Counter(picks).most_common())
        _line(one.name, _(wording), _(ours), f"{best} {_(by_strategy.max())}", _(oracle), counts)
    wording, ours, hybrid, oracle = np.mean(means, axis=0)
    _line("mean", _(wording), _(ours), f"{BASE.value} {_(hybrid)}", _(oracle), "")


def show_switches(collections: Sequence[Measured]) -> None:
    """Print what each switch away from hybrid gains where its signals speak, in nDCG@10 over all questions."""
    signals: dict[str, dict[Strategy, float]] = {}
    for table in (packaged_weights(), fused_weights()):
        for name, row in table.signals.items():
            signals.setdefault(name, {}).update(row)
    every = StrategyWeights(fused_weights().base, signals)
    gains: dict[Strategy, dict[str, float]] = {}
    _line("switch to", "collection", "questions", "better", "worse", "gain")
    for one in collections:
        picks = one.picks(every)
        for strategy in sorted({*picks} - {BASE}, key=lambda s: s.value):
            at = [i for i, pick in enumerate(picks) if pick is strategy]
            gain = (one.column(strategy) - one.column(BASE))[at]
            gains.setdefault(strategy, {})[one.name] = float(gain.sum()) / len(picks)
            better, worse = int((gain > 1e-9).sum()), int((gain < -1e-9).sum())
            _line(strategy.value, one.name, len(at), better, worse, f"{gains[strategy][one.name]:+.4f}")
    for strategy, by_name in gains.items():
        # A collection switches when the others gain by it, taken together.
        kept = sum(gain for name, gain in by_name.items() if sum(by_name.values()) - gain > 0)
        _line(strategy.value, "all", "", "", "", f"{sum(by_name.values()):+.4f}, decided by the others {kept:+.4f}")


def show_measured(collections: Sequence[Measured]) -> None:
    """Print what qualities measured on four fifths of the questions reach on the last fifth, over five cuts."""
    _line("collection", "questions", "with measured quality", "best fixed")
    generator = np.random.default_rng(0)
    for one in collections:
        rows = len(one.quality)
        reached = np.zeros((2, CUTS, rows))
        for cut in range(CUTS):
            for test in np.array_split(generator.permutation(rows), min(5, rows // 5)):
                means = np.delete(one.quality, test, axis=0).mean(axis=0)
                picks = one.picks(fused_weights(), means)
                reached[0, cut, test] = [one.quality[at, one.strategies.index(picks[at])] for at in test]
                reached[1, cut, test] = one.quality[test, means.argmax()]
        _line(one.name, rows, _(float(reached[0].mean())), _(float(reached[1].mean())))


def _(value: float) -> str:
    return f"{value:.4f}"


def _line(*cells: object) -> None:
    sys.stdout.write("| " + " | ".join(str(cell) for cell in cells) + " |\n")


def main() -> None:
    """Read a benchmark and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("result", "data", "kept"):
        parser.add_argument(name, type=Path)
    options = parser.parse_args()
    collections = read(options.result, options.data, options.kept)
    for show in (show_tables, show_switches, show_measured):
        show(collections)
        sys.stdout.write("\n")


if __name__ == "__main__":
    main()
