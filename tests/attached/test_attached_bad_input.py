"""What nobody should hand over, and what comes of it."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path

import pytest
from attached_material import (
    AnswersOnly,
    ScriptedRetriever,
    attached,
    contracts,
    index_on,
    query_engine,
    scored,
    summary_index,
    vector_index,
)
from llama_index.core import PropertyGraphIndex, StorageContext, VectorStoreIndex
from llama_index.core.callbacks import CallbackManager
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQueryResult,
)

from agentic_retriever.errors import (
    DeadlineExceededError,
    EmbeddingError,
    EmbeddingMismatchError,
    IndexingError,
    NoEligibleStrategyError,
    StoreError,
)
from agentic_retriever.retrievers import AdapterSettings, RetrievalRequest, build_adapter, cards
from agentic_retriever.testing import FakeEmbedding
from agentic_retriever.testing.retriever_contract import check_result
from agentic_retriever.threads import Workers


@pytest.fixture(scope="module")
def workers():
    with Workers(2, "bad-input") as made:
        yield made


@pytest.fixture
def ask(workers):
    """Asks an attached retriever that gives this reply."""

    def ask(reply, *, top_k=3, filters=None, timeout_s=None):
        made = attached(ScriptedRetriever(reply), description="Rents")
        adapter = build_adapter("vector", made, AdapterSettings(workers=workers))
        return adapter.search(RetrievalRequest("rent", top_k, filters, timeout_s=timeout_s)).nodes

    return ask


class NodeStore(BasePydanticVectorStore):
    """Lists its nodes, perhaps not all of them, and finds all of them."""

    stores_text: bool = True
    kept: list = []
    cut: int = 10_000

    @property
    def client(self):
        return None

    def add(self, nodes, **kwargs):
        self.kept = [*self.kept, *nodes]
        return [node.node_id for node in nodes]

    def delete(self, ref_doc_id, **kwargs):
        raise NotImplementedError

    def get_nodes(self, node_ids=None, filters=None):
        return [node for node in self.kept if node_ids is None or node.node_id in node_ids][: self.cut]

    def query(self, query, **kwargs):
        scores = [sum(a * b for a, b in zip(query.query_embedding, n.embedding, strict=True)) for n in self.kept]
        best = sorted(zip(scores, self.kept, strict=True), key=lambda pair: -pair[0])[: query.similarity_top_k]
        return VectorStoreQueryResult([n for _, n in best], [s for s, _ in best], [n.node_id for _, n in best])


class Unlisted(NodeStore):
    def get_nodes(self, node_ids=None, filters=None):
        raise NotImplementedError


class DeadEmbedding(FakeEmbedding):
    def _get_query_embedding(self, query):
        raise ConnectionError("secret-key")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (7, "got int"),
        (None.__class__, "got type"),
        ("storage/contracts", "got str; a path is a source"),
        (Path("storage/contracts"), "a path is a source"),
        ([TextNode(text="x")], "got list"),
        (SimpleVectorStore(), "got SimpleVectorStore"),
    ],
)
def test_what_is_no_index_is_refused(given, said):
    with pytest.raises(IndexingError, match="must be a LlamaIndex index, query engine or retriever") as caught:
        attached(given)
    assert said in str(caught.value)


def test_an_index_without_its_docstore_is_refused():
    """The in-memory store keeps vectors only, so without the docstore there is nothing to return."""
    kept = vector_index(contracts())
    context = StorageContext.from_defaults(vector_store=kept.vector_store)
    orphan = VectorStoreIndex(
        nodes=None,
        index_struct=kept.index_struct,
        embed_model=FakeEmbedding(dimension=64),
        storage_context=context,
        callback_manager=CallbackManager([]),
    )
    with pytest.raises(IndexingError, match="lists 4 nodes and its docstore has none of them"):
        attached(orphan)


def test_an_index_whose_nodes_nobody_can_list_is_refused():
    graph = PropertyGraphIndex.__new__(PropertyGraphIndex)
    donor = summary_index([])
    graph._index_struct, graph._docstore = PropertyGraphIndex.index_struct_cls(), donor.docstore
    with pytest.raises(IndexingError, match="the nodes of a PropertyGraphIndex cannot be listed"):
        attached(graph)


def test_an_empty_index_is_attached_and_finds_nothing(workers):
    for given in (vector_index([]), summary_index([]), index_on(NodeStore(), [])):
        made = attached(given)
        assert made.count() == 0
        assert made.profile().nodes == 0
        assert build_adapter("hybrid", made, AdapterSettings(workers=workers)).retrieve("rent") == []


def test_other_metadata_than_ours_does_no_harm(workers):
    """Nested, mixed, missing and unhashable values: read, and filtered by the one meaning."""
    odd = [
        TextNode(id_="nested", text="rent of the flat", metadata={"owner": {"name": "Ana"}, "tags": ["a", ["b"]]}),
        TextNode(id_="none", text="rent of the garage", metadata={"owner": None, "tags": [], "year": math.inf}),
        TextNode(id_="mixed", text="rent of the boat", metadata={"owner": 5, "tags": "a", "year": "2024-05-01"}),
        TextNode(id_="plain", text="rent of the hall"),
    ]
    made = attached(vector_index(odd))
    for strategy in ("vector", "hybrid", "metadata", "planner"):
        adapter = build_adapter(strategy, made, AdapterSettings(workers=workers))
        filters = MetadataFilters(filters=[MetadataFilter(key="tags", value="a")])
        assert {n.node_id for n in adapter.search(RetrievalRequest("rent", 9, filters)).nodes} == {"nested", "mixed"}
        assert len(adapter.search(RetrievalRequest("rent", 9)).nodes) == 4


def test_a_store_that_cuts_its_list_is_asked_as_a_retriever():
    """Ten of twelve nodes are listed: words would be searched in ten of them only."""
    texts = {f"n{i}": (f"rent number {i}", "contract", 2020) for i in range(12)}
    nodes = contracts(texts=texts)
    whole = attached(index_on(NodeStore(), nodes), name="whole")
    assert [card.strategy.value for card in cards(whole)] == ["vector", "hybrid", "planner", "metadata"]
    assert whole.count() == 12
    for store in (NodeStore(cut=10), Unlisted()):
        made = attached(index_on(store, contracts(texts=texts)))
        assert [card.strategy.value for card in cards(made)] == ["vector"]
        found = build_adapter("vector", made, AdapterSettings()).search(RetrievalRequest("rent number 11", 12)).nodes
        assert len(found) == 12


def test_what_cannot_be_listed_needs_a_description():
    for given in (ScriptedRetriever([]), index_on(Unlisted(), contracts())):
        with pytest.raises(IndexingError, match="needs a description"):
            attached(given, description=" ")


def test_an_index_without_an_embedding_model_is_searched_by_words(caplog, workers):
    index = vector_index(contracts())
    index._embed_model = None
    made = attached(index)
    assert "no embedding model" in caplog.text
    assert [card.strategy.value for card in cards(made)] == ["hybrid", "planner"]
    found = build_adapter("hybrid", made, AdapterSettings(workers=workers)).search(RetrievalRequest("paid leave", 2))
    assert found.nodes[0].node_id == "staff"
    assert not found.degraded
    with pytest.raises(NoEligibleStrategyError, match="it serves: hybrid, planner"):
        build_adapter("vector", made, AdapterSettings(workers=workers))


def test_an_unlisted_index_without_an_embedding_model_is_refused():
    index = index_on(Unlisted(), contracts())
    index._embed_model = None
    with pytest.raises(IndexingError, match="has no embedding model and its nodes cannot be listed"):
        attached(index)


def test_another_embedding_model_than_that_of_the_vectors_is_found_out():
    index = vector_index(contracts())
    index._embed_model = FakeEmbedding(dimension=16, model_name="another")
    with pytest.raises(EmbeddingMismatchError, match=r"dimension 64, its embedding model .*another gives 16"):
        attached(index)


def test_a_dead_embedding_model_is_named_without_its_words():
    index = vector_index(contracts())
    index._embed_model = DeadEmbedding(dimension=64, model_name="dead")
    with pytest.raises(EmbeddingError, match="DeadEmbedding:dead failed: ConnectionError") as caught:
        attached(index)
    assert "secret" not in str(caught.value)
    assert isinstance(index._embed_model, BaseEmbedding)


def test_a_query_engine_that_cannot_retrieve_is_refused():
    with pytest.raises(IndexingError, match="a AnswersOnly cannot retrieve without answering"):
        attached(AnswersOnly())


def test_a_query_engine_is_asked_for_nodes_and_never_for_an_answer(workers):
    engine = query_engine(vector_index(contracts()).as_retriever(similarity_top_k=1))
    made = attached(engine)
    found = build_adapter("vector", made, AdapterSettings(workers=workers)).search(RetrievalRequest("paid leave", 3))
    assert len(found.nodes) == 3
    assert found.nodes[0].node_id == "staff"
    assert engine.retriever.similarity_top_k == 1, "the engine itself was changed"


def test_a_retriever_that_raises_is_named(ask):
    with pytest.raises(StoreError, match="the ScriptedRetriever of index contracts failed with KeyError") as caught:
        ask(KeyError("secret-key"))
    assert "secret" not in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_retriever_that_blocks_is_given_up_on(ask):
    """Row 24: the search ends with its time, whatever the retriever does."""
    free = threading.Event()
    start = time.perf_counter()
    try:
        with pytest.raises(DeadlineExceededError, match="index contracts did not answer within"):
            ask(lambda _query: free.wait(30) or [], timeout_s=0.1)
        assert time.perf_counter() - start < 5
    finally:
        free.set()


def test_duplicates_are_returned_once_with_their_best_score(ask):
    found = ask([scored("a", 0.2), scored("b", 0.5), scored("a", 0.9), scored("b", None)])
    assert [(n.node_id, n.score) for n in found] == [("a", 0.9), ("b", 0.5)]


def test_scores_that_are_no_numbers_rank_last(ask):
    """Row 22."""
    found = ask([scored("none", None), scored("nan", math.nan), scored("good", -3.0), scored("inf", math.inf)], top_k=9)
    check_result(found, 9)
    assert found[0].node_id == "good"
    assert {n.node_id for n in found[1:]} == {"none", "nan", "inf"}


def test_nodes_without_any_score_keep_their_order(ask):
    """A summary or keyword table retriever gives no scores, but an order."""
    found = ask([scored("z", None), scored("a", None), scored("m", None)])
    assert [n.node_id for n in found] == ["z", "a", "m"]
    check_result(found, 3)


def test_missing_nodes_are_passed_over(ask):
    assert [n.node_id for n in ask([None, scored("a", 0.5), None])] == ["a"]
    assert ask([None]) == []
    assert ask(None) == []


def test_bare_nodes_are_taken(ask):
    assert [n.node_id for n in ask([TextNode(id_="a", text="rent"), TextNode(id_="b", text="rent")])] == ["a", "b"]


def test_more_than_was_asked_for_is_cut(ask):
    assert [n.node_id for n in ask([scored(f"n{i}", i / 10) for i in range(9)], top_k=2)] == ["n8", "n7"]


@pytest.mark.parametrize("reply", ["text", 7, {"a": 1}, ["text"], iter([])])
def test_what_is_no_list_of_nodes_is_named(ask, reply):
    with pytest.raises(StoreError, match="a list of NodeWithScore is needed"):
        ask(reply)


def test_filters_hold_for_whatever_a_retriever_gives(ask):
    given = [scored(f"n{i}", i / 10, year=2020 + i % 3) for i in range(9)]
    filters = MetadataFilters(filters=[MetadataFilter(key="year", operator=">", value=2021)])
    assert [n.node_id for n in ask(given, top_k=9, filters=filters)] == ["n8", "n5", "n2"]


def test_a_retriever_is_asked_for_more_while_too_few_satisfy_the_filters(workers):
    """Two of 200 nodes satisfy the filter, and are the farthest from the question."""
    nodes = [TextNode(id_=f"n{i:03}", text="rent " * (1 + i % 7), metadata={"i": i}) for i in range(198)]
    nodes += [TextNode(id_=f"x{i}", text="other words altogether", metadata={"i": 1_000 + i}) for i in range(2)]
    retriever = vector_index(nodes).as_retriever(similarity_top_k=2)
    made = attached(retriever, description="Rents")
    filters = MetadataFilters(filters=[MetadataFilter(key="i", operator=">=", value=1_000)])
    adapter = build_adapter("vector", made, AdapterSettings(workers=workers))
    found = adapter.search(RetrievalRequest("rent", 2, filters)).nodes
    assert {n.node_id for n in found} == {"x0", "x1"}
    assert retriever.similarity_top_k == 2


def test_results_are_copies_of_what_a_retriever_gave(ask):
    """Row 20: what a caller does to a result changes nothing that the retriever keeps."""
    kept: list[NodeWithScore] = [scored("a", 0.5, year=2024)]
    ask(kept)[0].node.metadata["year"] = 1
    assert kept[0].node.metadata == {"year": 2024}
    assert kept[0].score == 0.5
