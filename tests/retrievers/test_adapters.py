from __future__ import annotations

import json
import logging
import math
import threading

import pytest
from llama_index.core import Settings
from llama_index.core.callbacks import CallbackManager, LlamaDebugHandler
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.span_handlers import SimpleSpanHandler
from llama_index.core.schema import (
    IndexNode,
    MetadataMode,
    NodeRelationship,
    NodeWithScore,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters

from agentic_retriever.errors import (
    DeadlineExceededError,
    EmbeddingError,
    FilterError,
    InvalidQueryError,
    RetrievalError,
    StoreError,
)
from agentic_retriever.retrievers import (
    SCORES_KEY,
    AdapterSettings,
    Fusion,
    FusionModel,
    HybridRetriever,
    RetrievalRequest,
    RetrieverAdapter,
    SearchResult,
    VectorRetriever,
    source_scores,
)
from agentic_retriever.retrievers.base import run_guarded, run_sides, take_nodes
from agentic_retriever.retrievers.hybrid import CHECKED_BY_ID, search_depth
from agentic_retriever.testing.retriever_contract import check_result, contract_nodes
from agentic_retriever.threads import Workers

QUERY = "red apple harvest"
STRATEGIES = pytest.mark.parametrize("kind", [VectorRetriever, HybridRetriever])


def where(key, value, operator=FilterOperator.EQ):
    return MetadataFilters(filters=[MetadataFilter(key=key, value=value, operator=operator)])


def pairs(result):
    return [(n.node_id, n.score) for n in result.nodes]


class Scripted(RetrieverAdapter):
    """Finds what it is told to."""

    def __init__(self, index, settings, pairs, sources=None):
        super().__init__(index, settings)
        self.found = SearchResult(
            [NodeWithScore(node=node, score=score) for node, score in pairs], sources=sources or {}
        )

    def _search(self, request, deadline):
        return self.found


@pytest.fixture
def index(make_index):
    return make_index(contract_nodes())


# --- promises about every result


def test_scores_that_are_no_numbers_go_last_and_come_out_finite(index, settings):
    scores = {"a": 0.2, "b": math.nan, "c": -0.5, "d": None, "e": math.inf, "f": 0.0}
    found = Scripted(index, settings, [(TextNode(id_=i, text=i), s) for i, s in scores.items()], {"dense": scores})
    result = found.search(RetrievalRequest(QUERY, 10))
    check_result(result.nodes, 10)
    assert [n.node_id for n in result.nodes] == ["a", "f", "c", "b", "d", "e"]
    assert result.nodes[1].score == 0.0
    assert json.loads(json.dumps([n.to_dict() for n in result.nodes], allow_nan=False))
    assert "dense" not in source_scores(result.nodes[-1].node)


def test_an_id_found_twice_keeps_its_best_score(index, settings):
    node = TextNode(id_="x", text="x")
    found = Scripted(index, settings, [(node, s) for s in (0.1, math.nan, 0.9, 0.3)])
    assert pairs(found.search(RetrievalRequest(QUERY, 5))) == [("x", 0.9)]


def test_no_more_than_top_k_and_the_best_of_them(index, settings):
    found = Scripted(index, settings, [(TextNode(id_=f"n{i}", text="x"), float(i % 7)) for i in range(20)])
    assert pairs(found.search(RetrievalRequest(QUERY, 4))) == [("n13", 6.0), ("n6", 6.0), ("n12", 5.0), ("n19", 5.0)]


def test_nodes_that_a_store_should_not_have_returned_are_dropped(index, settings):
    nodes = [TextNode(id_="x", text="x", metadata={"lang": "th"}), TextNode(id_="y", text="y")]
    found = Scripted(index, settings, [(n, 1.0) for n in nodes])
    assert pairs(found.search(RetrievalRequest(QUERY, 5, where("lang", "th")))) == [("x", 1.0)]


def test_results_are_deep_copies_without_objects(index, settings):
    node = IndexNode(
        id_="x", text="x", index_id="i", metadata={"tags": ["a"]}, embedding=[1.0, 2.0], obj=threading.Lock()
    )
    node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id="doc", metadata={"k": 1})
    copy = Scripted(index, settings, [(node, 1.0)]).search(RetrievalRequest(QUERY, 5)).nodes[0].node
    assert copy.obj is None
    assert copy.embedding == [1.0, 2.0]
    copy.metadata["tags"].append("b")
    copy.embedding.append(3.0)
    copy.relationships[NodeRelationship.SOURCE].metadata["k"] = 2
    assert node.metadata == {"tags": ["a"]}
    assert node.embedding == [1.0, 2.0]
    assert node.relationships[NodeRelationship.SOURCE].metadata == {"k": 1}
    assert node.obj is not None
    assert SCORES_KEY not in node.excluded_llm_metadata_keys


