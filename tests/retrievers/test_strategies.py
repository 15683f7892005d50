import itertools
import json
import sys
from typing import get_args
from unittest.mock import Mock

import pytest
from llama_index.core.schema import Document, IndexNode, NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import MetadataFilters
from search_material import ask, ids, of_document
from store_tools import where

from agentic_retriever import AgenticRouter, RouterConfig, retrievers
from agentic_retriever.embeddings import EmbeddingModel
from agentic_retriever.errors import EmbeddingError, RetrievalError, StoreError, UnknownStrategyError
from agentic_retriever.filters import matches, node_fields
from agentic_retriever.indices import Index, Indexer, IndexStorage
from agentic_retriever.indices.derived import LeafHit
from agentic_retriever.indices.profile import MeasuredStrategies, StrategyMeasure
from agentic_retriever.ingestion.chunking import ChunkSettings
from agentic_retriever.retrievers import REGISTRY, Fusion, RecursiveRetriever, SummaryRetriever, build_adapter, cards
from agentic_retriever.retrievers.chunk_decoupling import SPAN_KEY
from agentic_retriever.retrievers.recursive import REFERRED, merged
from agentic_retriever.schema import Strategy, View
from agentic_retriever.testing import FakeEmbedding, FakeLLM
from agentic_retriever.testing.retriever_contract import RetrieverContract


def test_every_entry_is_whole_and_stands_in_declared_order(make_index, settings):
    index = make_index([])
    for strategy, spec in REGISTRY.items():
        adapter = build_adapter(strategy.value, index, settings)
        assert isinstance(adapter, retrievers.RetrieverAdapter)
        assert adapter.strategy is spec.strategy is strategy
        assert spec.build.__name__ in retrievers.__all__
        assert spec.description.endswith(".")
        assert "\n" not in spec.description
        assert spec.needs
        assert spec.cost >= 1
        assert spec.typical_ms > 0
    assert list(REGISTRY) == [strategy for strategy in Strategy if strategy in REGISTRY]
    with pytest.raises(TypeError):
        REGISTRY[Strategy.SUMMARY] = None
    assert set(get_args(RouterConfig.model_fields["fusion"].annotation)) == {fusion.value for fusion in Fusion}


def test_cards_are_of_what_the_index_can_serve_with_what_was_measured(make_index):
    index = make_index([])
    offered = cards(index)
    always = [card.strategy for card in offered]
    assert always == [Strategy.VECTOR, Strategy.HYBRID, Strategy.PLANNER, Strategy.METADATA]
    assert not any(card.measured or card.quality is not None for card in offered)
    assert offered[1].needs == (View.CHUNKS, View.KEYWORD)
    index.views = (View.SUMMARY,)
    assert {card.strategy for card in cards(index)} - {*always} == {Strategy.SUMMARY}
    index.views = (View.HIERARCHY,)
    assert {card.strategy for card in cards(index)} - {*always} == {Strategy.RECURSIVE, Strategy.CHUNK_DECOUPLING}
    measures = {
        Strategy.HYBRID: StrategyMeasure(quality=0.8, p50_ms=7.5),
        Strategy.SUMMARY: StrategyMeasure(quality=0.9, p50_ms=1.0),
    }
    origin = {"dataset": "d", "index": "i", "index_version": 1, "queries": 10, "measured_on": "2026-01-01"}
    found = cards(make_index([]), measured=MeasuredStrategies(strategies=measures, **origin))
    measured = {card.strategy: card for card in found}
    assert Strategy.SUMMARY not in measured  # measured once, but the index cannot serve it now
    hybrid, vector = measured[Strategy.HYBRID], measured[Strategy.VECTOR]
    assert (hybrid.quality, hybrid.typical_ms, hybrid.measured) == (0.8, 7.5, True)
    assert (vector.quality, vector.typical_ms, vector.measured) == (None, REGISTRY[Strategy.VECTOR].typical_ms, False)


