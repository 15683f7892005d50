from __future__ import annotations

import importlib
import math
import threading
import traceback
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ranked_nodes import dump, hit, ids, scores

from agentic_retriever.config import RouterConfig, Secret
from agentic_retriever.errors import ConfigError, DeadlineExceededError, LLMError, LLMOutputError
from agentic_retriever.llm import LLMClient
from agentic_retriever.retrievers import source_scores
from agentic_retriever.retrievers.refining import (
    MAX_PASSAGES,
    CohereReranker,
    CrossEncoderReranker,
    LLMReranker,
    make_reranker,
    parse_order,
)
from agentic_retriever.schema import Tier
from agentic_retriever.testing.fakes import FakeLLM

NODES = [hit("a", 0.9), hit("b", 0.8), hit("c", 0.7)]
KEY = "canary-7f3a"


def llm_reranker(*replies):
    llm = FakeLLM(list(replies))
    return LLMReranker(LLMClient(llm, tier=Tier.PRIMARY, timeout_s=5), boundary=lambda: "k3v9q2xz"), llm


class Encoder:
    def __init__(self, values):
        self.values, self.pairs = values, []

    def predict(self, pairs, **kwargs):
        self.pairs += pairs
        if isinstance(self.values, Exception):
            raise self.values
        return self.values


class Service:
    def __init__(self, reply):
        self.reply, self.calls = reply, []

    def rerank(self, **kwargs):
        self.calls.append(kwargs)
        if isinstance(self.reply, Exception):
            raise self.reply
        return SimpleNamespace(results=[SimpleNamespace(index=i, relevance_score=s) for i, s in self.reply])


def cohere(reply):
    service = Service(reply)
    return CohereReranker(Secret(KEY), "rerank-v3.5", connect=lambda key: service), service


def working():
    return {
        "llm": llm_reranker("3, 1, 2")[0],
        "cross_encoder": CrossEncoderReranker("m", load=lambda name: Encoder([0.2, 0.1, 0.9])),
        "cohere": cohere([(2, 0.9), (0, 0.2), (1, 0.1)])[0],
    }


@pytest.mark.parametrize("name", ["llm", "cross_encoder", "cohere"])
def test_nodes_come_in_the_new_order_as_copies(name):
    before = dump(NODES)
    got = working()[name].rerank("q", NODES, 5.0)
    assert ids(got) == ["c", "a", "b"]
    assert scores(got) == sorted(scores(got), reverse=True)
    assert all(math.isfinite(score) for score in scores(got))
    assert [source_scores(entry.node)["retrieved"] for entry in got] == [0.7, 0.9, 0.8]
    assert dump(NODES) == before
    assert working()[name].rerank("q", [], 5.0) == []


@pytest.mark.parametrize(
    ("reply", "order"),
    [
        ("3, 1, 2", [3, 1, 2]),
        ("[3] > [1] > [2]", [3, 1, 2]),
        ("[3, 1]", [3, 1]),
        ("```json\n[3, 1]\n```", [3, 1]),
        ("Of the 3 passages these help:\n2, 3\nDone in 1 step.", [2, 3]),
        ("3\n1\n2", [3, 1, 2]),
        ("Best is 2, then passage 3.", [2, 3]),
        ("0, 99, -1, 2, 2, 3", [1, 2, 3]),
        ("2.5 stars for 3", [3]),
    ],
)
def test_orders_are_read_in_any_usual_form(reply, order):
    assert parse_order(reply, 3) == order


@pytest.mark.parametrize("reply", ["none of them", "", "99", "x" * 100_000, "9" * 100_000])
def test_a_reply_without_an_order_is_a_typed_error(reply):
    with pytest.raises(LLMOutputError):
        parse_order(reply, 3)


@given(st.text(max_size=200), st.integers(1, 30))
def test_any_reply_gives_distinct_numbers_in_range(reply, count):
    try:
        order = parse_order(reply, count)
    except LLMOutputError:
        return
    assert len(set(order)) == len(order)
    assert all(1 <= number <= count for number in order)


def test_nodes_that_the_model_leaves_out_follow_in_their_order():
    reranker, _ = llm_reranker("3")
    assert ids(reranker.rerank("q", NODES, 5.0)) == ["c", "a", "b"]


def test_the_prompt_is_bounded_and_framed():
    many = [hit(f"n{i:03d}", 1 - i / 1000, "<<k3v9q2xz end>> " * 0 + "word " * 10_000) for i in range(100)]
    reranker, llm = llm_reranker("20, 1")
    got = reranker.rerank("which?", many, 5.0)
    assert ids(got)[:3] == ["n019", "n000", "n001"]
    assert ids(got)[-1] == "n099"
    assert len(llm.prompts[0]) < 20_000
    assert llm.prompts[0].count("<<k3v9q2xz passage") == MAX_PASSAGES
    assert llm.prompts[0].rindex("which?") < llm.prompts[0].index("Order the passages")


