import copy
import gc
import json
import logging
import math
import threading
from datetime import date
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core import Settings, schema
from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.callbacks import CallbackManager, LlamaDebugHandler
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.span_handlers import SimpleSpanHandler
from llama_index.core.schema import IndexNode, MetadataMode, NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import MetadataFilters
from search_material import QUERY, ask, hit, ids, pairs
from store_tools import where
from waiting import pool

from agentic_retriever import retrievers
from agentic_retriever.errors import DeadlineExceededError, EmbeddingError, FilterError, InvalidQueryError, StoreError
from agentic_retriever.retrievers import base
from agentic_retriever.retrievers.base import SCORES_KEY, run_guarded, run_sides, take_nodes
from agentic_retriever.schema import Strategy
from agentic_retriever.testing import FakeEmbedding
from agentic_retriever.testing.retriever_contract import check_result, contract_nodes

STRATEGIES = pytest.mark.parametrize("kind", [retrievers.VectorRetriever, retrievers.HybridRetriever])


@pytest.fixture
def index(make_index):
    return make_index(contract_nodes())


@pytest.fixture
def scripted(index, settings):
    """Search by an adapter that finds these hits."""

    class Scripted(retrievers.RetrieverAdapter):
        strategy = Strategy.VECTOR

        def _search(self, request, deadline):
            return self.found

    def search(hits, sources=None, **request):
        adapter = Scripted(index, settings)
        adapter.found = retrievers.SearchResult(list(hits), sources=sources or {})
        return ask(adapter, **request)

    return search


def test_scores_that_are_no_numbers_go_last_and_come_out_finite(scripted):
    given = {"a": 0.2, "b": math.nan, "c": -0.5, "d": None, "e": math.inf, "f": 0.0}
    result = scripted([hit(*item) for item in given.items()], {"dense": given}, top_k=10)
    check_result(result.nodes, 10)
    assert ids(result) == ["a", "f", "c", "b", "d", "e"]
    assert result.nodes[1].score == 0.0
    assert json.loads(json.dumps([n.to_dict() for n in result.nodes], allow_nan=False))
    assert "dense" not in retrievers.source_scores(result.nodes[-1])


def test_what_comes_twice_keeps_its_best_score_and_what_does_not_satisfy_is_dropped(scripted):
    assert pairs(scripted([hit("x", score) for score in (0.1, math.nan, 0.9, 0.3)])) == [("x", 0.9)]
    found = scripted([hit(f"n{i}", float(i % 7)) for i in range(20)], top_k=4)
    assert pairs(found) == [("n13", 6.0), ("n6", 6.0), ("n12", 5.0), ("n19", 5.0)]
    assert pairs(scripted([hit("x", 1.0, lang="th"), hit("y", 1.0)], filters=where("lang", "th"))) == [("x", 1.0)]


def test_results_are_deep_copies_without_objects(scripted):
    entry = hit("x", 1.0)
    entry.node = node = IndexNode(
        id_="x", text="x", index_id="i", metadata={"tags": ["a"]}, embedding=[1.0, 2.0], obj=threading.Lock()
    )
    node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id="doc", metadata={"k": 1})
    copy = scripted([entry]).nodes[0].node
    assert copy.obj is None
    assert copy.embedding == [1.0, 2.0]
    copy.metadata["tags"].append("b")
    copy.embedding.append(3.0)
    copy.relationships[NodeRelationship.SOURCE].metadata["k"] = 2
    assert (node.metadata, node.embedding) == ({"tags": ["a"]}, [1.0, 2.0])
    assert node.relationships[NodeRelationship.SOURCE].metadata == {"k": 1}
    assert node.obj is not None


def test_scores_per_source_stand_beside_the_node_and_in_no_prompt(index, settings):
    vector = ask(retrievers.VectorRetriever(index, settings), top_k=3).nodes
    assert [retrievers.source_scores(n) for n in vector] == [{"dense": n.score} for n in vector]
    best = ask(retrievers.HybridRetriever(index, settings), top_k=3).nodes[0]
    assert retrievers.source_scores(best) == retrievers.details(best)[SCORES_KEY]
    assert set(retrievers.source_scores(best)) == {"dense", "bm25", "fused"}
    assert retrievers.source_scores(best)["fused"] == best.score
    assert retrievers.source_scores(best)["dense"] == vector[0].score
    for mode in (MetadataMode.LLM, MetadataMode.EMBED):
        assert "dense" not in best.node.get_content(mode)
    assert retrievers.source_scores(hit("x", 1.0)) == {}


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


