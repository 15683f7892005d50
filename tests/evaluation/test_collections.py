"""Fusion, routing and training on the public test collections, where they are there."""

import hashlib
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from evaluation_material import ByText, run_all

from agentic_retriever.config import RouterConfig
from agentic_retriever.embeddings import embedding_name, query_hash
from agentic_retriever.evaluation import training as strategies
from agentic_retriever.evaluation.datasets import GivenVectors, load_dataset, load_vectors
from agentic_retriever.evaluation.measures import ndcg_by_query
from agentic_retriever.evaluation.training import TrainingOptions, judged_queries, train_strategies
from agentic_retriever.indices import KeywordIndex
from agentic_retriever.indices.profile import background, sample_ids
from agentic_retriever.retrievers import DEFAULT_FUSION, FUSION_FILE, FusionModel
from agentic_retriever.retrievers.hybrid import SideLists, dense_excess
from agentic_retriever.router import AgenticRouter
from agentic_retriever.schema import Strategy
from agentic_retriever.text import Tokenizer

pytestmark = pytest.mark.shared_data

DEPTH = 100
EVERY = {"xquad-en": 4, "xquad-es": 4, "xquad-th": 4}
"""Of the 1,190 questions on 240 passages every fourth will do."""
LANGUAGES = {"xquad-es": "es", "xquad-th": "th"}


def collection(shared_data, name):
    dataset = load_dataset(shared_data / "collections" / name)
    return dataset, load_vectors(shared_data / "embeddings" / "multilingual-e5-small" / f"{name}.npz", dataset)


def words_of(dataset):
    texts = ((one.doc_id, f"{one.title}\n{one.text}") for one in dataset.documents)
    return KeywordIndex.build(texts, tokenizer=Tokenizer(language=LANGUAGES.get(dataset.name, "en")), version=1)


def sides_of(dataset, vectors):
    """Yield the questions and what both sides find for each, as the strategy searches them."""
    ids, documents, words = list(vectors.documents), np.stack(list(vectors.documents.values())), words_of(dataset)
    row_of = {doc_id: row for row, doc_id in enumerate(ids)}
    mean, std = background(documents[[row_of[i] for i in sample_ids(ids)]])
    known = SimpleNamespace(background_mean=mean, background_std=std, nodes=len(ids))
    for query in dataset.queries[:: EVERY.get(dataset.name, 1)]:
        cosines = documents @ vectors.queries[query.query_id]
        dense = [(ids[row], float(cosines[row])) for row in np.argsort(-cosines, kind="stable")[:DEPTH]]
        found = words.search(query.text, DEPTH)
        lists = {side: entries for side, entries in (("dense", dense), ("bm25", found)) if entries}
        floors = {"bm25": 0.0} if 0 < len(found) < DEPTH else {}
        yield (
            query,
            SideLists(
                lists=lists, floors=floors, excess=dense_excess(dense[0][1], known, found[0][1] if found else 1.0)
            ),
        )


@pytest.mark.parametrize("name", ["xquad-th", "xquad-es"])
def test_bm25_finds_thai_and_spanish_passages(shared_data, name):
    pytest.importorskip("ir_measures", reason="the extra 'bench' is not installed")
    dataset, _ = collection(shared_data, name)
    words = words_of(dataset)
    found = {query.query_id: [doc_id for doc_id, _ in words.search(query.text, 10)] for query in dataset.queries}
    reached = ndcg_by_query({query.query_id: query.relevance for query in dataset.queries}, found)
    assert len(reached) == 1190
    assert np.mean(list(reached.values())) >= 0.95


@pytest.mark.parametrize("name", ["cranfield", "cacm", "cisi", "xquad-en", "xquad-es", "xquad-th", "hotpotqa-100"])
def test_hybrid_is_not_below_the_better_side(shared_data, name):
    pytest.importorskip("ir_measures", reason="the extra 'bench' is not installed")
    runs, judged = {"hybrid": {}, "dense": {}, "bm25": {}}, {}
    for query, sides in sides_of(*collection(shared_data, name)):
        judged[query.query_id] = query.relevance
        hybrid = sides.merged(DEFAULT_FUSION.weight(sides.excess)) if len(sides.lists) > 1 else sides.lists["dense"]
        for side, ranking in {**sides.lists, "hybrid": hybrid}.items():
            runs[side][query.query_id] = [doc_id for doc_id, _ in ranking]
    found = {side: np.mean(list(ndcg_by_query(judged, run).values())) for side, run in runs.items()}
    assert found["hybrid"] >= max(found["dense"], found["bm25"]), found


SIZE = 384


class EnglishOnly(ByText):
    """Stands in for an English embedding model: a text is the words of it that occur in English."""

    words: frozenset[str]

    def _get_text_embedding(self, text):
        vector = np.full(SIZE, 1e-3)
        for word in self.words.intersection(re.findall(r"\w+", text.casefold())):
            digest = hashlib.sha256(word.encode()).digest()
            vector[int.from_bytes(digest[:4], "big") % SIZE] += 1 if digest[4] % 2 else -1
        return (vector / np.linalg.norm(vector)).tolist()


class Passages(ByText):
    """Vectors of whole documents, which stand for their parts, too."""

    known: dict[str, list[float]]

    def _get_text_embedding(self, text):
        end = text.strip()[-60:]
        return next((vector for whole, vector in self.known.items() if end in whole), [1.0] + [0.0] * (SIZE - 1))


@pytest.fixture
def two_strategies(monkeypatch):
    """Measure hybrid and dense search only; what the others need is not built."""
    real = strategies.cards
    wanted = {Strategy.VECTOR, Strategy.HYBRID}
    monkeypatch.setattr(strategies, "cards", lambda index: [c for c in real(index) if c.strategy in wanted])
    monkeypatch.setattr(strategies.peers, "build_views", lambda index, *_: index.keyword())


def halves(dataset, most):
    """Split questions into some to train on and others to measure on."""
    chosen = dataset.limited(2 * most, 5)
    return tuple(replace(chosen, queries=chosen.queries[at::2]) for at in (0, 1))


def trained(router, dataset, most):
    """Train an index on some questions; return the fit, and nDCG@10 of dense and hybrid search on others."""
    train, test = halves(dataset, most)
    router.add_index("mine", dataset.path / "corpus.jsonl", description="documents", views=False)
    result = train_strategies([train], router, "mine", TrainingOptions())
    judged, _ = judged_queries([test], router, router.index("mine"))
    found = {run.name: run.mean() for run in run_all(router, "mine", judged, router.config.data_dir / "journal")}
    return result, found["vector"], found["hybrid"]


@pytest.mark.slow
@pytest.mark.usefixtures("two_strategies")
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


@pytest.mark.slow
@pytest.mark.usefixtures("two_strategies")
def test_dense_search_is_not_lost_to_where_it_is_the_better_side(shared_data, tmp_path):
    dataset, known = collection(shared_data, "hotpotqa-100")
    base = Passages(
        known={f"{d.title}\n{d.text}".strip(): known.documents[d.doc_id].tolist() for d in dataset.documents}
    )
    asked = GivenVectors(embedding_name(base), {query_hash(q.text): known.queries[q.query_id] for q in dataset.queries})
    with AgenticRouter(RouterConfig(data_dir=tmp_path), embedding=base, packed=[asked]) as router:
        result, dense, hybrid = trained(router, dataset, 50)
    seen = result.fusion.validation
    assert seen.dense > seen.bm25 + 0.05
    assert hybrid >= dense