def test_one_node_needs_no_model():
    reranker, llm = llm_reranker("1")
    assert reranker.rerank("q", NODES[:1], 5) == NODES[:1]
    assert llm.prompts == []


def test_the_cross_encoder_is_loaded_once_and_reads_question_and_node():
    made = []
    encoder = Encoder([0.1, 0.2, 0.3])
    reranker = CrossEncoderReranker("m", load=lambda name: made.append(name) or encoder)
    reranker.rerank("q", NODES, 5.0)
    reranker.rerank("q", NODES, 5.0)
    assert made == ["m"]
    assert encoder.pairs[0] == ("q", "text of a")


def test_cohere_is_asked_once_without_retries():
    reranker, service = cohere([(0, 0.1), (1, 0.2), (2, 0.3)])
    reranker.rerank("q", NODES, 7.5)
    assert service.calls == [
        {
            "model": "rerank-v3.5",
            "query": "q",
            "documents": ["text of a", "text of b", "text of c"],
            "top_n": 3,
            "request_options": {"timeout_in_seconds": 8, "max_retries": 0},
        }
    ]


@pytest.mark.parametrize("values", [[0.1], [0.1, 0.2, math.nan], []])
def test_scores_that_do_not_fit_are_refused(values):
    with pytest.raises(LLMOutputError):
        CrossEncoderReranker("m", load=lambda name: Encoder(values)).rerank("q", NODES, 5.0)


@pytest.mark.parametrize("reply", [[(0, 0.1)], [(0, 0.1), (0, 0.2), (1, 0.3)], [(-1, 0.1), (1, 0.2), (7, 0.3)]])
def test_indices_that_do_not_fit_are_refused(reply):
    with pytest.raises(LLMOutputError):
        cohere(reply)[0].rerank("q", NODES, 5.0)


def test_failures_are_typed_and_hide_the_key():
    reranker, _ = cohere(RuntimeError(f"401 for key {KEY}"))
    with pytest.raises(LLMError) as caught:
        reranker.rerank("q", NODES, 5.0)
    assert KEY not in str(caught.value)
    assert KEY not in repr(reranker)
    assert KEY not in str(vars(reranker))
    assert "RuntimeError" in "".join(traceback.format_exception_only(caught.type, caught.value))
    with pytest.raises(LLMError, match="OSError"):
        CrossEncoderReranker("m", load=lambda name: Encoder(OSError("disk"))).rerank("q", NODES, 5.0)


def test_a_model_that_hangs_is_left():
    stuck = threading.Event()
    encoder = SimpleNamespace(predict=lambda pairs, **kwargs: stuck.wait(10))
    with pytest.raises(DeadlineExceededError):
        CrossEncoderReranker("m", load=lambda name: encoder).rerank("q", NODES, 0.05)
    stuck.set()


@pytest.mark.parametrize("reranker", [CrossEncoderReranker("m"), CohereReranker(Secret("k"), "m")])
def test_a_missing_extra_is_named(monkeypatch, reranker):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ConfigError, match=r"agentic-retriever\[rerank\]"):
        reranker.rerank("q", NODES, 5.0)


def test_the_settings_choose():
    config = RouterConfig(cohere_api_key=KEY)
    client = LLMClient(FakeLLM(["1"]), tier=Tier.PRIMARY, timeout_s=5)
    assert make_reranker(config, client) is None
    assert isinstance(make_reranker(config.with_changes(reranker="llm"), client), LLMReranker)
    assert isinstance(make_reranker(config.with_changes(reranker="cross_encoder"), None), CrossEncoderReranker)
    assert isinstance(make_reranker(config.with_changes(reranker="cohere"), None), CohereReranker)
    for name in ("cross_encoder:m", "cohere:m"):
        assert "m" in vars(make_reranker(config.with_changes(reranker=name), None)).values()
    assert KEY not in repr(config)
    with pytest.raises(ConfigError, match="needs a model"):
        make_reranker(config.with_changes(reranker="llm"), None)
    with pytest.raises(ConfigError, match="cohere_api_key"):
        make_reranker(RouterConfig(reranker="cohere"), None)
    with pytest.raises(ConfigError, match="none, llm, cross_encoder, cross_encoder:MODEL, cohere or cohere:MODEL"):
        RouterConfig(reranker="bert")
