"""Small data sets for the tests of evaluation."""

import json
import time
from pathlib import Path

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding

from agentic_retriever.config import RouterConfig
from agentic_retriever.evaluation import benchmark
from agentic_retriever.evaluation.peers import Journal, Run
from agentic_retriever.evaluation.routing import check_queries, evaluate_stage_one
from agentic_retriever.evaluation.training import run_strategies
from agentic_retriever.indices.derived import SilentWatcher
from agentic_retriever.testing.fakes import FakeEmbedding

DIMENSION = 32
BOATS = {
    "b1": "The ferry leaves the harbour at nine.", "b2": "A sail tears in strong wind.",
    "b3": "The anchor chain weighs two tons.", "b4": "Every boat needs a life vest.",
    "b5": "The harbour master keeps the mooring list.",
}  # fmt: skip
BREAD = {
    "r1": "Knead the dough for ten minutes.", "r2": "Sourdough rises overnight in the bowl.",
    "r3": "Bake the loaf in a hot oven.", "r4": "Rye flour needs more water.",
    "r5": "The crust turns brown in the oven.",
}  # fmt: skip
BOAT_QUERIES = {"q1": ("when does the ferry leave the harbour", "b1"), "q2": ("how heavy is the anchor chain", "b3")}
BREAD_QUERIES = {"q1": ("how long to knead the dough", "r1"), "q2": ("rye flour and water", "r4")}


def embed(text: str) -> np.ndarray:
    return np.array(FakeEmbedding(dimension=DIMENSION).get_query_embedding(text), dtype=np.float32)


def write_lines(path: Path, records) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [record if isinstance(record, str) else json.dumps(record, ensure_ascii=False) for record in records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_beir(folder: Path, documents, queries, *, extra_queries=(), extra_judgments=(), description=None) -> Path:
    write_lines(folder / "corpus.jsonl", [{"_id": i, "title": "", "text": text} for i, text in documents.items()])
    records = [{"_id": i, "text": text} for i, (text, _) in queries.items()]
    write_lines(folder / "queries.jsonl", [*records, *extra_queries])
    judged = [f"{i}\t{doc_id}\t1" for i, (_, doc_id) in queries.items()]
    write_lines(folder / "qrels" / "test.tsv", ["query-id\tcorpus-id\tscore", *judged, *extra_judgments])
    if description is not None:
        (folder / "dataset.json").write_text(json.dumps({"description": description}), encoding="utf-8")
    return folder


def write_vectors(path: Path, documents, queries, **changes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {
        "doc_ids": np.array(list(documents)),
        "doc_vectors": np.stack([embed(text) for text in documents.values()]).astype(np.float16),
        "query_ids": np.array(list(queries)),
        "query_vectors": np.stack([embed(text) for text, _ in queries.values()]).astype(np.float16),
        **changes,
    }
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


class ByText(BaseEmbedding):
    """An embedding in which questions are texts like any other."""

    def _get_query_embedding(self, query):
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query):
        return self._get_text_embedding(query)


def bench(tmp_path, *sources, embedding=None, **settings):
    """Run a benchmark with settings alone."""
    model = embedding or FakeEmbedding(dimension=DIMENSION)
    return benchmark(RouterConfig(data_dir=tmp_path / "data"), *sources, embedding=model, **settings)


def without_times(value):
    """Leave out what may differ between two runs."""
    if isinstance(value, dict):
        times = {"seconds", "memory_mb", "queries_per_second", "machine"}
        return {key: without_times(one) for key, one in value.items() if not (key.endswith("ms") or key in times)}
    return [without_times(one) for one in value] if isinstance(value, list) else value


class Counting(SilentWatcher):
    """Adds up what was done."""

    def __init__(self):
        self.done = 0

    def advance(self, done):
        self.done += done


def run_all(router, name, asked, path, timer=time.perf_counter, **more):
    """Run every strategy of an index, with a journal in that file."""
    with Journal(path, "run") as journal:
        return run_strategies(router, name, asked, Run(journal=journal, timer=timer), **more)


def stage_one(queries, profiles, contender, **more):
    """Let one way to choose the index answer every question, as a benchmark does."""
    check_queries(queries, profiles)
    return evaluate_stage_one(queries, profiles, contender, Run(**more), way="x")