def test_scores_per_source_stand_in_the_metadata_but_in_no_prompt(index, settings):
    vector = VectorRetriever(index, settings).search(RetrievalRequest(QUERY, 3)).nodes
    assert [source_scores(n.node) for n in vector] == [{"dense": n.score} for n in vector]
    hybrid = HybridRetriever(index, settings).search(RetrievalRequest(QUERY, 3)).nodes
    best = hybrid[0]
    assert source_scores(best.node) == best.metadata[SCORES_KEY]
    assert set(source_scores(best.node)) == {"dense", "bm25", "fused"}
    assert source_scores(best.node)["fused"] == best.score
    assert source_scores(best.node)["dense"] == vector[0].score
    for mode in (MetadataMode.LLM, MetadataMode.EMBED):
        assert "dense" not in best.node.get_content(mode)
    assert source_scores(TextNode(text="x")) == {}


@STRATEGIES
def test_the_store_s_own_nodes_stay_as_they_are(kind, make_index, settings):
    nodes = contract_nodes()
    index = make_index(nodes)
    before = [n.to_json() for n in nodes]
    for found in kind(index, settings).retrieve(QUERY):
        found.node.metadata.clear()
        found.node.set_content("x")
        assert found.node is not index.vector_store.kept[found.node_id]
    assert [n.to_json() for n in nodes] == before


# --- checks before a search


@STRATEGIES
def test_requests_are_checked_before_any_work(kind, index, settings):
    adapter = kind(index, settings)
    for request, error in [
        (RetrievalRequest("", 3), InvalidQueryError),
        (RetrievalRequest(None, 3), InvalidQueryError),
        (RetrievalRequest("x" * 20_001, 3), InvalidQueryError),
        (RetrievalRequest(QUERY, 0), InvalidQueryError),
        (RetrievalRequest(QUERY, 10_001), InvalidQueryError),
        (RetrievalRequest(QUERY, 3, query_vector=(1.0, math.nan)), InvalidQueryError),
        (RetrievalRequest(QUERY, 3, where("", 1)), FilterError),
        (RetrievalRequest(QUERY, 3, timeout_s=0), DeadlineExceededError),
        (RetrievalRequest(QUERY, 3, timeout_s=math.nan), DeadlineExceededError),
    ]:
        with pytest.raises(error):
            adapter.search(request)
    assert index.vector_store.queries == index.embedding.timeouts == []


@STRATEGIES
def test_top_k_beyond_the_index_gives_all(kind, index, settings):
    assert len(kind(index, settings).search(RetrievalRequest(QUERY, 10_000)).nodes) == 9


@STRATEGIES
def test_a_known_vector_is_not_computed_again(kind, index, settings):
    vector = tuple(index.embedding.base.get_query_embedding(QUERY))
    expected = kind(index, settings).search(RetrievalRequest(QUERY, 5))
    index.embedding.timeouts.clear()
    assert pairs(kind(index, settings).search(RetrievalRequest(QUERY, 5, query_vector=vector))) == pairs(expected)
    bundle = QueryBundle(QUERY, embedding=list(vector))
    assert [n.node_id for n in kind(index, settings).retrieve(bundle)] == [i for i, _ in pairs(expected)]
    assert index.embedding.timeouts == []


@STRATEGIES
def test_the_time_that_is_left_goes_to_the_model(kind, index, make_settings):
    ticks = iter([100.0, 100.25, *[101.0] * 9])
    settings = make_settings(deadline_s=9.0, timer=lambda: next(ticks))
    kind(index, settings).search(RetrievalRequest(QUERY, 3, timeout_s=2.0))
    assert index.embedding.timeouts == [1.75]
    kind(index, make_settings(deadline_s=9.0, timer=lambda: 100.0)).search(RetrievalRequest(QUERY, 3))
    assert index.embedding.timeouts[-1] == 9.0


