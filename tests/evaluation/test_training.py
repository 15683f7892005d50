"""Training an index: what strategies reach, and fitting the weights of hybrid search."""

import html
import json
from dataclasses import replace
from itertools import count
from unittest.mock import Mock

import numpy as np
import pytest
from evaluation_material import DIMENSION, ByText, run_all, write_beir, write_lines, write_vectors
from hypothesis import given
from hypothesis import strategies as st

from agentic_retriever.config import RouterConfig
from agentic_retriever.errors import EvaluationError, RetrievalError, UnknownIndexError
from agentic_retriever.evaluation import training
from agentic_retriever.evaluation.datasets import load_dataset
from agentic_retriever.evaluation.training import (
    CANDIDATES,
    DENSE,
    JOURNAL_FILE,
    WORDS,
    TrainingOptions,
    better_side,
    choose_weights,
    fusion_table,
    judged_queries,
    train_fusion,
    train_strategies,
    validate_fusion,
)
from agentic_retriever.indices.profile import MeasuredStrategies
from agentic_retriever.retrievers import DEFAULT_FUSION, FUSION_FILE, REGISTRY, FusionModel
from agentic_retriever.retrievers.hybrid import FusionTrainedOn
from agentic_retriever.router import AgenticRouter
from agentic_retriever.schema import Strategy

DOCUMENTS = {f"d{at}": f"The thing{at} is number {at} on the list." for at in range(24)}
QUERIES = {f"q{at}": (f"what number is thing{at}", f"d{at}") for at in range(24)}


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


def train(router, datasets, **changes):
    options = TrainingOptions(**changes)
    return train_strategies(datasets, router, "mine", options, timer=ticking(), today=lambda: "2026-01-02")


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


def test_a_dry_run_keeps_nothing_and_the_same_seed_gives_the_same_figures(indexed, folder):
    results = [train(indexed, [load_dataset(folder)], seed=3, dry_run=True) for _ in range(2)]
    assert results[0].to_dict() == results[1].to_dict()
    assert results[0].verdict == "figures of 7 strategies not kept (dry run)"
    assert MeasuredStrategies.load(indexed.index("mine").folder) is None


def test_few_questions_are_measured_and_fit_nothing(indexed, folder):
    result = train(indexed, [load_dataset(folder)], limit=7)
    assert (result.queries, result.verdict) == (7, "figures of 7 strategies kept")
    assert MeasuredStrategies.load(indexed.index("mine").folder).queries == 7
    assert (result.fusion.validation, result.fusion.model, result.fusion.installed) == (None, None, False)
    assert "7 judged questions are too few" in result.fusion.verdict


def test_judgments_of_unknown_documents_are_counted(indexed, tmp_path):
    folder = write_beir(
        tmp_path / "other", DOCUMENTS, {**QUERIES, "q99": ("lost", "gone")}, extra_judgments=["q1\talso-gone\t1"]
    )
    result = train(indexed, [load_dataset(folder, with_corpus=False)])
    assert (result.queries, result.problems.counts) == (24, {"unjudged_query": 1, "unknown_document": 2})


def test_nothing_matches_the_index(indexed, tmp_path):
    folder = write_beir(tmp_path / "other", {"x1": "Nothing."}, {"q": ("nothing", "x1")})
    with pytest.raises(EvaluationError, match="no judgment is about a document"):
        train(indexed, [load_dataset(folder)])
    with pytest.raises(UnknownIndexError):
        train_strategies([load_dataset(folder)], indexed, "none", TrainingOptions())


