"""BM25 as sparse vectors, for engines that keep postings and document frequencies themselves.

It is Lucene's BM25, but the average length is fixed when vectors are made, and a term is a number of 32 bits: among a
million terms about 120 pairs share one (``V**2 / 2**33``), and documents with one term are found for the other, too.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final, TypeAlias

from pydantic.dataclasses import dataclass as checked_dataclass

from agentic_retriever.json_files import FileTable, Number, load_model
from agentic_retriever.text import Tokenizer, detect_language

SparseRow: TypeAlias = tuple[list[int], list[float]]  # term numbers, ascending, and their weights
SPARSE_FILE: Final = "sparse.json"
K1: Final = 1.5
B: Final = 0.75
_EXAMINED: Final = 200  # texts whose language is looked at


@checked_dataclass(frozen=True)
class SparseBM25(FileTable):
    """How texts become sparse vectors; fixed for the life of a collection, or until all its vectors are made again."""

    language: str
    average: Number
    fingerprint: str
    k1: Number = K1
    b: Number = B  # Strength of the length normalisation, in [0, 1]

    @classmethod
    def fitted(cls, texts: Sequence[str]) -> SparseBM25:
        """Choose language and average length by some texts, as many as can be had."""
        languages = Counter(detect_language(text) for text in texts[:_EXAMINED])
        languages.pop("und", None)
        language = max(sorted(languages), key=lambda name: languages[name]) if languages else "und"
        tokenizer = Tokenizer(language=language)
        lengths = [len(tokenizer.tokens(text)) for text in texts]
        average = max(1.0, math.fsum(lengths) / len(lengths)) if lengths else 1.0
        return cls(language, average, tokenizer.fingerprint)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer(language=self.language)

    @property
    def is_current(self) -> bool:
        """Whether the tokenizer still cuts texts as it did when the stored vectors were made."""
        return self.tokenizer.fingerprint == self.fingerprint

    def document(self, text: str) -> SparseRow:
        """Return the vector of a text; weights are in (0, 1)."""
        terms = self.tokenizer.tokens(text)
        norm = self.k1 * (1 - self.b + self.b * len(terms) / self.average)
        weights: dict[int, float] = {}
        for term, count in Counter(terms).items():
            number = term_number(term)
            weights[number] = weights.get(number, 0.0) + count / (count + norm)
        return _row(weights)

    def query(self, text: str) -> SparseRow:
        """Return the vector of a question; a weight is how often the term comes."""
        counts = Counter(map(term_number, self.tokenizer.weighed_tokens(text)))
        return _row({number: float(count) for number, count in counts.items()})

    @classmethod
    def load(cls, folder: Path) -> SparseBM25 | None:
        """Read what an earlier version kept in a file; ``None`` where there is none."""
        advice = f"remove it and run: agentic-retriever index build {folder.name}"
        return load_model(folder / SPARSE_FILE, cls.from_dict, advice=advice)


@lru_cache(65_536)
def term_number(term: str) -> int:
    """Return the number of a term, the same in every process and version: 32 bits of BLAKE2b."""
    return int.from_bytes(hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=4).digest(), "big")


def _row(weights: dict[int, float]) -> SparseRow:
    numbers = sorted(weights)
    return numbers, [weights[number] for number in numbers]