def test_no_time_left_to_embed(index, workers):
    ticks = iter([100.0, 103.0])
    settings = AdapterSettings(workers=workers, timer=lambda: next(ticks))
    with pytest.raises(DeadlineExceededError):
        VectorRetriever(index, settings).search(RetrievalRequest(QUERY, 3, timeout_s=2.0))
    assert index.embedding.timeouts == []


def test_empty_filters_reach_no_store(index, settings):
    for filters in (MetadataFilters(filters=[]), MetadataFilters(filters=[MetadataFilters(filters=[])])):
        for kind in (VectorRetriever, HybridRetriever):
            assert len(kind(index, settings).search(RetrievalRequest(QUERY, 20, filters)).nodes) == 9
    assert [q.filters for q in index.vector_store.queries] == [None] * 4
    assert all(node_ids or filters for node_ids, filters in index.vector_store.reads if node_ids is not None)


# --- life inside LlamaIndex


@STRATEGIES
async def test_one_span_for_one_search(kind, index, settings):
    spans = SimpleSpanHandler()
    root = get_dispatcher()
    root.add_span_handler(spans)
    try:
        adapter = kind(index, settings)
        adapter.retrieve(QUERY)
        await adapter.aretrieve(QUERY)
        with pytest.raises(InvalidQueryError):
            adapter.retrieve(" ")
    finally:
        root.span_handlers.remove(spans)
    names = [s.id_.rsplit("-", 5)[0] for s in spans.completed_spans]
    assert names.count(f"{kind.__name__}.retrieve") == 1
    assert names.count(f"{kind.__name__}.aretrieve") == 1
    assert spans.open_spans == {}


def test_callbacks_of_the_process_are_not_taken_over(index, settings, monkeypatch):
    handler = LlamaDebugHandler(print_trace_on_end=False)
    monkeypatch.setattr(Settings, "_callback_manager", CallbackManager([handler]))
    adapter = VectorRetriever(index, settings)
    adapter.retrieve(QUERY)
    assert handler.get_event_pairs() == []
    VectorRetriever(index, settings, callback_manager=CallbackManager([handler])).retrieve(QUERY)
    assert len(handler.get_event_pairs()) == 1


def test_a_degraded_search_is_logged_without_the_question(index, settings, caplog):
    index.keyword_error = RuntimeError("secret-key")
    with caplog.at_level(logging.WARNING):
        assert HybridRetriever(index, settings).retrieve(QUERY)
    assert "hybrid.keyword fell back to dense search alone" in caplog.text
    assert "secret-key" not in caplog.text
    assert QUERY not in caplog.text


async def test_async_search_runs_in_the_given_threads(index, workers):
    names = []

    class Where(Scripted):
        def _search(self, request, deadline):
            names.append(threading.current_thread().name)
            return super()._search(request, deadline)

    await Where(index, AdapterSettings(workers=workers), []).asearch(RetrievalRequest(QUERY, 1))
    assert names[0].startswith("test")


async def test_more_searches_than_threads_end(make_index, make_settings):
    import asyncio

    with Workers(1, "narrow") as pool:
        settings = make_settings(workers=pool, deadline_s=2.0)
        adapter = HybridRetriever(make_index(contract_nodes()), settings)
        expected = [(n.node_id, n.score) for n in adapter.retrieve(QUERY)]
        found = await asyncio.wait_for(asyncio.gather(*(adapter.aretrieve(QUERY) for _ in range(20))), 10)
    assert all([(n.node_id, n.score) for n in nodes] == expected for nodes in found)


# --- vector


def test_an_empty_index_or_filter_answers_without_the_model(make_index, settings):
    index = make_index([])
    assert VectorRetriever(index, settings).search(RetrievalRequest(QUERY, 3)).nodes == []
    assert HybridRetriever(index, settings).search(RetrievalRequest(QUERY, 3)).nodes == []
    assert index.embedding.timeouts == index.vector_store.queries == []


def test_a_foreign_error_of_the_store_is_a_store_error(index, settings, monkeypatch):
    def broken(self, query, **kwargs):
        raise ZeroDivisionError("api-key")

    monkeypatch.setattr(type(index.vector_store), "query", broken)
    with pytest.raises(StoreError, match="ZeroDivisionError") as caught:
        VectorRetriever(index, settings).retrieve(QUERY)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert "api-key" not in str(caught.value)