@pytest.mark.parametrize("name", ["hybird", "", "planner_", "VECTOR"])
def test_an_unknown_strategy_is_named_with_those_there_are(name, make_index, settings):
    with pytest.raises(UnknownStrategyError, match=r"known: .*hybrid, .*vector"):
        build_adapter(name, make_index([]), settings)
    with pytest.raises(UnknownStrategyError, match="did you mean 'hybrid'"):
        retrievers.spec_of("hybird")


LANDS = {
    "a": {"province": "เชียงใหม่", "deed_type": "โฉนด", "area_rai": 7.25, "year": 2561},
    "b": {"province": "เชียงใหม่", "deed_type": "โฉนด", "area_rai": 12.0, "year": 2540},
    "c": {"province": "เชียงใหม่", "deed_type": "น.ส.3", "area_rai": 6.0, "year": 2560},
    "d": {"province": "ลำพูน", "deed_type": "โฉนด", "area_rai": 8.0, "year": 2555},
    "e": {"province": "ชลบุรี", "deed_type": "โฉนด", "area_rai": 5.0, "year": 2566},
}


@pytest.fixture
def make_lands(tmp_path):
    """Make a router over an index of lands; closing it is the test's."""

    def make(llm=None):
        router = AgenticRouter(RouterConfig(data_dir=tmp_path), embedding=FakeEmbedding(dimension=32), llm=llm)
        texts = {name: f"ที่ดินแปลง {name} เนื้อที่ {land['area_rai']} ไร่" for name, land in LANDS.items()}
        documents = [Document(text=text, doc_id=name, metadata=LANDS[name]) for name, text in texts.items()]
        router.add_index("lands", documents, description="ที่ดิน")
        return router

    return make


@pytest.fixture
def router(make_lands):
    with make_lands() as made:
        yield made


def doc_ids(retrieval):
    return sorted(n.node.ref_doc_id for n in retrieval.nodes)


def test_values_and_ranges_become_filters_and_an_impossible_one_is_dropped_and_named(router):
    retrieval = router.retrieve("ที่ดินในเชียงใหม่ โฉนด พื้นที่ 5 ถึง 10 ไร่", strategy="metadata")
    assert (doc_ids(retrieval), len(retrieval.understood)) == (["a"], 3)
    assert not retrieval.degraded
    retrieval = router.retrieve("ที่ดินในเชียงใหม่ โฉนด พื้นที่ 5 ถึง 10 ไร่ หลังปี 2599", strategy="metadata")
    assert doc_ids(retrieval) == ["a"]
    [lost] = retrieval.degraded
    assert lost.step == "metadata.filter"
    assert "2599" in lost.reason
    assert len(retrieval.understood) == 3
    answer = router.query("ที่ดินในเชียงใหม่ โฉนด พื้นที่ 5 ถึง 10 ไร่", strategy="metadata")
    assert len(answer.to_dict()["understood"]) == 3


def test_a_callers_filter_is_never_relaxed_and_new_values_are_known_at_once(router):
    mine = where("province", "ลำพูน")
    assert doc_ids(router.retrieve("โฉนดในเชียงใหม่ พื้นที่ 5 ถึง 10 ไร่", strategy="metadata", filters=mine)) == ["d"]
    assert doc_ids(router.retrieve("โฉนดในเชียงใหม่", strategy="metadata", filters=where("province", "ไม่มี"))) == []
    plain, dense = (router.retrieve("อะไรดี", strategy=strategy) for strategy in ("metadata", "vector"))
    assert (ids(plain), plain.understood) == (ids(dense), ())  # without clauses it is dense search
    question = "โฉนดในภูเก็ต พื้นที่ 5 ถึง 10 ไร่"
    assert "ภูเก็ต" not in " ".join(router.retrieve(question, strategy="metadata").understood)
    metadata = {"province": "ภูเก็ต", "deed_type": "โฉนด", "area_rai": 6.0, "year": 2560}
    router.add_index("lands", [Document(text="ที่ดินแปลง f", doc_id="f", metadata=metadata)])
    assert doc_ids(router.retrieve(question, strategy="metadata")) == ["f"]


