"""What the planner does beyond the contract that all strategies share."""

from __future__ import annotations

import threading

import pytest
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

from agentic_retriever.errors import DeadlineExceededError, RetrievalError, StoreError
from agentic_retriever.llm import LLMClient
from agentic_retriever.retrievers import (
    PARTS_KEY,
    AdapterSettings,
    HybridRetriever,
    PlannerRetriever,
    RetrievalRequest,
    SearchResult,
)
from agentic_retriever.schema import Degradation, Tier
from agentic_retriever.testing.fakes import FakeLLM
from agentic_retriever.threads import Workers

QUERY = "Compare the price of oil with gas"
PARTS = ["the price of oil", "the price of gas"]


@pytest.fixture
def index(make_index):
    texts = {
        "n1": ("the price of oil rose", "en"),
        "n2": ("gas is cheap, its price fell", "en"),
        "n3": ("compare offers before you buy", "en"),
        "n4": ("the price of gas in Spain", "es"),
        "n5": ("stars over the desert", "es"),
    }
    return make_index([TextNode(id_=i, text=text, metadata={"lang": lang}) for i, (text, lang) in texts.items()])


class Inner:
    """Records what it is asked, and fails or degrades as told."""

    def __init__(self, adapter, failing=(), degraded=()):
        self.adapter, self.failing, self.degraded = adapter, set(failing), tuple(degraded)
        self.requests = []
        self._lock = threading.Lock()

    def __call__(self, request):
        with self._lock:
            self.requests.append(request)
        if request.query in self.failing:
            raise StoreError(f"no luck with {request.query}")
        return SearchResult(self.adapter.search(request).nodes, self.degraded)


def planner(index, settings, **inner):
    retrieve = Inner(HybridRetriever(index, settings), **inner)
    return PlannerRetriever(index, settings, retrieve=retrieve), retrieve


def ids(result):
    return [n.node.node_id for n in result.nodes]


def test_parts_are_searched_for_beside_the_whole_question(index, settings):
    adapter, inner = planner(index, settings)
    vector = tuple(index.embedding.embed_query(QUERY))
    result = adapter.search(RetrievalRequest(QUERY, 3, query_vector=vector, timeout_s=60))
    asked = {request.query: request for request in inner.requests}
    assert set(asked) == {QUERY, *PARTS}
    assert asked[QUERY].query_vector == vector
    assert all(asked[part].query_vector is None for part in PARTS)
    assert all(0 < request.timeout_s <= 60 for request in inner.requests)
    by_part = {n.node.node_id: n.node.metadata[PARTS_KEY] for n in result.nodes}
    assert PARTS[0] in by_part["n1"]
    assert len(result.nodes) == 3
    assert result.degraded == ()


def test_a_question_that_cannot_be_split_gives_what_the_inner_strategy_gives(index, settings):
    adapter, inner = planner(index, settings, degraded=[Degradation(step="s", reason="r", fallback="f")])
    request = RetrievalRequest("gas price", 2, timeout_s=60)
    got, expected = adapter.search(request), HybridRetriever(index, settings).search(request)
    assert [(n.node.to_json(), n.score) for n in got.nodes] == [(n.node.to_json(), n.score) for n in expected.nodes]
    assert [r.query for r in inner.requests] == ["gas price"]
    assert got.degraded == inner.degraded


def test_the_default_inner_strategy_is_hybrid(index, settings):
    request = RetrievalRequest("gas price", 2)
    assert ids(PlannerRetriever(index, settings).search(request)) == ids(
        HybridRetriever(index, settings).search(request)
    )


@pytest.mark.parametrize("failing", [[PARTS[0]], PARTS, [QUERY], [QUERY, PARTS[1]]])
def test_parts_that_fail_are_left_out_and_named(index, settings, failing):
    adapter, _ = planner(index, settings, failing=failing)
    result = adapter.search(RetrievalRequest(QUERY, 5))
    assert result.nodes
    names = {QUERY: "planner.question", PARTS[0]: "planner.part 1", PARTS[1]: "planner.part 2"}
    assert [step.step for step in result.degraded] == [names[query] for query in names if query in failing]
    assert all("no luck" in step.reason for step in result.degraded)


def test_when_every_part_fails_all_causes_are_told(index, settings):
    adapter, _ = planner(index, settings, failing=[QUERY, *PARTS])
    with pytest.raises(RetrievalError) as caught:
        adapter.search(RetrievalRequest(QUERY, 5))
    assert set(caught.value.causes) == {"question", "part 1", "part 2"}
    assert isinstance(caught.value.__cause__, StoreError)


def test_filters_hold_for_every_part(index, settings):
    filters = MetadataFilters(filters=[MetadataFilter(key="lang", value="es")])
    adapter, inner = planner(index, settings)
    assert set(ids(adapter.search(RetrievalRequest(QUERY, 5, filters)))) == {"n4", "n5"}
    assert all(request.filters == filters for request in inner.requests)


def test_a_part_that_hangs_ends_with_the_time(index):
    stuck = threading.Event()
    with Workers(4, "test") as workers:
        settings = AdapterSettings(workers=workers)
        hybrid = HybridRetriever(index, settings)

        def retrieve(request):
            if request.query == PARTS[1]:
                stuck.wait(10)
            return hybrid.search(request)

        result = PlannerRetriever(index, settings, retrieve=retrieve).search(RetrievalRequest(QUERY, 5, timeout_s=0.3))
        stuck.set()
    assert result.nodes
    assert [step.step for step in result.degraded] == ["planner.part 2"]


def test_it_works_on_a_pool_of_one_thread(index):
    with Workers(1, "test") as workers:
        adapter = PlannerRetriever(index, AdapterSettings(workers=workers))
        expected = ids(adapter.search(RetrievalRequest(QUERY, 5)))
        future = workers.submit(adapter.search, RetrievalRequest(QUERY, 5))
        assert ids(future.result(timeout=10)) == expected


def with_model(workers, *replies, **changes):
    llm = FakeLLM(list(replies))
    client = LLMClient(llm, tier=Tier.PRIMARY, timeout_s=5)
    return AdapterSettings(workers=workers, model=client, **changes), llm


def test_a_model_makes_the_plan_where_there_is_one(index, workers):
    settings, llm = with_model(workers, '["oil offers", "gas stars", "desert", "sea", "rocks"]')
    adapter, inner = planner(index, settings)
    adapter.search(RetrievalRequest(QUERY, 5))
    assert {request.query for request in inner.requests} == {QUERY, "oil offers", "gas stars", "desert", "sea"}
    assert len(llm.prompts) == 1


@pytest.mark.parametrize("reply", ["no idea", DeadlineExceededError("too slow")])
def test_without_a_usable_plan_the_words_decide(index, workers, reply):
    settings, _ = with_model(workers, reply)
    adapter, inner = planner(index, settings)
    result = adapter.search(RetrievalRequest(QUERY, 5))
    assert {request.query for request in inner.requests} == {QUERY, *PARTS}
    assert [step.step for step in result.degraded] == ["planner.plan"]


def test_an_empty_plan_searches_for_the_question_itself(index, workers):
    settings, _ = with_model(workers, "[]")
    adapter, inner = planner(index, settings)
    assert adapter.search(RetrievalRequest(QUERY, 5)).nodes
    assert [request.query for request in inner.requests] == [QUERY]


def test_an_empty_index_asks_no_model(make_index, workers):
    settings, llm = with_model(workers, "[]")
    assert PlannerRetriever(make_index([]), settings).search(RetrievalRequest(QUERY, 5)).nodes == []
    assert llm.prompts == []
