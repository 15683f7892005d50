from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np
import pytest
from evaluation_material import BOAT_QUERIES, BOATS, DIMENSION, embed, write_beir, write_lines, write_vectors

from agentic_retriever import AgenticRouter
from agentic_retriever.config import RouterConfig
from agentic_retriever.errors import EvaluationError
from agentic_retriever.evaluation import benchmark, load_dataset
from agentic_retriever.evaluation.answers import average_precision
from agentic_retriever.evaluation.harness import resolve_source
from agentic_retriever.evaluation.measures import answer_f1, answer_tokens, exact_match
from agentic_retriever.testing import FakeEmbedding


@dataclass
class Finetune:
    queries: dict = field(default_factory=lambda: {"q1": "when does the ferry leave", "q2": "what is nowhere"})
    corpus: dict = field(default_factory=lambda: {**BOATS, "empty": " "})
    relevant_docs: dict = field(default_factory=lambda: {"q1": ["b1", "b1", "b9"], "q3": ["b2"]})
    mode: str = "text"


def test_finetune_object_and_file(tmp_path):
    given = Finetune()
    path = tmp_path / "tuned.json"
    path.write_text(json.dumps(given.__dict__), encoding="utf-8")
    for found, name in ((resolve_source(given), "finetune"), (load_dataset(path), "tuned")):
        assert found.name == name
        assert [(q.query_id, dict(q.relevance)) for q in found.queries] == [("q1", {"b1": 1})]
        assert {d.doc_id for d in found.documents} == set(BOATS)
        assert found.problems.counts == {
            "duplicate_id": 1, "missing_field": 1, "unjudged_query": 1, "unknown_document": 1, "unknown_query": 1,
        }  # fmt: skip