def test_what_a_doubtful_condition_finds_is_joined_to_what_is_found_without_it(router):
    for question, others in (("เนื้อที่ของแปลง d ในเชียงใหม่", True), ("เนื้อที่ของแปลง d (เชียงใหม่)", False)):
        found = router.retrieve(question, strategy="metadata")
        assert found.understood == ("province is เชียงใหม่",)
        assert doc_ids(found) == (["a", "b", "c", "d", "e"] if others else ["a", "b", "c"])


def test_a_failing_model_leaves_the_filters_that_words_give(make_lands):
    with make_lands(FakeLLM([ConnectionError("down")])) as router:
        retrieval = router.retrieve("ที่ดินในลำพูน หลังปี 2550", strategy="metadata")
        assert doc_ids(retrieval) == ["d"]
        assert "filters.llm" in {d.step for d in retrieval.degraded}


def test_the_model_is_asked_and_cannot_filter_on_what_is_not_there(make_lands):
    wrong = {"field": "secret", "operator": "==", "value": "x"}
    reply = json.dumps([wrong, {"field": "province", "operator": "==", "value": "ลำพูน"}])
    with make_lands(FakeLLM([reply])) as router:
        retrieval = router.retrieve("where is d", strategy="metadata")
        assert "secret" not in " ".join(retrieval.understood)
        assert "filters.llm" in {d.step for d in retrieval.degraded}


def test_summaries_are_written_by_the_model_where_there_is_one(make_lands):
    model = FakeLLM(["<think>Hm.</think>A summary that the model wrote."])
    with make_lands(model) as router:
        router.build_views("lands")
        assert "summary" in {view.value for view in router.index("lands").views}
        assert any("ที่ดินแปลง" in prompt for prompt in model.prompts)


STRATEGIES = (Strategy.RECURSIVE, Strategy.CHUNK_DECOUPLING, Strategy.SUMMARY)
CLASSES = (RecursiveRetriever, retrievers.ChunkDecouplingRetriever, SummaryRetriever)


@pytest.fixture(scope="module")
def make_whole_index(tmp_path_factory):
    """Make an index with everything, on disk; those of equal nodes are shared, as tests only read them."""
    storage, known = IndexStorage(tmp_path_factory.mktemp("views")), {}

    def make(nodes, embedding=None, **sizes):
        model = embedding or FakeEmbedding()
        key = (*(node.to_json() for node in nodes), *sizes.items())
        if key in known and embedding is None:
            return known[key]
        chunks = ChunkSettings(**{"chunk_size": 256, "chunk_overlap": 0, "leaf_size": 12, **sizes})
        name = f"index{len(storage.names())}"
        index = storage.create(name, EmbeddingModel(model, name="fake"), description="", chunks=chunks)
        # The contract speaks of texts; with their metadata, these vectors would mean something else.
        plain = [n.model_copy(update={"excluded_embed_metadata_keys": list(n.metadata)}) for n in nodes]
        if plain:
            Indexer(index).add_nodes(plain)
        index.build_views()
        model.calls.clear()
        if embedding is None:
            known[key] = index
        return index

    yield make
    storage.close()


@pytest.mark.parametrize(
    ("make", "strategy", "fusion"),
    [
        *(("make_index", strategy, Fusion.CALIBRATED) for strategy in REGISTRY),
        *(("make_index", Strategy.HYBRID, fusion) for fusion in (Fusion.WEIGHTED, Fusion.RRF, Fusion.BORDA)),
        *(("make_edge_index", strategy, Fusion.CALIBRATED) for strategy in REGISTRY),
        *(("make_whole_index", strategy, Fusion.CALIBRATED) for strategy in STRATEGIES),
    ],
)
class TestContract(RetrieverContract):
    @pytest.fixture(autouse=True)
    def _given(self, request, make, strategy, fusion, make_settings):
        self.make_index, self.make_settings = request.getfixturevalue(make), make_settings
        self.strategy, self.fusion = strategy, fusion

    def make_adapter(self, nodes, *, embedding, top_k=10, filters=None):
        settings = self.make_settings(top_k=top_k, filters=filters, fusion=self.fusion)
        return build_adapter(self.strategy, self.make_index(nodes, embedding), settings)

    def make_failing_adapter(self, nodes, *, embedding):
        if self.strategy not in {Strategy.HYBRID, *STRATEGIES}:
            return None
        index = self.make_index(nodes, embedding)
        index.keyword = index.hierarchy = index.summaries = Mock(side_effect=StoreError("the view is gone"))
        return build_adapter(self.strategy, index, self.make_settings())


