"""How a benchmark is to be run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agentic_retriever.errors import EvaluationError, unknown_name
from agentic_retriever.retrievers import REGISTRY
from agentic_retriever.schema import Record

AUTO: Final = "auto"
"""Name of the row in which the router chooses the strategy itself."""
ORACLE: Final = "oracle"
"""Name of the row that takes for each question the strategy that did best on it."""
ALL, ROUND_ROBIN = "all", "round_robin"
MODES: Final = (ALL, ROUND_ROBIN)

DEPTH: Final = 100
"""Nodes fetched for a question, so that R@100 can be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions(Record):
    """How to run a benchmark."""

    strategies: tuple[str, ...] | None = None
    mode: str = ALL
    vectors: Path | None = None  # Folder with NAME.npz, or one such file; None embeds what is needed
    views: bool = True
    limit: int | None = None  # Most questions of each data set, drawn by the seed; None takes all
    depth: int = DEPTH
    seed: int = 0
    baseline: str | None = None  # The row that the others are tested against; None takes vector, else the first
    peers: bool = False
    answers: bool = False

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise EvaluationError(f"mode must be {' or '.join(MODES)}, got {str(self.mode)[:40]!r}")
        if self.depth < 1 or (self.limit is not None and self.limit < 1):
            raise EvaluationError(f"depth and limit must be from 1, got {self.depth} and {self.limit}")
        known = [strategy.value for strategy in REGISTRY] + [AUTO]
        for name in self.strategies or ():
            if name not in known:
                raise EvaluationError(unknown_name("strategy", name, known))
        if self.strategies is not None and not self.strategies:
            raise EvaluationError("strategies names none; leave it out for all")
        if self.mode == ROUND_ROBIN and (self.peers or AUTO in (self.strategies or ())):
            raise EvaluationError("round_robin asks each question once, of one strategy; auto and peers need mode all")

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types; of a path its last part."""
        return {**self.fields_to_dict(), "vectors": None if self.vectors is None else self.vectors.name}
