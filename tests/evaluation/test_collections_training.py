"""What training learns on public test collections; skipped where they are absent."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

import numpy as np
import pytest
from evaluation_material import run_all
from llama_index.core.base.embeddings.base import BaseEmbedding

from agentic_retriever.config import RouterConfig
from agentic_retriever.embeddings import KnownQueryEmbedding
from agentic_retriever.evaluation import training as strategies
from agentic_retriever.evaluation.datasets import load_dataset
from agentic_retriever.evaluation.training import TrainingOptions, judged_queries, train_strategies
from agentic_retriever.evaluation.vectors import load_vectors
from agentic_retriever.retrievers import FUSION_FILE, FusionModel
from agentic_retriever.router import AgenticRouter
from agentic_retriever.schema import Strategy

pytestmark = [pytest.mark.shared_data, pytest.mark.slow]

SIZE = 384


class EnglishOnly(BaseEmbedding):
    """Stands in for an English embedding model: a text is the words of it that occur in English."""

    words: frozenset[str]

    @classmethod
    def class_name(cls):
        return "english-only"

    def _get_text_embedding(self, text):
        vector = np.full(SIZE, 1e-3)
        for word in self.words.intersection(re.findall(r"\w+", text.casefold())):
            digest = hashlib.sha256(word.encode()).digest()
            vector[int.from_bytes(digest[:4], "big") % SIZE] += 1 if digest[4] % 2 else -1
        return (vector / np.linalg.norm(vector)).tolist()

    def _get_query_embedding(self, query):
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query):
        return self._get_text_embedding(query)


class Passages(BaseEmbedding):
    """Vectors of whole documents, which stand for their parts, too."""

    known: dict[str, list[float]]

    @classmethod
    def class_name(cls):
        return "passages"

    def _get_text_embedding(self, text):
        end = text.strip()[-60:]
        return next((vector for whole, vector in self.known.items() if end in whole), [1.0] + [0.0] * (SIZE - 1))

    def _get_query_embedding(self, query):
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query):
        return self._get_text_embedding(query)


@pytest.fixture(autouse=True)
def two_strategies(monkeypatch):
    """Measure hybrid and dense search only; what the others need is not built."""
    real = strategies.cards
    wanted = {Strategy.VECTOR, Strategy.HYBRID}
    monkeypatch.setattr(strategies, "cards", lambda index: [c for c in real(index) if c.strategy in wanted])
    monkeypatch.setattr(strategies, "build_views", lambda index, *_: index.keyword())


def halves(dataset, most):
    """Split questions into some to train on and others to measure on."""
    chosen = dataset.limited(2 * most, 5)
    return tuple(replace(chosen, queries=chosen.queries[at::2]) for at in (0, 1))


def trained(router, dataset, most):
    """Train an index on some questions; return the fit, and nDCG@10 of dense and hybrid search on others."""
    train, test = halves(dataset, most)
    router.add_index("mine", dataset.path / "corpus.jsonl", description="documents")
    result = train_strategies([train], router, "mine", TrainingOptions())
    judged, _ = judged_queries([test], router, router.index("mine"))
    found = {run.name: run.mean() for run in run_all(router, "mine", judged, router.config.data_dir / "journal")}
    return result, found["vector"], found["hybrid"]


def test_words_are_trusted_where_the_model_knows_another_language(shared_data, tmp_path):
    folder = shared_data / "collections"
    english = (folder / "xquad-en" / "corpus.jsonl").read_text(encoding="utf-8")
    words = frozenset(re.findall(r"\w+", english.casefold()))
    dataset = load_dataset(folder / "xquad-es")
    model = EnglishOnly(model_name="english-only", words=words)
    with AgenticRouter(RouterConfig(data_dir=tmp_path), embedding=model) as router:
        result, dense, hybrid = trained(router, dataset, 60)
        installed = FusionModel.load(router.index("mine").folder / FUSION_FILE)
    seen = result.fusion.validation
    assert seen.dense < seen.bm25 - 0.5
    assert seen.default < seen.bm25
    assert result.fusion.installed
    assert installed.alpha < 0.4
    # What was installed is in force, and does on other questions what words do there, not what vectors do.
    assert hybrid > 0.92 > 0.5 > dense
    # The strategies were measured with it, not with the weights that were there before.
    measured = {run.name: run.mean() for run in result.runs}
    assert measured["hybrid"] > seen.default


def test_dense_search_is_not_lost_to_where_it_is_the_better_side(shared_data, tmp_path):
    dataset = load_dataset(shared_data / "collections" / "hotpotqa-100")
    known = load_vectors(shared_data / "embeddings" / "multilingual-e5-small" / "hotpotqa-100.npz", dataset)
    base = Passages(
        known={f"{d.title}\n{d.text}".strip(): known.documents[d.doc_id].tolist() for d in dataset.documents}
    )
    asked = {query.text: known.queries[query.query_id] for query in dataset.queries}
    with AgenticRouter(RouterConfig(data_dir=tmp_path), embedding=KnownQueryEmbedding(base, asked)) as router:
        result, dense, hybrid = trained(router, dataset, 50)
    seen = result.fusion.validation
    assert seen.dense > seen.bm25 + 0.05
    assert hybrid >= dense