def book(*texts):
    return [of_document(f"c{i}", text, "book", title="Book", part=i) for i, text in enumerate(texts)]


@pytest.mark.parametrize("adapter", CLASSES)
def test_a_missing_view_and_a_foreign_index_are_searched_densely(adapter, make_index, settings):
    index = make_index(book("red apple harvest", "blue sea", "green hills"))
    index.hierarchy = index.summaries = Mock(side_effect=StoreError("the view is gone"))
    result = ask(adapter(index, settings), "red apple")
    assert ids(result) == ids(ask(retrievers.VectorRetriever(index, settings), "red apple"))
    assert [d.step.split(".")[0] for d in result.degraded] == [adapter.strategy.value]
    assert "the view is gone" in result.degraded[0].reason
    index = make_index(book("red apple harvest", "blue sea"))

    class Foreign(Index):
        name, description, version = index.name, index.description, 1
        vector_store, embedding = index.vector_store, index.embedding
        keyword, count, profile = index.keyword, index.count, index.profile

    result = ask(adapter(Foreign(), settings), "red apple")
    assert ids(result)[0] == "c0"
    assert any("keeps no" in step.reason for step in result.degraded)


@pytest.mark.parametrize("adapter", CLASSES)
def test_a_question_that_cannot_be_embedded_is_searched_by_words(adapter, make_index, settings):
    index = make_index(book("red apple harvest"))
    index.embedding.embed_query = Mock(side_effect=EmbeddingError("the model is down"))
    result = ask(adapter(index, settings), "red apple")
    assert [(one.node.node_id, set(retrievers.source_scores(one))) for one in result.nodes] == [("c0", {"bm25"})]
    told = {"step": f"{adapter.strategy.value}.dense", "reason": "the model is down", "fallback": "BM25 search alone"}
    assert [lost.to_dict() for lost in result.degraded] == [told]
    index.keyword = Mock(side_effect=StoreError("no words"))
    with pytest.raises(RetrievalError, match="dense: the model is down; bm25: no words"):
        ask(adapter(index, settings), "red apple")
    assert ids(ask(adapter(index, settings), "red", query_vector=tuple([1.0] * 32))) == ["c0"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_filters_are_exact_for_every_operator(strategy, make_whole_index, settings):
    words = ("red", "green", "blue", "apple", "pear", "river")
    texts = [f"{words[i % 6]} {words[i % 5]} story {i}. Another {words[i % 4]} line follows." for i in range(40)]
    rows = [{"year": 2000 + i % 7, "kind": "abc"[i % 3], "chunk_type": ["text", "table"][i % 2]} for i in range(40)]
    nodes = [of_document(f"n{i:02d}", texts[i], f"doc{i % 8}", **rows[i]) for i in range(40)]
    adapter = build_adapter(strategy, make_whole_index(nodes), settings)
    cases = [
        where("kind", "a"), where("chunk_type", "table"), where("year", 2003, ">="),
        where("year", [2001, 2006], "in"), where("doc_id", "doc3"), where("kind", "a", "!="),
        MetadataFilters(filters=[*where("kind", "b").filters, *where("year", 2002, "<").filters]),
        where("kind", "zzz"),
        where("missing", None, "is_empty"),
    ]  # fmt: skip
    for filters in cases:
        allowed = {n.node_id for n in nodes if matches(node_fields(n), filters)}
        result = ask(adapter, "red apple story", top_k=40, filters=filters)
        assert set(ids(result)) == allowed, filters
        assert result.degraded == ()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_as_many_nodes_as_asked_for(strategy, make_whole_index, settings):
    long = " ".join(f"The apple tree number {i} stands in row {i} of the garden." for i in range(80))
    stones = [TextNode(id_=f"s{i:02d}", text=f"stone {i} lies there") for i in range(30)]
    adapter = build_adapter(strategy, make_whole_index([TextNode(id_="long", text=long), *stones]), settings)
    assert len(ask(adapter, "apple tree in the garden", top_k=20).nodes) == 20


def hit(chunk, score, *, siblings=4, leaf=0):
    return LeafHit(leaf_id=f"{chunk}/L{leaf:02d}", chunk_id=chunk, score=score, start=0, end=1, siblings=siblings)


def test_leaves_are_merged_from_the_ratio_on_and_score_below_one():
    hits = [hit("a", 0.8), hit("a", 0.7, leaf=1), hit("b", 0.82), hit("c", 0.81, siblings=1), hit("d", 0.5, siblings=9)]
    hits += [hit("d", 0.4, siblings=9, leaf=1)]
    chunks = {chunk.chunk_id: chunk for chunk in merged(hits, 0.5)}
    assert chunks["a"].score > 0.8
    assert (chunks["a"].leaf_score, chunks["a"].is_merged) == (0.8, True)
    assert (chunks["b"].score, chunks["c"].score, chunks["d"].score) == (0.82, 0.81, 0.5)
    assert not chunks["c"].is_merged
    assert ([c.chunk_id for c in merged(hits, 1.0)], merged([], 0.5)) == (["b", "c", "a", "d"], [])
    (chunk,) = merged([hit("a", 1.0, leaf=i) for i in range(4)])
    assert chunk.score == 1.0
    (chunk,) = merged([hit("a", -0.5, leaf=i) for i in range(4)])
    assert -0.5 < chunk.score < 0


def article(number, text, doc="law", **more):
    title = "General Law" if doc == "law" else "Annex III. Lights"
    return of_document(f"{doc}-{number}", text, doc, title=title, article_number=number, **more)


LAW = [
    article("1", "Speeding drivers of red lorries are punished under article 2."),
    article("2", "Whoever breaks the rule pays; amounts stand in article 3."),
    article("3", "The amount is ninety crowns. Article 1 says who pays, article 3 how much, article 77 nothing."),
    article("4", "Holidays begin in August."),
    article("5", "Lamps follow section 6.2 of Annex III."),
    article("", "Dipped beams glow white.", doc="annex", section_number="6.2"),
]


def following(depth, index, settings):
    adapter = RecursiveRetriever(index, settings)
    adapter.depth = depth
    return adapter


def test_references_are_followed_to_their_depth_and_score_below_their_referrer(make_index, settings):
    index = make_index(LAW)
    query = "drivers of red lorries speeding"

    def reached(depth):
        result = ask(following(depth, index, settings), query, top_k=6)
        return {n.node_id for n in result.nodes if REFERRED in retrievers.source_scores(n)}

    assert reached(0) == set()
    assert "law-2" in reached(1)
    assert reached(1) <= reached(2)
    index = make_index([*LAW, *(article(f"9{i}", f"Matter number {i} of the archive.") for i in range(30))])
    query = "speeding drivers of red lorries are punished"
    with_references = ask(RecursiveRetriever(index, settings), query, top_k=6)
    without = ask(following(0, index, settings), query, top_k=6)
    assert ids(with_references)[0] == ids(without)[0] == "law-1"
    assert "law-2" in ids(with_references)[:4]
    scores = {n.node_id: n.score for n in with_references.nodes}
    assert scores["law-2"] < scores["law-1"]


@pytest.mark.parametrize(
    ("query", "top_k", "filters", "expected"),
    [
        ("Lamps follow what", 2, None, {"law-5", "annex-"}),  # a reference into another document
        ("red lorries", 5, where("article_number", "1"), {"law-1"}),
        (
            "drivers of red lorries speeding",
            6,
            where("article_number", ["1", "2", "3"], "in"),
            {"law-1", "law-2", "law-3"},
        ),
    ],
)
def test_filters_hold_for_what_is_referred_to(make_index, settings, query, top_k, filters, expected):
    result = ask(RecursiveRetriever(make_index(LAW), settings), query, top_k=top_k, filters=filters)
    assert set(ids(result)) == expected


def linked(count):
    nodes = [TextNode(id_=f"k{i:04d}", text=f"link {i} of the chain") for i in range(count)]
    for i, node in enumerate(nodes):
        node.relationships[NodeRelationship.NEXT] = RelatedNodeInfo(node_id=nodes[(i + 1) % count].node_id)
        if i:
            node.relationships[NodeRelationship.PREVIOUS] = RelatedNodeInfo(node_id=nodes[i - 1].node_id)
    return nodes


def test_circles_self_links_missing_targets_and_long_chains_end(make_index, settings):
    nodes = linked(2)
    nodes[0].relationships[NodeRelationship.CHILD] = [RelatedNodeInfo(node_id=i) for i in ("k0000", "no such node")]
    nodes.append(IndexNode(id_="pointer", text="points to itself", index_id="pointer"))
    nodes.append(IndexNode(id_="forward", text="points to a link", index_id="k0001"))
    result = ask(following(1_000, make_index(nodes), settings), "link 0 of the chain", top_k=4)
    assert (sorted(ids(result)), result.degraded) == (["forward", "k0000", "k0001", "pointer"], ())
    limit = sys.getrecursionlimit()
    result = ask(following(1_000, make_index(linked(1_000)), settings), "link 5 of the chain", top_k=50)
    assert (len(result.nodes), sys.getrecursionlimit()) == (50, limit)
    json.dumps([n.score for n in result.nodes])


def test_a_deadline_or_failing_store_while_following_gives_what_was_found(
    make_index, make_settings, settings, monkeypatch
):
    now = [0.0]
    index = make_index(LAW)
    adapter, query = RecursiveRetriever(index, make_settings(timer=lambda: now[0], deadline_s=5.0)), index.hierarchy

    def slow(timeout_s=None):
        now[0] += 10.0
        return query()

    index.hierarchy = slow
    result = ask(adapter, "speeding drivers of red lorries", top_k=1)
    assert (ids(result), [d.step for d in result.degraded]) == (["law-1"], ["recursive.references"])
    index = make_index(LAW)
    adapter = RecursiveRetriever(index, settings)
    query = type(index.vector_store).query

    def failing(self, asked, **kwargs):
        if asked.node_ids:
            raise OSError("disk gone")
        return query(self, asked, **kwargs)

    monkeypatch.setattr(type(index.vector_store), "query", failing)
    result = ask(adapter, "speeding drivers")
    assert "law-1" in ids(result)
    assert [d.step for d in result.degraded] == ["recursive.references"]
    assert "disk gone" not in result.degraded[0].reason


def test_every_fine_hit_carries_its_window_and_its_place(make_whole_index, settings):
    filler = " ".join(f"Filler line {i} says nothing new." for i in range(6))
    nodes = book(f"{filler} The violet lantern hangs above door nine. {filler}", f"{filler} Nothing here.")
    for node in nodes:
        node.start_char_idx, node.end_char_idx = 1_000, 1_000 + len(node.text)
    adapter = retrievers.ChunkDecouplingRetriever(make_whole_index(nodes), settings)
    best = ask(adapter, "violet lantern hangs above door nine").nodes[0]
    assert (best.node_id, best.node.text) == ("c0", nodes[0].text)
    assert (best.node.start_char_idx, best.node.end_char_idx) == (1_000, 1_000 + len(nodes[0].text))
    span = retrievers.details(best)[SPAN_KEY]
    assert "violet lantern" in best.node.text[span["start"] : span["end"]]
    assert len(best.node.text[span["start"] : span["end"]]) < len(best.node.text) / 2
    scores = retrievers.source_scores(best)
    assert scores["leaf"] > scores["chunk"]
    assert best.score == pytest.approx((scores["leaf"] + scores["chunk"]) / 2)


def test_chunks_alone_when_the_leaves_fail_and_leaves_alone_when_the_chunks_do(make_index, settings, monkeypatch):
    index = make_index(book("red apple harvest", "blue sea", "green hills"))
    query = type(index.vector_store).query

    def failing(self, asked, **kwargs):
        if self is index.vector_store:
            raise OSError("disk gone")
        return query(self, asked, **kwargs)

    monkeypatch.setattr(type(index.vector_store), "query", failing)
    result = ask(retrievers.ChunkDecouplingRetriever(index, settings), "red apple harvest")
    assert ids(result)[0] == "c0"
    assert [(d.step, d.fallback) for d in result.degraded] == [("chunk_decoupling.chunk", "leaves alone")]


def test_leaves_of_chunks_that_are_gone_are_left_out(make_index, settings):
    index = make_index(book("red apple harvest", "red apple pie", "green hills"))
    view = index.hierarchy()
    del index.vector_store.kept["c1"]
    index.hierarchy = lambda *, timeout_s=None: view
    for adapter in (retrievers.ChunkDecouplingRetriever, RecursiveRetriever):
        assert sorted(ids(ask(adapter(index, settings), "red apple"))) == ["c0", "c2"]


def library(count):
    places = itertools.product(range(count), range(3))
    return [of_document(f"b{b:02d}-{p}", f"topic{b} chapter {p} of the tale", f"b{b:02d}", book=b) for b, p in places]


def test_chunks_come_from_the_chosen_documents_and_through_filters_from_those_far_down(make_index, settings):
    adapter = SummaryRetriever(make_index(library(40)), settings)
    result = ask(adapter, "topic7", top_k=3)
    assert ids(result)[0].startswith("b07")
    assert all({"dense", "summary"} <= set(retrievers.source_scores(n)) for n in result.nodes)
    assert sorted(ids(ask(adapter, "topic7", top_k=3, filters=where("book", 33)))) == ["b33-0", "b33-1", "b33-2"]


def test_sparse_summaries_are_not_used_and_no_document_chosen_is_not_every_document(make_index, settings):
    index = make_index(library(10))
    view = index.summaries()
    view.summarised = 4
    index.summaries = lambda *, timeout_s=None: view
    result = ask(SummaryRetriever(index, settings), "topic7")
    assert ids(result) == ids(ask(retrievers.VectorRetriever(index, settings), "topic7"))
    assert "only 4 of 10 documents" in result.degraded[0].reason
    index = make_index(library(3))
    view = index.summaries()
    view.search = lambda vector, top_k: []
    index.summaries = lambda *, timeout_s=None: view
    index.vector_store.queries.clear()
    result = ask(SummaryRetriever(index, settings), "topic1", top_k=2, filters=where("book", 1))
    assert {i[:3] for i in ids(result)} == {"b01"}
    assert all(query.node_ids != [] for query in index.vector_store.queries)


def test_a_document_that_is_about_it_lifts_its_chunks(make_index, settings):
    other = [of_document("a0", "red apple", "other"), of_document("a1", "blue sea", "other")]
    index = make_index([*other, *book("red apple", "red apple pie", "an apple is red")])
    assert ids(ask(build_adapter(Strategy.HYBRID, index, settings), "red apple"))[0] == "a0"  # as near as c0
    result = ask(SummaryRetriever(index, settings), "red apple")
    scores = {one.node.node_id: retrievers.source_scores(one)["document"] for one in result.nodes}
    assert scores["c0"] > scores["a0"]
    assert ids(result)[0] == "c0"