@STRATEGIES
@pytest.mark.parametrize(("request_", "error"), [
    ({"query": ""}, InvalidQueryError), ({"query": None}, InvalidQueryError),
    ({"query": "x" * 20_001}, InvalidQueryError), ({"top_k": 0}, InvalidQueryError),
    ({"top_k": 10_001}, InvalidQueryError), ({"query_vector": (1.0, math.nan)}, InvalidQueryError),
    ({"filters": where("", 1)}, FilterError), ({"timeout_s": 0}, DeadlineExceededError),
    ({"timeout_s": math.nan}, DeadlineExceededError),
])  # fmt: skip
def test_requests_are_checked_before_any_work(kind, index, settings, request_, error):
    with pytest.raises(error):
        ask(kind(index, settings), **request_)
    assert index.vector_store.queries == index.embedding.timeouts == []


@STRATEGIES
def test_a_known_vector_is_not_computed_again(kind, index, settings):
    adapter, vector = kind(index, settings), tuple(index.embedding.base.get_query_embedding(QUERY))
    expected = pairs(ask(adapter))
    index.embedding.timeouts.clear()
    assert pairs(ask(adapter, query_vector=vector)) == expected
    assert pairs(adapter.retrieve(schema.QueryBundle(QUERY, embedding=list(vector)))) == expected
    assert index.embedding.timeouts == []
    assert len(ask(adapter, top_k=10_000).nodes) == 9


@STRATEGIES
def test_a_share_of_the_time_that_is_left_goes_to_the_model(kind, index, make_settings):
    ticks = iter([100.0, 100.25, *[101.0] * 9])
    ask(kind(index, make_settings(deadline_s=9.0, timer=lambda: next(ticks))), timeout_s=2.0)
    assert index.embedding.timeouts == [pytest.approx(1.75 / 3)]
    ask(kind(index, make_settings(deadline_s=9.0, timer=lambda: 100.0)))
    assert index.embedding.timeouts[-1] == 3.0
    ask(kind(index, make_settings(deadline_s=120.0)))
    assert index.embedding.timeouts[-1] == 5.0


def test_no_time_left_to_embed(index, make_settings):
    ticks = iter([100.0, 103.0])
    with pytest.raises(DeadlineExceededError):
        ask(retrievers.VectorRetriever(index, make_settings(timer=lambda: next(ticks))), timeout_s=2.0)
    assert index.embedding.timeouts == []


def test_empty_filters_reach_no_store_and_of_a_ranking_no_more_is_read_than_taken(index, settings):
    for filters in (MetadataFilters(filters=[]), MetadataFilters(filters=[MetadataFilters(filters=[])])):
        for kind in (retrievers.VectorRetriever, retrievers.HybridRetriever):
            assert len(ask(kind(index, settings), top_k=20, filters=filters).nodes) == 9
    assert [q.filters for q in index.vector_store.queries] == [None] * 4
    assert all(node_ids or filters for node_ids, filters in index.vector_store.reads if node_ids is not None)
    kept = index.vector_store.kept
    ranking = [("n07", 0.9), ("gone", 0.8), ("n03", 0.7), ("n09", 0.6), ("n01", None), ("n05", None)]
    index.vector_store.reads.clear()
    assert pairs(take_nodes(index, ranking, {"n07": kept["n07"]}, 2)) == [("n07", 0.9), ("n03", 0.7)]
    assert [node_ids for node_ids, _filters in index.vector_store.reads] == [["gone"], ["n03", "n09"]]
    assert ids(take_nodes(index, ranking, {}, 2, filters=where("year", 2022, "!="))) == ["n07", "n09"]
    assert take_nodes(index, [], {}, 5) == []


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
    assert names.count(f"{kind.__name__}.retrieve") == names.count(f"{kind.__name__}.aretrieve") == 1
    assert spans.open_spans == {}


