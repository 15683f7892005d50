from __future__ import annotations

import html
import json
from itertools import count

import numpy as np
import pytest
from evaluation_material import DIMENSION, run_all, write_beir, write_lines, write_vectors

from agentic_retriever.errors import EvaluationError, RetrievalError, UnknownIndexError
from agentic_retriever.evaluation.datasets import load_dataset
from agentic_retriever.evaluation.training import JOURNAL_FILE, TrainingOptions, judged_queries, train_strategies
from agentic_retriever.evaluation.vectors import Asked
from agentic_retriever.indices.measured import MeasuredStrategies
from agentic_retriever.retrievers import REGISTRY
from agentic_retriever.schema import Strategy

THINGS = ["anchor", "ferry", "sail", "oven", "dough", "crust", "harbour", "rye", "chain", "vest", "bowl", "loaf",
          "mast", "keel", "yeast", "rope", "buoy", "salt", "flour", "tray", "deck", "hull", "crumb", "tin"]  # fmt: skip
DOCUMENTS = {f"d{at}": f"The {thing} is number {at} on the list of the {thing}." for at, thing in enumerate(THINGS)}
QUERIES = {f"q{at}": (f"what number is the {thing}", f"d{at}") for at, thing in enumerate(THINGS)}


@pytest.fixture
def folder(tmp_path):
    return write_beir(tmp_path / "things", DOCUMENTS, QUERIES)


@pytest.fixture
def indexed(router, folder):
    router.add_index("mine", folder / "corpus.jsonl", description="things")
    return router


def ticking():
    ticks = count()
    return lambda: next(ticks) / 1000


def options(**changes):
    return TrainingOptions(**changes)


def train(router, datasets, given=None, **more):
    return train_strategies(datasets, router, "mine", given or options(), timer=ticking(), today=lambda: "2026-01-02",
                            **more)  # fmt: skip


def test_every_strategy_is_measured_and_kept(indexed, folder):
    result = train(indexed, [load_dataset(folder, with_corpus=False)])
    assert {run.name for run in result.runs} == set(REGISTRY)
    assert all(set(run.quality) == {f"things/{i}" for i in QUERIES} for run in result.runs)
    found = {Strategy(run.name): run.mean() for run in result.runs}
    assert found[Strategy.HYBRID] > 0.9
    kept = MeasuredStrategies.load(indexed.index("mine").folder)
    assert {s: m.quality for s, m in kept.strategies.items()} == pytest.approx(found)
    assert all(m.p50_ms == pytest.approx(1.0) for m in kept.strategies.values())
    assert (kept.dataset, kept.index, kept.queries, kept.measured_on) == ("things", "mine", 24, "2026-01-02")
    told = result.to_dict()
    assert {"index", "datasets", "strategies", "fusion", "verdict", "problems", "seed"} <= set(told)
    assert {"ndcg@10", "p50_ms", "p95_ms", "quality", "latency_ms"} <= set(told["strategies"]["vector"])
    json.dumps(told, allow_nan=False)
    page = result._repr_html_()
    assert f"<b>{max(found.values()):.3f}</b>" in page
    assert page.count("<tr>") == 1 + len(REGISTRY) + 5  # the weights that were tried stand below
    assert result.verdict in html.unescape(page)
    assert not (indexed.index("mine").folder / JOURNAL_FILE).exists()


def test_same_seed_same_figures(indexed, folder):
    datasets = [load_dataset(folder)]
    first, second = (train(indexed, datasets, options(seed=3, dry_run=True)).to_dict() for _ in range(2))
    assert second == first


def test_a_dry_run_keeps_nothing(indexed, folder):
    result = train(indexed, [load_dataset(folder)], options(dry_run=True))
    assert result.verdict == "figures of 7 strategies not kept (dry run)"
    assert MeasuredStrategies.load(indexed.index("mine").folder) is None


def test_few_questions_are_measured(indexed, folder):
    result = train(indexed, [load_dataset(folder)], options(limit=7))
    assert (result.queries, result.verdict) == (7, "figures of 7 strategies kept")
    assert MeasuredStrategies.load(indexed.index("mine").folder).queries == 7


def test_judgments_of_unknown_documents_are_counted(indexed, tmp_path):
    folder = write_beir(
        tmp_path / "other", DOCUMENTS, {**QUERIES, "q99": ("lost", "gone")}, extra_judgments=["q1\talso-gone\t1"]
    )
    result = train(indexed, [load_dataset(folder, with_corpus=False)])
    assert result.queries == 24
    assert result.problems.counts == {"unjudged_query": 1, "unknown_document": 2}


