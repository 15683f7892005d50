"""LlamaIndex's own RetrieverEvaluator over the router and over every strategy, on the sample."""

from __future__ import annotations

import asyncio
import math

import pytest
from llama_index.core.evaluation import RetrieverEvaluator

from agentic_retriever import AgenticRouter, RouterConfig
from agentic_retriever.embeddings import PackedVectors
from agentic_retriever.sample import SAMPLE_INDEXES, VECTORS, load_questions
from agentic_retriever.schema import Strategy

METRICS = ["hit_rate", "mrr", "precision", "recall", "ap", "ndcg"]
QUESTIONS = [q for q in load_questions() if q["index"]][::6]


@pytest.fixture(scope="module")
def sample(tmp_path_factory, local_embedding):
    """The sample with all its views, from the vectors that ship with it."""
    config = RouterConfig(data_dir=tmp_path_factory.mktemp("evaluated"), query_log="none")
    with AgenticRouter(config, embedding=local_embedding, packed=[PackedVectors(VECTORS)]) as made:
        for s in SAMPLE_INDEXES:
            made.add_index(s.name, s.folder, description=s.description)
            made.build_views(s.name)
        yield made


@pytest.fixture(scope="module")
def expected(sample):
    """The nodes of the gold documents, by question."""
    nodes = {s.name: list(sample.index(s.name).nodes()) for s in SAMPLE_INDEXES}
    return {q["id"]: [n.node_id for n in nodes[q["index"]] if n.ref_doc_id in q["doc_ids"]] for q in QUESTIONS}


def evaluated(retriever_of, expected):
    """The mean of each metric."""

    async def work():
        results = []
        for q in QUESTIONS:
            evaluator = RetrieverEvaluator.from_metric_names(METRICS, retriever=retriever_of(q))
            results.append(await evaluator.aevaluate(q["query"], expected_ids=expected[q["id"]]))
        return results

    values = [result.metric_vals_dict for result in asyncio.run(work())]
    assert all(set(one) == set(METRICS) for one in values)
    assert all(math.isfinite(value) and 0 <= value <= 1 for one in values for value in one.values())
    return {name: sum(one[name] for one in values) / len(values) for name in METRICS}


def test_the_router(sample, expected):
    retriever = sample.as_retriever()
    means = evaluated(lambda _q: retriever, expected)
    assert means["hit_rate"] >= 0.9
    assert means["mrr"] >= 0.6


@pytest.mark.parametrize("strategy", list(Strategy))
def test_every_strategy(sample, expected, strategy):
    """The adapters themselves, and the router with the strategy pinned, which gives the same."""
    adapters = {s.name: sample.resources.adapter(sample.index(s.name), strategy) for s in SAMPLE_INDEXES}
    means = evaluated(lambda q: adapters[q["index"]], expected)
    assert means["hit_rate"] >= 0.6
    assert means["mrr"] >= 0.3


def test_a_pinned_router_ranks_as_the_adapter_does(sample):
    for q in QUESTIONS[:4]:
        adapter = sample.resources.adapter(sample.index(q["index"]), Strategy.VECTOR)
        routed = sample.as_retriever(index=q["index"], strategy="vector", top_k=sample.config.top_k)
        found = [n.node.node_id for n in routed.retrieve(q["query"])]
        if routed.retrieve(q["query"])[0].node.metadata["route"]["strategy"] == "vector":
            assert found == [n.node.node_id for n in adapter.retrieve(q["query"])]