def test_callbacks_of_the_process_are_not_taken_over(index, settings, monkeypatch):
    handler = LlamaDebugHandler(print_trace_on_end=False)
    monkeypatch.setattr(Settings, "_callback_manager", CallbackManager([handler]))
    retrievers.VectorRetriever(index, settings).retrieve(QUERY)
    assert handler.get_event_pairs() == []
    retrievers.VectorRetriever(index, settings, callback_manager=CallbackManager([handler])).retrieve(QUERY)
    assert len(handler.get_event_pairs()) == 1


def test_a_degraded_search_is_logged_without_the_question(index, settings, caplog):
    index.keyword = Mock(side_effect=RuntimeError("secret-key"))
    with caplog.at_level(logging.WARNING):
        assert retrievers.HybridRetriever(index, settings).retrieve(QUERY)
    assert "hybrid.keyword fell back to dense search alone" in caplog.text
    assert "secret-key" not in caplog.text
    assert QUERY not in caplog.text


async def test_async_searches_run_in_the_given_threads_however_few(index, settings, make_index, make_settings):
    names = []

    class Where(retrievers.VectorRetriever):
        def _search(self, request, deadline):
            names.append(threading.current_thread().name)
            return super()._search(request, deadline)

    await Where(index, settings).aretrieve(QUERY)
    assert names[0].startswith("pool")
    import asyncio

    with pool(1) as one:
        adapter = retrievers.HybridRetriever(make_index(contract_nodes()), make_settings(workers=one, deadline_s=2.0))
        expected = pairs(adapter.retrieve(QUERY))
        found = await asyncio.wait_for(asyncio.gather(*(adapter.aretrieve(QUERY) for _ in range(20))), 10)
    assert all(pairs(nodes) == expected for nodes in found)


@STRATEGIES
def test_an_empty_index_answers_without_the_model(kind, make_index, settings):
    index = make_index([])
    assert ask(kind(index, settings)).nodes == []
    assert index.embedding.timeouts == index.vector_store.queries == []


def test_a_foreign_error_of_the_store_is_a_store_error(index, settings, monkeypatch):
    monkeypatch.setattr(type(index.vector_store), "query", Mock(side_effect=ZeroDivisionError("api-key")))
    with pytest.raises(StoreError, match="ZeroDivisionError") as caught:
        retrievers.VectorRetriever(index, settings).retrieve(QUERY)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert "api-key" not in str(caught.value)


def test_stores_that_answer_with_ids_only(index, settings, monkeypatch):
    expected = pairs(ask(retrievers.VectorRetriever(index, settings)))
    query = type(index.vector_store).query

    def ids_only(self, asked, **kwargs):
        result = query(self, asked)
        result.nodes = None
        return result

    monkeypatch.setattr(type(index.vector_store), "query", ids_only)
    assert pairs(ask(retrievers.VectorRetriever(index, settings))) == expected


def run(workers, sides, seconds=5.0):
    return run_sides(workers, sides, timeout_s=lambda: seconds)


def test_sides_run_at_the_same_time_and_one_that_hangs_is_given_up_in_time(workers, gate):
    met = threading.Barrier(2, timeout=5)
    results, errors = run(workers, {"a": met.wait, "b": met.wait})
    assert (sorted(results.values()), errors) == ([0, 1], {})
    started = threading.Event()

    def hang():
        started.set()
        gate.wait(10)

    results, errors = run(workers, {"a": lambda: started.wait(5), "b": hang}, 0.01)
    assert results == {"a": True}
    assert isinstance(errors["b"], DeadlineExceededError)


def test_foreign_errors_come_out_as_ours_without_their_text_and_no_others(workers):
    cause = KeyError("api-key-123")
    for sides in ({"a": Mock(side_effect=cause), "b": lambda: 1}, {"b": lambda: 1, "a": Mock(side_effect=cause)}):
        _results, errors = run(workers, sides)
        assert isinstance(errors["a"], StoreError)
        assert errors["a"].__cause__ is cause
        assert "KeyError" in str(errors["a"])
        assert "api-key-123" not in str(errors["a"])
    with pytest.raises(KeyboardInterrupt):
        run_guarded("a", Mock(side_effect=KeyboardInterrupt()))