def test_nothing_matches_the_index(indexed, tmp_path):
    folder = write_beir(tmp_path / "other", {"x1": "Nothing."}, {"q": ("nothing", "x1")})
    with pytest.raises(EvaluationError, match="no judgment is about a document"):
        train(indexed, [load_dataset(folder)])
    with pytest.raises(UnknownIndexError):
        train_strategies([load_dataset(folder)], indexed, "none", options())


def test_questions_file(indexed, tmp_path):
    records = [{"id": i, "query": text, "index": "mine", "doc_ids": [doc_id]} for i, (text, doc_id) in QUERIES.items()]
    others = [
        {"id": "elsewhere", "query": "x", "index": "other", "doc_ids": ["d1"]},
        {"id": "out", "query": "x", "answerable": False},
        {"id": "bare", "query": "x", "index": "mine"},
    ]
    path = write_lines(tmp_path / "asked.jsonl", [*records, *others])
    asked, problems = judged_queries([load_dataset(path)], indexed, indexed.index("mine"))
    assert [q.query_id for q in asked.queries] == [f"asked/{i}" for i in QUERIES]
    assert problems.counts == {"unjudged_query": 1}


def test_given_vectors_must_be_of_the_index(indexed, folder, tmp_path):
    given = write_vectors(tmp_path / "v" / "things.npz", DOCUMENTS, QUERIES)
    dataset = load_dataset(folder)
    asked, _ = judged_queries([dataset], indexed, indexed.index("mine"), place=given)
    embedded, _ = judged_queries([dataset], indexed, indexed.index("mine"))
    for query_id, vector in embedded.vectors.items():
        assert float(asked.vectors[query_id] @ vector) > 0.999
    wrong = np.random.default_rng(0).standard_normal((len(QUERIES), DIMENSION))
    write_vectors(given, DOCUMENTS, QUERIES, query_vectors=wrong)
    with pytest.raises(EvaluationError, match="do not come from"):
        judged_queries([dataset], indexed, indexed.index("mine"), place=tmp_path / "v")
    write_vectors(given, DOCUMENTS, QUERIES, query_ids=np.array([f"x{at}" for at in range(len(QUERIES))]))
    with pytest.raises(EvaluationError, match="vector of no question"):
        judged_queries([dataset], indexed, indexed.index("mine"), place=given)


def test_a_failing_question_counts_as_found_nothing(indexed, folder, tmp_path, monkeypatch):
    asked, _ = judged_queries([load_dataset(folder)], indexed, indexed.index("mine"))
    adapter = indexed.resources.adapter(indexed.index("mine"), Strategy.HYBRID)
    real = adapter.search

    def failing(request):
        if "oven" in request.query:
            raise RetrievalError("both sides failed")
        return real(request)

    monkeypatch.setattr(type(adapter), "search", lambda self, request: failing(request))
    runs = {run.name: run for run in run_all(indexed, "mine", asked, tmp_path / "j", timer=ticking())}
    hybrid = runs["hybrid"]
    assert [f.to_dict() for f in hybrid.failures] == [
        {"query_id": "things/q3", "error": "RetrievalError: both sides failed"}
    ]
    assert hybrid.quality["things/q3"]["nDCG@10"] == 0.0
    assert len(hybrid.quality) == len(asked.queries)


def test_an_interrupted_training_goes_on(indexed, folder, monkeypatch):
    dataset = load_dataset(folder)
    index = indexed.index("mine")
    adapter = indexed.resources.adapter(index, Strategy.PLANNER)

    def interrupted(self, request):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(type(adapter), "search", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(indexed, [dataset])
    kept = [json.loads(line) for line in (index.folder / JOURNAL_FILE).read_text().splitlines()[1:]]
    rows = {record["row"] for record in kept}
    assert Strategy.VECTOR.value in rows
    assert Strategy.PLANNER.value not in rows
    vector = indexed.resources.adapter(index, Strategy.VECTOR)
    monkeypatch.setattr(type(vector), "search", interrupted)  # would stop the run if it were asked again
    result = train(indexed, [dataset])
    first = {record["query"]: record["ms"] for record in kept if record["row"] == "vector"}
    assert result.to_dict()["strategies"]["vector"]["latency_ms"] == first
    assert len(result.runs) == len(REGISTRY)


def test_nothing_to_run(indexed, tmp_path):
    with pytest.raises(EvaluationError, match="no judged question"):
        run_all(indexed, "mine", Asked((), {}), tmp_path / "j")
