"""How good extractive answers are, on questions that nothing was chosen on; floors lie below what was measured."""

from __future__ import annotations

import hashlib
import json
import random

import numpy as np
import pytest
from answer_nodes import make_node

from agentic_retriever import AgenticRouter, RouterConfig
from agentic_retriever.embeddings import PackedVectors
from agentic_retriever.sample import SAMPLE_INDEXES, VECTORS, load_questions
from agentic_retriever.synthesis import ExtractiveSynthesizer, assemble
from agentic_retriever.text.numbers import numbers_in


def held_out(key: str) -> bool:
    return int(hashlib.sha256(key.encode()).hexdigest(), 16) % 2 == 1


@pytest.mark.shared_data
@pytest.mark.parametrize(("language", "floor"), [("en", 0.88), ("es", 0.86), ("th", 0.76)])
def test_short_answers_of_wikipedia_are_quoted(shared_data, language, floor):
    """The gold paragraph among the five nearest; words only."""
    folder = shared_data / "collections" / f"xquad-{language}"
    docs = {d["_id"]: d for d in map(json.loads, (folder / "corpus.jsonl").read_text("utf-8").splitlines())}
    queries = [json.loads(line) for line in (folder / "queries.jsonl").read_text("utf-8").splitlines()]
    lines = (folder / "qrels" / "test.tsv").read_text("utf-8").splitlines()[1:]
    gold = {line.split("\t")[0]: line.split("\t")[1] for line in lines}
    with np.load(shared_data / "embeddings" / "multilingual-e5-small" / f"xquad-{language}.npz") as packed:
        ids, of_docs = packed["doc_ids"].tolist(), packed["doc_vectors"].astype(np.float32)
        of_queries = dict(zip(packed["query_ids"].tolist(), packed["query_vectors"].astype(np.float32), strict=True))
    asked = [q for q in random.Random(3).sample(queries, 200) if held_out(q["_id"])]
    quoted = from_gold = 0
    for query in asked:
        nearest = [ids[i] for i in np.argsort(-(of_docs @ of_queries[query["_id"]]))[:5]]
        if gold[query["_id"]] not in nearest:
            nearest[-1] = gold[query["_id"]]
        nodes = [make_node(docs[i]["text"], start=0, doc_id=i, title=docs[i].get("title", "")) for i in nearest]
        found = ExtractiveSynthesizer().extract(query["text"], assemble(nodes, max_chars=10**6), language=language)
        quoted += " ".join(query["metadata"]["answer"].lower().split()) in " ".join(found.text.lower().split())
        from_gold += any(c.doc_id == gold[query["_id"]] for c in found.citations)
        assert all(docs[c.doc_id]["text"][c.start : c.end] == c.quote for c in found.citations)
    assert quoted / len(asked) >= floor
    assert from_gold / len(asked) >= 0.95


def test_figures_of_the_sample_are_quoted_and_what_is_not_there_is_declined(tmp_path, local_embedding):
    odd = [q for q in load_questions() if int(q["id"][-3:]) % 2 == 1]
    asked = [q for q in odd if q["answerable"]]
    shares, cited = [], 0
    config = RouterConfig(data_dir=tmp_path, answer_rescoring=False, on_abstain="answer")
    with AgenticRouter(config, embedding=local_embedding, packed=[PackedVectors(VECTORS)]) as router:
        for sample in SAMPLE_INDEXES:
            router.add_index(sample.name, sample.folder, description=sample.description)
        for question in asked:
            retrieval = router.retrieve(question["query"])
            found = ExtractiveSynthesizer().extract(
                question["query"],
                assemble(retrieval.nodes, max_chars=200_000),
                language=question["language"],
                complexity=retrieval.route.complexity,
            )
            cited += bool({c.doc_id for c in found.citations} & set(question["doc_ids"]))
            if figures := numbers_in(question["answer"]):
                shares.append(len(figures & numbers_in(found.text)) / len(figures))
        # Without anything declined before retrieval, confidence alone must tell what cannot be answered.
        unanswerable = [q for q in odd if not q["answerable"]]
        declined = sum(router.query(q["query"]).confidence.level.value == "not_found" for q in unanswerable)
        wrongly = sum(router.query(q["query"]).confidence.level.value == "not_found" for q in asked)
    assert declined / len(unanswerable) >= 0.7
    assert wrongly / len(asked) <= 0.3
    assert cited / len(asked) >= 0.85
    assert sum(shares) / len(shares) >= 0.5
