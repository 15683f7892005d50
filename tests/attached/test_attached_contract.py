"""Attached indexes under the contract of every retriever, what nobody should hand over, and what comes of it."""

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
    ids,
    index_on,
    query_engine,
    scored,
    search,
    summary_index,
    vector_index,
    where,
)
from llama_index.core import PropertyGraphIndex, StorageContext, VectorStoreIndex
from llama_index.core.callbacks import CallbackManager
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQueryResult

from agentic_retriever.errors import (
    DeadlineExceededError,
    EmbeddingError,
    EmbeddingMismatchError,
    IndexingError,
    NoEligibleStrategyError,
    StoreError,
)
from agentic_retriever.indices import QdrantEdgeVectorStore
from agentic_retriever.retrievers import AdapterSettings, build_adapter, cards
from agentic_retriever.schema import Strategy
from agentic_retriever.testing import FakeEmbedding
from agentic_retriever.testing.retriever_contract import QUERY, RetrieverContract, check_result, contract_nodes
from agentic_retriever.threads import Workers


def ask(reply, top_k=3, filters=None, *, timeout_s=None):
    """Ask an attached retriever that gives this reply."""
    made = attached(ScriptedRetriever(reply), description="Rents")
    return search(made, "vector", "rent", top_k, filters, timeout_s=timeout_s).nodes


def served(made):
    return [card.strategy.value for card in cards(made)]


def without_model(index):
    index._embed_model = None
    return index


def with_model(index, model):
    index._embed_model = model
    return index


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

    def get_nodes(self, node_ids, filters=None):  # without a default, as Chroma's
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


def orphan():
    """The in-memory store keeps vectors only, so without the docstore there is nothing to return."""
    kept = vector_index(contracts())
    context = StorageContext.from_defaults(vector_store=kept.vector_store)
    return VectorStoreIndex(
        nodes=None,
        index_struct=kept.index_struct,
        embed_model=FakeEmbedding(dimension=64),
        storage_context=context,
        callback_manager=CallbackManager([]),
    )


def graph():
    made = PropertyGraphIndex.__new__(PropertyGraphIndex)
    made._index_struct, made._docstore = PropertyGraphIndex.index_struct_cls(), summary_index([]).docstore
    return made


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (orphan, IndexingError, "lists 4 nodes and its docstore has none of them"),
        (graph, IndexingError, "the nodes of a PropertyGraphIndex cannot be listed"),
        (AnswersOnly, IndexingError, "a AnswersOnly cannot retrieve without answering"),
        (
            lambda: without_model(index_on(Unlisted(), contracts())),
            IndexingError,
            "has no embedding model and its nodes cannot be listed",
        ),
        (
            lambda: with_model(vector_index(contracts()), FakeEmbedding(dimension=16, model_name="another")),
            EmbeddingMismatchError,
            r"dimension 64, its embedding model .*another gives 16",
        ),
        (
            lambda: with_model(vector_index(contracts()), DeadEmbedding(dimension=64, model_name="dead")),
            EmbeddingError,
            "DeadEmbedding:dead failed: ConnectionError",
        ),
    ],
)
def test_what_cannot_be_searched_is_refused_without_foreign_words(make, error, said):
    with pytest.raises(error, match=said) as caught:
        attached(make())
    assert "secret" not in str(caught.value)


def test_an_empty_index_is_attached_and_finds_nothing():
    for given in (vector_index([]), summary_index([]), index_on(NodeStore(), [])):
        made = attached(given)
        assert made.count() == 0
        assert made.profile().nodes == 0
        assert search(made, "hybrid", "rent").nodes == []


def test_other_metadata_than_ours_does_no_harm():
    """Nested, mixed, missing and unhashable values: read, and filtered by the one meaning."""
    odd = [
        TextNode(id_="nested", text="rent of the flat", metadata={"owner": {"name": "Ana"}, "tags": ["a", ["b"]]}),
        TextNode(id_="none", text="rent of the garage", metadata={"owner": None, "tags": [], "year": math.inf}),
        TextNode(id_="mixed", text="rent of the boat", metadata={"owner": 5, "tags": "a", "year": "2024-05-01"}),
        TextNode(id_="plain", text="rent of the hall"),
    ]
    made = attached(vector_index(odd))
    for strategy in ("vector", "hybrid", "metadata", "planner"):
        assert set(ids(search(made, strategy, "rent", 9, where("tags", "a")).nodes)) == {"nested", "mixed"}
        assert len(search(made, strategy, "rent", 9).nodes) == 4


