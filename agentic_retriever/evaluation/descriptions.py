"""What an index is said to hold, for the ways of routing that go by descriptions."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from agentic_retriever.errors import EvaluationError
from agentic_retriever.evaluation.vectors import passage
from agentic_retriever.text import Script, dominant_script, stopwords
from agentic_retriever.text.stopwords import stopword_languages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from agentic_retriever.evaluation.datasets import Dataset

TERMS: Final = 15
"""How many terms a description of terms has."""

# What stands between words; combining marks are no word characters for Python, so words cannot be asked for as such.
_BETWEEN: Final = re.compile(r"[\s\d!-/:-@\[-`{-~¡«»¿।॥،؛؟\u2000-\u206f\u3000-\u303f]+")
_UNSPACED: Final = frozenset({Script.THAI, Script.LAO, Script.KHMER, Script.MYANMAR, Script.HAN, Script.KANA})
_MIN_LETTERS: Final = 3
_TITLE_CHARS: Final = 60
_EXAMINED: Final = 2_000
_MAX_RUN: Final = 30


@dataclass(frozen=True, slots=True)
class Description:
    """A description and where it comes from.

    Attributes:
        text: One or two sentences, or terms.
        origin: ``"dataset.json"``, ``"file"``, ``"index"``, ``"sample"``; or, made from the collection itself,
            ``"terms"`` for its most characteristic words, ``"titles"`` for titles of some of its documents where its
            script puts no spaces between words.
    """

    text: str
    origin: str


def read_descriptions(path: Path) -> dict[str, str]:
    """Read a file of descriptions.

    Args:
        path: A JSON object, name of an index to text.

    Returns:
        The texts by name.

    Raises:
        EvaluationError: If the file cannot be read or holds something else; a name whose value is no text is told.
    """
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise EvaluationError(f"cannot read {path} as JSON: {type(err).__name__}; check the path and the file") from err
    if not isinstance(data, dict):
        raise EvaluationError(
            f"{path} must be an object from the names of data sets to descriptions, got {str(data)[:40]!r}"
        )
    for name, text in data.items():
        if not isinstance(text, str):
            raise EvaluationError(
                f"{path}: the description of {name[:80]!r} must be a text, got {str(text)[:40]!r}; write one or two "
                "sentences, or leave the name out"
            )
    return {name: text.strip() for name, text in data.items()}


def describe(datasets: Sequence[Dataset], given: Mapping[str, str]) -> dict[str, Description]:
    """Find a description for each of several collections.

    Args:
        datasets: BEIR folders.
        given: Descriptions by name; they go before those that the folders bring.

    Returns:
        A description by name; of terms or titles where there is no other.
    """
    described: dict[str, Description] = {}
    bare = []
    for dataset in datasets:
        if given.get(dataset.name):
            described[dataset.name] = Description(given[dataset.name], "file")
        elif dataset.description:
            described[dataset.name] = Description(dataset.description, "dataset.json")
        else:
            bare.append(dataset.name)
    if bare:
        shares = {dataset.name: _word_shares(dataset) for dataset in datasets}
        described |= {name: _made(dataset, shares) for dataset in datasets if (name := dataset.name) in bare}
    return described


def _made(dataset: Dataset, shares: Mapping[str, Mapping[str, float]]) -> Description:
    step = max(1, len(dataset.documents) // TERMS)
    some = [document for document in dataset.documents[::step] if passage(document)][:TERMS]
    if dominant_script(" ".join(passage(document) for document in some)) in _UNSPACED:
        titles = ((document.title or document.text).strip()[:_TITLE_CHARS] for document in some)
        return Description(", ".join(dict.fromkeys(titles)), "titles")
    return Description(", ".join(_characteristic(dataset.name, shares)), "terms")


def _word_shares(dataset: Dataset) -> dict[str, float]:
    """Share of the documents that each word occurs in, by word; of large collections evenly spaced documents."""
    step = max(1, math.ceil(len(dataset.documents) / _EXAMINED))
    texts = [passage(document).casefold() for document in dataset.documents[::step]]
    frequency: Counter[str] = Counter()
    for text in texts:
        frequency.update({word for word in _BETWEEN.split(text) if _MIN_LETTERS <= len(word) <= _MAX_RUN})
    return {word: count / max(1, len(texts)) for word, count in frequency.items()}


def _characteristic(name: str, shares: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Words by their part of the divergence between a collection and the others; the commonest when there are none."""
    own, others = shares[name], [table for other, table in shares.items() if other != name]
    stop = frozenset().union(*(stopwords(language) for language in stopword_languages()))

    def weight(word: str) -> float:
        elsewhere = sum(table.get(word, 0.0) for table in others) / len(others) if others else 0.0
        return own[word] * math.log((own[word] + 0.01) / (elsewhere + 0.01)) if others else own[word]

    ranked = sorted((word for word in own if word not in stop), key=lambda word: (-weight(word), word))
    return ranked[:TERMS]