def test_stores_that_answer_with_ids_only(index, settings, monkeypatch):
    expected = pairs(VectorRetriever(index, settings).search(RetrievalRequest(QUERY, 4)))
    query = type(index.vector_store).query

    def ids_only(self, asked, **kwargs):
        result = query(self, asked)
        result.nodes = None
        return result

    monkeypatch.setattr(type(index.vector_store), "query", ids_only)
    assert pairs(VectorRetriever(index, settings).search(RetrievalRequest(QUERY, 4))) == expected


# --- hybrid


@pytest.mark.parametrize("query", ["zzzqqq", "the of and", "?!", "ζζζ"])
@pytest.mark.parametrize("fusion", list(Fusion))
def test_without_a_known_word_hybrid_equals_vector(query, fusion, index, make_settings):
    settings = make_settings(fusion=fusion)
    request = RetrievalRequest(query, 4)
    hybrid, vector = HybridRetriever(index, settings).search(request), VectorRetriever(index, settings).search(request)
    assert [n.to_dict() for n in hybrid.nodes] == [n.to_dict() for n in vector.nodes]
    assert hybrid.degraded == ()


def test_alpha_moves_the_order(make_index, make_settings):
    nodes = [TextNode(id_=i, text=t) for i, t in [("words", "zebra zebra one"), ("meaning", "something else")]]
    index = make_index(nodes)
    index.vector_store.scores = {"words": 0.1, "meaning": 0.9}

    def first(fusion, alpha):
        settings = make_settings(fusion=fusion, hybrid_alpha=alpha)
        return HybridRetriever(index, settings).search(RetrievalRequest("zebra", 1)).nodes[0].node_id

    for fusion in set(Fusion) - {Fusion.CALIBRATED}:
        assert (first(fusion, 0.99), first(fusion, 0.01)) == ("meaning", "words")


def test_a_word_that_only_bm25_finds_comes_in(make_index, settings):
    nodes = [TextNode(id_=f"n{i:03d}", text=f"filler number {i}") for i in range(300)]
    nodes.append(TextNode(id_="z", text="form A-12"))
    index = make_index(nodes)
    index.vector_store.scores = {"z": -1.0}
    found = HybridRetriever(index, settings).search(RetrievalRequest("A-12", 60)).nodes
    assert "z" in [n.node_id for n in found]
    assert set(source_scores(next(n.node for n in found if n.node_id == "z"))) == {"bm25", "fused"}


@pytest.mark.parametrize(
    ("broken", "step", "fallback", "source"),
    [("dense", "hybrid.dense", "BM25 search alone", "bm25"), ("bm25", "hybrid.keyword", "dense search alone", "dense")],
)
def test_one_side_that_fails_leaves_the_other(broken, step, fallback, source, index, settings, monkeypatch):
    if broken == "dense":
        monkeypatch.setattr(index.embedding, "embed_query", _raiser(EmbeddingError("the model is down")), raising=False)
    else:
        index.keyword_error = StoreError("the model is down")
    result = HybridRetriever(index, settings).search(RetrievalRequest(QUERY, 3))
    check_result(result.nodes, 3)
    assert [set(source_scores(n.node)) for n in result.nodes] == [{source}] * 3
    assert [n.score for n in result.nodes] == [source_scores(n.node)[source] for n in result.nodes]
    assert [d.to_dict() for d in result.degraded] == [
        {"step": step, "reason": "the model is down", "fallback": fallback}
    ]


def test_both_sides_failing_is_one_error_with_both_causes(index, settings, monkeypatch):
    monkeypatch.setattr(index.embedding, "embed_query", _raiser(EmbeddingError("no model")), raising=False)
    index.keyword_error = RuntimeError("no view")
    with pytest.raises(RetrievalError, match=r"dense: no model; bm25: .*RuntimeError") as caught:
        HybridRetriever(index, settings).search(RetrievalRequest(QUERY, 3))
    assert set(caught.value.causes) == {"dense", "bm25"}
    assert caught.value.__cause__ is caught.value.causes["dense"]


