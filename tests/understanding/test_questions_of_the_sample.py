from __future__ import annotations

import json
from functools import lru_cache

import pytest
from llama_index.core.vector_stores.types import MetadataFilters
from question_filters_material import said

from agentic_retriever.filters import matches
from agentic_retriever.ingestion import SourceDocument, read_source
from agentic_retriever.sample import SAMPLE_INDEXES, load_questions
from agentic_retriever.understanding.fields import FieldDictionary
from agentic_retriever.understanding.understanding import understand

ANSWERABLE = [question for question in load_questions() if question["answerable"]]


@lru_cache
def sample(name):
    folder = next(index.folder for index in SAMPLE_INDEXES if index.name == name)
    documents = [one for path in sorted(folder.iterdir()) for one in read_source(path, root=folder)]
    metadata = {one.doc_id: dict(one.metadata) for one in documents if isinstance(one, SourceDocument)}
    return metadata, FieldDictionary.build(metadata.values())


def found(understood, metadata):
    filters = MetadataFilters(filters=[clause.filter for clause in understood.clauses])
    return {doc_id for doc_id, fields in metadata.items() if matches(fields, filters)}


@pytest.mark.parametrize("question", [q for q in ANSWERABLE if q["strategy"] == "metadata"], ids=lambda q: q["id"])
def test_questions_for_metadata_keep_what_answers_them(question):
    metadata, fields = sample(question["index"])
    understood = understand(question["query"], fields)
    left = found(understood, metadata)
    assert left >= set(question["doc_ids"])
    assert len(understood.clauses) >= 2
    if question["index"] == "land_deeds":
        assert left == set(question["doc_ids"])
    assert len(left) <= max(5, len(metadata) // 5)


def test_the_first_example():
    understood = understand("ที่ดินในเชียงใหม่ โฉนด พื้นที่ 5 ถึง 10 ไร่", sample("land_deeds")[1])
    assert said(understood) == ["province is เชียงใหม่", "deed_type is โฉนด", "area_rai is from 5 to 10"]


def test_other_questions_rarely_lose_what_answers_them():
    others = [one for one in ANSWERABLE if one["strategy"] != "metadata"]
    lost = 0
    for question in others:
        metadata, fields = sample(question["index"])
        lost += not found(understand(question["query"], fields), metadata) >= set(question["doc_ids"])
    assert lost <= len(others) // 7


@pytest.mark.shared_data
def test_people_named_in_a_question_about_articles(shared_data):
    folder = shared_data / "collections" / "cacm"

    def lines(name):
        return (folder / name).read_text(encoding="utf-8").splitlines()

    records = map(json.loads, lines("corpus.jsonl"))
    metadata = {record["_id"]: record["metadata"] for record in records}
    fields = FieldDictionary.build(metadata.values())
    queries = [json.loads(line) for line in lines("queries.jsonl")]
    qrels = [line.split() for line in lines("qrels/test.tsv")]
    understood = {query["_id"]: understand(query["text"], fields) for query in queries}

    assert said(understood["2"]) == ["authors is one of Prieve, B. G., Pooch, U.W."]
    judged = {doc for query, doc, grade in qrels if query == "2" and grade != "0"}
    assert judged
    assert found(understood["2"], metadata) >= judged
    assert [key for key, one in understood.items() if one.at_least(0.7)] == ["2"]
    assert sum(bool(one.clauses) for one in understood.values()) <= 5
