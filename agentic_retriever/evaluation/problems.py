"""What was wrong with a data set: counted, listed, and said what was done about it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from agentic_retriever.schema import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_LISTED: Final = 200
"""Problems of one kind in one file that are listed one by one; all are counted."""

_MAX_DETAIL: Final = 200


class ProblemKind(str, Enum):
    """What can be wrong, and what is done about it (see ``CONSEQUENCE``)."""

    BROKEN_LINE = "broken_line"
    MISSING_FIELD = "missing_field"
    BAD_FIELD = "bad_field"
    DUPLICATE_ID = "duplicate_id"
    BAD_JUDGMENT = "bad_judgment"
    UNKNOWN_QUERY = "unknown_query"
    UNKNOWN_DOCUMENT = "unknown_document"
    UNJUDGED_QUERY = "unjudged_query"
    UNLABELLED_QUERY = "unlabelled_query"
    DUPLICATE_VECTOR = "duplicate_vector"
    UNUSABLE_VECTOR = "unusable_vector"
    MISSING_DOCUMENT_VECTOR = "missing_document_vector"
    MISSING_QUERY_VECTOR = "missing_query_vector"
    COMPUTED_DOCUMENT_VECTOR = "computed_document_vector"
    COMPUTED_QUERY_VECTOR = "computed_query_vector"
    UNUSED_VECTOR = "unused_vector"


CONSEQUENCE: Final[Mapping[ProblemKind, str]] = frozen(
    {
        ProblemKind.BROKEN_LINE: "the line is left out",
        ProblemKind.MISSING_FIELD: "the record is left out",
        ProblemKind.BAD_FIELD: "the field is ignored",
        ProblemKind.DUPLICATE_ID: "the first one is kept",
        ProblemKind.BAD_JUDGMENT: "the judgment is left out",
        ProblemKind.UNKNOWN_QUERY: "the judgment is left out",
        ProblemKind.UNKNOWN_DOCUMENT: "the judgment is left out",
        ProblemKind.UNJUDGED_QUERY: "the query is not asked",
        ProblemKind.UNLABELLED_QUERY: "the query is not asked of stage one",
        ProblemKind.DUPLICATE_VECTOR: "the first one is kept",
        ProblemKind.UNUSABLE_VECTOR: "counts as missing",
        ProblemKind.MISSING_DOCUMENT_VECTOR: "the document counts by its words only",
        ProblemKind.MISSING_QUERY_VECTOR: "the query is not asked",
        ProblemKind.COMPUTED_DOCUMENT_VECTOR: "the document was embedded",
        ProblemKind.COMPUTED_QUERY_VECTOR: "the query was embedded",
        ProblemKind.UNUSED_VECTOR: "it is not used",
    }
)  # type: ignore[assignment]  # frozen() is typed for names, and every kind is one


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that was wrong.

    Attributes:
        kind: Which kind.
        source: The file.
        detail: What it is, one line.
        line: Line number from 1, or ``None``.
    """

    kind: ProblemKind
    source: str
    detail: str
    line: int | None = None

    def __str__(self) -> str:
        where = self.source if self.line is None else f"{self.source}:{self.line}"
        return f"{where}: {self.detail}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {"kind": self.kind.value, "source": self.source, "line": self.line, "detail": self.detail}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemReport:
    """All problems of one or several data sets.

    Attributes:
        counts: How many there are, by kind.
        listed: The first 200 of each kind in each file.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    listed: tuple[Problem, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", frozen(self.counts))

    @property
    def total(self) -> int:
        """How many there are in all."""
        return sum(self.counts.values())

    def summary(self) -> list[str]:
        """Return one line for each kind: how many, what is done about them, and the first one."""
        first: dict[str, Problem] = {}
        for problem in self.listed:
            first.setdefault(problem.kind.value, problem)
        return [
            f"{count} x {kind.replace('_', ' ')} ({CONSEQUENCE[ProblemKind(kind)]}), first: {first[kind]}"
            for kind, count in self.counts.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "total": self.total,
            "counts": dict(self.counts),
            "listed": [problem.to_dict() for problem in self.listed],
        }

    @classmethod
    def merged(cls, reports: Iterable[ProblemReport]) -> ProblemReport:
        """Put several reports together."""
        counts: Counter[str] = Counter()
        listed: list[Problem] = []
        for report in reports:
            counts.update(report.counts)
            listed.extend(report.listed)
        return cls(counts=dict(sorted(counts.items())), listed=tuple(listed))


class ProblemLog:
    """Collects problems while a data set is read; not for several threads."""

    def __init__(self) -> None:
        self._counts: Counter[ProblemKind] = Counter()
        self._by_file: Counter[tuple[ProblemKind, str]] = Counter()
        self._listed: list[Problem] = []

    def add(self, kind: ProblemKind, source: object, detail: str, *, line: int | None = None) -> None:
        """Note a problem; beyond 200 of a kind in a file they are counted only."""
        name = str(source)
        self._counts[kind] += 1
        self._by_file[kind, name] += 1
        if self._by_file[kind, name] <= MAX_LISTED:
            short = " ".join(detail.split())[:_MAX_DETAIL]
            self._listed.append(Problem(kind=kind, source=name, detail=short, line=line))

    def report(self) -> ProblemReport:
        """Return what was collected so far."""
        counts = {kind.value: count for kind, count in sorted(self._counts.items(), key=lambda item: item[0].value)}
        return ProblemReport(counts=counts, listed=tuple(self._listed))
