"""Data sets: folders, files, fine-tuning data, pseudo-queries, and the vectors of a benchmark."""

import gzip
import json
from dataclasses import dataclass, field

import numpy as np
import pytest
from evaluation_material import BOAT_QUERIES, BOATS, DIMENSION, bench, embed, write_beir, write_lines, write_vectors

from agentic_retriever.errors import EvaluationError
from agentic_retriever.evaluation import benchmark, datasets
from agentic_retriever.evaluation.harness import average_precision
from agentic_retriever.evaluation.measures import answer_f1, answer_recall, answer_tokens, exact_match
from agentic_retriever.schema import Complexity, Strategy
from agentic_retriever.testing import FakeEmbedding


def test_beir_folder(boats):
    dataset = datasets.load_dataset(boats)
    assert (dataset.name, dataset.kind, dataset.description) == (
        "boats", datasets.DatasetKind.BEIR, "boats and the harbour",
    )  # fmt: skip
    assert {d.doc_id: d.text for d in dataset.documents} == BOATS
    assert [(q.query_id, q.text, q.index, dict(q.relevance)) for q in dataset.queries] == [
        (i, text, "boats", {doc_id: 1}) for i, (text, doc_id) in BOAT_QUERIES.items()
    ]
    assert dataset.problems.total == 0


