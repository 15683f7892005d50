"""Calibrated fusion on the public test collections, documents as nodes; skipped where they are absent."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from agentic_retriever.indices import KeywordIndex
from agentic_retriever.indices.profile import background, sample_ids
from agentic_retriever.retrievers import DEFAULT_FUSION, SideLists
from agentic_retriever.retrievers.fusion import CosineBackground, dense_excess
from agentic_retriever.text import Tokenizer

pytestmark = pytest.mark.shared_data

DEPTH = 100
EVERY = {"xquad-en": 4, "xquad-es": 4, "xquad-th": 4}
"""Of the 1,190 questions on 240 passages every fourth will do."""
LANGUAGES = {"xquad-es": "es", "xquad-th": "th"}


def read_lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def unit(rows):
    wide = rows.astype(np.float32)
    return wide / np.linalg.norm(wide, axis=1, keepdims=True)


def sides_of(shared_data, name):
    """Yield the gold documents and what both sides find for each question, as the strategy searches them."""
    folder = shared_data / "collections" / name
    with np.load(shared_data / "embeddings" / "multilingual-e5-small" / f"{name}.npz") as packed:
        ids, documents = packed["doc_ids"].tolist(), unit(packed["doc_vectors"])
        asked = dict(zip(packed["query_ids"].tolist(), unit(packed["query_vectors"]), strict=True))
    texts = ((d["_id"], f"{d['title']}\n{d['text']}") for d in read_lines(folder / "corpus.jsonl"))
    words = KeywordIndex.build(texts, tokenizer=Tokenizer(language=LANGUAGES.get(name, "en")), version=1)
    row_of = {doc_id: row for row, doc_id in enumerate(ids)}
    mean, std = background(documents[[row_of[i] for i in sample_ids(ids)]])
    qrels = {}
    with (folder / "qrels" / "test.tsv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            qrels.setdefault(row["query-id"], {})[row["corpus-id"]] = int(row["score"])
    judged = [q for q in read_lines(folder / "queries.jsonl") if q["_id"] in qrels]
    for query in judged[:: EVERY.get(name, 1)]:
        cosines = documents @ asked[query["_id"]]
        order = np.argsort(-cosines, kind="stable")[:DEPTH]
        dense = [(ids[row], float(cosines[row])) for row in order]
        found = words.search(query["text"], DEPTH)
        known = CosineBackground(mean=mean, std=std, nodes=len(ids))
        lists = {side: entries for side, entries in (("dense", dense), ("bm25", found)) if entries}
        floors = {"bm25": 0.0} if 0 < len(found) < DEPTH else {}
        yield query["_id"], qrels, SideLists(lists=lists, floors=floors, excess=dense_excess(dense[0][1], known))


@pytest.mark.parametrize("name", ["cranfield", "cacm", "cisi", "xquad-en", "xquad-es", "xquad-th", "hotpotqa-100"])
def test_hybrid_is_not_below_the_better_side(shared_data, name):
    ir_measures = pytest.importorskip("ir_measures", reason="the extra 'bench' is not installed")
    runs, judged = {"hybrid": {}, "dense": {}, "bm25": {}}, {}
    for query_id, qrels, sides in sides_of(shared_data, name):
        judged[query_id] = qrels[query_id]
        hybrid = sides.merged(DEFAULT_FUSION) if len(sides.lists) > 1 else sides.lists["dense"]
        for side, ranking in {**sides.lists, "hybrid": hybrid}.items():
            runs[side][query_id] = {doc_id: float(DEPTH - at) for at, (doc_id, _) in enumerate(ranking)}
    measure = ir_measures.nDCG @ 10
    found = {side: ir_measures.calc_aggregate([measure], judged, run)[measure] for side, run in runs.items()}
    assert found["hybrid"] >= max(found["dense"], found["bm25"]), found