def test_hits_of_bm25_that_cannot_be_read_leave_the_dense_ones(make_index, make_settings, monkeypatch):
    settings = make_settings(weights=FusionModel(alpha=0.1, slope=0.0))  # so that the hit of BM25 comes first
    nodes = [TextNode(id_=f"n{i:03d}", text=f"filler number {i}") for i in range(300)] + [
        TextNode(id_="z", text="zebra")
    ]
    index = make_index(nodes)
    index.vector_store.scores = {"z": -1.0}
    expected = VectorRetriever(index, settings).search(RetrievalRequest("zebra", 60))
    store = type(index.vector_store)
    get_nodes = store.get_nodes

    def unreadable(self, node_ids=None, filters=None):
        if node_ids:
            raise ConnectionError
        return get_nodes(self, node_ids, filters)

    monkeypatch.setattr(store, "get_nodes", unreadable)
    result = HybridRetriever(index, settings).search(RetrievalRequest("zebra", 60))
    assert pairs(result) == pairs(expected)
    assert [d.step for d in result.degraded] == ["hybrid.keyword"]
    monkeypatch.setattr(index.embedding, "embed_query", _raiser(EmbeddingError("no model")), raising=False)
    with pytest.raises(RetrievalError) as caught:
        HybridRetriever(index, settings).search(RetrievalRequest("zebra", 60))
    assert set(caught.value.causes) == {"dense", "bm25"}


def test_a_node_deleted_after_the_keyword_view_was_built_makes_room(index, settings):
    view = index.keyword()
    index.keyword = lambda: view
    del index.vector_store.kept["n07"]
    found = HybridRetriever(index, settings).search(RetrievalRequest(QUERY, 3)).nodes
    assert len(found) == 3
    assert "n07" not in [n.node_id for n in found]


@pytest.mark.parametrize("top_k", [1, 3])
def test_a_filter_that_leaves_one_gives_exactly_that_one(top_k, index, settings):
    found = HybridRetriever(index, settings).search(RetrievalRequest(QUERY, top_k, where("year", 2024)))
    allowed = {"n01", "n08"}
    assert {n.node_id for n in found.nodes} <= allowed
    assert found.nodes[0].node_id == "n08"
    only = HybridRetriever(index, settings).search(RetrievalRequest(QUERY, top_k, where("year", 2019)))
    assert [n.node_id for n in only.nodes] == ["n02"]


@pytest.mark.parametrize("can_list", [True, False])
def test_a_rare_match_far_down_the_ranking_is_found(make_index, settings, can_list, monkeypatch):
    count = 3_000
    nodes = [TextNode(id_=f"n{i:05d}", text="zebra zebra", embedding=[1.0] * 32) for i in range(count)]
    nodes[-1].text = "zebra"
    nodes[-1].metadata = {"last": 1}
    index = make_index(nodes)
    store = type(index.vector_store)
    get_nodes = store.get_nodes

    def no_list(self, node_ids=None, filters=None):
        if filters is not None and not node_ids and not can_list:
            raise NotImplementedError
        return get_nodes(self, node_ids, filters)

    monkeypatch.setattr(store, "get_nodes", no_list)
    monkeypatch.setattr(index.embedding, "embed_query", _raiser(EmbeddingError("dense is out")), raising=False)
    found = HybridRetriever(index, settings).search(RetrievalRequest("zebra", 5, where("last", 1)))
    assert [n.node_id for n in found.nodes] == [f"n{count - 1:05d}"]
    read = [len(ids) for ids, _filters in index.vector_store.reads if ids]
    assert CHECKED_BY_ID <= sum(read) < count if can_list else sum(read) >= count


@pytest.mark.parametrize("habit", ["ignores the filters", "takes ids as one more alternative", "knows no filters"])
def test_bm25_under_a_filter_is_exact_whatever_the_store_makes_of_it(habit, make_index, settings, monkeypatch):
    words = ["zebra zebra", "zebra", "zebra and more words", "zebra with a few more words"]
    nodes = [TextNode(id_=f"n{i:03d}", text=words[i % 4], metadata={"k": i % 5, "r": i % 3}) for i in range(400)]
    index = make_index(nodes[::-1])
    store = type(index.vector_store)
    get_nodes = store.get_nodes

    def odd(self, node_ids=None, filters=None):
        if filters is not None and habit == "knows no filters":
            raise NotImplementedError
        if not (node_ids and filters):
            return get_nodes(self, node_ids, filters)
        by_id = get_nodes(self, node_ids)
        if habit == "takes ids as one more alternative" and filters.condition == "or":
            return (get_nodes(self, None, filters) + by_id)[: len(node_ids)]
        return by_id if habit == "ignores the filters" else [n for n in by_id if n in get_nodes(self, None, filters)]

    monkeypatch.setattr(store, "get_nodes", odd)
    monkeypatch.setattr(index.embedding, "embed_query", _raiser(EmbeddingError("dense is out")), raising=False)
    either = MetadataFilters(filters=[*where("k", 3).filters, *where("r", 2).filters], condition="or")
    everything = index.keyword().search("zebra", 400)
    expected = [i for i, _ in everything if int(i[1:]) % 5 == 3 or int(i[1:]) % 3 == 2]
    for top_k in (1, 7, 60):
        found = HybridRetriever(index, settings).search(RetrievalRequest("zebra", top_k, either))
        assert [n.node_id for n in found.nodes] == expected[:top_k]