def test_a_store_that_cuts_its_list_is_asked_as_a_retriever():
    """Ten of twelve nodes are listed: words would be searched in ten of them only."""
    texts = {f"n{i}": (f"rent number {i}", "contract", 2020) for i in range(12)}
    whole = attached(index_on(NodeStore(), contracts(texts=texts)), name="whole")
    assert served(whole) == ["vector", "hybrid", "planner", "metadata"]
    assert whole.count() == 12
    for store in (NodeStore(cut=10), Unlisted()):
        made = attached(index_on(store, contracts(texts=texts)))
        assert served(made) == ["vector"]
        assert len(search(made, "vector", "rent number 11", 12).nodes) == 12


def test_what_cannot_be_listed_needs_a_description():
    for given in (ScriptedRetriever([]), index_on(Unlisted(), contracts())):
        with pytest.raises(IndexingError, match="needs a description"):
            attached(given, description=" ")


def test_an_index_without_an_embedding_model_is_searched_by_words(caplog):
    made = attached(without_model(vector_index(contracts())))
    assert "no embedding model" in caplog.text
    assert served(made) == ["hybrid", "planner"]
    found = search(made, "hybrid", "paid leave", 2)
    assert found.nodes[0].node_id == "staff"
    assert not found.degraded
    with pytest.raises(NoEligibleStrategyError, match="it serves: hybrid, planner"):
        search(made, "vector", "paid leave")


def test_a_query_engine_is_asked_for_nodes_and_never_for_an_answer():
    engine = query_engine(vector_index(contracts()).as_retriever(similarity_top_k=1))
    found = ids(search(attached(engine), "vector", "paid leave").nodes)
    assert len(found) == 3
    assert found[0] == "staff"
    assert engine.retriever.similarity_top_k == 1, "the engine itself was changed"


def test_a_retriever_that_raises_is_named():
    with pytest.raises(StoreError, match="the ScriptedRetriever of index contracts failed with KeyError") as caught:
        ask(KeyError("secret-key"))
    assert "secret" not in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_retriever_that_blocks_is_given_up_on():
    """Row 24: the search ends with its time, whatever the retriever does."""
    free = threading.Event()
    start = time.perf_counter()
    try:
        with pytest.raises(DeadlineExceededError, match="index contracts did not answer within"):
            ask(lambda _query: free.wait(30) or [], timeout_s=0.1)
        assert time.perf_counter() - start < 5
    finally:
        free.set()


def test_duplicates_are_returned_once_with_their_best_score():
    found = ask([scored("a", 0.2), scored("b", 0.5), scored("a", 0.9), scored("b", None)])
    assert [(n.node_id, n.score) for n in found] == [("a", 0.9), ("b", 0.5)]


def test_scores_that_are_no_numbers_rank_last():
    """Row 22."""
    found = ask([scored("none", None), scored("nan", math.nan), scored("good", -3.0), scored("inf", math.inf)], top_k=9)
    check_result(found, 9)
    assert found[0].node_id == "good"
    assert {n.node_id for n in found[1:]} == {"none", "nan", "inf"}


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        # A summary or keyword table retriever gives no scores, but an order.
        ([scored("z", None), scored("a", None), scored("m", None)], ["z", "a", "m"]),
        ([None, scored("a", 0.5), None], ["a"]),
        ([None], []),
        (None, []),
        ([TextNode(id_="a", text="rent"), TextNode(id_="b", text="rent")], ["a", "b"]),
        ([scored(f"n{i}", i / 10) for i in range(9)], ["n8", "n7", "n6"]),
    ],
)
def test_what_a_retriever_gives_is_put_in_order(reply, expected):
    found = ask(reply)
    assert ids(found) == expected
    check_result(found, 3)


@pytest.mark.parametrize("reply", ["text", 7, {"a": 1}, ["text"], iter([])])
def test_what_is_no_list_of_nodes_is_named(reply):
    with pytest.raises(StoreError, match="a list of NodeWithScore is needed"):
        ask(reply)


def test_filters_hold_for_whatever_a_retriever_gives():
    given = [scored(f"n{i}", i / 10, year=2020 + i % 3) for i in range(9)]
    assert ids(ask(given, 9, where("year", 2021, ">"))) == ["n8", "n5", "n2"]


def test_a_retriever_is_asked_for_more_while_too_few_satisfy_the_filters():
    """Two of 200 nodes satisfy the filter, and are the farthest from the question."""
    nodes = [TextNode(id_=f"n{i:03}", text="rent " * (1 + i % 7), metadata={"i": i}) for i in range(198)]
    nodes += [TextNode(id_=f"x{i}", text="other words altogether", metadata={"i": 1_000 + i}) for i in range(2)]
    retriever = vector_index(nodes).as_retriever(similarity_top_k=2)
    made = attached(retriever, description="Rents")
    assert set(ids(search(made, "vector", "rent", 2, where("i", 1_000, ">=")).nodes)) == {"x0", "x1"}
    assert retriever.similarity_top_k == 2