@pytest.mark.parametrize(
    "content", ["[]", "{", '{"queries": {}, "corpus": {}}', '{"queries":{},"corpus":{},"relevant_docs":{}}']
)
def test_what_is_no_finetune_dataset(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(EvaluationError, match=r"x\.json"):
        load_dataset(path)


def test_what_is_no_data_set():
    with pytest.raises(EvaluationError, match="EmbeddingQAFinetuneDataset"):
        resolve_source(42)


STORY = "Wheat grows on wide fields. The harvest of wheat begins in late summer. Mills grind the harvest into flour."


def corpus_only(folder):
    records = [
        {"_id": "d1", "title": "A long treatise about lighthouses", "text": "Light guides ships. " + STORY},
        {"_id": "d2", "title": "", "text": STORY.replace("wheat", "barley").replace("Wheat", "Barley")},
        {"_id": "d3", "title": "", "text": "Too short."},
        {"_id": "d3", "title": "", "text": "Twice."},
    ]
    write_lines(folder / "corpus.jsonl", records)
    return folder


def test_pseudo_queries_are_left_out_of_their_own_document(tmp_path):
    found = resolve_source(corpus_only(tmp_path / "alone"))
    assert found.pseudo
    assert found.problems.total == 1
    assert all(query.pseudo for query in found.queries)
    by_id = {document.doc_id: document for document in found.documents}
    assert {doc_id for query in found.queries for doc_id in query.relevance} == {"d1", "d2"}
    for query in found.queries:
        [doc_id] = query.relevance
        whole = " ".join(f"{by_id[doc_id].title} {by_id[doc_id].text}".split())
        assert query.text not in whole
        assert len(whole) > 20
    assert by_id["d3"].text == "Too short."
    again = resolve_source(tmp_path / "alone")
    assert [q.text for q in again.queries] == [q.text for q in found.queries]


def test_pseudo_queries_need_something_to_be_made_of(tmp_path):
    write_lines(tmp_path / "bare" / "corpus.jsonl", [{"_id": "a", "text": "Nothing."}])
    with pytest.raises(EvaluationError, match="has no questions"):
        resolve_source(tmp_path / "bare")


def test_a_folder_without_judgments_says_how_to_go_on(tmp_path):
    folder = corpus_only(tmp_path / "unjudged")
    write_lines(folder / "queries.jsonl", [{"_id": "q1", "text": "Where does wheat grow?"}])
    with pytest.raises(EvaluationError) as wrong:
        resolve_source(folder)
    assert str(wrong.value).startswith(f"{folder / 'qrels'} holds no *.tsv; ")
    assert "without queries.jsonl, or an index of them: pseudo-queries" in str(wrong.value)
    (folder / "queries.jsonl").unlink()
    assert resolve_source(folder).pseudo


def test_questions_without_judgments_say_how_to_go_on(tmp_path):
    config = RouterConfig(data_dir=tmp_path / "d", query_log="none")
    write_lines(tmp_path / "asked.jsonl", [{"query": "Where does wheat grow?", "index": "fields"}])
    with AgenticRouter(config, embedding=FakeEmbedding(dimension=DIMENSION)) as router:
        router.add_index("fields", corpus_only(tmp_path / "alone") / "corpus.jsonl")
        with pytest.raises(EvaluationError, match="without judgments, bench fields asks pseudo-queries"):
            benchmark(router, tmp_path / "asked.jsonl", strategies=["vector"])
        assert benchmark(router, "fields", strategies=["vector"], views=False).results["fields"].pseudo


def test_pseudo_queries_are_marked_everywhere(tmp_path):
    result = benchmark(
        RouterConfig(data_dir=tmp_path / "d"),
        corpus_only(tmp_path / "alone"),
        embedding=FakeEmbedding(dimension=DIMENSION),
        strategies=["vector"],
    )
    told = result.to_dict()["datasets"]["alone"]
    assert told["pseudo_queries"] is True
    assert "pseudo-queries" in told["notes"][0]
    assert "pseudo-queries" in result._repr_html_()
    assert all(record["pseudo"] for record in result.records())
    assert "pseudo-queries" in result.to_html()


def test_documents_of_an_index_give_pseudo_queries(tmp_path, router):
    router.add_index("mine", corpus_only(tmp_path / "alone") / "corpus.jsonl")
    assert resolve_source("mine", router).name == "mine"


def run(tmp_path, folder, **settings):
    return benchmark(
        RouterConfig(data_dir=tmp_path / "d"), folder, embedding=FakeEmbedding(dimension=DIMENSION),
        strategies=["vector", "hybrid"], **settings,
    )  # fmt: skip


def test_vectors_that_miss_ids_are_counted_and_computed(tmp_path):
    folder = write_beir(
        tmp_path / "boats", BOATS, BOAT_QUERIES,
        extra_queries=[{"_id": "q9", "text": "nobody judged this"}, {"_id": "q1", "text": "again"}],
        extra_judgments=["q1\tnothing\t1", "q7\tb1\t1"],
    )  # fmt: skip
    partly = {i: text for i, text in BOATS.items() if i != "b1"} | {"b77": "gone"}
    asked = {"q2": BOAT_QUERIES["q2"]}
    vectors = write_vectors(tmp_path / "boats.npz", partly, asked)
    result = run(tmp_path, folder, vectors=vectors)
    counts = result.to_dict()["datasets"]["boats"]["problems"]["counts"]
    assert counts == {
        "computed_document_vector": 1, "computed_query_vector": 1, "duplicate_id": 1, "unjudged_query": 1,
        "unknown_document": 1, "unknown_query": 1, "unused_vector": 1,
    }  # fmt: skip
    assert len(result.results["boats"].rows["vector"].quality) == 2
    assert result.results["boats"].rows["vector"].mean() == 1.0


def test_given_vectors_spare_the_model(tmp_path, boats, vectors):
    model = FakeEmbedding(dimension=DIMENSION)
    benchmark(RouterConfig(data_dir=tmp_path / "d"), boats, embedding=model, strategies=["vector"], vectors=vectors)
    # One question to see that the vectors are the model's, one text for its dimension, the description for the profile.
    assert sorted(set(model.calls)) == [
        "boats and the harbour",
        "dimension",
        "when does the ferry leave the harbour",
    ]


@pytest.mark.parametrize("size", [DIMENSION, 8])
def test_vectors_of_another_model_end_the_run(tmp_path, boats, size):
    other = np.random.default_rng(0).normal(size=(len(BOATS), size))
    queries = np.random.default_rng(1).normal(size=(2, size))
    path = write_vectors(tmp_path / "v.npz", BOATS, BOAT_QUERIES, doc_vectors=other, query_vectors=queries)
    with pytest.raises(EvaluationError, match="do not come from the embedding model"):
        run(tmp_path, boats, vectors=path)
    assert embed("x").shape == (DIMENSION,)


@pytest.mark.parametrize(
    ("answer", "gold", "f1"),
    [
        ("The ferry leaves at nine. [1]", "ferry leaves at nine", 1.0),
        ("nine", "the ferry leaves at nine", 0.4),
        ("", "", 1.0),
        ("", "nine", 0.0),
        ("ten", "nine", 0.0),
        ("ห้าไร่", "ห้าไร่", 1.0),
    ],
)
def test_answers_are_compared_word_by_word(answer, gold, f1):
    assert answer_f1(answer, gold) == pytest.approx(f1)
    assert exact_match(answer, gold) == (f1 == 1.0)


def test_scripts_without_spaces_are_compared_by_characters():
    assert answer_tokens("ab ไร่") == ["ab", "ไ", "ร", "่"]


@pytest.mark.parametrize(("verdicts", "value"), [([], 0), ([False], 0), ([True, False, True], (1 + 2 / 3) / 2)])
def test_average_precision(verdicts, value):
    assert average_precision(verdicts) == pytest.approx(value)
