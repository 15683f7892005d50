"""What is measured with: questions with their vectors, and what routing is asked."""

import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agentic_retriever.embeddings import EmbeddingModel, PackedVectors
from agentic_retriever.errors import EvaluationError
from agentic_retriever.evaluation.datasets import LabelledQuery, ProblemReport
from agentic_retriever.indices import IndexProfile
from agentic_retriever.indices.derived import Watcher
from agentic_retriever.indices.profile import Vector
from agentic_retriever.resources import measured
from agentic_retriever.retrievers import REGISTRY, cards
from agentic_retriever.router import AgenticRouter
from agentic_retriever.schema import StrategyCard


class Asked(NamedTuple):
    queries: tuple[LabelledQuery, ...]
    vectors: Mapping[str, Vector]  # By query id, of length 1
    embedding_ms: tuple[float, ...] = ()


def embed_questions(
    queries: Sequence[LabelledQuery], model: EmbeddingModel, *, about: str, timer: Callable[[], float], watcher: Watcher
) -> Asked:
    watcher.begin(f"questions of {about}", len(queries))
    vectors, spent = {}, []
    for query in queries:
        start = timer()
        vectors[query.query_id] = model.embed_query(query.text)
        spent.append((timer() - start) * 1000)
        watcher.advance(1)
    return Asked(tuple(queries), vectors, tuple(spent))


def packed_vectors(place: Path | None, model: str) -> list[PackedVectors]:
    """Open a file of packed vectors, or all of a folder, and see that they are of a model."""
    files = [] if place is None else sorted(place.glob("*.npz")) if place.is_dir() else [place]
    if place is not None and not files:
        raise EvaluationError(f"{place} holds no .npz; name a file that PackedVectors.write made, or a folder of them")
    return [_of_model(PackedVectors(file), model) for file in files]


def _of_model(packed: PackedVectors, model: str) -> PackedVectors:
    try:
        theirs = packed.model
    except FileNotFoundError as err:
        raise EvaluationError(f"{packed.path} does not exist; name a file of packed vectors, or a folder") from err
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as err:
        raise EvaluationError(f"{packed.path} holds no packed vectors ({type(err).__name__})") from err
    if theirs != model:
        raise EvaluationError(
            f"the vectors in {packed.path} come from {theirs}, not from the embedding model {model}, which embeds what "
            "they do not cover; set EMBEDDING_MODEL to theirs, or leave --vectors out"
        )
    return packed


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedQuery(LabelledQuery):
    """A question as routing is asked it: its text, its vector, and the labels that routing is measured by."""

    dataset: str
    vector: Vector | None  # The embedded question, (dimension,)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingMaterial:
    """What routing is measured on."""

    profiles: dict[str, IndexProfile] = field(default_factory=dict)
    cards: dict[str, Sequence[StrategyCard]] = field(default_factory=dict)
    passages: dict[str, Vector] = field(default_factory=dict)  # the descriptions, embedded as passages
    queries: list[RoutedQuery] = field(default_factory=list)
    unlabelled: list[RoutedQuery] = field(default_factory=list)  # whose index is not known
    datasets: list[dict[str, Any]] = field(default_factory=list)
    problems: list[ProblemReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seed: int = 0

    def add_index(self, router: AgenticRouter, name: str, *, owned: bool) -> None:
        """Take what stage one and stage two know of an index; one of the benchmark's own is offered every strategy."""
        index = router.index(name)
        profile = self.profiles[name] = index.profile()
        self.cards[name] = tuple(REGISTRY.values()) if owned else cards(index, measured=measured(index)[0])
        if profile.description:
            embedded = router.resources.embedding().embed_sentences([profile.description])
            self.passages[name] = embedded.astype(np.float32)[0]

    def add_queries(self, dataset: str, asked: Asked, *, index: str | None = None) -> None:
        """Take questions, of one index or of those that they name."""
        for query in asked.queries:
            wanted = (index or query.index) if query.answerable else None
            routed = RoutedQuery(
                query_id=f"{dataset}/{query.query_id}", text=query.text, dataset=dataset, index=wanted,
                vector=asked.vectors.get(query.query_id), answerable=query.answerable, strategy=query.strategy,
                complexity=query.complexity,
            )  # fmt: skip
            (self.queries if wanted is not None or not query.answerable else self.unlabelled).append(routed)

    @property
    def widths(self) -> dict[str, int]:
        """Dimensions of the sample of every index that has one."""
        return {name: p.sample.shape[1] for name, p in self.profiles.items() if len(p.sample)}
