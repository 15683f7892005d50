"""Posting lists of BM25 as arrays: row numbers and scores, nothing about nodes or words.

``bm25s`` computes them (Lucene's variant: Kamphuis et al. 2020, "Which BM25 Do You Mean?"; eager scoring: Lù 2024,
"BM25S"). Queries are scored here: its own tokenizer, top-k and filters are not used, since they know English stop words
only, return nodes of score 0, and let filtered-out nodes through.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import bm25s
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Rows = npt.NDArray[np.int64]

# Importing bm25s sets its logger to DEBUG, which would then speak through any handler of the application.
logging.getLogger("bm25s").setLevel(logging.WARNING)

LARGEST_BATCH = 4_096


@dataclass(frozen=True, slots=True)
class Postings:
    """Posting lists by column: token ``t`` has the entries ``starts[t]`` to ``starts[t + 1]``.

    Attributes:
        scores: What the token adds to the row's score, ``(entries,)`` float32, all above 0.
        rows: ``(entries,)`` int32, without repetition within a token.
        starts: ``(tokens + 1,)`` int64.
    """

    scores: npt.NDArray[np.float32]
    rows: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        for array in (self.scores, self.rows, self.starts):
            array.setflags(write=False)

    @classmethod
    def build(cls, documents: list[list[int]], tokens: int, *, k1: float, b: float) -> Postings:
        """Compute the lists.

        Args:
            documents: Token numbers of each row, with repetitions.
            tokens: How many different tokens there are, numbered from 0.
            k1: Saturation of the term frequency.
            b: Strength of the length normalisation.
        """
        if not tokens:  # which bm25s cannot do
            return cls(np.empty(0, np.float32), np.empty(0, np.int32), np.zeros(1, np.int64))
        model = bm25s.BM25(k1=k1, b=b, method="lucene", backend="numpy", csc_backend="numpy")
        built = model.build_index_from_ids(
            unique_token_ids=list(range(tokens)), corpus_token_ids=documents, show_progress=False
        )
        return cls(
            np.asarray(built["data"], dtype=np.float32),
            np.asarray(built["indices"], dtype=np.int32),
            np.asarray(built["indptr"], dtype=np.int64),
        )

    def score(self, tokens: Iterable[int], rows: int) -> tuple[Rows, Floats]:
        """Score the rows that have any of the tokens; a token that comes twice counts twice.

        Args:
            tokens: Token numbers of the query.
            rows: How many rows there are.

        Returns:
            Row numbers, ascending, and their scores, all above 0.
        """
        totals = np.zeros(rows, dtype=np.float64)
        for token, count in Counter(tokens).items():
            span = slice(self.starts[token], self.starts[token + 1])
            totals[self.rows[span]] += self.scores[span] * np.float64(count)
        found = np.flatnonzero(totals)
        return found, totals[found]


def best(scores: Floats, top_k: int) -> Rows:
    """Return the positions of the ``top_k`` highest scores, best first, ties by position."""
    if top_k >= len(scores):
        return np.argsort(-scores, kind="stable")
    lowest = np.partition(scores, len(scores) - top_k)[len(scores) - top_k]
    above = np.flatnonzero(scores > lowest)
    ties = np.flatnonzero(scores == lowest)[: top_k - len(above)]
    # The ties go last and are in order of position already.
    return np.concatenate((above[np.argsort(-scores[above], kind="stable")], ties))


def batches(scores: Floats, first: int) -> Iterator[Rows]:
    """Yield the positions of all scores, best first, ties by position, in growing batches.

    Args:
        scores: The scores.
        first: Length of the first batch; only when asked to go on beyond it are all scores sorted.
    """
    yield best(scores, first)
    if first >= len(scores):
        return
    order, start, size = np.argsort(-scores, kind="stable"), first, first
    while start < len(order):
        size = min(4 * size, max(LARGEST_BATCH, first))
        yield order[start : start + size]
        start += size
