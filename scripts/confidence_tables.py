"""Print what calibrating the confidence of answers on judged questions of public collections gains.

Usage: python scripts/confidence_tables.py DATA_FOLDER [NAME ...] [--limit N]

DATA_FOLDER holds ``collections/NAME`` in BEIR form and ``embeddings/multilingual-e5-small/NAME.npz`` with vectors by
id; parts of documents that these do not cover are embedded by the packaged model. Each collection is an index of its
own, of which N judged questions are asked; sentences are not rescored by their vectors, for time. Figures are of
questions that the weights were not fitted on. Nothing is installed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from agentic_retriever.config import RouterConfig
from agentic_retriever.embeddings import KnownQueryEmbedding, LocalE5Embedding, embedding_name
from agentic_retriever.evaluation import load_dataset
from agentic_retriever.evaluation.bench_vectors import PassageVectors, passage_vectors
from agentic_retriever.evaluation.confidence_training import (
    BY_DOCUMENTS,
    AskedQuestion,
    ConfidenceTraining,
    answered_questions,
    train_confidence,
)
from agentic_retriever.evaluation.judged import judged_queries
from agentic_retriever.evaluation.vectors import load_vectors
from agentic_retriever.router import AgenticRouter
from agentic_retriever.synthesis import ConfidenceTrainedOn

NAMES = ("xquad-en", "cranfield", "hotpotqa-100", "cisi")
MODEL = "multilingual-e5-small"
HEAD = ("collection", "questions", "Brier before", "after", "gain [95 %]", "calibration error before", "after",
        "wrong below 0.5 before", "after", "right below 0.5 before", "after")  # fmt: skip


def calibrated(data: Path, name: str, limit: int, base: LocalE5Embedding, folder: Path) -> ConfidenceTraining:
    """Index a collection, answer questions of it and fit its confidence."""
    place = data / "collections" / name
    whole = load_dataset(place)
    known = load_vectors(data / "embeddings" / MODEL / f"{name}.npz", whole)
    dataset = whole.limited(limit, 0)
    source = PassageVectors(embedding_name(base), passage_vectors(whole, known))
    asked = {query.text: known.queries[query.query_id] for query in dataset.queries}
    config = RouterConfig(data_dir=folder, answer_rescoring=False, embedding_timeout_s=900.0)
    with AgenticRouter(config, embedding=KnownQueryEmbedding(base, asked), packed=[source]) as router:
        router.add_index("collection", place / "corpus.jsonl", description=name)
        index = router.index("collection")
        judged, _ = judged_queries([dataset], router, index)
        questions = [
            AskedQuestion(query_id=one.query_id, text=one.text, vector=one.vector, relevance=one.relevance)
            for one in judged
        ]
        rows, failures = answered_questions(router, index, questions)
        trained_on = ConfidenceTrainedOn(
            dataset=name,
            index="collection",
            index_version=index.version,
            rows=0,
            unanswerable=0,
            judged_by=BY_DOCUMENTS,
            date="",
        )
        return train_confidence(index, rows, trained_on=trained_on, failures=failures, install=False)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--limit", type=int, default=80, help="questions of a collection (default: %(default)s)")
    args = parser.parse_args()
    base = LocalE5Embedding()
    sys.stdout.write(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}\n")
    for name in args.names:
        with tempfile.TemporaryDirectory() as folder:
            found = calibrated(args.data, name, args.limit, base, Path(folder))
        seen = found.validation
        if seen is None:
            sys.stdout.write(f"{name}: {found.verdict}\n")
            continue
        before, after, gain = seen.before, seen.after, seen.brier_gain
        cells = [
            name,
            str(seen.questions),
            f"{before.brier:.3f}",
            f"{after.brier:.3f}",
            f"{gain[0]:+.3f} [{gain[1]:+.3f}, {gain[2]:+.3f}]{'' if seen.helps else ' (not installed)'}",
            *(f"{value:.3f}" for value in (before.ece, after.ece)),
            *(f"{value:.0%}" for value in (before.declined_wrong, after.declined_wrong)),
            *(f"{value:.0%}" for value in (before.declined_right, after.declined_right)),
        ]
        sys.stdout.write(f"| {' | '.join(cells)} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
