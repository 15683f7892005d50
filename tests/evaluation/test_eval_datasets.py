from __future__ import annotations

import json

import pytest
from evaluation_material import BOAT_QUERIES, BOATS, write_beir, write_lines

from agentic_retriever.errors import EvaluationError
from agentic_retriever.evaluation.datasets import (
    MAX_LISTED,
    DatasetKind,
    ProblemKind,
    ProblemLog,
    ProblemReport,
    check_names,
    load_dataset,
)
from agentic_retriever.schema import Complexity, Strategy


def test_beir_folder(boats):
    dataset = load_dataset(boats)
    assert (dataset.name, dataset.kind, dataset.description) == ("boats", DatasetKind.BEIR, "boats and the harbour")
    assert {d.doc_id: d.text for d in dataset.documents} == BOATS
    assert [(q.query_id, q.text, q.index, dict(q.relevance)) for q in dataset.queries] == [
        (i, text, "boats", {doc_id: 1}) for i, (text, doc_id) in BOAT_QUERIES.items()
    ]
    assert dataset.problems.total == 0


def test_everything_wrong_in_a_folder_is_counted_and_listed(tmp_path):
    folder = write_beir(
        tmp_path / "bad",
        BOATS,
        BOAT_QUERIES,
        extra_queries=[
            {"_id": "q1", "text": "again"},  # duplicate id
            {"_id": "q3", "text": "nobody judged this"},
            {"_id": "q4"},  # no text
            {"text": "no id"},
            "{broken",
            '["a list"]',
            {"_id": "q5", "text": "judged to have nothing relevant"},
        ],
        extra_judgments=[
            "q1\tb99\t1",  # unknown document
            "q9\tb1\t1",  # unknown query
            "q2\tb1\tmuch",  # no number
            "q2 b1 1",  # no tabs
            "q2\tb3\t1",  # judged already
            "q5\tb1\t0",
        ],
    )
    with (folder / "corpus.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"_id": "b1", "text": "twice"}\n{"_id": "b6", "text": \n')
    dataset = load_dataset(folder)
    assert dict(dataset.problems.counts) == {
        "bad_judgment": 2,
        "broken_line": 3,
        "duplicate_id": 3,
        "missing_field": 2,
        "unjudged_query": 2,
        "unknown_document": 1,
        "unknown_query": 1,
    }
    assert [q.query_id for q in dataset.queries] == ["q1", "q2"]
    assert dataset.queries[0].text == BOAT_QUERIES["q1"][0]
    assert len(dataset.documents) == len(BOATS)
    told = {(p.kind.value, p.line) for p in dataset.problems.listed}
    assert ("broken_line", 7) in told
    assert ("unknown_document", 4) in told
    assert all(str(folder) in p.source for p in dataset.problems.listed)
    assert len(dataset.problems.summary()) == len(dataset.problems.counts)
    json.dumps(dataset.problems.to_dict())


@pytest.mark.parametrize("missing", ["corpus.jsonl", "queries.jsonl", "qrels/test.tsv"])
def test_missing_file_is_named(boats, missing):
    (boats / missing).unlink()
    with pytest.raises(EvaluationError, match=missing.split("/")[0]):
        load_dataset(boats)


@pytest.mark.parametrize(
    ("emptied", "content"),
    [("corpus.jsonl", ""), ("corpus.jsonl", "{oops\n"), ("queries.jsonl", "\n\n"), ("qrels/test.tsv", "a\tb\tscore\n")],
)
def test_empty_dataset_is_an_error_that_names_the_file(boats, emptied, content):
    (boats / emptied).write_text(content)
    with pytest.raises(EvaluationError, match=emptied.split("/")[0]) as caught:
        load_dataset(boats)
    assert str(boats) in str(caught.value)


def test_without_corpus_judgments_of_any_document_count(boats):
    (boats / "corpus.jsonl").unlink()
    dataset = load_dataset(boats, with_corpus=False)
    assert dataset.documents == ()
    assert len(dataset.queries) == 2


def test_splits(boats):
    write_lines(boats / "qrels" / "dev.tsv", ["q1\tb2\t1"])
    assert dict(load_dataset(boats).queries[0].relevance) == {"b1": 1, "b2": 1}
    assert dict(load_dataset(boats, split="dev").queries[0].relevance) == {"b2": 1}
    with pytest.raises(EvaluationError, match=r"train\.tsv"):
        load_dataset(boats, split="train")


@pytest.mark.parametrize("content", ["[1]", "{", '{"description": 3}'])
def test_broken_dataset_json(boats, content):
    (boats / "dataset.json").write_text(content)
    with pytest.raises(EvaluationError, match=r"dataset\.json"):
        load_dataset(boats)


def test_questions_file(tmp_path):
    path = write_lines(
        tmp_path / "mine.jsonl",
        [
            {"id": "a", "query": "ferry?", "index": "boats", "strategy": "hybrid", "complexity": "simple",
             "doc_ids": ["b1"], "language": "en", "answer": "nine"},
            {"query": "why is the sky blue", "index": None, "answerable": False},
            {"query": "who knows", "index": None},
            {"query": "odd", "index": 3, "strategy": "telepathy", "complexity": "hard", "doc_ids": "b1"},
            {"id": "a", "query": "twice", "index": "boats"},
            {"id": "b", "index": "boats"},
            "{",
        ],
    )  # fmt: skip
    dataset = load_dataset(path)
    first, outside, unknown, odd = dataset.queries
    assert dataset.kind is DatasetKind.QUESTIONS
    assert (first.strategy, first.complexity, first.answer) == (Strategy.HYBRID, Complexity.SIMPLE, "nine")
    assert dict(first.relevance) == {"b1": 1}
    assert (outside.query_id, outside.index, outside.answerable) == ("line-2", None, False)
    assert (unknown.index, unknown.answerable) == (None, True)
    assert (odd.index, odd.strategy, odd.complexity, dict(odd.relevance)) == (None, None, None, {})
    assert dict(dataset.problems.counts) == {
        "bad_field": 4,
        "broken_line": 1,
        "duplicate_id": 1,
        "missing_field": 1,
        "unlabelled_query": 2,
    }


def test_empty_questions_file(tmp_path):
    path = write_lines(tmp_path / "none.jsonl", ["{"])
    with pytest.raises(EvaluationError, match=r"none\.jsonl holds no question.*broken line"):
        load_dataset(path)


def test_sample_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dataset = load_dataset("sample")
    assert dataset.problems.total == 0
    assert {q.index for q in dataset.queries} == {"handbook", "homologacion", "land_deeds", None}
    assert all(q.answerable == (q.index is not None) for q in dataset.queries)


def test_nothing_there(tmp_path):
    (tmp_path / "a.csv").write_text("x")
    for path, told in ((tmp_path / "nowhere", "does not exist"), (tmp_path / "a.csv", "neither a folder")):
        with pytest.raises(EvaluationError, match=told):
            load_dataset(path)


def test_limit_draws_by_seed_and_keeps_the_order(tmp_path):
    path = write_lines(tmp_path / "many.jsonl", [{"id": i, "query": f"q{i}", "index": "x"} for i in range(50)])
    dataset = load_dataset(path)
    chosen = [q.query_id for q in dataset.limited(10, seed=1).queries]
    assert chosen == [q.query_id for q in dataset.limited(10, seed=1).queries]
    assert chosen == sorted(chosen, key=int)
    assert chosen != [q.query_id for q in dataset.limited(10, seed=2).queries]
    assert dataset.limited(None, seed=1) is dataset
    assert len(dataset.limited(99, seed=1).queries) == 50


def test_two_of_one_name(boats, tmp_path):
    other = write_beir(tmp_path / "else" / "boats", BOATS, BOAT_QUERIES)
    with pytest.raises(EvaluationError, match="called 'boats'"):
        check_names([load_dataset(boats), load_dataset(other)])


def test_problems_beyond_the_limit_are_counted_still():
    log = ProblemLog()
    for line in range(MAX_LISTED + 7):
        log.add(ProblemKind.BROKEN_LINE, "a.jsonl", "x" * 999, line=line)
    log.add(ProblemKind.BROKEN_LINE, "b.jsonl", "one\nline")
    report = ProblemReport.merged([log.report(), ProblemReport()])
    assert report.counts == {"broken_line": MAX_LISTED + 8}
    assert len(report.listed) == MAX_LISTED + 1
    assert max(len(p.detail) for p in report.listed) == 200
    assert report.listed[-1].detail == "one line"
