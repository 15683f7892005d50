"""Measure every strategy on public collections in BEIR form, and print the table of docs/strategies.md.

Usage: python scripts/measure_strategies.py DATA_FOLDER [NAME ...] [--queries N] [--keep FOLDER] [--scores FOLDER]

DATA_FOLDER holds ``collections/NAME`` and ``embeddings/multilingual-e5-small/NAME.npz`` with vectors by id. What these
do not cover (parts of long documents, leaves, summaries, parts of questions) is embedded by the packaged model.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ir_measures
import numpy as np

from agentic_retriever import AgenticRouter, RouterConfig
from agentic_retriever.embeddings import LocalE5Embedding, embedding_name, text_hash
from agentic_retriever.retrievers import REGISTRY, RetrievalRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

NDCG, RECALL = ir_measures.nDCG @ 10, ir_measures.R @ 10
DEPTH = 30


class KnownVectors:
    """Vectors of whole documents, by the hash of the text that was embedded."""

    def __init__(self, model: str, vectors: dict[bytes, np.ndarray[Any, Any]]) -> None:
        self._model = model
        self._vectors = vectors

    def get_many(self, model: str, hashes: Sequence[bytes]) -> dict[bytes, np.ndarray[Any, Any]]:
        """Return the vectors known for these hashes."""
        return {key: self._vectors[key] for key in hashes if key in self._vectors} if model == self._model else {}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def unit(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return rows of length 1."""
    wide = rows.astype(np.float32)
    return np.asarray(wide / np.linalg.norm(wide, axis=1, keepdims=True), dtype=np.float32)


def measure(
    data: Path, name: str, keep: Path, limit: int, scores: Path | None = None
) -> dict[str, tuple[float, float, float]]:
    """Return nDCG@10, R@10 and median milliseconds of each strategy on one collection."""
    folder = data / "collections" / name
    with np.load(data / "embeddings" / "multilingual-e5-small" / f"{name}.npz") as packed:
        by_doc = dict(zip(packed["doc_ids"].tolist(), unit(packed["doc_vectors"]), strict=True))
        by_query = dict(zip(packed["query_ids"].tolist(), unit(packed["query_vectors"]), strict=True))
    base = LocalE5Embedding()
    known = {
        text_hash(f"{d.get('title', '')}\n{d['text']}".strip()): by_doc[d["_id"]]
        for d in read_lines(folder / "corpus.jsonl")
        if d["_id"] in by_doc
    }
    config = RouterConfig(data_dir=keep / name)
    with AgenticRouter(config, embedding=base, packed=[KnownVectors(embedding_name(base), known)]) as router:
        report = router.add_index(name, folder / "corpus.jsonl", description=name)
        index = router.index(name)
        index.build_views()
        sys.stderr.write(f"{name}: {index.count()} nodes, {report.embedded} computed\n")
        queries = read_lines(folder / "queries.jsonl")
        random.Random(0).shuffle(queries)  # noqa: S311 - a sample, not a secret
        return run(router, name, queries[:limit], by_query, folder / "qrels" / "test.tsv", scores)


def run(
    router: AgenticRouter,
    name: str,
    queries: list[dict[str, Any]],
    vectors: dict[str, Any],
    judged: Path,
    scores: Path | None,
) -> dict[str, tuple[float, float, float]]:
    """Search with every strategy; a document counts by its best node."""
    wanted = {q["_id"] for q in queries}
    qrels: dict[str, dict[str, int]] = {}
    with judged.open(encoding="utf-8") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            if row["query-id"] in wanted:
                qrels.setdefault(row["query-id"], {})[row["corpus-id"]] = int(float(row["score"]))
    results = {}
    by_query: dict[str, dict[str, dict[str, float]]] = {q["_id"]: {"ndcg": {}, "ms": {}} for q in queries}
    for strategy in REGISTRY:
        adapter = router.resources.adapter(router.index(name), strategy)
        ranking: dict[str, dict[str, float]] = {}
        spent = []
        for q in queries:
            request = RetrievalRequest(q["text"], DEPTH, None, tuple(vectors[q["_id"]].tolist()))
            start = time.perf_counter()
            nodes = adapter.search(request).nodes
            spent.append((time.perf_counter() - start) * 1000)
            by_query[q["_id"]]["ms"][strategy.value] = spent[-1]
            best: dict[str, float] = {}
            for node in nodes:
                doc_id = str(node.node.ref_doc_id)
                best[doc_id] = max(best.get(doc_id, float("-inf")), node.score or 0.0)
            ranking[q["_id"]] = best
        means = ir_measures.calc_aggregate([NDCG, RECALL], qrels, ranking)
        for found in ir_measures.iter_calc([NDCG], qrels, ranking):
            by_query[found.query_id]["ndcg"][strategy.value] = found.value
        results[strategy.value] = (means[NDCG], means[RECALL], float(np.median(spent)))
        sys.stderr.write(f"  {strategy.value}: {means[NDCG]:.3f} {means[RECALL]:.3f}\n")
    if scores is not None:
        scores.mkdir(parents=True, exist_ok=True)
        rows = ({"query_id": q["_id"], "query": q["text"], **by_query[q["_id"]]} for q in queries if q["_id"] in qrels)
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (scores / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    return results


def main() -> None:
    """Measure and print Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--queries", type=int, default=300, help="most questions of one collection, drawn by a seed")
    parser.add_argument("--keep", type=Path, default=Path("build/strategies"), help="folder of the indexes")
    parser.add_argument("--scores", type=Path, help="folder for NAME.jsonl: nDCG@10 and milliseconds by question")
    options = parser.parse_args()
    names = options.names or sorted(path.name for path in (options.data / "collections").iterdir())
    table = {name: measure(options.data, name, options.keep, options.queries, options.scores) for name in names}
    strategies = [strategy.value for strategy in REGISTRY]
    lines = ["| collection | " + " | ".join(strategies) + " |", "|---|" + "---|" * len(strategies)]
    for name, row in table.items():
        cells = (f"{row[s][0]:.3f} / {row[s][1]:.3f}" for s in strategies)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
