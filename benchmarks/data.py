"""Seeded synthetic nodes, questions, filters and texts."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING
from uuid import UUID

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt
    from llama_index.core.schema import TextNode
    from llama_index.core.vector_stores.types import MetadataFilters

DIMENSION = 384
BATCH = 1000

_CATEGORIES = tuple(f"category-{i:02d}" for i in range(20))
_FLAGS = ("published", "draft")
_YEARS = (2000, 2025)
_TAGS = tuple(f"tag-{i:02d}" for i in range(50))
_VOCABULARY = 30_000
# The most frequent words of a text are those that every tokenizer for English drops.
_STOP_WORDS = (
    "the", "of", "and", "to", "in", "a", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not",
    "this", "are", "or", "at", "but", "an", "they", "there", "if", "no", "their", "will", "then", "these", "into",
)  # fmt: skip
_SYLLABLES = tuple(c + v for c in "bdfgklmnprstvz" for v in "aeiou")


def unit_vectors(count: int, *, seed: int) -> npt.NDArray[np.float32]:
    """Return random unit vectors ``(count, DIMENSION)``."""
    vectors = np.random.default_rng(seed).standard_normal((count, DIMENSION)).astype(np.float32)
    unit: npt.NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


def node_batches(count: int, *, seed: int) -> Iterator[list[TextNode]]:
    """Yield nodes with vectors and metadata in batches, so that not all exist as Python objects at a time.

    Their ids are UUIDs, since Qdrant's own store takes no others.
    """
    from llama_index.core.schema import TextNode

    for first in range(0, count, BATCH):
        size = min(BATCH, count - first)
        rng = np.random.default_rng((seed, first))
        vectors = unit_vectors(size, seed=seed + first)
        words = texts(size, seed=seed + first, words=40)
        yield [
            TextNode(
                id_=str(UUID(int=first + i + 1)),
                text=words[i],
                embedding=vectors[i].tolist(),
                metadata={
                    "category": str(rng.choice(_CATEGORIES)),
                    "status": str(rng.choice(_FLAGS)),
                    "year": int(rng.integers(*_YEARS)),
                    "tags": [str(tag) for tag in rng.choice(_TAGS, size=3, replace=False)],
                },
            )
            for i in range(size)
        ]


def three_clause_filters(count: int, *, seed: int) -> list[MetadataFilters]:
    """Return filters of three clauses, IN, EQ and a range; each leaves about 3 % of the nodes."""
    from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters

    rng = np.random.default_rng(seed)
    return [
        MetadataFilters(
            filters=[
                MetadataFilter(
                    key="category",
                    operator=FilterOperator.IN,
                    value=[str(name) for name in rng.choice(_CATEGORIES, size=3, replace=False)],
                ),
                MetadataFilter(key="status", operator=FilterOperator.EQ, value=str(rng.choice(_FLAGS))),
                MetadataFilter(key="year", operator=FilterOperator.GTE, value=int(rng.integers(2013, 2018))),
            ]
        )
        for _ in range(count)
    ]


def texts(count: int, *, seed: int, words: int, vocabulary: int = 0) -> list[str]:
    """Return texts of about ``words`` made-up words, some frequent and most rare, as in language (Zipf's law).

    Args:
        count: How many texts.
        seed: Decides which words stand where.
        words: Mean length of a text, in words.
        vocabulary: Which words there are; texts of another vocabulary share the stop words and few others.
    """
    rng = np.random.default_rng((seed, words))
    spelt, cumulative = _zipfian(vocabulary)
    lengths = rng.poisson(words, size=count).clip(min=5)
    drawn = np.searchsorted(cumulative, rng.random(int(lengths.sum())))
    ends = np.cumsum(lengths)
    return [
        " ".join(spelt[word] for word in drawn[end - length : end])
        for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)
    ]


def questions(from_texts: list[str], count: int, *, seed: int, words: int = 10) -> list[str]:
    """Return questions of words that stand together in one of the texts, so that frequent and rare ones mix."""
    rng = np.random.default_rng(seed)
    picked = rng.integers(len(from_texts), size=count).tolist()
    return [" ".join(rng.permutation(from_texts[i].split())[:words].tolist()) for i in picked]


@lru_cache(2)
def _zipfian(vocabulary: int) -> tuple[list[str], npt.NDArray[np.float64]]:
    """Return the vocabulary by falling frequency and its cumulative distribution (Zipf-Mandelbrot)."""
    rng = np.random.default_rng(vocabulary)
    words = dict.fromkeys(_STOP_WORDS)
    while len(words) < _VOCABULARY:
        # Frequent words are short.
        length = min(5, 2 + len(words) // 3000)
        words.setdefault("".join(_SYLLABLES[i] for i in rng.integers(len(_SYLLABLES), size=length)))
    weights = 1.0 / (np.arange(_VOCABULARY) + 2.7)
    cumulative: npt.NDArray[np.float64] = np.cumsum(weights / weights.sum())
    cumulative[-1] = 1.0
    return list(words), cumulative
