"""What checking the citations of an answer found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceCheck:
    """How one sentence of an answer stands against the passages that it cites.

    Attributes:
        start: Offset of its first character in the answer's text.
        end: Offset behind its last character, before its markers; equal to ``start`` for a sentence that was left out,
            which then is the place where it would stand.
        text: The sentence without markers: the answer's text between ``start`` and ``end`` unless it was left out.
        supported: Whether the cited passages say it.
        score: How well they support it, in [0, 1]; 1 for a verbatim sentence.
        citations: The numbers of its citations, in order of first use.
        problems: Why it is not supported, and what was put right, one short line in English each.
    """

    start: int
    end: int
    text: str
    supported: bool
    score: float
    citations: tuple[int, ...] = ()
    problems: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "start": self.start,
            "end": self.end,
            "text": self.text,
            "supported": self.supported,
            "score": self.score,
            "citations": list(self.citations),
            "problems": list(self.problems),
        }

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> SentenceCheck:
        """Read what :meth:`to_dict` wrote.

        Args:
            row: The mapping.

        Raises:
            KeyError: If a field is missing.
            TypeError: If a field is of another kind.
            ValueError: If a number cannot be read.
        """
        return cls(
            start=int(row["start"]),
            end=int(row["end"]),
            text=str(row["text"]),
            supported=bool(row["supported"]),
            score=float(row["score"]),
            citations=tuple(int(number) for number in row["citations"]),
            problems=tuple(str(line) for line in row["problems"]),
        )
