"""How well choices among names agree with the right ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """Right names against chosen ones.

    Attributes:
        labels: Every name that was right or chosen, in order of the alphabet.
        matrix: How often a name (row) was answered by a name (column), ``(len(labels), len(labels))``.
    """

    labels: tuple[str, ...]
    matrix: npt.NDArray[np.int64]

    @property
    def total(self) -> int:
        """How many choices there were."""
        return int(self.matrix.sum())

    @property
    def accuracy(self) -> float | None:
        """Share of right choices, in [0, 1]; ``None`` without any."""
        return float(self.matrix.trace() / self.matrix.sum()) if self.matrix.sum() else None

    @property
    def macro_accuracy(self) -> float | None:
        """Mean over the right names of the share of right choices, so that each counts the same: balanced accuracy."""
        recalls = [row["recall"] for row in self.by_label().values()]
        return float(np.mean(recalls)) if recalls else None

    @property
    def macro_f1(self) -> float | None:
        """Mean F1 over the names that were ever right, in [0, 1]; ``None`` without any."""
        scores = [row["f1"] for row in self.by_label().values()]
        return float(np.mean(scores)) if scores else None

    def by_label(self) -> dict[str, dict[str, float]]:
        """Return count, precision, recall and F1 of every name that was ever right."""
        right, answered, asked = np.diag(self.matrix), self.matrix.sum(axis=0), self.matrix.sum(axis=1)
        rows = {}
        for at, label in enumerate(self.labels):
            if asked[at]:
                precision = float(right[at] / answered[at]) if answered[at] else 0.0
                recall = float(right[at] / asked[at])
                f1 = float(2 * right[at] / (asked[at] + answered[at]))
                rows[label] = {"count": int(asked[at]), "precision": precision, "recall": recall, "f1": f1}
        return rows

    def confusion(self) -> dict[str, dict[str, int]]:
        """Return how often each right name was answered by each name; what never happened is left out."""
        return {
            gold: {label: int(self.matrix[row, at]) for at, label in enumerate(self.labels) if self.matrix[row, at]}
            for row, gold in enumerate(self.labels)
            if self.matrix[row].any()
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "count": self.total,
            "accuracy": self.accuracy,
            "macro_accuracy": self.macro_accuracy,
            "macro_f1": self.macro_f1,
            "by_label": self.by_label(),
            "confusion": self.confusion(),
        }


def compare(gold: Sequence[str], chosen: Sequence[str]) -> Outcomes:
    """Hold chosen names against the right ones.

    Args:
        gold: The right names.
        chosen: The names that were chosen, in the same order.

    Returns:
        The outcomes.

    Raises:
        ValueError: If the two are not of one length.
    """
    if len(gold) != len(chosen):
        raise ValueError(f"gold has {len(gold)} names, chosen {len(chosen)}; they must be as many")
    labels = tuple(sorted({*gold, *chosen}))
    place = {label: at for at, label in enumerate(labels)}
    matrix = np.zeros((len(labels), len(labels)), dtype=np.int64)
    np.add.at(matrix, ([place[name] for name in gold], [place[name] for name in chosen]), 1)
    return Outcomes(labels=labels, matrix=matrix)
