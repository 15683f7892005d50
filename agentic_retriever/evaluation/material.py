"""What is measured with: vectors of documents and questions, and what routing is asked."""

import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from llama_index.core.base.embeddings.base import BaseEmbedding

from agentic_retriever.embeddings import embedding_name, text_hash
from agentic_retriever.errors import EvaluationError
from agentic_retriever.evaluation.datasets import (
    Dataset,
    DatasetKind,
    LabelledQuery,
    ProblemKind,
    ProblemLog,
    ProblemReport,
)
from agentic_retriever.indices import IndexProfile
from agentic_retriever.indices.derived import Watcher
from agentic_retriever.ingestion import SourceDocument
from agentic_retriever.resources import measured
from agentic_retriever.retrievers import REGISTRY, cards
from agentic_retriever.router import AgenticRouter
from agentic_retriever.schema import StrategyCard

# Vectors of documents and questions: given in ``.npz`` files and held against the model, or computed.

Vector = npt.NDArray[np.float32]

ARRAYS: Final = ("doc_ids", "doc_vectors", "query_ids", "query_vectors")
SAME_MODEL: Final = 0.95  # cosine of two vectors of one text above which they come from the same model
_MIN_NORM: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownVectors:
    documents: Mapping[str, Vector] = field(default_factory=dict)  # By document id, (dimension,) float32 each
    queries: Mapping[str, Vector] = field(default_factory=dict)  # By query id, likewise
    origin: str = ""  # "" where none are given
    problems: ProblemReport = field(default_factory=ProblemReport)


class Asked(NamedTuple):
    queries: tuple[LabelledQuery, ...]
    vectors: Mapping[str, Vector]  # By query id, of length 1
    embedding_ms: tuple[float, ...] = ()  # Milliseconds for each question that had to be embedded


class GivenVectors:
    """Known vectors of passages and questions, by the hash of their text; a ``VectorSource``."""

    def __init__(self, model: str, vectors: Mapping[bytes, Vector]) -> None:
        self._model = model
        self._vectors = vectors

    def get_many(self, model: str, hashes: Sequence[bytes]) -> dict[bytes, Vector]:
        return {key: self._vectors[key] for key in hashes if key in self._vectors} if model == self._model else {}


def passage(document: SourceDocument) -> str:
    return f"{document.title}\n{document.text}".strip()


# Reading what is given.


def vectors_file(place: Path, name: str) -> Path:
    if place.is_dir():
        return place / f"{name}.npz"
    if place.is_file():
        return place
    raise EvaluationError(f"{place} does not exist; name a folder with NAME.npz files, or one such file")


def load_vectors(path: Path, dataset: Dataset) -> KnownVectors:
    """Read the vectors of a data set; what they do not cover is noted, as it will be computed."""
    arrays, problems = _arrays(path), ProblemLog()
    documents = _by_id(arrays["doc_ids"], arrays["doc_vectors"], path, problems)
    queries = _by_id(arrays["query_ids"], arrays["query_vectors"], path, problems)
    used = {document.doc_id for document in dataset.documents}
    for document in dataset.documents:
        if document.doc_id not in documents and passage(document):
            problems.add(ProblemKind.COMPUTED_DOCUMENT_VECTOR, path, f"no vector of document {document.doc_id!r}")
    for query in dataset.queries:
        if query.query_id not in queries:
            problems.add(ProblemKind.COMPUTED_QUERY_VECTOR, path, f"no vector of query {query.query_id!r}")
    for doc_id in documents.keys() - used if used else ():
        problems.add(ProblemKind.UNUSED_VECTOR, path, f"there is no document {doc_id!r}")
    return KnownVectors(documents=documents, queries=queries, origin=path.name, problems=problems.report())


def given_vectors(dataset: Dataset, place: Path | None, base: BaseEmbedding) -> KnownVectors:
    """Read the given vectors of a data set, if any, and see that they are of the model that computes the rest."""
    path = None if place is None else vectors_file(place, dataset.name)
    if path is None or (dataset.kind is DatasetKind.QUESTIONS and not path.exists()):
        return KnownVectors()
    known = load_vectors(path, dataset)
    other = _other_width(dataset, known, base.get_query_embedding)
    if other is not None:
        raise EvaluationError(
            f"the vectors in {path} ({len(next(iter(known.queries.values())))} dimensions) do not come from the "
            f"embedding model {embedding_name(base)} ({other} dimensions), which has to embed what they do not cover; "
            "set EMBEDDING_MODEL to theirs, or leave --vectors out"
        )
    return known


