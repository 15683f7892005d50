"""What to try when a question's clauses leave nothing: the same with as few clauses less as will do."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from llama_index.core.vector_stores.types import FilterCondition, MetadataFilters

from agentic_retriever.filters import merge_and

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agentic_retriever.retrievers.question_filters.clauses import Clause


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One set of filters to try.

    Attributes:
        filters: The caller's filters and the clauses that are kept, all of which must hold; ``None`` for no
            restriction.
        kept: The clauses in it, in reading order.
        dropped: What is given up here, one line each, least certain first.
    """

    filters: MetadataFilters | None
    kept: tuple[Clause, ...]
    dropped: tuple[str, ...]


_MAX_COMBINED = 6


class RelaxationLadder:
    """Successive filters for a question: all clauses, then without one, then without two, and so on.

    Among those that give up as many, the ones that give up the least certain come first; of clauses that are as
    certain the one that stands last in the question goes first. So the first rung that leaves anything has lost the
    fewest clauses: an impossible one goes, and those that are right stay. With more than 6 clauses only the least
    certain ones are given up together, so that the ladder stays short.

    The caller's own filters are part of every rung, are never relaxed, and can only be narrowed. The last rung has
    them alone.

    Args:
        clauses: The clauses of the question.
        filters: The caller's filters.
    """

    def __init__(self, clauses: Sequence[Clause], filters: MetadataFilters | None = None) -> None:
        self._clauses = tuple(clauses)
        self._filters = filters

    def __len__(self) -> int:
        return sum(1 for _ in self._losses())

    def __iter__(self) -> Iterator[Rung]:
        """Go down the ladder.

        Raises:
            FilterError: The caller's filters are nested too deep.
        """
        for lost in self._losses():
            kept = tuple(clause for at, clause in enumerate(self._clauses) if at not in lost)
            wanted = MetadataFilters(filters=[clause.filter for clause in kept], condition=FilterCondition.AND)
            yield Rung(
                filters=merge_and(self._filters, wanted),
                kept=kept,
                dropped=tuple(self._clauses[at].say for at in lost),
            )

    def _losses(self) -> Iterator[tuple[int, ...]]:
        """Yield the positions of the clauses to give up, least certain first within each."""
        order = sorted(range(len(self._clauses)), key=lambda at: (self._clauses[at].certainty, -at))
        for count in range(len(order) + 1):
            if len(order) > _MAX_COMBINED and count > 1:
                yield tuple(order[:count])
            else:
                # Positions in order of certainty come out of combinations() in order of certainty, too.
                yield from combinations(order, count)