def test_questions_file(indexed, tmp_path):
    records = [{"id": i, "query": text, "index": "mine", "doc_ids": [doc_id]} for i, (text, doc_id) in QUERIES.items()]
    others = [{"id": "elsewhere", "query": "x", "index": "other", "doc_ids": ["d1"]},
              {"id": "out", "query": "x", "answerable": False},
              {"id": "bare", "query": "x", "index": "mine"}]  # fmt: skip
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
        if request.query.endswith("thing3"):
            raise RetrievalError("both sides failed")
        return real(request)

    monkeypatch.setattr(type(adapter), "search", lambda self, request: failing(request))
    runs = {run.name: run for run in run_all(indexed, "mine", asked, tmp_path / "j", timer=ticking())}
    hybrid = runs["hybrid"]
    [failure] = hybrid.failures
    assert failure.to_dict() == {"query_id": "things/q3", "error": "RetrievalError: both sides failed"}
    assert (hybrid.quality["things/q3"]["nDCG@10"], len(hybrid.quality)) == (0.0, len(asked.queries))


def test_an_interrupted_training_goes_on(indexed, folder, monkeypatch):
    dataset = load_dataset(folder)
    index = indexed.index("mine")
    adapter = indexed.resources.adapter(index, Strategy.PLANNER)
    interrupted = Mock(side_effect=KeyboardInterrupt)
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


TRAINED = FusionTrainedOn(dataset="d", index="mine", index_version=1, rows=0, date="2026-01-02")
TOPICS = 120
SIZE = 48


def table(quality_of, *, rows=60, noise=0.0):
    """A table in which each candidate reaches what its dense weight asks for, with some noise."""
    means = np.array([quality_of(model) for model in CANDIDATES])
    drawn = np.random.default_rng(0).normal(0, noise, (rows, 1)) + np.zeros(len(CANDIDATES))
    return np.clip(means + drawn, 0, 1)


def given_table(monkeypatch, made):
    monkeypatch.setattr(training, "fusion_table", lambda *_, **__: made)


def test_the_default_is_tried_first_and_stays_where_nothing_is_better():
    assert (CANDIDATES[0], len(set(CANDIDATES))) == (DEFAULT_FUSION, len(CANDIDATES))
    same = table(lambda model: 0.5)
    words, dense = CANDIDATES[WORDS], CANDIDATES[DENSE]
    assert (words.weight(9.0), dense.weight(-9.0)) == (0.0, 1.0)
    distances = [abs(model.alpha - 0.5) for model in CANDIDATES]
    assert (distances, CANDIDATES[choose_weights(same)].alpha) == (sorted(distances), 0.5)
    found = validate_fusion(same)
    assert found.gain == (0.0, 0.0, 0.0)
    assert not found.helps
    assert not found.side_helps


@pytest.mark.parametrize("best", [0.0, 0.2, 0.8, 1.0])
def test_the_weight_that_questions_ask_for_is_found(best):
    asked = table(lambda model: 0.9 - 0.6 * abs(model.alpha - best), noise=0.1)
    assert CANDIDATES[choose_weights(asked)].alpha == best
    found = validate_fusion(asked)
    assert found.helps
    assert found.over_side[0] >= 0
    assert found.gain[0] == pytest.approx(found.learned - found.default)
    assert found.gain[1] <= found.gain[0] <= found.gain[2]


def test_chance_does_not_move_the_default_and_the_same_seed_gives_the_same_validation():
    generator = np.random.default_rng(5)
    drawn = [0.5 + generator.normal(0, 0.2, (60, len(CANDIDATES))) for _ in range(10)]
    assert sum(validate_fusion(np.clip(quality, 0, 1)).helps for quality in drawn) <= 2
    noisy = np.random.default_rng(1).uniform(0, 1, (40, len(CANDIDATES)))
    assert validate_fusion(noisy, seed=3) == validate_fusion(noisy, seed=3)
    json.dumps(validate_fusion(noisy).to_dict(), allow_nan=False)


@given(st.integers(0, 2**32 - 1))
def test_what_is_fitted_is_never_below_either_side_on_its_own_questions(seed):
    generator = np.random.default_rng(seed)
    quality = np.clip(generator.uniform(0, 1, len(CANDIDATES)) + generator.normal(0, 0.3, (25, len(CANDIDATES))), 0, 1)
    means = quality.mean(axis=0)
    for column in (choose_weights(quality), better_side(quality)):
        assert means[column] >= max(means[WORDS], means[DENSE]) - 1e-9


