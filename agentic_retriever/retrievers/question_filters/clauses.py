"""What is understood of a question: clauses, and what is left of its text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentic_retriever.errors import ConfigError

if TYPE_CHECKING:
    from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

    from agentic_retriever.schema import Degradation


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """One restriction that a question asks for.

    Attributes:
        filter: The restriction; it names fields of the dictionary only.
        certainty: How sure it is that the question means it, in (0, 1].
        text: The words of the question that it came from, as they stand there; several stretches joined by `` … ``.
        spans: Start and end offset of each stretch in the question, in order; empty where a model gave words that are
            not in it.
        say: One line for a person, such as ``area_rai is from 5 to 10``.
    """

    filter: MetadataFilter | MetadataFilters
    certainty: float
    text: str
    spans: tuple[tuple[int, int], ...]
    say: str

    def __post_init__(self) -> None:
        if not 0.0 < self.certainty <= 1.0:
            raise ConfigError(f"the certainty of a clause must be above 0 and at most 1, got {self.certainty!r}")

    @property
    def start(self) -> int:
        """Offset of its first word in the question, in characters; 0 without a stretch."""
        return self.spans[0][0] if self.spans else 0

    @property
    def end(self) -> int:
        """Offset behind its last word in the question; 0 without a stretch."""
        return self.spans[-1][1] if self.spans else 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {"say": self.say, "certainty": self.certainty, "text": self.text, "start": self.start, "end": self.end}


@dataclass(frozen=True, slots=True, kw_only=True)
class Understood:
    """What was understood of a question.

    Attributes:
        clauses: The restrictions, in reading order; every one must hold.
        text_left: The question without the words that became clauses, in one line; ``""`` when nothing is left.
        degraded: What fell back to something lesser, such as a model whose reply could not be used.
    """

    clauses: tuple[Clause, ...]
    text_left: str
    degraded: tuple[Degradation, ...] = ()

    def at_least(self, certainty: float) -> tuple[Clause, ...]:
        """Return the clauses of that certainty or more, in reading order."""
        return tuple(clause for clause in self.clauses if clause.certainty >= certainty)