def _other_width(dataset: Dataset, known: KnownVectors, embed: Callable[[str], Any]) -> int | None:
    """Embed one question whose vector is known; return the width of what the model gives if it is another model."""
    asked = next((query for query in dataset.queries if query.query_id in known.queries), None)
    if asked is None:
        return None
    given, computed = known.queries[asked.query_id], np.asarray(embed(asked.text), dtype=np.float32)
    near = given.shape == computed.shape and float(given @ computed) >= SAME_MODEL * float(np.linalg.norm(computed))
    return None if near else len(computed)


def passage_vectors(dataset: Dataset, known: KnownVectors) -> dict[bytes, Vector]:
    """Return vectors by the hash of the text that was embedded."""
    documents = [one for one in dataset.documents if one.doc_id in known.documents]
    return {text_hash(passage(document)): known.documents[document.doc_id] for document in documents}


# Computing what is not.


def with_vectors(
    queries: Sequence[LabelledQuery],
    known: KnownVectors,
    embed: Callable[[str], Any],
    *,
    about: str,
    timer: Callable[[], float],
    watcher: Watcher,
) -> Asked:
    """Take the vectors of questions that are known, and embed the others."""
    watcher.begin(f"questions of {about}", len(queries))
    vectors: dict[str, Vector] = {}
    spent = []
    for query in queries:
        if query.query_id in known.queries:
            vectors[query.query_id] = known.queries[query.query_id]
        else:
            start = timer()
            raw = np.asarray(embed(query.text), dtype=np.float32)
            spent.append((timer() - start) * 1000)
            norm = float(np.linalg.norm(raw))
            if not np.isfinite(norm) or norm == 0:
                raise EvaluationError(f"the embedding model gave no usable vector for question {query.query_id!r}")
            vectors[query.query_id] = raw / norm
        watcher.advance(1)
    return Asked(tuple(queries), vectors, tuple(spent))


# What is in a file.


def _arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as packed:
            missing = [name for name in ARRAYS if name not in packed.files]
            arrays = {name: packed[name] for name in ARRAYS if name not in missing}
    except FileNotFoundError as err:
        raise EvaluationError(f"{path} is missing; it holds the vectors of that data set") from err
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error) as err:
        raise EvaluationError(f"{path} cannot be read as .npz without pickled objects: {type(err).__name__}") from err
    if missing:
        raise EvaluationError(f"{path} lacks the arrays {', '.join(missing)}; it needs {', '.join(ARRAYS)}")
    for ids, vectors in (ARRAYS[:2], ARRAYS[2:]):
        if arrays[ids].ndim != 1 or arrays[vectors].ndim != 2 or len(arrays[ids]) != len(arrays[vectors]):
            shapes = f"{arrays[ids].shape} and {arrays[vectors].shape}"
            raise EvaluationError(f"{path}: {ids} and {vectors} must be (n,) and (n, dimension), got {shapes}")
        if arrays[vectors].dtype.kind not in "fiu":
            raise EvaluationError(f"{path}: {vectors} must hold numbers, got {arrays[vectors].dtype}")
    wide, long = arrays["doc_vectors"].shape[1], arrays["query_vectors"].shape[1]
    if wide != long and len(arrays["doc_vectors"]):
        raise EvaluationError(f"{path}: documents have {wide} dimensions, questions {long}; take one embedding model")
    return arrays


def _by_id(ids: npt.NDArray[Any], vectors: npt.NDArray[Any], path: Path, problems: ProblemLog) -> dict[str, Vector]:
    """Unit vectors by id; what is not finite or has no length is left out."""
    wide = vectors.astype(np.float32)
    norms = np.linalg.norm(wide.astype(np.float64), axis=1)
    usable = np.isfinite(norms) & (norms > _MIN_NORM)
    found: dict[str, Vector] = {}
    for at, raw in enumerate(ids.tolist()):
        name = raw.decode("utf-8", errors="replace") if isinstance(raw, bytes) else str(raw)
        if not usable[at]:
            problems.add(ProblemKind.UNUSABLE_VECTOR, path, f"the vector of {name!r} is zero or not finite")
        elif name in found:
            problems.add(ProblemKind.DUPLICATE_VECTOR, path, f"{name!r} has a vector already")
        else:
            found[name] = (wide[at] / norms[at]).astype(np.float32)
    return found


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
