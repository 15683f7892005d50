"""Fitting the weights of hybrid search."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from evaluation_material import run_all, write_beir
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.base.embeddings.base import BaseEmbedding

from agentic_retriever.config import RouterConfig
from agentic_retriever.errors import EvaluationError
from agentic_retriever.evaluation.datasets import load_dataset
from agentic_retriever.evaluation.training import (
    CANDIDATES,
    FusionTable,
    TrainingOptions,
    better_side,
    fit_fusion,
    fusion_table,
    judged_queries,
    train_fusion,
    train_strategies,
    validate_fusion,
)
from agentic_retriever.retrievers import DEFAULT_FUSION, FUSION_FILE, FusionModel, FusionTrainedOn
from agentic_retriever.router import AgenticRouter
from agentic_retriever.schema import Strategy
from agentic_retriever.testing import FakeEmbedding

TRAINED = FusionTrainedOn(dataset="d", index="mine", index_version=1, rows=0, date="2026-01-02")
TOPICS = 120
SIZE = 48


def table(*reached, rows=60, noise=0.0, seed=0):
    """A table in which each candidate reaches what its dense weight asks for, with some noise."""
    [quality_of] = reached
    means = np.array([quality_of(model) for model in CANDIDATES])
    drawn = np.random.default_rng(seed).normal(0, noise, (rows, 1)) + np.zeros(len(CANDIDATES))
    return FusionTable(quality=np.clip(means + drawn, 0, 1))


def test_the_default_is_tried_first_and_both_sides_are_tried():
    assert CANDIDATES[0] == DEFAULT_FUSION
    assert len(set(CANDIDATES)) == len(CANDIDATES)
    words, dense = (CANDIDATES[at] for at in table(lambda model: 0.5).sides)
    assert (words.weight(9.0), dense.weight(-9.0)) == (0.0, 1.0)
    distances = [abs(model.alpha - 0.5) for model in CANDIDATES]
    assert distances == sorted(distances)


def test_where_nothing_is_better_the_default_stays():
    same = table(lambda model: 0.5)
    assert fit_fusion(same, trained_on=TRAINED).alpha == 0.5
    found = validate_fusion(same)
    assert found.gain == (0.0, 0.0, 0.0)
    assert not found.helps
    assert not found.side_helps


@pytest.mark.parametrize("best", [0.0, 0.2, 0.8, 1.0])
def test_the_weight_that_questions_ask_for_is_found(best):
    asked = table(lambda model: 0.9 - 0.6 * abs(model.alpha - best), noise=0.1)
    model = fit_fusion(asked, trained_on=TRAINED)
    assert model.alpha == best
    assert (model.trained_on.rows, model.trained_on.index) == (60, "mine")
    found = validate_fusion(asked)
    assert found.helps
    assert found.over_side[0] >= 0
    assert found.gain[0] == pytest.approx(found.learned - found.default)
    assert found.gain[1] <= found.gain[0] <= found.gain[2]


def test_chance_does_not_move_the_default():
    generator = np.random.default_rng(5)
    helped = 0
    for _ in range(10):
        quality = np.clip(0.5 + generator.normal(0, 0.2, (60, len(CANDIDATES))), 0, 1)
        found = validate_fusion(FusionTable(quality=quality))
        helped += found.helps
    assert helped <= 2


@given(st.integers(0, 2**32 - 1))
def test_what_is_fitted_is_never_below_either_side_on_its_own_questions(seed):
    generator = np.random.default_rng(seed)
    quality = np.clip(generator.uniform(0, 1, len(CANDIDATES)) + generator.normal(0, 0.3, (25, len(CANDIDATES))), 0, 1)
    found = FusionTable(quality=quality)
    model = fit_fusion(found, trained_on=TRAINED)
    means = dict(zip([(m.alpha, m.slope, m.reach) for m in CANDIDATES], quality.mean(axis=0), strict=True))
    reached = means[model.alpha, model.slope, model.reach]
    assert reached >= max(quality[:, at].mean() for at in found.sides) - 1e-9
    side = better_side(found, trained_on=TRAINED)
    assert means[side.alpha, side.slope, side.reach] >= max(quality[:, at].mean() for at in found.sides) - 1e-9


def test_tables_that_cannot_be_fitted_are_refused():
    with pytest.raises(EvaluationError, match="too few"):
        fit_fusion(table(lambda model: 0.5, rows=19), trained_on=TRAINED)
    with pytest.raises(EvaluationError, match="too few"):
        validate_fusion(table(lambda model: 0.5, rows=19))
    for wrong in (np.zeros((30, 2)), np.full((30, len(CANDIDATES)), 1.5), np.full((30, len(CANDIDATES)), np.nan)):
        with pytest.raises(EvaluationError, match="numbers from 0 to 1"):
            FusionTable(quality=wrong)


def test_same_seed_same_figures():
    noisy = FusionTable(quality=np.random.default_rng(1).uniform(0, 1, (40, len(CANDIDATES))))
    assert validate_fusion(noisy, seed=3) == validate_fusion(noisy, seed=3)
    json.dumps(validate_fusion(noisy).to_dict(), allow_nan=False)


class Given(BaseEmbedding):
    """Vectors by text."""

    vectors: dict[str, list[float]]

    @classmethod
    def class_name(cls):
        return "given"

    def _get_text_embedding(self, text):
        return self.vectors.get(text.strip(), [1.0] + [0.0] * (SIZE - 1))

    def _get_query_embedding(self, query):
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query):
        return self._get_text_embedding(query)


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
        router.add_index("mine", folder / "corpus.jsonl", description="things")
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
    queries = {
        f"q{i}": (f"lamp at harbour{(i + 7) % TOPICS} and gate{(i + 7) % TOPICS}", f"d{i}") for i in range(TOPICS)
    }
    seen, installed = trained(tmp_path, documents, queries, truth=0.5)
    assert seen.dense > seen.bm25 + 0.3
    assert seen.default < seen.dense
    assert installed.alpha > 0.7
    assert reached(seen) >= seen.dense > seen.default


THINGS = {f"d{i}": f"The thing{i} is number {i} on the list." for i in range(24)}
ASKED = {f"q{i}": (f"what number is thing{i}", f"d{i}") for i in range(24)}


@pytest.fixture
def indexed(tmp_path):
    folder = write_beir(tmp_path / "things", THINGS, ASKED)
    with AgenticRouter(RouterConfig(data_dir=tmp_path / "data"), embedding=FakeEmbedding(dimension=32)) as router:
        router.add_index("mine", folder / "corpus.jsonl", description="things")
        yield router, folder


def train(router, folder, **changes):
    ticks = count()
    return train_strategies([load_dataset(folder)], router, "mine", TrainingOptions(**changes),
                            timer=lambda: next(ticks) / 1000, today=lambda: "2026-01-02")  # fmt: skip


@pytest.mark.parametrize("dry_run", [True, False])
def test_training_fits_the_weights_and_a_running_router_uses_them(indexed, monkeypatch, dry_run):
    router, folder = indexed
    adapter = router.resources.adapter(router.index("mine"), Strategy.HYBRID)
    wanted = table(lambda model: 0.9 - abs(model.alpha - 0.1), rows=24, noise=0.05)
    monkeypatch.setattr("agentic_retriever.evaluation.training.fusion_table", lambda *a, **k: wanted)
    result = train(router, folder, dry_run=dry_run)
    assert result.fusion.validation.helps
    assert result.fusion.installed is not dry_run
    assert ("dry run" in result.fusion.verdict) is dry_run
    assert (router.index("mine").folder / FUSION_FILE).exists() is not dry_run
    model, _ = adapter._model()
    assert model == (DEFAULT_FUSION if dry_run else result.fusion.model)
    told = result.to_dict()["fusion"]
    assert {"validation", "model", "installed", "verdict"} == set(told)
    assert (told["model"]["alpha"], told["model"]["trained_on"]["rows"]) == (0.1, 24)
    json.dumps(told, allow_nan=False)


def test_what_does_not_help_is_not_installed(indexed, monkeypatch):
    router, folder = indexed
    wanted = table(lambda model: 0.9 - abs(model.alpha - 0.5), rows=24)
    monkeypatch.setattr("agentic_retriever.evaluation.training.fusion_table", lambda *a, **k: wanted)
    fusion = train(router, folder).fusion
    assert (fusion.installed, fusion.model) == (False, None)
    assert "not installed, since they do not help: +0.000" in fusion.verdict
    assert not (router.index("mine").folder / FUSION_FILE).exists()


def test_the_better_side_is_installed_where_no_mixture_reaches_it(indexed, monkeypatch):
    router, folder = indexed
    generator = np.random.default_rng(0)
    quality = np.clip(generator.normal(0.4, 0.02, (24, len(CANDIDATES))), 0, 1)
    words, _ = FusionTable(quality=quality).sides
    quality[:, words] = 0.9
    quality[:, 7] = np.where(np.arange(24) % 2, 1.0, 0.78)  # lures folds into something that is worse on the whole
    wanted = FusionTable(quality=quality)
    monkeypatch.setattr("agentic_retriever.evaluation.training.fusion_table", lambda *a, **k: wanted)
    fusion = train(router, folder).fusion
    assert fusion.installed
    assert fusion.model.weight(5.0) == 0.0
    if not fusion.validation.helps:
        assert fusion.verdict.startswith("BM25 alone as hybrid installed")


def test_too_few_questions_fit_nothing(indexed):
    router, folder = indexed
    fusion = train(router, folder, limit=7).fusion
    assert (fusion.validation, fusion.model, fusion.installed) == (None, None, False)
    assert "7 judged questions are too few" in fusion.verdict


def test_questions_made_of_the_corpus_fit_nothing(indexed, monkeypatch):
    router, folder = indexed
    monkeypatch.setattr(type(load_dataset(folder)), "pseudo", property(lambda self: True))
    fusion = train(router, folder).fusion
    assert fusion.validation is None
    assert "own words" in fusion.verdict


def test_the_table_is_what_the_strategy_gives(indexed):
    router, folder = indexed
    index = router.index("mine")
    asked, _ = judged_queries([load_dataset(folder)], router, index)
    runs = {run.name: run.values("nDCG@10") for run in run_all(router, "mine", asked, folder / "journal")}
    found = fusion_table(index, router.resources.adapter(index, Strategy.HYBRID), asked)
    assert found.quality[:, 0] == pytest.approx(runs["hybrid"])
    assert found.quality[:, found.sides[1]] == pytest.approx(runs["vector"])


@pytest.mark.parametrize("dry_run", [True, False])
def test_strategies_are_measured_with_the_weights_that_will_be_in_force(indexed, monkeypatch, dry_run):
    router, folder = indexed
    index = router.index("mine")
    asked, _ = judged_queries([load_dataset(folder)], router, index)
    real = fusion_table(index, router.resources.adapter(index, Strategy.HYBRID), asked).quality
    wanted = table(lambda model: 0.9 - 0.8 * abs(model.alpha - 1.0), rows=24)
    monkeypatch.setattr("agentic_retriever.evaluation.training.fusion_table", lambda *a, **k: wanted)
    result = train(router, folder, dry_run=dry_run)
    column = CANDIDATES.index(replace(result.fusion.model, trained_on=None))
    assert real[:, column].mean() < real[:, 0].mean() - 0.1  # what was fitted does worse here, so it can be told apart
    measured = {run.name: run.values("nDCG@10") for run in result.runs}
    assert measured["hybrid"] == pytest.approx(real[:, column])
    assert (index.folder / FUSION_FILE).exists() is not dry_run
    # Parts of questions are searched for by hybrid search, too.
    assert measured["planner"] == pytest.approx(real[:, column], abs=1e-6)


def test_weights_that_were_there_stay_and_are_told(indexed, monkeypatch):
    router, folder = indexed
    path = router.index("mine").folder / FUSION_FILE
    FusionModel(alpha=0.3, trained_on=TRAINED).save(path)
    same = table(lambda model: 0.9 - abs(model.alpha - 0.5), rows=24)
    monkeypatch.setattr("agentic_retriever.evaluation.training.fusion_table", lambda *a, **k: same)
    assert train(router, folder).fusion.verdict.endswith("the weights that were there stay")
    assert FusionModel.load(path).alpha == 0.3
