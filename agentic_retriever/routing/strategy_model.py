"""A small linear model of how well each strategy does on a query, kept as JSON beside the index that it is for."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from agentic_retriever.json_files import (
    check_format,
    check_trained_on,
    is_finite,
    load_model,
    model_bytes,
    require,
    table_of,
    write_atomically,
)
from agentic_retriever.schema import Strategy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import numpy.typing as npt

MODEL_FILE: Final = "strategy_model.json"
MODEL_FORMAT: Final = 1
MAX_DEVIATIONS: Final = 4.0
"""Standard deviations beyond which a feature is cut, so that no odd query is carried far outside of what was seen."""

_MAX_FEATURES: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedOn:
    """What a model was trained on.

    Attributes:
        dataset: Name of the questions and judgments.
        index: Name of the index.
        index_version: Its version at that time, from 0.
        rows: How many questions.
        date: When, ISO 8601.
    """

    dataset: str
    index: str
    index_version: int
    rows: int
    date: str

    def __post_init__(self) -> None:
        check_trained_on(self, texts=("dataset", "index", "date"), counts=("index_version", "rows"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyModel:
    """Predicts the advantage of each strategy over the one that was best on average.

    The advantage of a strategy is ``intercept + weights @ z``, where ``z`` are the features less their means, divided
    by their scales, and cut at four standard deviations; in units of nDCG@10.

    Attributes:
        strategies: The strategies that it knows.
        features: Names of the features that it needs.
        means: One per feature.
        scales: One per feature, above 0.
        intercepts: One per strategy.
        weights: One row per strategy, one column per feature.
        temperature: Divides advantages before a softmax turns them into probabilities; above 0.
        tolerance: Advantages that differ by less count as equal, and the faster strategy wins; from 0.
        latency_ms: Mean milliseconds of each strategy in training, from 0.
        shrinkage: Ridge penalty per row that was chosen; ``None`` when all weights were shrunk to 0.
        trained_on: What it was trained on.

    Raises:
        ValueError: If a part is ill-typed, not finite, or of another length than its names; it is named.
    """

    strategies: tuple[Strategy, ...]
    features: tuple[str, ...]
    means: tuple[float, ...]
    scales: tuple[float, ...]
    intercepts: tuple[float, ...]
    weights: tuple[tuple[float, ...], ...]
    temperature: float
    tolerance: float
    latency_ms: Mapping[Strategy, float]
    shrinkage: float | None
    trained_on: TrainedOn

    def __post_init__(self) -> None:
        _require_names(self.strategies, "strategies")
        _require_names(self.features, "features")
        require(len(self.features) <= _MAX_FEATURES, "features", f"at most {_MAX_FEATURES}", len(self.features))
        _require_numbers(self.means, "means", len(self.features))
        _require_numbers(self.scales, "scales", len(self.features))
        require(all(scale > 0 for scale in self.scales), "scales", "numbers above 0", min(self.scales, default=1))
        _require_numbers(self.intercepts, "intercepts", len(self.strategies))
        require(len(self.weights) == len(self.strategies), "weights", "a row per strategy", len(self.weights))
        for strategy, row in zip(self.strategies, self.weights, strict=True):
            _require_numbers(row, f"weights.{strategy.value}", len(self.features))
        require(is_finite(self.temperature) and self.temperature > 0, "temperature", "above 0", self.temperature)
        require(is_finite(self.tolerance) and self.tolerance >= 0, "tolerance", "a number from 0", self.tolerance)
        if self.shrinkage is not None:
            right = is_finite(self.shrinkage) and self.shrinkage >= 0
            require(right, "shrinkage", "a number from 0 or null", self.shrinkage)
        require(set(self.latency_ms) == set(self.strategies), "latency_ms", "one per strategy", len(self.latency_ms))
        for strategy, spent in self.latency_ms.items():
            require(is_finite(spent) and spent >= 0, f"latency_ms.{strategy.value}", "a number from 0", spent)
        object.__setattr__(self, "latency_ms", MappingProxyType(dict(self.latency_ms)))

    def unusable(self, features: Mapping[str, float]) -> list[str]:
        """Return the names of the features that are missing or not finite, in order."""
        return [name for name in self.features if not is_finite(features.get(name))]

    def advantages(self, features: Mapping[str, float]) -> dict[Strategy, float]:
        """Predict how much better each strategy does than the one that was best on average.

        Args:
            features: At least those of the model, all finite; see ``unusable``.

        Returns:
            Finite numbers in units of nDCG@10, in the order of ``strategies``.

        Raises:
            KeyError: If a feature is missing.
        """
        row = np.array([[features[name] for name in self.features]], dtype=np.float64)
        z = standardised(row, np.array(self.means), np.array(self.scales))[0]
        found = np.array(self.intercepts) + np.array(self.weights).reshape(len(self.strategies), -1) @ z
        return dict(zip(self.strategies, found.tolist(), strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        named = [strategy.value for strategy in self.strategies]
        return {
            "format": MODEL_FORMAT,
            "strategies": named,
            "features": list(self.features),
            "means": list(self.means),
            "scales": list(self.scales),
            "intercepts": list(self.intercepts),
            "weights": dict(zip(named, map(list, self.weights), strict=True)),
            "temperature": self.temperature,
            "tolerance": self.tolerance,
            "latency_ms": {strategy.value: self.latency_ms[strategy] for strategy in self.strategies},
            "shrinkage": self.shrinkage,
            "trained_on": asdict(self.trained_on),
        }

    @classmethod
    def from_dict(cls, data: object) -> StrategyModel:
        """Read what ``to_dict`` returned.

        Raises:
            ValueError: If a key is missing, unknown, ill-typed or out of range; it is named.
        """
        table = table_of(data, "the model", ("format", *_FIELDS))
        check_format(table, MODEL_FORMAT)
        strategies = tuple(_strategy(name) for name in _list(table["strategies"], "strategies"))
        weights = table_of(table["weights"], "weights", [strategy.value for strategy in strategies])
        latency = table_of(table["latency_ms"], "latency_ms", [strategy.value for strategy in strategies])
        trained = table_of(table["trained_on"], "trained_on", TrainedOn.__dataclass_fields__)
        return cls(
            strategies=strategies,
            features=tuple(_list(table["features"], "features")),
            means=tuple(_list(table["means"], "means")),
            scales=tuple(_list(table["scales"], "scales")),
            intercepts=tuple(_list(table["intercepts"], "intercepts")),
            weights=tuple(tuple(_list(weights[s.value], f"weights.{s.value}")) for s in strategies),
            temperature=table["temperature"],
            tolerance=table["tolerance"],
            latency_ms={strategy: latency[strategy.value] for strategy in strategies},
            shrinkage=table["shrinkage"],
            trained_on=TrainedOn(**trained),
        )

    def save(self, path: Path) -> None:
        """Write the model as JSON in one step.

        Raises:
            StoreError: If the file cannot be written.
        """
        write_atomically(path, model_bytes(self.to_dict()))

    @classmethod
    def load(cls, path: Path) -> StrategyModel | None:
        """Read a model; ``None`` when there is no such file.

        Raises:
            StoreDamagedError: If the file cannot be used; file and key are named.
        """
        return load_model(path, cls.from_dict, advice="remove it or train the model again")


_FIELDS: Final = ("strategies", "features", "means", "scales", "intercepts", "weights", "temperature", "tolerance",
                  "latency_ms", "shrinkage", "trained_on")  # fmt: skip


def standardised(
    rows: npt.NDArray[np.float64], means: npt.NDArray[np.float64], scales: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Bring features to units of standard deviations, cut at four.

    Args:
        rows: Features, ``(n, features)``.
        means: ``(features,)``.
        scales: Above 0, ``(features,)``.

    Returns:
        ``(n, features)``.
    """
    # A finite feature over a tiny scale may overflow, which the cut mends.
    with np.errstate(over="ignore"):
        cut: npt.NDArray[np.float64] = np.clip((rows - means) / scales, -MAX_DEVIATIONS, MAX_DEVIATIONS)
    return cut


def _require_numbers(values: Iterable[object], key: str, length: int) -> None:
    found = list(values)
    require(len(found) == length, key, f"{length} numbers", f"{len(found)}")
    for at, value in enumerate(found):
        require(is_finite(value), f"{key}[{at}]", "a finite number", value)


def _require_names(names: tuple[object, ...], key: str) -> None:
    require(all(isinstance(name, str) and name for name in names), key, "names", names)
    require(names and len(set(names)) == len(names), key, "names without repeats, at least one", names)


def _list(value: object, key: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{key} must be a list")  # noqa: TRY004 - one kind for all that is wrong in a file
    return value


def _strategy(name: object) -> Strategy:
    try:
        return Strategy(name)
    except ValueError:
        known = ", ".join(strategy.value for strategy in Strategy)
        raise ValueError(f"strategies: unknown strategy {str(name)[:40]!r} (known: {known})") from None
