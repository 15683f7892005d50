"""Data sets to measure with: BEIR folders, and files of labelled questions.

A **BEIR folder** (N. Thakur et al., "BEIR", NeurIPS 2021) holds ``corpus.jsonl``, ``queries.jsonl`` and
``qrels/*.tsv``: one index with questions of its own. An optional ``dataset.json`` may hold its ``description``.

A **questions file** is ``.jsonl`` with the fields ``query``, and as far as they are known ``id``, ``language``,
``index``, ``doc_ids``, ``strategy``, ``complexity``, ``answer`` and ``answerable``. The name ``sample`` stands for the
questions that ship with the package.

A ``.json`` file is what LlamaIndex's ``EmbeddingQAFinetuneDataset`` saves: ``queries``, ``corpus``, ``relevant_docs``.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from agentic_retriever.errors import EvaluationError
from agentic_retriever.evaluation.problems import ProblemReport
from agentic_retriever.schema import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from agentic_retriever.ingestion import SourceDocument
    from agentic_retriever.schema import Complexity, Strategy

SAMPLE: Final = "sample"
"""Name of the data set that ships with the package."""


class DatasetKind(str, Enum):
    """What a data set brings."""

    BEIR = "beir"
    QUESTIONS = "questions"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledQuery:
    """One question with what is known about it.

    Attributes:
        query_id: Unique in its data set.
        text: The question.
        index: The index that answers it; ``None`` where none does or it is not known.
        relevance: Grade of each judged document, from 0.
        language: ISO 639-1 code, or ``""``.
        strategy: The strategy that suits it, or ``None``.
        complexity: How hard it is, or ``None``.
        answer: A right answer, or ``None``.
        answerable: Whether anything in the indexes answers it.
        pseudo: Whether it was made of the corpus itself, since there was no real question.
    """

    query_id: str
    text: str
    index: str | None
    relevance: Mapping[str, int] = field(default_factory=dict)
    language: str = ""
    strategy: Strategy | None = None
    complexity: Complexity | None = None
    answer: str | None = None
    answerable: bool = True
    pseudo: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "relevance", frozen(self.relevance))


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A data set as it was read.

    Attributes:
        name: Name of the folder or file, without suffix; for a BEIR folder also the name of the index.
        path: Where it was read from.
        kind: BEIR folder or questions file.
        description: What it holds, from its ``dataset.json``; else ``""``.
        documents: Documents of a BEIR folder, unique by id; none for a questions file.
        queries: Questions that can be asked, unique by id.
        problems: What was wrong with it.
    """

    name: str
    path: Path
    kind: DatasetKind
    description: str = ""
    documents: tuple[SourceDocument, ...] = ()
    queries: tuple[LabelledQuery, ...] = ()
    problems: ProblemReport = field(default_factory=ProblemReport)

    @property
    def pseudo(self) -> bool:
        """Whether its questions were made of its own documents."""
        return any(query.pseudo for query in self.queries)

    def limited(self, most: int | None, seed: int) -> Dataset:
        """Return the data set with at most so many questions, drawn by a seed and in their order."""
        if most is None or len(self.queries) <= most:
            return self
        chosen = sorted(random.Random(seed).sample(range(len(self.queries)), most))  # noqa: S311 - a sample, no secret
        return replace(self, queries=tuple(self.queries[at] for at in chosen))

    def facts(self) -> dict[str, Any]:
        """Return what a result says of the data set, as plain JSON types."""
        return {
            "name": self.name,
            "kind": self.kind.value,
            "documents": len(self.documents),
            "queries": len(self.queries),
            "pseudo_queries": self.pseudo,
            "problems": dict(self.problems.counts),
        }


def check_names(datasets: Sequence[Dataset]) -> None:
    """See that data sets can be told apart.

    Raises:
        EvaluationError: If two have the same name.
    """
    seen: dict[str, Path] = {}
    for dataset in datasets:
        if dataset.name in seen:
            raise EvaluationError(
                f"two data sets are called {dataset.name!r} ({seen[dataset.name]} and {dataset.path}); rename one"
            )
        seen[dataset.name] = dataset.path


def empty(path: Path, what: str, problems: ProblemReport) -> EvaluationError:
    """Make the error for a file of which nothing can be used."""
    told = f" ({'; '.join(problems.summary()[:3])})" if problems.total else ""
    return EvaluationError(f"{path} holds no {what}{told}; check the file")