class Given(ByText):
    """Vectors by text."""

    vectors: dict[str, list[float]]

    def _get_text_embedding(self, text):
        return self.vectors.get(text.strip(), [1.0] + [0.0] * (SIZE - 1))


def directions(texts, seed):
    drawn = np.random.default_rng(seed).standard_normal((len(texts), SIZE))
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def trained(tmp_path, documents, queries, *, truth):
    """Fit an index whose vectors hold so much of the truth about each question, and chance for the rest."""
    folder = write_beir(tmp_path / "things", documents, queries)
    told = dict(zip(documents, directions(documents, 1), strict=True))
    asked = truth * np.stack([told[doc_id] for _, doc_id in queries.values()]) + directions(queries, 2)
    vectors = {documents[i]: told[i].tolist() for i in documents}
    vectors |= {text: row.tolist() for (text, _), row in zip(queries.values(), asked, strict=True)}
    config = RouterConfig(data_dir=tmp_path / "data")
    with AgenticRouter(config, embedding=Given(model_name="given", vectors=vectors)) as router:
        router.add_index("mine", folder / "corpus.jsonl", description="things", views=False)
        index = router.index("mine")
        judged, _ = judged_queries([load_dataset(folder)], router, index)
        found = train_fusion(router, index, judged, trained_on=TRAINED)
        again = train_fusion(router, index, judged, trained_on=TRAINED, install=False)
        path = index.folder / FUSION_FILE
        installed = FusionModel.load(path) if path.exists() else None
    assert found.validation == again.validation
    assert not again.installed
    return found.validation, installed


def reached(seen):
    """What the installed weights reach on questions that they were not fitted on."""
    return seen.learned if seen.helps else max(seen.dense, seen.bm25)


def test_words_are_trusted_where_vectors_know_nothing(tmp_path):
    documents = {f"d{i}": f"Report {i} tells of kestrel{i % 40} and of weather{i % 7}." for i in range(TOPICS)}
    queries = {f"q{i}": (f"weather{i % 7} near kestrel{i % 40}, number {i}?", f"d{i}") for i in range(TOPICS)}
    seen, installed = trained(tmp_path, documents, queries, truth=0.0)
    assert seen.bm25 > 0.9 > 0.2 > seen.dense
    assert seen.default < seen.bm25
    assert installed.alpha < 0.3
    assert reached(seen) >= seen.bm25 > seen.default


def test_vectors_are_trusted_where_words_mislead(tmp_path):
    # Each question speaks in the words of another document, as one that leads over a bridge to a second one does.
    documents = {f"d{i}": f"The lamp of harbour{i} and of gate{i} is lit." for i in range(TOPICS)}
    others = [(i, (i + 7) % TOPICS) for i in range(TOPICS)]
    queries = {f"q{i}": (f"lamp at harbour{other} and gate{other}", f"d{i}") for i, other in others}
    seen, installed = trained(tmp_path, documents, queries, truth=0.5)
    assert seen.dense > seen.bm25 + 0.3
    assert seen.default < seen.dense
    assert installed.alpha > 0.7
    assert reached(seen) >= seen.dense > seen.default


@pytest.mark.parametrize("dry_run", [True, False])
def test_training_fits_the_weights_and_a_running_router_uses_them(indexed, folder, monkeypatch, dry_run):
    adapter = indexed.resources.adapter(indexed.index("mine"), Strategy.HYBRID)
    given_table(monkeypatch, table(lambda model: 0.9 - abs(model.alpha - 0.1), rows=24, noise=0.05))
    result = train(indexed, [load_dataset(folder)], dry_run=dry_run)
    assert result.fusion.validation.helps
    assert result.fusion.installed is not dry_run
    assert ("dry run" in result.fusion.verdict) is dry_run
    assert (indexed.index("mine").folder / FUSION_FILE).exists() is not dry_run
    weigh, _ = adapter._weigh()  # of the model that is in force
    assert weigh.__self__ == (DEFAULT_FUSION if dry_run else result.fusion.model)
    told = result.to_dict()["fusion"]
    assert {"validation", "model", "installed", "verdict"} == set(told)
    assert (told["model"]["alpha"], told["model"]["trained_on"]["rows"]) == (0.1, 24)
    assert told["model"]["trained_on"]["index"] == "mine"
    json.dumps(told, allow_nan=False)