def test_everything_wrong_in_a_folder_is_counted_and_listed(tmp_path):
    queries = [
        {"_id": "q1", "text": "again"},  # duplicate id
        {"_id": "q3", "text": "nobody judged this"},
        *({"_id": "q4"}, {"text": "no id"}, "{broken", '["a list"]'),
        {"_id": "q5", "text": "judged to have nothing relevant"},
    ]
    # Of an unknown document, of an unknown query, no number, no tabs, judged already, nothing relevant.
    judgments = ["q1\tb99\t1", "q9\tb1\t1", "q2\tb1\tmuch", "q2 b1 1", "q2\tb3\t1", "q5\tb1\t0"]
    folder = write_beir(tmp_path / "bad", BOATS, BOAT_QUERIES, extra_queries=queries, extra_judgments=judgments)
    with (folder / "corpus.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"_id": "b1", "text": "twice"}\n{"_id": "b6", "text": \n')
    dataset = datasets.load_dataset(folder)
    assert dict(dataset.problems.counts) == {
        "bad_judgment": 2, "broken_line": 3, "duplicate_id": 3, "missing_field": 2, "unjudged_query": 2,
        "unknown_document": 1, "unknown_query": 1,
    }  # fmt: skip
    assert [q.query_id for q in dataset.queries] == ["q1", "q2"]
    assert (dataset.queries[0].text, len(dataset.documents)) == (BOAT_QUERIES["q1"][0], len(BOATS))
    told = {(p.kind.value, p.line) for p in dataset.problems.listed}
    assert ("broken_line", 7) in told
    assert ("unknown_document", 4) in told
    assert all(str(folder) in p.source for p in dataset.problems.listed)
    assert len(dataset.problems.summary()) == len(dataset.problems.counts)
    json.dumps(dataset.problems.to_dict())


def test_a_missing_or_empty_file_is_named(boats):
    for name, content in (
        ("corpus.jsonl", ""),
        ("corpus.jsonl", "{oops\n"),
        ("queries.jsonl", "\n\n"),
        ("qrels/test.tsv", "a\tb\tscore\n"),
    ):
        good = (boats / name).read_text()
        (boats / name).write_text(content)
        with pytest.raises(EvaluationError, match=name.split("/")[0]) as caught:
            datasets.load_dataset(boats)
        assert str(boats) in str(caught.value)
        (boats / name).unlink()
        with pytest.raises(EvaluationError, match=name.split("/")[0]):
            datasets.load_dataset(boats)
        (boats / name).write_text(good)
    (boats / "corpus.jsonl").unlink()
    dataset = datasets.load_dataset(boats, with_corpus=False)  # judgments of any document count
    assert (dataset.documents, len(dataset.queries)) == ((), 2)


def test_splits_and_a_broken_description(boats):
    write_lines(boats / "qrels" / "dev.tsv", ["q1\tb2\t1"])
    assert dict(datasets.load_dataset(boats).queries[0].relevance) == {"b1": 1, "b2": 1}
    assert dict(datasets.load_dataset(boats, split="dev").queries[0].relevance) == {"b2": 1}
    with pytest.raises(EvaluationError, match=r"train\.tsv"):
        datasets.load_dataset(boats, split="train")
    for content in ("[1]", "{", '{"description": 3}'):
        (boats / "dataset.json").write_text(content)
        with pytest.raises(EvaluationError, match=r"dataset\.json"):
            datasets.load_dataset(boats)


def test_questions_file(tmp_path):
    path = write_lines(
        tmp_path / "mine.jsonl",
        [
            {"id": "a", "query": "ferry?", "index": "boats", "strategy": "hybrid", "complexity": "simple",
             "doc_ids": ["b1"], "language": "en", "answer": "nine"},
            {"query": "why is the sky blue", "index": None, "answerable": False},
            {"query": "who knows", "index": None},
            {"query": "odd", "index": 3, "strategy": "telepathy", "complexity": "hard", "doc_ids": "b1"},
            {"id": "a", "query": "twice", "index": "boats"}, {"id": "b", "index": "boats"}, "{",
        ],
    )  # fmt: skip
    dataset = datasets.load_dataset(path)
    first, outside, unknown, odd = dataset.queries
    assert dataset.kind is datasets.DatasetKind.QUESTIONS
    assert (first.strategy, first.complexity, first.answer) == (Strategy.HYBRID, Complexity.SIMPLE, "nine")
    assert dict(first.relevance) == {"b1": 1}
    assert (outside.query_id, outside.index, outside.answerable) == ("line-2", None, False)
    assert (unknown.index, unknown.answerable) == (None, True)
    assert (odd.index, odd.strategy, odd.complexity, dict(odd.relevance)) == (None, None, None, {})
    assert dict(dataset.problems.counts) == {
        "bad_field": 4, "broken_line": 1, "duplicate_id": 1, "missing_field": 1, "unlabelled_query": 2,
    }  # fmt: skip


def test_what_is_no_data_set(boats, tmp_path):
    path = write_lines(tmp_path / "none.jsonl", ["{"])
    (tmp_path / "a.csv").write_text("x")
    for given, told in ((path, r"none\.jsonl holds no question.*broken line"), (tmp_path / "nowhere", "does not exist"),
                        (tmp_path / "a.csv", "neither a folder")):  # fmt: skip
        with pytest.raises(EvaluationError, match=told):
            datasets.load_dataset(given)
    for content in ("[]", "{", '{"queries": {}, "corpus": {}}', '{"queries":{},"corpus":{},"relevant_docs":{}}'):
        (tmp_path / "x.json").write_text(content, encoding="utf-8")
        with pytest.raises(EvaluationError, match=r"x\.json"):
            datasets.load_dataset(tmp_path / "x.json")
    with pytest.raises(EvaluationError, match="EmbeddingQAFinetuneDataset"):
        datasets.find_source(42)
    other = write_beir(tmp_path / "else" / "boats", BOATS, BOAT_QUERIES)
    with pytest.raises(EvaluationError, match="called 'boats'"):
        datasets.check_names([datasets.load_dataset(boats), datasets.load_dataset(other)])
    write_lines(tmp_path / "bare" / "corpus.jsonl", [{"_id": "a", "text": "Nothing."}])
    with pytest.raises(EvaluationError, match="no question can be made of"):
        bench(tmp_path, tmp_path / "bare")


def test_sample_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dataset = datasets.load_dataset("sample")
    assert dataset.problems.total == 0
    assert {q.index for q in dataset.queries} == {"handbook", "homologacion", "land_deeds", None}
    assert all(q.answerable == (q.index is not None) for q in dataset.queries)


def test_limit_draws_by_seed_and_keeps_the_order(tmp_path):
    path = write_lines(tmp_path / "many.jsonl", [{"id": i, "query": f"q{i}", "index": "x"} for i in range(50)])
    dataset = datasets.load_dataset(path)
    chosen = [q.query_id for q in dataset.limited(10, seed=1).queries]
    assert chosen == [q.query_id for q in dataset.limited(10, seed=1).queries]
    assert chosen == sorted(chosen, key=int)
    assert chosen != [q.query_id for q in dataset.limited(10, seed=2).queries]
    assert dataset.limited(None, seed=1) is dataset
    assert len(dataset.limited(99, seed=1).queries) == 50


def test_problems_beyond_the_limit_are_counted_still():
    log = datasets.ProblemLog()
    for line in range(datasets.MAX_LISTED + 7):
        log.add(datasets.ProblemKind.BROKEN_LINE, "a.jsonl", "x" * 999, line=line)
    log.add(datasets.ProblemKind.BROKEN_LINE, "b.jsonl", "one\nline")
    report = datasets.ProblemReport.merged([log.report(), datasets.ProblemReport()])
    assert report.counts == {"broken_line": datasets.MAX_LISTED + 8}
    assert len(report.listed) == datasets.MAX_LISTED + 1
    assert max(len(p.detail) for p in report.listed) == 200
    assert report.listed[-1].detail == "one line"


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
    for found, name in ((datasets.find_source(given), "finetune"), (datasets.load_dataset(path), "tuned")):
        assert found.name == name
        assert [(q.query_id, dict(q.relevance)) for q in found.queries] == [("q1", {"b1": 1})]
        assert {d.doc_id for d in found.documents} == set(BOATS)
        assert found.problems.counts == {
            "duplicate_id": 1, "missing_field": 1, "unjudged_query": 1, "unknown_document": 1, "unknown_query": 1,
        }  # fmt: skip


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


def test_questions_made_of_the_documents_are_marked_everywhere(tmp_path):
    result = bench(tmp_path, corpus_only(tmp_path / "alone"), strategies=["vector"])
    told = result.to_dict()["datasets"]["alone"]
    assert told["pseudo_queries"] is True
    assert told["problems"]["counts"] == {"duplicate_id": 1}
    assert "were made of its own documents" in told["notes"][0]
    assert "pseudo-queries" in result._repr_html_()
    assert all(record["pseudo"] for record in result.records())
    assert "pseudo-queries" in result.to_html()
    with pytest.raises(EvaluationError, match="given vectors are not theirs"):
        bench(tmp_path, tmp_path / "alone", vectors=tmp_path)


def test_a_packed_text_is_measured_as_what_it_holds(tmp_path):
    (tmp_path / "packed").mkdir()
    text = f"# A treatise about lighthouses\n\nLight guides ships. {STORY}\n\n# Fields of barley\n\nBarley is {STORY}\n"
    (tmp_path / "packed" / "wheat.md.gz").write_bytes(gzip.compress(text.encode()))
    told = bench(tmp_path, tmp_path / "packed", strategies=["vector"]).to_dict()["datasets"]["packed"]
    assert (told["documents"], told["problems"]["counts"]) == (1, {})


def test_a_folder_and_an_index_without_judgments_say_how_to_go_on(tmp_path, router):
    folder = corpus_only(tmp_path / "unjudged")
    write_lines(folder / "queries.jsonl", [{"_id": "q1", "text": "Where does wheat grow?"}])
    with pytest.raises(EvaluationError) as wrong:
        datasets.find_source(folder)
    assert str(wrong.value).startswith(f"{folder / 'qrels'} holds no *.tsv; ")
    assert "without queries.jsonl, or an index of them: questions are made of it" in str(wrong.value)
    (folder / "queries.jsonl").unlink()
    write_lines(tmp_path / "asked.jsonl", [{"query": "Where does wheat grow?", "index": "fields"}])
    router.add_index("fields", folder / "corpus.jsonl")
    assert datasets.find_source("fields", router).name == "fields"
    with pytest.raises(EvaluationError, match="without judgments, bench fields asks questions"):
        benchmark(router, tmp_path / "asked.jsonl", strategies=["vector"])
    assert benchmark(router, "fields", strategies=["vector"], views=False).results["fields"].pseudo


def test_vectors_that_miss_ids_are_counted_and_computed(tmp_path):
    folder = write_beir(
        tmp_path / "boats", BOATS, BOAT_QUERIES,
        extra_queries=[{"_id": "q9", "text": "nobody judged this"}, {"_id": "q1", "text": "again"}],
        extra_judgments=["q1\tnothing\t1", "q7\tb1\t1"],
    )  # fmt: skip
    partly = {i: text for i, text in BOATS.items() if i != "b1"} | {"b77": "gone"}
    vectors = write_vectors(tmp_path / "boats.npz", partly, {"q2": BOAT_QUERIES["q2"]})
    result = bench(tmp_path, folder, strategies=["vector", "hybrid"], vectors=vectors)
    counts = result.to_dict()["datasets"]["boats"]["problems"]["counts"]
    assert counts == {
        "computed_document_vector": 1, "computed_query_vector": 1, "duplicate_id": 1, "unjudged_query": 1,
        "unknown_document": 1, "unknown_query": 1, "unused_vector": 1,
    }  # fmt: skip
    assert len(result.results["boats"].rows["vector"].quality) == 2
    assert result.results["boats"].rows["vector"].mean() == 1.0


def test_given_vectors_spare_the_model(tmp_path, boats, vectors):
    model = FakeEmbedding(dimension=DIMENSION)
    bench(tmp_path, boats, embedding=model, strategies=["vector"], vectors=vectors)
    # One question to see that the vectors are the model's, one text for its dimension, the description for the profile.
    assert sorted(set(model.calls)) == ["boats and the harbour", "dimension", "when does the ferry leave the harbour"]


@pytest.mark.parametrize("size", [DIMENSION, 8])
def test_vectors_of_another_model_end_the_run(tmp_path, boats, size):
    other = np.random.default_rng(0).normal(size=(len(BOATS), size))
    queries = np.random.default_rng(1).normal(size=(2, size))
    path = write_vectors(tmp_path / "v.npz", BOATS, BOAT_QUERIES, doc_vectors=other, query_vectors=queries)
    with pytest.raises(EvaluationError, match="do not come from the embedding model"):
        bench(tmp_path, boats, strategies=["vector", "hybrid"], vectors=path)


def test_answers_are_compared_word_by_word():
    for answer, gold, f1 in (
        ("The ferry leaves at nine. [1]", "ferry leaves at nine", 1.0),
        ("nine", "the ferry leaves at nine", 0.4),
        *(("", "", 1.0), ("", "nine", 0.0), ("ten", "nine", 0.0), ("ห้าไร่", "ห้าไร่", 1.0)),
    ):
        assert (answer_f1(answer, gold), exact_match(answer, gold)) == (pytest.approx(f1), f1 == 1.0)
    assert answer_tokens("ab ไร่") == ["ab", "ไ", "ร", "่"]  # scripts without spaces by characters
    assert answer_recall("It leaves at nine, from pier 4. [1]", "at nine") == 1.0
    assert answer_recall("nine", "nine nine ten") == pytest.approx(1 / 3)
    for verdicts, value in (([], 0), ([False], 0), ([True, False, True], (1 + 2 / 3) / 2)):
        assert average_precision(verdicts) == pytest.approx(value)


# Vectors.


def test_vectors_by_id_at_unit_length(boats, vectors):
    known = datasets.load_vectors(datasets.vectors_file(vectors, "boats"), datasets.load_dataset(boats))
    assert (set(known.documents), set(known.queries)) == (set(BOATS), set(BOAT_QUERIES))
    assert ({len(vector) for vector in known.queries.values()}, known.problems.total) == ({DIMENSION}, 0)
    for text, vector in zip(BOATS.values(), known.documents.values(), strict=True):
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)
        assert float(vector @ embed(text)) == pytest.approx(1, abs=1e-3)