def test_results_are_copies_of_what_a_retriever_gave():
    """Row 20: what a caller does to a result changes nothing that the retriever keeps."""
    kept: list[NodeWithScore] = [scored("a", 0.5, year=2024)]
    ask(kept)[0].node.metadata["year"] = 1
    assert kept[0].node.metadata == {"year": 2024}
    assert kept[0].score == 0.5


@pytest.fixture(scope="session")
def attached_workers():
    with Workers(4, "attached-tests") as workers:
        yield workers


class Contract(RetrieverContract):
    @pytest.fixture(autouse=True)
    def _given(self, request, attached_workers, tmp_path_factory):
        self.strategy = request.param if hasattr(request, "param") else Strategy.VECTOR
        self.workers, self.folders = attached_workers, tmp_path_factory

    def attach(self, nodes, embedding):
        return attached(vector_index(nodes, embedding=embedding), router=embedding, description="")

    def make_adapter(self, nodes, *, embedding, top_k=10, filters=None):
        # LlamaIndex embeds metadata with the text, while the contract is about texts that are the same.
        nodes = [node.model_copy(update={"excluded_embed_metadata_keys": ["lang", "year"]}) for node in nodes]
        settings = AdapterSettings(workers=self.workers, top_k=top_k, filters=filters)
        return build_adapter(self.strategy, self.attach(nodes, embedding), settings)


DENSE = (Strategy.VECTOR, Strategy.HYBRID, Strategy.METADATA, Strategy.PLANNER)


@pytest.mark.parametrize("_given", DENSE, indirect=True)
class TestInMemoryStore(Contract):
    """SimpleVectorStore and docstore, with the router's own model."""


@pytest.mark.parametrize("_given", [Strategy.VECTOR, Strategy.HYBRID], indirect=True)
class TestOtherModel(Contract):
    """Vectors of another model and dimension than the router's."""

    def attach(self, nodes, embedding):
        return attached(
            vector_index(nodes, embedding=embedding), router=FakeEmbedding(dimension=8, model_name="another")
        )


@pytest.mark.parametrize("_given", [Strategy.VECTOR, Strategy.HYBRID], indirect=True)
class TestEmbeddedStore(Contract):
    """The nodes are in the vector store alone."""

    def attach(self, nodes, embedding):
        store = QdrantEdgeVectorStore(self.folders.mktemp("edge"), dimension=embedding.dimension)
        return attached(index_on(store, nodes, embedding=embedding), router=embedding, description="")


@pytest.mark.parametrize("_given", [Strategy.HYBRID, Strategy.PLANNER], indirect=True)
class TestWordsAlone(Contract):
    """An index without vectors."""

    def attach(self, nodes, embedding):
        return attached(summary_index(nodes), router=FakeEmbedding(), description="")


class TestAskedVectorIndexRetriever(Contract):
    """A retriever of theirs, asked itself."""

    def attach(self, nodes, embedding):
        retriever = vector_index(nodes, embedding=embedding).as_retriever(similarity_top_k=2)
        return attached(retriever, router=FakeEmbedding(), description="Harvest")

    def test_empty_index_gives_nothing(self):
        """Whether there are nodes is the retriever's to know, so it is asked."""
        assert self.make_adapter([], embedding=FakeEmbedding()).retrieve(QUERY) == []


class TestAskedScriptedRetriever(Contract):
    """A retriever that knows no ``similarity_top_k``, gives every node, and hands out its own objects."""

    def attach(self, nodes, embedding):
        kept = [NodeWithScore(node=node) for node in nodes]
        vectors = {one.node.node_id: embedding.get_text_embedding(one.node.text) for one in kept}

        def reply(query):
            if not kept:
                return []
            asked = embedding.get_query_embedding(query)
            for one in kept:
                one.score = sum(a * b for a, b in zip(asked, vectors[one.node.node_id], strict=True))
            return kept

        return attached(ScriptedRetriever(reply), router=FakeEmbedding(), description="Harvest")

    def make_failing_adapter(self, nodes, *, embedding):
        return None


def test_a_failing_side_leaves_the_other(attached_workers):
    """Rows 19: hybrid over an attached index whose store fails goes on by words, and says so."""
    embedding = FakeEmbedding()
    index = vector_index(contract_nodes(), embedding=embedding)
    made = attached(index, router=embedding)
    index.vector_store.data.metadata_dict = None
    index.vector_store.__class__ = type("Broken", (type(index.vector_store),), {"query": _broken})
    found = build_adapter("hybrid", made, AdapterSettings(workers=attached_workers))
    assert found.retrieve(QUERY)[0].node_id == "n07"


def _broken(self, query, **kwargs):
    raise RuntimeError("down")