def test_sides_may_start_in_a_thread_of_the_same_pool_and_one_that_fails_leaves_the_other(workers):
    sides = {"a": lambda: 1, "b": lambda: 2}
    with pool(1) as one:
        # Without taking the second side back, the pool's only thread would wait for itself.
        assert one.submit(run, one, sides).result(timeout=5) == ({"a": 1, "b": 2}, {})
    assert run(one, sides) == ({"a": 1, "b": 2}, {})
    error, sides = EmbeddingError("down"), {"a": lambda: 1, "b": lambda: 1}
    for broken, other in ("ab", "ba"):
        assert run(workers, {**sides, broken: Mock(side_effect=error)}) == ({other: 1}, {broken: error})


NAMES = st.text(max_size=6)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
ODD = (
    st.dates()
    | st.tuples(st.lists(PLAIN, max_size=2), PLAIN)
    | st.sets(st.integers(), max_size=2)
    | st.binary(max_size=3)
)
VALUES = st.recursive(
    PLAIN | ODD, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)
METADATA = st.dictionaries(NAMES, VALUES, max_size=5)
RELATED = st.builds(RelatedNodeInfo, node_id=NAMES, metadata=METADATA, hash=st.none() | NAMES)
RELATIONSHIPS = st.dictionaries(
    st.sampled_from(NodeRelationship), RELATED | st.lists(RELATED, max_size=2), max_size=3
)  # fmt: skip
PARTS = {
    "id_": NAMES, "metadata": METADATA, "relationships": RELATIONSHIPS,
    "excluded_embed_metadata_keys": st.lists(NAMES, max_size=3),
    "excluded_llm_metadata_keys": st.lists(NAMES, max_size=3),
    "embedding": st.none() | st.lists(st.floats(-1, 1), max_size=3),
}  # fmt: skip
NODES = st.one_of(
    st.builds(TextNode, text=NAMES, start_char_idx=st.none() | st.integers(0, 9), **PARTS),
    st.builds(IndexNode, text=NAMES, index_id=NAMES, **PARTS),
    st.builds(schema.ImageNode, text=NAMES, text_embedding=st.lists(st.floats(-1, 1), max_size=2), **PARTS),
    st.builds(schema.Node, **PARTS),
)


class Own(TextNode):
    """A class with a copy of its own, as a library may have."""

    def __deepcopy__(self, memo=None):
        made = super().__deepcopy__(memo)
        made.text += " copied"
        return made


def changeable(value):
    """Yield all that hangs on a value and can be changed."""
    if isinstance(value, BaseModel):
        yield value
        yield value.__dict__
        yield value.__pydantic_fields_set__
        yield from changeable(value.__dict__)
    elif isinstance(value, dict):
        yield value
        for item in value.values():
            yield from changeable(item)
    elif isinstance(value, (list, tuple, set)):
        if not isinstance(value, tuple):
            yield value
        for item in value:
            yield from changeable(item)


def deface(value):
    """Change everything that can be changed, from the bottom up."""
    for part in list(changeable(value))[::-1]:
        if isinstance(part, BaseModel):
            continue
        if isinstance(part, dict) and "id_" not in part and "node_id" not in part:
            part["defaced"] = ["defaced"]
        elif isinstance(part, dict):
            part.update({name: "defaced" for name, item in part.items() if isinstance(item, str)})
        elif isinstance(part, list):
            part.append("defaced")
        else:
            part.add("defaced")


def picture(node):
    """Return all of a node as a text."""
    return repr((type(node), node.__dict__, sorted(node.__pydantic_fields_set__)))


def prepared_copy(node):
    return base.prepared_copies([NodeWithScore(node=node)])()[0].node


@pytest.mark.parametrize("copied", [base.copied_node, prepared_copy])
@given(node=NODES)
def test_a_copy_is_equal_and_shares_nothing_that_can_be_changed(copied, node):
    before = picture(node)
    made = copied(node)
    deep = node.model_copy(deep=True)
    assert made == deep
    assert made.__pydantic_fields_set__ >= deep.__pydantic_fields_set__
    assert made.to_dict() == deep.to_dict()
    assert not {id(part) for part in changeable(made)} & {id(part) for part in changeable(node)}
    deface(made)
    assert (picture(node), copied(node)) == (before, deep)


