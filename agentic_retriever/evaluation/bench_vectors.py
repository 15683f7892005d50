"""The vectors of a benchmark: what was given, held against the model that has to compute the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from agentic_retriever.embeddings import embedding_name, text_hash
from agentic_retriever.errors import EvaluationError
from agentic_retriever.evaluation.datasets import DatasetKind
from agentic_retriever.evaluation.problems import ProblemKind, ProblemLog, ProblemReport
from agentic_retriever.evaluation.vectors import SAME_MODEL, load_vectors, passage, vectors_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt
    from llama_index.core.base.embeddings.base import BaseEmbedding

    from agentic_retriever.evaluation.datasets import Dataset, LabelledQuery
    from agentic_retriever.evaluation.vectors import KnownVectors, Vector

_RENAMED: Final = {
    ProblemKind.MISSING_DOCUMENT_VECTOR: ProblemKind.COMPUTED_DOCUMENT_VECTOR,
    ProblemKind.MISSING_QUERY_VECTOR: ProblemKind.COMPUTED_QUERY_VECTOR,
}


class PassageVectors:
    """Known vectors of passages, by the hash of their text; a ``VectorSource``."""

    def __init__(self, model: str, vectors: Mapping[bytes, Vector]) -> None:
        self._model = model
        self._vectors = vectors

    def get_many(self, model: str, hashes: Sequence[bytes]) -> dict[bytes, Vector]:
        """Return the vectors known for these hashes."""
        return {key: self._vectors[key] for key in hashes if key in self._vectors} if model == self._model else {}


def given_vectors(dataset: Dataset, place: Path | None, base: BaseEmbedding) -> KnownVectors | None:
    """Read the given vectors of a data set.

    Args:
        dataset: The data set, with all of its questions.
        place: Folder with ``NAME.npz``, or one such file; ``None`` for none.
        base: The model that has to embed what they do not cover.

    Returns:
        The vectors, with every id that has none and every vector that nothing needs among the problems; ``None`` where
        none were given.

    Raises:
        EvaluationError: If the file cannot be read, or the vectors do not come from the model.
        EmbeddingError: If the model failed.
    """
    if place is None:
        return None
    path = vectors_file(place, dataset.name)
    if not path.exists() and dataset.kind is DatasetKind.QUESTIONS:
        return None
    known = load_vectors(path, dataset)
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
    log = ProblemLog()
    documents = {document.doc_id for document in dataset.documents}
    for doc_id in known.documents:
        if documents and doc_id not in documents:
            log.add(ProblemKind.UNUSED_VECTOR, path, f"there is no document {doc_id!r}")
    return replace(known, problems=ProblemReport.merged([_renamed(known.problems), log.report()]))


def _renamed(report: ProblemReport) -> ProblemReport:
    """Say of missing vectors what is done about them here: they are computed."""
    names = {old.value: new.value for old, new in _RENAMED.items()}
    return ProblemReport(
        counts={names.get(kind, kind): count for kind, count in report.counts.items()},
        listed=tuple(replace(one, kind=_RENAMED.get(one.kind, one.kind)) for one in report.listed),
    )


def passage_vectors(dataset: Dataset, known: KnownVectors | None) -> dict[bytes, Vector]:
    """Return vectors by the hash of the text that was embedded; none for a document that gave a pseudo-query."""
    if known is None:
        return {}
    if dataset.pseudo:
        asked = {doc_id for query in dataset.queries for doc_id in query.relevance}
        documents = [document for document in dataset.documents if document.doc_id not in asked]
    else:
        documents = list(dataset.documents)
    return {text_hash(passage(d)): known.documents[d.doc_id] for d in documents if d.doc_id in known.documents}


def query_vectors(
    queries: Sequence[LabelledQuery],
    known: KnownVectors | None,
    embed: Callable[[str], npt.NDArray[np.float32]],
    *,
    timer: Callable[[], float],
    on_progress: Callable[[int], None],
) -> tuple[dict[str, Vector], tuple[float, ...]]:
    """Gather the vectors of questions.

    Args:
        queries: The questions.
        known: Vectors that were given.
        embed: Embeds those that have none.
        timer: Seconds.
        on_progress: Hears of every question that was done.

    Returns:
        Unit vectors by id, and the milliseconds for each question that was embedded.

    Raises:
        EvaluationError: If the model gave a vector that cannot be used.
        EmbeddingError: If the model failed.
    """
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
    return vectors, tuple(spent)
