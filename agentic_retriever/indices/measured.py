"""What a benchmark measured of each strategy on one index, in a small JSON file beside it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from agentic_retriever.json_files import load_model, write_atomically
from agentic_retriever.schema import Strategy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MEASURED_FILE: Final = "strategies.json"
MEASURED_FORMAT: Final = 1

_KEYS: Final = ("format", "dataset", "index", "index_version", "queries", "measured_on", "strategies")


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyMeasure:
    """What was measured of one strategy."""

    quality: float  # Mean nDCG@10 over all questions, in [0, 1]
    p50_ms: float  # Median latency of one search in milliseconds, from 0, the embedding of the question excluded

    def __post_init__(self) -> None:
        if not _number(self.quality) or not 0 <= self.quality <= 1:
            raise ValueError(f"quality must be a number from 0 to 1, got {str(self.quality)[:40]!r}")
        if not _number(self.p50_ms) or self.p50_ms < 0:
            raise ValueError(f"p50_ms must be a number from 0, got {str(self.p50_ms)[:40]!r}")


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
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} must be text, got {str(getattr(self, name))[:40]!r}")  # noqa: TRY004 - one kind for all
        for name, least in (("index_version", 0), ("queries", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number from {least}, got {str(value)[:40]!r}")
        object.__setattr__(self, "strategies", MappingProxyType(dict(self.strategies)))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "format": MEASURED_FORMAT,
            "dataset": self.dataset,
            "index": self.index,
            "index_version": self.index_version,
            "queries": self.queries,
            "measured_on": self.measured_on,
            "strategies": {
                strategy.value: {"quality": found.quality, "p50_ms": found.p50_ms}
                for strategy, found in self.strategies.items()
            },
        }

    @classmethod
    def from_dict(cls, data: object) -> MeasuredStrategies:
        """Read what ``to_dict`` returned."""
        if not isinstance(data, dict) or set(data) != set(_KEYS):
            odd = ", ".join(sorted(map(str, set(data) ^ set(_KEYS)))) if isinstance(data, dict) else "no object"
            raise ValueError(f"must be an object with the keys {', '.join(_KEYS)}; missing or unknown: {odd}")
        if data["format"] != MEASURED_FORMAT:
            raise ValueError(f"format is {str(data['format'])[:20]!r}, this version reads {MEASURED_FORMAT}")
        if not isinstance(data["strategies"], dict):
            raise ValueError("strategies must be an object")  # noqa: TRY004 - one kind for all
        found = {_strategy(name): _measure(name, row) for name, row in data["strategies"].items()}
        return cls(strategies=found, **{name: data[name] for name in _KEYS[1:-1]})

    def save(self, folder: Path) -> None:
        """Write the file in one step."""
        content = json.dumps(self.to_dict(), ensure_ascii=False, indent=2)
        write_atomically(folder / MEASURED_FILE, content.encode("utf-8", "surrogatepass"))

    @classmethod
    def load(cls, folder: Path) -> MeasuredStrategies | None:
        """Read the file of an index; ``None`` when nothing was measured yet."""
        return load_model(folder / MEASURED_FILE, cls.from_dict, advice="remove it or measure the index again")


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _strategy(name: str) -> Strategy:
    try:
        return Strategy(name)
    except ValueError:
        known = ", ".join(strategy.value for strategy in Strategy)
        raise ValueError(f"strategies: unknown strategy {name[:40]!r} (known: {known})") from None


def _measure(name: str, row: object) -> StrategyMeasure:
    if not isinstance(row, dict) or set(row) != {"quality", "p50_ms"}:
        raise ValueError(f"strategies.{name} must be an object with the keys quality and p50_ms")
    try:
        return StrategyMeasure(quality=row["quality"], p50_ms=row["p50_ms"])
    except ValueError as err:
        raise ValueError(f"strategies.{name}: {err}") from err
