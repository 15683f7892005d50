import json
from collections import Counter

import numpy as np
import pytest
from store_tools import copied_store

from agentic_retriever import AgenticRouter, RouterConfig
from agentic_retriever.embeddings import EmbeddingModel, PackedVectors, embedding_name, text_hash
from agentic_retriever.indices import embedded_text
from agentic_retriever.sample import DEMO_QUESTIONS, SAMPLE_INDEXES, VECTORS, load_questions
from agentic_retriever.schema import Complexity, Strategy

NAMES = {sample.name for sample in SAMPLE_INDEXES}


@pytest.fixture(scope="module")
def router(sample_store, tmp_path_factory, local_embedding):
    folder = copied_store(sample_store, tmp_path_factory.mktemp("sample") / "data")
    with AgenticRouter(RouterConfig(data_dir=folder, answer_rescoring=False), embedding=local_embedding) as made:
        yield made


def test_questions_are_complete():
    questions = load_questions()
    assert len(questions) >= 90
    assert len({q["id"] for q in questions}) == len(questions)
    for q in questions:
        assert q["language"] in {"es", "th", "en"}
        assert Strategy(q["strategy"])
        assert Complexity(q["complexity"])
        assert (q["index"] in NAMES) == bool(q["doc_ids"]) == bool(q["answer"]) == q["answerable"]
    assert {q["strategy"] for q in questions} == {s.value for s in Strategy}
    assert min(Counter(q["language"] for q in questions).values()) >= 30
    assert sum(not q["answerable"] for q in questions) >= 5
    assert {q["language"] for q in questions if q["id"] in DEMO_QUESTIONS} == {"es", "th", "en"}


def test_gold_documents_are_in_their_index(router):
    for q in load_questions():
        if q["index"]:
            assert set(q["doc_ids"]) <= set(router.index(q["index"]).catalog.doc_ids()), q["id"]


def test_deeds_have_their_fields():
    deeds = [json.loads(line) for line in (SAMPLE_INDEXES[1].folder / "deeds.jsonl").read_text("utf-8").splitlines()]
    assert len(deeds) >= 120
    fields = {"province", "deed_type", "district", "land_type", "area_rai", "year", "latitude", "longitude"}
    assert all(set(deed["metadata"]) == fields for deed in deeds)


def test_shipped_vectors_are_those_of_the_model(router, local_embedding):
    texts = [embedded_text(node) for name in sorted(NAMES) for node in list(router.index(name).nodes())[:4]]
    name = embedding_name(local_embedding)
    shipped = PackedVectors(VECTORS).get_many(name, [text_hash(text) for text in texts])
    fresh, computed = EmbeddingModel(local_embedding, name=name).embed_passages(texts)
    assert computed == len(set(texts))
    assert min(float(shipped[text_hash(text)] @ vector) for text, vector in zip(texts, fresh, strict=True)) > 0.995


def test_questions_go_to_their_index(router):
    answerable = [q for q in load_questions() if q["index"]]
    assert sum(router.route(q["query"]).index.name == q["index"] for q in answerable) / len(answerable) >= 0.97


def test_gold_documents_are_found_and_cited(router):
    answerable = [q for q in load_questions() if q["index"]]
    found = cited = 0
    for q in answerable:
        answer = router.query(q["query"])
        found += bool({n.node.ref_doc_id for n in answer.nodes} & set(q["doc_ids"]))
        cited += bool({c.doc_id for c in answer.citations} & set(q["doc_ids"]))
        for c in answer.citations:
            assert router.index(c.index).source_text(c.doc_id)[c.start : c.end] == c.quote
    assert found / len(answerable) >= 0.9
    assert cited / len(answerable) >= 0.8


def test_questions_far_from_every_index_are_not_answered(router):
    far = ["Why does Venus spin the other way round from most planets?", "¿Cómo se hace una tortilla de patatas?"]
    for query in far:
        assert router.query(query).confidence.level.value == "not_found"


def test_what_the_sample_cannot_answer_is_declined_and_little_else(router):
    asked = load_questions()
    declined = [q for q in asked if router.query(q["query"]).confidence.level.value == "not_found"]
    right = sum(not q["doc_ids"] for q in declined)
    assert right / len(declined) >= 0.8
    assert right / sum(not q["doc_ids"] for q in asked) >= 0.8


def test_vectors_are_small_and_finite():
    assert VECTORS.stat().st_size < 3_000_000
    with np.load(VECTORS, allow_pickle=False) as data:
        assert np.isfinite(data["vectors"].astype(np.float32)).all()


def test_shipped_vectors_cover_leaves_and_summaries(router, monkeypatch):
    for name in sorted(NAMES):
        index = router.index(name)

        def refuse(batch, timeout_s=None):
            raise AssertionError(f"{len(batch)} texts are not packed; run scripts/pack_sample_vectors.py")

        monkeypatch.setattr(index.embedding, "_embed", refuse)
        index.build_views()
        assert index.summaries().coverage == 1.0
        assert set(index.hierarchy().outlines) == set(index.catalog.doc_ids())
