"""Quality on the public test collections; skipped where they are absent."""

from __future__ import annotations

import csv
import json

import pytest

from agentic_retriever.indices import KeywordIndex
from agentic_retriever.text import Tokenizer

pytestmark = pytest.mark.shared_data


def read_lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


@pytest.mark.parametrize(("name", "language"), [("xquad-th", "th"), ("xquad-es", "es")])
def test_bm25_finds_thai_and_spanish_passages(shared_data, name, language):
    ir_measures = pytest.importorskip("ir_measures", reason="the extra 'bench' is not installed")
    folder = shared_data / "collections" / name
    documents = ((d["_id"], f"{d['title']}\n{d['text']}") for d in read_lines(folder / "corpus.jsonl"))
    index = KeywordIndex.build(documents, tokenizer=Tokenizer(language=language), version=1)
    queries = read_lines(folder / "queries.jsonl")
    run = {q["_id"]: dict(index.search(q["text"], 10)) for q in queries}
    with (folder / "qrels" / "test.tsv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    qrels = {}
    for row in rows:
        qrels.setdefault(row["query-id"], {})[row["corpus-id"]] = int(row["score"])
    [measure] = [ir_measures.nDCG @ 10]
    assert len(queries) == len(qrels) == 1190
    assert ir_measures.calc_aggregate([measure], qrels, run)[measure] >= 0.95
