"""Judged questions of one index."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agentic_retriever.errors import EvaluationError
from agentic_retriever.evaluation.datasets import DatasetKind
from agentic_retriever.evaluation.problems import ProblemKind, ProblemLog, ProblemReport
from agentic_retriever.evaluation.strategies import JudgedQuery
from agentic_retriever.evaluation.vectors import SAME_MODEL, load_vectors, vectors_file
from agentic_retriever.evaluation.watching import SilentWatcher

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from agentic_retriever.evaluation.datasets import Dataset, LabelledQuery
    from agentic_retriever.evaluation.vectors import KnownVectors
    from agentic_retriever.evaluation.watching import Watcher
    from agentic_retriever.indices import Index
    from agentic_retriever.router import AgenticRouter


def judged_queries(
    datasets: Sequence[Dataset],
    router: AgenticRouter,
    index: Index,
    *,
    vectors: Path | None = None,
    watcher: Watcher | None = None,
) -> tuple[list[JudgedQuery], ProblemReport]:
    """Gather the questions whose judgments are about documents of an index, and embed them.

    Args:
        datasets: BEIR folders, whatever their name, or questions files; of these, questions of other indexes are left
            out.
        router: Its embedding model embeds the questions.
        index: The index.
        vectors: Folder with ``NAME.npz``, or one such file, for the questions; ``None`` embeds them.
        watcher: Hears how far it is.

    Returns:
        The questions, and what was wrong with the data sets, judgments of documents that the index lacks included.

    Raises:
        EvaluationError: If no question is left, or the vectors do not come from the index's model.
        EmbeddingError: If the embedding model failed.
    """
    watch = watcher or SilentWatcher()
    held = set(index.doc_ids())
    log = ProblemLog()
    reports = [dataset.problems for dataset in datasets]
    judged: list[JudgedQuery] = []
    for dataset in datasets:
        known = _known(dataset, router, index, vectors)
        reports += [known.problems] if known is not None else []
        kept = [(query, _held(query, held, dataset, log)) for query in _of_index(dataset, index.name)]
        asked = [(query, relevance) for query, relevance in kept if relevance]
        watch.begin(f"questions of {dataset.name}", len(asked))
        for query, relevance in asked:
            if known is not None and query.query_id not in known.queries:
                continue
            vector = (
                router.resources.embedding().embed_query(query.text) if known is None else known.queries[query.query_id]
            )
            judged.append(
                JudgedQuery(
                    query_id=f"{dataset.name}/{query.query_id}", text=query.text, vector=vector, relevance=relevance
                )
            )
            watch.advance(1)
    report = ProblemReport.merged([*reports, log.report()])
    if not judged:
        told = "; ".join(report.summary()[:3])
        raise EvaluationError(
            f"no question can be asked of index {index.name!r}: no judgment is about a document of it ({told}); "
            "the ids of documents must be those of the index (agentic-retriever index show NAME)"
        )
    return judged, report


def _of_index(dataset: Dataset, name: str) -> list[LabelledQuery]:
    """Leave out questions of a questions file that belong to other indexes."""
    if dataset.kind is DatasetKind.BEIR:
        return list(dataset.queries)
    return [query for query in dataset.queries if query.index in {None, name} and query.answerable]


def _held(query: LabelledQuery, held: set[str], dataset: Dataset, log: ProblemLog) -> dict[str, int]:
    """Keep the judgments of documents that the index has; none when no relevant one is left."""
    unknown = [doc_id for doc_id in query.relevance if doc_id not in held]
    for doc_id in unknown:
        log.add(ProblemKind.UNKNOWN_DOCUMENT, dataset.path, f"the index has no document {doc_id!r}")
    kept = {doc_id: grade for doc_id, grade in query.relevance.items() if doc_id in held}
    if any(grade > 0 for grade in kept.values()):
        return kept
    log.add(ProblemKind.UNJUDGED_QUERY, dataset.path, f"no relevant document of {query.query_id!r} is in the index")
    return {}


def _known(dataset: Dataset, router: AgenticRouter, index: Index, vectors: Path | None) -> KnownVectors | None:
    """Read the given vectors of the questions and see that they are of the index's model."""
    if vectors is None:
        return None
    path = vectors_file(vectors, dataset.name)
    known = load_vectors(path, replace(dataset, documents=()))
    query = next((query for query in dataset.queries if query.query_id in known.queries), None)
    if query is None:
        raise EvaluationError(f"{path} has a vector of no question of {dataset.path}; check the ids in it")
    vector, expected = known.queries[query.query_id], router.resources.embedding().embed_query(query.text)
    if vector.shape != expected.shape or float(vector @ expected) < SAME_MODEL:
        raise EvaluationError(
            f"the vectors in {path} do not come from {index.manifest.embedding}, the model of index {index.name!r}; "
            "leave --vectors out to have the questions embedded"
        )
    return known