def test_missing_duplicate_and_unusable_vectors_are_counted(boats, tmp_path):
    ids = ["b1", "b1", "b2", "b3", "b4"]
    rows = np.stack([embed(BOATS[i]) for i in ids])
    rows[2], rows[3] = 0, np.nan
    path = write_vectors(
        tmp_path / "v.npz", BOATS, BOAT_QUERIES, doc_ids=np.array(ids), doc_vectors=rows,
        query_ids=np.array(["q1", "other"]),
    )  # fmt: skip
    known = datasets.load_vectors(path, datasets.load_dataset(boats))
    assert set(known.documents) == {"b1", "b4"}
    assert dict(known.problems.counts) == {
        "computed_document_vector": 3, "computed_query_vector": 1, "duplicate_vector": 1, "unusable_vector": 2,
    }  # fmt: skip


def test_unusable_files_are_named(boats, tmp_path):
    dataset = datasets.load_dataset(boats)
    for changes, told in (
        ({"query_ids": None}, "lacks the arrays query_ids"),
        ({"doc_ids": np.array(["b1"])}, "doc_ids and doc_vectors must be"),
        ({"query_vectors": np.zeros((2, 7))}, "documents have 32 dimensions, questions 7"),
        ({"doc_vectors": np.array([["a"] * 3] * 5)}, "must hold numbers"),
        ({"doc_ids": np.array([object()] * 5)}, "without pickled objects"),
    ):
        path = write_vectors(tmp_path / "v.npz", BOATS, BOAT_QUERIES, **changes)
        with pytest.raises(EvaluationError, match=rf"v\.npz.*{told}|{told}.*v\.npz"):
            datasets.load_vectors(path, dataset)
    (tmp_path / "text.npz").write_text("no zip")
    for path, told in ((tmp_path / "gone.npz", "is missing"), (tmp_path / "text.npz", "cannot be read")):
        with pytest.raises(EvaluationError, match=told):
            datasets.load_vectors(path, dataset)
    with pytest.raises(EvaluationError, match="does not exist"):
        datasets.vectors_file(tmp_path / "nowhere", "boats")
    assert datasets.vectors_file(tmp_path / "text.npz", "boats") == tmp_path / "text.npz"