def test_what_does_not_help_is_not_installed_and_weights_that_were_there_stay(indexed, folder, monkeypatch):
    given_table(monkeypatch, table(lambda model: 0.9 - abs(model.alpha - 0.5), rows=24))
    fusion = train(indexed, [load_dataset(folder)]).fusion
    assert (fusion.installed, fusion.model) == (False, None)
    assert "not installed, since they do not help: +0.000" in fusion.verdict
    path = indexed.index("mine").folder / FUSION_FILE
    assert not path.exists()
    FusionModel(alpha=0.3, trained_on=TRAINED).save(path)
    assert train(indexed, [load_dataset(folder)]).fusion.verdict.endswith("the weights that were there stay")
    assert FusionModel.load(path).alpha == 0.3


def test_the_better_side_is_installed_where_no_mixture_reaches_it(indexed, folder, monkeypatch):
    quality = np.clip(np.random.default_rng(0).normal(0.4, 0.02, (24, len(CANDIDATES))), 0, 1)
    quality[:, WORDS] = 0.9
    quality[:, 7] = np.where(np.arange(24) % 2, 1.0, 0.78)  # lures folds into something that is worse on the whole
    given_table(monkeypatch, quality)
    fusion = train(indexed, [load_dataset(folder)]).fusion
    assert fusion.installed
    assert fusion.model.weight(5.0) == 0.0
    if not fusion.validation.helps:
        assert fusion.verdict.startswith("BM25 alone as hybrid installed")


def test_questions_made_of_the_corpus_fit_nothing(indexed, folder, monkeypatch):
    monkeypatch.setattr(type(load_dataset(folder)), "pseudo", property(lambda self: True))
    fusion = train(indexed, [load_dataset(folder)]).fusion
    assert fusion.validation is None
    assert "own words" in fusion.verdict


def test_the_table_is_what_the_strategy_gives(indexed, folder):
    index = indexed.index("mine")
    asked, _ = judged_queries([load_dataset(folder)], indexed, index)
    runs = {run.name: run.values("nDCG@10") for run in run_all(indexed, "mine", asked, folder / "journal")}
    found = fusion_table(index, indexed.resources.adapter(index, Strategy.HYBRID), asked)
    assert found[:, 0] == pytest.approx(runs["hybrid"])
    assert found[:, DENSE] == pytest.approx(runs["vector"])


@pytest.mark.parametrize("dry_run", [True, False])
def test_strategies_are_measured_with_the_weights_that_will_be_in_force(indexed, folder, monkeypatch, dry_run):
    index = indexed.index("mine")
    asked, _ = judged_queries([load_dataset(folder)], indexed, index)
    real = fusion_table(index, indexed.resources.adapter(index, Strategy.HYBRID), asked)
    given_table(monkeypatch, table(lambda model: 0.9 - 0.8 * abs(model.alpha - 1.0), rows=24))
    result = train(indexed, [load_dataset(folder)], dry_run=dry_run)
    column = CANDIDATES.index(replace(result.fusion.model, trained_on=None))
    assert real[:, column].mean() < real[:, 0].mean() - 0.1  # what was fitted does worse here, so it can be told apart
    measured = {run.name: run.values("nDCG@10") for run in result.runs}
    assert measured["hybrid"] == pytest.approx(real[:, column])
    assert (index.folder / FUSION_FILE).exists() is not dry_run
    # Parts of questions are searched for by hybrid search, too.
    assert measured["planner"] == pytest.approx(real[:, column], abs=1e-6)
