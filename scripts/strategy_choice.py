"""Tell what the choice of the strategy would reach, from a benchmark that is there already; asks nothing again.

Usage: python scripts/strategy_choice.py RESULT DATA_FOLDER KEPT

RESULT is the JSON of a benchmark, DATA_FOLDER holds ``collections/NAME`` and ``embeddings/multilingual-e5-small``, KEPT
is the folder that the benchmark kept its indexes in. The word ``sample`` stands for the packaged questions. Printed:
the table of the wording against the one that starts from hybrid; what each switch away from hybrid gains, and what is
left of it when the other collections decide whether to switch; what the table told the measured qualities and the
learned selector reach in cross-validation within a collection; and a linear model that was trained on the others.
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
from agentic_retriever.evaluation.loading import load_dataset
from agentic_retriever.evaluation.vectors import load_vectors
from agentic_retriever.router import AgenticRouter
from agentic_retriever.routing import (
    HeuristicSelector,
    StrategyWeights,
    TrainingRow,
    assess_complexity,
    cross_validate,
    fused_weights,
    packaged_weights,
    probe_features,
    query_features,
)
from agentic_retriever.schema import Strategy, StrategyCard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

MODEL = "multilingual-e5-small"
BASE = Strategy.HYBRID
PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0)
MARGINS = (0.0, 0.01, 0.02, 0.05, 0.1, np.inf)


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

    def picks(self, weights: StrategyWeights) -> list[Strategy]:
        """Return what a table picks for every question."""
        cards = [StrategyCard(strategy=s, description="", needs=(), cost=1.0, typical_ms=1.0) for s in self.strategies]
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
        vectors = {}
        if not target.startswith("sample"):
            vectors = load_vectors(data / "embeddings" / MODEL / f"{target}.npz", dataset).queries
        rows = {
            name: row["per_query"] for name, row in told["strategies"].items() if name in {s.value for s in Strategy}
        }
        asked = list(next(iter(rows.values())))
        texts = {query.query_id: query.text for query in dataset.queries}
        folder = kept / ("sample" if target.startswith("sample") else target)
        with AgenticRouter(RouterConfig(data_dir=folder, embedding_model="local", query_log="none")) as router:
            profile = router.index(told["index"]).profile()
            features = [
                {
                    **query_features(texts[query], profile, assess_complexity(texts[query])[1]),
                    **probe_features(texts[query], profile, vectors.get(query)),
                }
                for query in asked
            ]
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


def show_validation(collections: Sequence[Measured]) -> None:
    """Print what cross-validation within a collection says; latencies take no part in it."""
    _line("collection", "questions", "measured told", "learned", "best fixed", "learned against it", "helps")
    for one in collections:
        rows = [
            TrainingRow(
                query_id=str(at),
                features=row,
                quality=dict(zip(one.strategies, one.quality[at].tolist(), strict=True)),
                latency_ms=dict.fromkeys(one.strategies, 1.0),
            )
            for at, row in enumerate(one.features)
        ]
        found = cross_validate(rows, folds=min(5, len(rows) // 5), heuristic=HeuristicSelector(fused_weights()))
        gain = f"{found.gain:+.4f} [{found.gain_low:+.4f}, {found.gain_high:+.4f}]"
        told = "-" if found.heuristic is None else _(found.heuristic)
        _line(one.name, len(rows), told, _(found.learned), _(found.best_fixed), gain, "yes" if found.helps else "no")


def show_learned(collections: Sequence[Measured]) -> None:
    """Print what a linear model gains over hybrid on a collection when it was trained on the others."""
    shared = [s for s in Strategy if s is not BASE and all(s in one.strategies for one in collections)]
    names = sorted(set.intersection(*(set(row) for one in collections for row in one.features)))
    tables = {
        one.name: (
            np.array([[row[name] for name in names] for row in one.features]),
            np.stack([one.column(s) - one.column(BASE) for s in shared], axis=1),
        )
        for one in collections
    }
    _line("held out", "penalty", "margin", "switched", "gain")
    for held in tables:
        others = [name for name in tables if name != held]
        grid = [(penalty, margin) for penalty in PENALTIES for margin in MARGINS]
        reached = []
        for penalty, margin in grid:
            inner = [_gain(tables, [n for n in others if n != left], left, penalty, margin)[0] for left in others]
            reached.append(float(np.mean(inner)))
        penalty, margin = grid[int(np.argmax(reached))]
        gain, switched = _gain(tables, others, held, penalty, margin)
        _line(held, penalty, margin, f"{switched:.0%}", f"{gain:+.4f}")


def _gain(
    tables: Mapping[str, tuple[Array, Array]], train: Sequence[str], test: str, penalty: float, margin: float
) -> tuple[float, float]:
    """Fit on some collections, each of the same weight; return the gain on another, and how much was switched."""
    x = np.concatenate([tables[name][0] for name in train])
    y = np.concatenate([tables[name][1] for name in train])
    weights = np.concatenate([np.full(len(tables[name][0]), 1 / len(tables[name][0])) for name in train])
    weights /= weights.sum()
    mean = weights @ x
    scale = np.sqrt(weights @ (x - mean) ** 2) + 1e-9
    z, average = np.clip((x - mean) / scale, -4, 4), weights @ y
    slopes = np.linalg.solve(
        z.T @ (weights[:, None] * z) + penalty * np.eye(z.shape[1]), z.T @ (weights[:, None] * (y - average))
    )
    features, gains = tables[test]
    predicted = np.clip((features - mean) / scale, -4, 4) @ slopes + average
    best = predicted.argmax(axis=1)
    rows = np.arange(len(best))
    switched = predicted[rows, best] > margin
    return float(np.where(switched, gains[rows, best], 0.0).mean()), float(switched.mean())


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
    for show in (show_tables, show_switches, show_validation, *([show_learned] if len(collections) > 2 else [])):
        show(collections)
        sys.stdout.write("\n")


if __name__ == "__main__":
    main()
