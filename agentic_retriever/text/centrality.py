"""The sentences that say most of what a text says, without a model."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from agentic_retriever.text.sentences import split_sentences
from agentic_retriever.text.tokens import Tokenizer

Matrix = npt.NDArray[np.floating[Any]]

MAX_SENTENCES: Final = 400
"""Most sentences that are weighed; of a longer text, so many spread evenly over it."""

_DAMPING: Final = 0.85
_ROUNDS: Final = 40
_REPEATED: Final = 0.6
_MIN_TERMS: Final = 3
_HEADING_RE: Final = re.compile(r"#{1,6}\s|(?:\d+\.)+\d*\s+\S.{0,78}(?<![.!?:;])$")
_TABLE_RE: Final = re.compile(r"\||[\s|:+=_*-]+$")


def central_sentences(
    texts: Sequence[str], *, tokenizer: Tokenizer, room: int, measure: Callable[[str], int] = len
) -> list[str]:
    """Choose the most central sentences: those most alike to many others that are central themselves.

    Sentences are compared by the cosine of their term weights and ranked by a random walk over those (G. Erkan and
    D. Radev, "LexRank: Graph-based Lexical Centrality as Salience in Text Summarization", JAIR 22, 2004). One that
    repeats a chosen one is passed over. Headings, rows of tables and very short sentences count only where there is
    nothing else.
    """
    everything = list(dict.fromkeys(s.text for text in texts for s in split_sentences(text)))
    sentences = [s for s in everything if not (_HEADING_RE.match(s) or _TABLE_RE.match(s))] or everything
    terms = [tokenizer.tokens(sentence) for sentence in sentences]
    long = [i for i, found in enumerate(terms) if len(set(found)) >= _MIN_TERMS] or list(range(len(sentences)))
    weighed = [long[int(i)] for i in np.linspace(0, len(long) - 1, min(len(long), MAX_SENTENCES))] if long else []
    alike = _likeness([terms[i] for i in weighed])
    order: list[int] = np.argsort(-_walk(alike), kind="stable").tolist() if weighed else []
    chosen: list[int] = []
    for i in order:
        size = measure(sentences[weighed[i]])
        is_new = all(alike[i, j] < _REPEATED for j in chosen)
        if is_new and (size <= room or not chosen):
            chosen.append(i)
            room -= size
    return [sentences[weighed[i]] for i in sorted(chosen)]


def _likeness(terms: Sequence[Sequence[str]]) -> Matrix:
    """Cosines of the sentences' term weights, ``(n, n)``, in [0, 1]."""
    frequency = Counter(term for found in terms for term in set(found))
    columns = {term: column for column, term in enumerate(frequency)}
    weights = np.zeros((len(terms), max(1, len(columns))), dtype=np.float32)
    for row, found in enumerate(terms):
        for term, count in Counter(found).items():
            weights[row, columns[term]] = count * math.log(1 + len(terms) / frequency[term])
    norms = np.linalg.norm(weights, axis=1, keepdims=True)
    weights /= np.where(norms > 0, norms, 1)
    likeness: Matrix = weights @ weights.T
    return likeness


def _walk(alike: Matrix) -> Matrix:
    """Share of time that a random walk along likeness spends at each sentence, ``(n,)``."""
    count = len(alike)
    others = alike * (1 - np.eye(count, dtype=alike.dtype))  # being like itself says nothing for a sentence
    totals = others.sum(axis=1, keepdims=True)
    steps = np.where(totals > 0, others / np.where(totals > 0, totals, 1), 1 / count)
    share: Matrix = np.full(count, 1 / count)
    for _ in range(_ROUNDS):
        share = (1 - _DAMPING) / count + _DAMPING * (share @ steps)
    # Equal up to rounding is equal, so that the order of such sentences is that of the text.
    rounded: Matrix = np.round(share, 9)
    return rounded