def test_filters_by_document_work_on_both_sides(make_index, settings):
    nodes = contract_nodes()
    for node in nodes:
        node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=f"doc-{node.metadata['lang']}")
    found = HybridRetriever(make_index(nodes), settings).search(RetrievalRequest(QUERY, 9, where("doc_id", "doc-th")))
    assert {n.node_id for n in found.nodes} == {"n05", "n08"}


@pytest.mark.parametrize(
    ("top_k", "depth"), [(1, 50), (12, 50), (13, 52), (250, 1000), (251, 1000), (1000, 1000), (5000, 5000)]
)
def test_depth_of_each_side(top_k, depth):
    assert search_depth(top_k) == depth


def _raiser(error):
    def call(*_args, **_kwargs):
        raise error

    return call


def test_of_a_ranking_no_more_nodes_are_read_than_are_taken(index):
    kept = index.vector_store.kept
    ranking = [("n07", 0.9), ("gone", 0.8), ("n03", 0.7), ("n09", 0.6), ("n01", None), ("n05", None)]
    index.vector_store.reads.clear()
    taken = take_nodes(index, ranking, {"n07": kept["n07"]}, 2)
    assert [(one.node_id, one.score) for one in taken] == [("n07", 0.9), ("n03", 0.7)]
    assert [node_ids for node_ids, _filters in index.vector_store.reads] == [["gone"], ["n03", "n09"]]
    taken = take_nodes(index, ranking, {}, 2, filters=where("year", 2022, FilterOperator.NE))
    assert [one.node_id for one in taken] == ["n07", "n09"]
    assert take_nodes(index, [], {}, 5) == []


# Sides of one search next to each other.


def run(pool, sides, seconds=5.0):
    return run_sides(pool, sides, timeout_s=lambda: seconds)


def failing(error):
    def call():
        raise error

    return call


def test_sides_run_at_the_same_time(workers):
    met = threading.Barrier(2, timeout=5)
    results, errors = run(workers, {"a": met.wait, "b": met.wait})
    assert sorted(results.values()) == [0, 1]
    assert errors == {}


@pytest.mark.parametrize("broken", ["a", "b"])
def test_one_that_fails_leaves_the_other(workers, broken):
    error = EmbeddingError("down")
    sides = {"a": lambda: 1, "b": lambda: 1}
    results, errors = run(workers, {**sides, broken: failing(error)})
    assert list(results.values()) == [1]
    assert errors == {broken: error}


def test_foreign_errors_come_out_as_ours_without_their_text(workers):
    cause = KeyError("api-key-123")
    for sides in ({"a": failing(cause), "b": lambda: 1}, {"b": lambda: 1, "a": failing(cause)}):
        _results, errors = run(workers, sides)
        assert isinstance(errors["a"], StoreError)
        assert errors["a"].__cause__ is cause
        assert "KeyError" in str(errors["a"])
        assert "api-key-123" not in str(errors["a"])


def test_what_is_no_error_is_not_swallowed():
    with pytest.raises(KeyboardInterrupt):
        run_guarded("a", failing(KeyboardInterrupt()))


def test_sides_may_start_in_a_thread_of_the_same_pool():
    with Workers(1, "one") as pool:
        # Without taking the second side back, the pool's only thread would wait for itself.
        future = pool.submit(run, pool, {"a": lambda: 1, "b": lambda: 2})
        assert future.result(timeout=5) == ({"a": 1, "b": 2}, {})


def test_a_closed_pool_makes_it_sequential():
    pool = Workers(2, "closed")
    pool.close()
    assert run(pool, {"a": lambda: 1, "b": lambda: 2}) == ({"a": 1, "b": 2}, {})


def test_a_side_that_hangs_is_given_up_in_time(workers):
    release, started = threading.Event(), threading.Event()

    def hang():
        started.set()
        release.wait(10)

    results, errors = run(workers, {"a": lambda: started.wait(5), "b": hang}, 0.01)
    release.set()
    assert results == {"a": True}
    assert isinstance(errors["b"], DeadlineExceededError)