@given(NODES)
def test_what_a_copy_is_made_from_changes_no_copy(node):
    made = base.copied_node(node)
    before = picture(made)
    deface(node)
    assert picture(made) == before


def test_circles_are_copied_objects_left_out_and_own_ways_to_copy_kept():
    circle = {"name": ["round"]}
    circle["again"] = circle
    node = TextNode(text="a circle")
    node.metadata["circle"] = circle
    for made in (base.copied_node(node), prepared_copy(node)):
        assert made.metadata["circle"]["again"] is made.metadata["circle"]
        assert made.metadata["circle"] is not circle
        assert made.metadata["circle"]["name"] is not circle["name"]
    node = IndexNode(text="pointer", index_id="elsewhere", obj=threading.Lock())
    made = base.copied_node(node)
    assert made.obj is None
    assert node.obj is not None
    assert made.index_id == "elsewhere"
    node = Own(text="own", metadata={"list": [1], "date": date(2024, 1, 2)}, embedding=[0.5])
    for made, text in (
        (base.copied_node(node), "own copied"),
        (prepared_copy(node), "own copied copied"),
    ):  # one is kept
        assert (made.text, made.metadata, made.embedding) == (text, node.metadata, [0.5])
        assert made.metadata["list"] is not node.metadata["list"]
    node = TextNode(text="what has no form in bytes", metadata={"list": [1], "way": lambda: 1})
    for made in (base.copied_node(node), prepared_copy(node)):
        assert made == node
        assert made.metadata["list"] is not node.metadata["list"]


def test_a_thousand_prepared_nodes_give_the_collector_nothing_to_look_through():
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id="document", metadata={"dates": [date(2024, 1, 2)]})}
    nodes = [NodeWithScore(node=TextNode(text=f"leaf {n}", relationships=source), score=0.5) for n in range(10)]
    before = len(gc.get_objects())
    kept = [base.prepared_copies(nodes) for _ in range(100)]
    gc.collect()
    assert len(gc.get_objects()) - before < 1_000
    first, second, *_ = kept[99]()
    assert (first, second) == (nodes[0], nodes[1])
    assert first.node.relationships[NodeRelationship.SOURCE] is not second.node.relationships[NodeRelationship.SOURCE]


@pytest.mark.parametrize("strategy", retrievers.REGISTRY)
@pytest.mark.parametrize("place", ["memory", "edge"])
def test_whatever_is_done_to_a_result_no_store_cache_or_second_result_shows_it(
    strategy, place, make_index, make_edge_index, settings
):
    def related(name):
        return RelatedNodeInfo(node_id=name, metadata={"deep": [{"er": [name]}]})

    nodes = [
        TextNode(
            id_=f"n{i}", text=f"red apple harvest number {i}",
            metadata={"nested": {"list": [i, {"deep": [i]}]}, "tags": ["a", "b"]}, excluded_llm_metadata_keys=["tags"],
            relationships={NodeRelationship.SOURCE: related(f"doc{i}"), NodeRelationship.CHILD: [related("n9")]},
        )
        for i in range(4)
    ]  # fmt: skip
    index = (make_index if place == "memory" else make_edge_index)(nodes, FakeEmbedding())
    adapter = retrievers.build_adapter(strategy, index, settings)
    request = retrievers.RetrievalRequest("compare the red apple and the harvest", 10)
    stored = [picture(node) for node in index.vector_store.get_nodes()]
    found = adapter.search(request).nodes
    cached = copy.deepcopy(found)
    answered = [picture(n.node) for n in base.copied_nodes(cached)]
    assert found
    for n in (*found, *base.copied_nodes(cached)):
        deface(n)
    assert [picture(node) for node in index.vector_store.get_nodes()] == stored
    assert [picture(n.node) for n in base.copied_nodes(cached)] == answered
    assert [picture(n.node) for n in adapter.search(request).nodes] == answered
