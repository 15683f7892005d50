"""What a benchmark measured of each strategy on one index, in a small JSON file beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from agentic_retriever.json_files import (
    check_format,
    is_finite,
    load_model,
    model_bytes,
    require,
    table_of,
    write_atomically,
)
from agentic_retriever.schema import Strategy

MEASURED_FILE: Final = "strategies.json"
MEASURED_FORMAT: Final = 1

_KEYS: Final = ("format", "dataset", "index", "index_version", "queries", "measured_on", "strategies")


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyMeasure:
    """What was measured of one strategy."""

    quality: float  # Mean nDCG@10 over all questions, in [0, 1]
    p50_ms: float  # Median latency of one search in milliseconds, from 0, the embedding of the question excluded

    def __post_init__(self) -> None:
        require(is_finite(self.quality) and 0 <= self.quality <= 1, "quality", "a number from 0 to 1", self.quality)
        require(is_finite(self.p50_ms) and self.p50_ms >= 0, "p50_ms", "a number from 0", self.p50_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStrategies:
    """The result of one benchmark run on one index, by strategy."""

    strategies: Mapping[Strategy, StrategyMeasure]
    dataset: str
    index: str
    index_version: int
    queries: int
    measured_on: str  # Date, ISO 8601

    def __post_init__(self) -> None:
        for name in ("dataset", "index", "measured_on"):
            value = getattr(self, name)
            require(isinstance(value, str), name, "text", value)
        for name, least in (("index_version", 0), ("queries", 1)):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            require(whole and value >= least, name, f"a whole number from {least}", value)
        object.__setattr__(self, "strategies", MappingProxyType(dict(self.strategies)))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        strategies = {strategy.value: asdict(found) for strategy, found in self.strategies.items()}
        plain = {name: getattr(self, name) for name in _KEYS[1:-1]}
        return {"format": MEASURED_FORMAT, **plain, "strategies": strategies}

    @classmethod
    def from_dict(cls, data: object) -> MeasuredStrategies:
        """Read what ``to_dict`` returned."""
        table = table_of(data, "it", _KEYS)
        check_format(table, MEASURED_FORMAT)
        require(isinstance(table["strategies"], dict), "strategies", "an object", table["strategies"])
        found = {_strategy(name): _measure(name, row) for name, row in table["strategies"].items()}
        return cls(strategies=found, **{name: table[name] for name in _KEYS[1:-1]})

    def save(self, folder: Path) -> None:
        """Write the file in one step."""
        write_atomically(folder / MEASURED_FILE, model_bytes(self.to_dict()))

    @classmethod
    def load(cls, folder: Path) -> MeasuredStrategies | None:
        """Read the file of an index; ``None`` when nothing was measured yet."""
        return load_model(folder / MEASURED_FILE, cls.from_dict, advice="remove it or measure the index again")


def _strategy(name: str) -> Strategy:
    try:
        return Strategy(name)
    except ValueError:
        known = ", ".join(strategy.value for strategy in Strategy)
        raise ValueError(f"strategies: unknown strategy {name[:40]!r} (known: {known})") from None


def _measure(name: str, row: object) -> StrategyMeasure:
    table = table_of(row, f"strategies.{name}", ("quality", "p50_ms"))
    try:
        return StrategyMeasure(**table)
    except ValueError as err:
        raise ValueError(f"strategies.{name}: {err}") from err
