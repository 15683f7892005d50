"""Vectors of documents and questions: given in ``.npz`` files and held against the model, or computed."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from agentic_retriever.embeddings import EmbeddingModel, embedding_name, text_hash
from agentic_retriever.errors import EvaluationError
from agentic_retriever.evaluation.datasets import (
    Dataset,
    DatasetKind,
    LabelledQuery,
    ProblemKind,
    ProblemLog,
    ProblemReport,
)
from agentic_retriever.indices.profile import sample_ids
from agentic_retriever.ingestion import SourceDocument

if TYPE_CHECKING:
    from llama_index.core.base.embeddings.base import BaseEmbedding

Vector = npt.NDArray[np.float32]

ARRAYS: Final = ("doc_ids", "doc_vectors", "query_ids", "query_vectors")
SAME_MODEL: Final = 0.95
"""Cosine of two vectors of one text above which they come from the same model."""

_MIN_NORM: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownVectors:
    """Unit vectors of a data set."""

    documents: Mapping[str, Vector]  # By document id, (dimension,) float32 each
    queries: Mapping[str, Vector]  # By query id, likewise
    origin: str
    problems: ProblemReport = field(default_factory=ProblemReport)


class Asked(NamedTuple):
    """Questions with their vectors."""

    queries: tuple[LabelledQuery, ...]
    vectors: Mapping[str, Vector]  # By query id, of length 1
    embedding_ms: tuple[float, ...] = ()  # Milliseconds for each question that had to be embedded


class PassageVectors:
    """Known vectors of passages, by the hash of their text; a ``VectorSource``."""

    def __init__(self, model: str, vectors: Mapping[bytes, Vector]) -> None:
        self._model = model
        self._vectors = vectors

    def get_many(self, model: str, hashes: Sequence[bytes]) -> dict[bytes, Vector]:
        """Return the vectors known for these hashes."""
        return {key: self._vectors[key] for key in hashes if key in self._vectors} if model == self._model else {}


def passage(document: SourceDocument) -> str:
    """Return the text of a document that is embedded: title and text."""
    return f"{document.title}\n{document.text}".strip()


# Reading what is given.


def vectors_file(place: Path, name: str) -> Path:
    """Return the file with the vectors of a data set: the place itself, or ``NAME.npz`` in it."""
    if place.is_dir():
        return place / f"{name}.npz"
    if place.is_file():
        return place
    raise EvaluationError(f"{place} does not exist; name a folder with NAME.npz files, or one such file")


def load_vectors(path: Path, dataset: Dataset, *, rest_computed: bool = False) -> KnownVectors:
    """Read the vectors of a data set; what they do not cover is noted as computed or as missing."""
    arrays, problems = _arrays(path), ProblemLog()
    documents = _by_id(arrays["doc_ids"], arrays["doc_vectors"], path, problems)
    queries = _by_id(arrays["query_ids"], arrays["query_vectors"], path, problems)
    no_document = ProblemKind.COMPUTED_DOCUMENT_VECTOR if rest_computed else ProblemKind.MISSING_DOCUMENT_VECTOR
    no_query = ProblemKind.COMPUTED_QUERY_VECTOR if rest_computed else ProblemKind.MISSING_QUERY_VECTOR
    for document in dataset.documents:
        if document.doc_id not in documents and passage(document):
            problems.add(no_document, path, f"no vector of document {document.doc_id!r}")
    for query in dataset.queries:
        if query.query_id not in queries:
            problems.add(no_query, path, f"no vector of query {query.query_id!r}")
    return KnownVectors(documents=documents, queries=queries, origin=path.name, problems=problems.report())


def given_vectors(dataset: Dataset, place: Path | None, base: BaseEmbedding) -> KnownVectors | None:
    """Read the given vectors of a data set and see that they are of the model that computes the rest."""
    if place is None:
        return None
    path = vectors_file(place, dataset.name)
    if not path.exists() and dataset.kind is DatasetKind.QUESTIONS:
        return None
    known = load_vectors(path, dataset, rest_computed=True)
    asked = next((query for query in dataset.queries if query.query_id in known.queries), None)
    if asked is not None:
        given = known.queries[asked.query_id]
        computed = np.asarray(base.get_query_embedding(asked.text), dtype=np.float32)
        if given.shape != computed.shape or float(given @ computed) < SAME_MODEL * float(np.linalg.norm(computed)):
            raise EvaluationError(
                f"the vectors in {path} ({len(given)} dimensions) do not come from the embedding model "
                f"{embedding_name(base)} ({len(computed)} dimensions), which has to embed what they do not cover; set "
                "EMBEDDING_MODEL to theirs, or leave --vectors out"
            )
    log, documents = ProblemLog(), {document.doc_id for document in dataset.documents}
    for doc_id in known.documents:
        if documents and doc_id not in documents:
            log.add(ProblemKind.UNUSED_VECTOR, path, f"there is no document {doc_id!r}")
    return replace(known, problems=ProblemReport.merged([known.problems, log.report()]))


def passage_vectors(dataset: Dataset, known: KnownVectors | None) -> dict[bytes, Vector]:
    """Return vectors by the hash of the text that was embedded; none for a document that gave a pseudo-query."""
    if known is None:
        return {}
    changed = {doc_id for query in dataset.queries if query.pseudo for doc_id in query.relevance}
    documents = [one for one in dataset.documents if one.doc_id in known.documents and one.doc_id not in changed]
    return {text_hash(passage(document)): known.documents[document.doc_id] for document in documents}


# Computing what is not.


def embed_dataset(
    dataset: Dataset, embedder: EmbeddingModel, *, most_documents: int, on_progress: Callable[[int], None] | None = None
) -> KnownVectors:
    """Compute the vectors that a profile of a data set needs: of a sample of its documents, and of its questions."""
    report = on_progress or (lambda _done: None)
    texts = {document.doc_id: passage(document) for document in dataset.documents}
    chosen = sample_ids([doc_id for doc_id, text in texts.items() if text], size=most_documents)
    matrix, _ = embedder.embed_passages([texts[doc_id] for doc_id in chosen], on_progress=report)
    queries: dict[str, Vector] = {}
    for query in dataset.queries:
        queries[query.query_id] = embedder.embed_query(query.text)
        report(1)
    return KnownVectors(
        documents=dict(zip(chosen, matrix, strict=True)),
        queries=queries,
        origin=f"computed, {len(chosen):,} of {len(texts):,} documents",
    )


def with_vectors(
    queries: Sequence[LabelledQuery],
    known: KnownVectors | None,
    embed: Callable[[str], Any],
    *,
    timer: Callable[[], float],
    on_progress: Callable[[int], None],
) -> Asked:
    """Take the vectors of questions that are known, and embed the others."""
    given = {} if known is None else known.queries
    vectors: dict[str, Vector] = {}
    spent = []
    for query in queries:
        if query.query_id in given:
            vectors[query.query_id] = given[query.query_id]
        else:
            start = timer()
            raw = np.asarray(embed(query.text), dtype=np.float32)
            spent.append((timer() - start) * 1000)
            norm = float(np.linalg.norm(raw))
            if not np.isfinite(norm) or norm == 0:
                raise EvaluationError(f"the embedding model gave no usable vector for question {query.query_id!r}")
            vectors[query.query_id] = raw / norm
        on_progress(1)
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
