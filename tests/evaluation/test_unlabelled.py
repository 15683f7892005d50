"""Fitting the weights of hybrid search without judgments."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from evaluation_material import write_lines
from hypothesis import given
from hypothesis import strategies as st

from agentic_retriever.config import RouterConfig
from agentic_retriever.errors import EvaluationError
from agentic_retriever.evaluation import unlabelled
from agentic_retriever.evaluation.fusion_fitting import (
    CANDIDATES,
    UNLABELLED_ALPHAS,
    FusionTable,
    fit_fusion,
    validate_fusion,
)
from agentic_retriever.evaluation.pseudo import documents_of, pseudo_dataset
from agentic_retriever.evaluation.training import TrainingOptions
from agentic_retriever.evaluation.unlabelled import Mirror, train_unlabelled
from agentic_retriever.retrievers import DEFAULT_FUSION, FUSION_FILE, FusionModel, FusionTrainedOn
from agentic_retriever.router import AgenticRouter
from agentic_retriever.testing import FakeEmbedding

TRAINED = FusionTrainedOn(dataset="d", index="mine", index_version=1, rows=0, date="2026-01-02", pseudo=True)
LOW, HIGH = UNLABELLED_ALPHAS
DOCUMENTS = [
    {"_id": f"d{at}", "text": f"Report {at} is about the weather in town {at}. The kestrel of tower {at} was seen "
                              f"in spring number {at}, twice. Rain fell on the {at} bridges of the town."}
    for at in range(30)
]  # fmt: skip


@given(st.integers(0, 2**32 - 1))
def test_the_bounds_hold_whatever_the_questions_ask_for(seed):
    generator = np.random.default_rng(seed)
    quality = np.clip(generator.uniform(0, 1, len(CANDIDATES)) + generator.normal(0, 0.2, (25, len(CANDIDATES))), 0, 1)
    model = fit_fusion(FusionTable(quality=quality), trained_on=TRAINED, bounded=True)
    assert LOW <= model.alpha <= HIGH
    assert replace(model, alpha=DEFAULT_FUSION.alpha, trained_on=None) == DEFAULT_FUSION


def test_questions_that_ask_for_words_alone_move_the_weight_to_the_bound():
    quality = np.array([[0.9 - 0.6 * model.alpha for model in CANDIDATES]] * 40)
    found = FusionTable(quality=quality)
    assert fit_fusion(found, trained_on=TRAINED, bounded=True).alpha == LOW
    assert fit_fusion(found, trained_on=TRAINED).alpha == 0.0
    seen = validate_fusion(found, bounded=True)
    assert seen.learned < seen.bm25
    assert seen.learned - seen.default == pytest.approx(0.6 * (DEFAULT_FUSION.alpha - LOW))


@pytest.fixture
def router(tmp_path):
    path = write_lines(tmp_path / "docs.jsonl", DOCUMENTS)
    with AgenticRouter(RouterConfig(data_dir=tmp_path / "data"), embedding=FakeEmbedding(dimension=64)) as router:
        router.add_index("mine", path, description="reports")
        yield router


def test_a_question_is_not_found_in_the_document_that_it_was_taken_from(router):
    index = router.index("mine")
    made = pseudo_dataset("mine", index.folder, documents_of(index), most=30)
    mirror = Mirror.of(index, router.resources.embedding(), made.queries, seed=0)
    for query in made.queries:
        [doc_id] = query.relevance
        [text] = [text for node, text in mirror.texts.items() if mirror.documents[node] == doc_id]
        assert query.text not in text
        assert text
    assert index.source_text("d3") == DOCUMENTS[3]["text"]  # the index itself is as it was
    asked = made.queries[0]
    sides = mirror.search(asked.text, router.resources.embedding().embed_query(asked.text))
    changed = [node for node, doc_id in mirror.documents.items() if doc_id in asked.relevance]
    dense = dict(sides.lists["dense"])
    assert dense[changed[0]] < 0.99
    assert set(sides.lists) == {"dense", "bm25"}


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_fit_is_installed_and_marked(router, monkeypatch, dry_run):
    table = FusionTable(quality=np.array([[0.9 - 0.6 * model.alpha for model in CANDIDATES]] * 30))
    monkeypatch.setattr(unlabelled, "measured_table", lambda *_: table)
    found = train_unlabelled(router, "mine", TrainingOptions(dry_run=dry_run), today=lambda: "2026-01-02")
    path = router.index("mine").folder / FUSION_FILE
    assert found.fusion.installed is path.exists() is not dry_run
    assert found.fusion.model.alpha == LOW
    assert found.fusion.model.trained_on == FusionTrainedOn(
        dataset="pseudo-queries of mine", index="mine", index_version=router.index("mine").version, rows=30,
        date="2026-01-02", pseudo=True,
    )  # fmt: skip
    assert "without judgments" in found.fusion.verdict
    assert "pseudo-queries" in found.note
    told = found.to_dict()
    assert (told["pseudo_queries"], told["bounds"]) == (True, [LOW, HIGH])
    assert told["fusion"]["model"]["trained_on"]["pseudo"] is True
    json.dumps(told, allow_nan=False)
    if not dry_run:
        assert FusionModel.load(path) == found.fusion.model


def test_what_does_not_help_is_not_installed(router, monkeypatch):
    table = FusionTable(quality=np.full((30, len(CANDIDATES)), 0.5))
    monkeypatch.setattr(unlabelled, "measured_table", lambda *_: table)
    fusion = train_unlabelled(router, "mine").fusion
    assert (fusion.installed, fusion.model) == (False, None)
    assert "do not help even there" in fusion.verdict


def test_the_whole_way_twice_gives_the_same(router):
    first, second = (
        train_unlabelled(router, "mine", TrainingOptions(dry_run=True, seed=3)).to_dict() for _ in range(2)
    )
    assert first == second
    assert first["queries"] == 30
    assert first["fusion"]["validation"]["rows"] == 30


def test_too_few_questions_and_no_text(router, tmp_path):
    assert "7 pseudo-queries are too few" in train_unlabelled(router, "mine", TrainingOptions(limit=7)).fusion.verdict
    router.add_index("short", write_lines(tmp_path / "s.jsonl", [{"_id": "a", "text": "One."}]))
    with pytest.raises(EvaluationError, match="has a title or"):
        train_unlabelled(router, "short")


def test_of_a_large_index_whole_documents_are_taken(router, monkeypatch):
    monkeypatch.setattr(unlabelled, "MOST_NODES", 15)
    index = router.index("mine")
    made = pseudo_dataset("mine", index.folder, documents_of(index), most=3)
    mirror = Mirror.of(index, router.resources.embedding(), made.queries, seed=0)
    assert 3 < len(mirror.texts) < 30
    assert all(mirror.holds(query) for query in made.queries)


def test_files_from_before_there_was_such_a_fit_are_read(tmp_path):
    model = FusionModel(alpha=0.4, trained_on=replace(TRAINED, pseudo=False))
    told = model.to_dict()
    del told["trained_on"]["pseudo"]
    (tmp_path / "f").write_text(json.dumps(told), encoding="utf-8")
    assert FusionModel.load(tmp_path / "f") == model
