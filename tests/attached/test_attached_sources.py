"""Attached indexes: what can be handed over, how it is read and watched, and the contract of every retriever."""

import math
import threading
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from attached_material import (
    TEXTS,
    AnswersOnly,
    ScriptedRetriever,
    attached,
    contracts,
    index_on,
    query_engine,
    scored,
    search,
    summary_index,
    vector_index,
)
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core import PropertyGraphIndex, SimpleKeywordTableIndex, StorageContext, TreeIndex, VectorStoreIndex
from llama_index.core.callbacks import CallbackManager
from llama_index.core.ingestion import DocstoreStrategy, IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import Document, MetadataMode, NodeWithScore, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQuery, VectorStoreQueryResult
from store_tools import Told, ids, where
from waiting import in_threads, pool, wait_until, within

from agentic_retriever import errors
from agentic_retriever.filters import matches, node_fields
from agentic_retriever.indices import QdrantEdgeVectorStore
from agentic_retriever.indices.attached import index as attached_index
from agentic_retriever.indices.attached import sources as store_sources
from agentic_retriever.indices.attached.index import CatchingUp, WatchedVersion
from agentic_retriever.indices.attached.sources import DocstoreSource, QdrantSource, listed_ids
from agentic_retriever.retrievers import AdapterSettings, build_adapter, cards
from agentic_retriever.schema import Strategy
from agentic_retriever.testing import FakeEmbedding, FakeLLM
from agentic_retriever.testing.retriever_contract import QUERY, RetrieverContract, check_result, contract_nodes


def ask(reply, top_k=3, filters=None, *, timeout_s=None):
    """Ask an attached retriever that gives this reply."""
    made = attached(ScriptedRetriever(reply), description="Rents")
    return search(made, "vector", "rent", top_k, filters, timeout_s=timeout_s).nodes


def served(made):
    return [card.strategy.value for card in cards(made)]


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


class Unread(NodeStore):
    def get_nodes(self, node_ids=None, filters=None):
        if node_ids:  # LanceDB's filter for them is no SQL
            raise ValueError("Schema error: No field named n0")
        return self.kept


class DeadEmbedding(FakeEmbedding):
    def _get_query_embedding(self, query):
        raise ConnectionError("secret-key")


@pytest.mark.parametrize(("given", "said"), [
    (7, "got int"), (None.__class__, "got type"), ("storage/contracts", "got str; a path is a source"),
    (Path("storage/contracts"), "a path is a source"), ([TextNode(text="x")], "got list"),
    (SimpleVectorStore(), "got SimpleVectorStore"),
])  # fmt: skip
def test_what_is_no_index_is_refused(given, said):
    with pytest.raises(errors.IndexingError, match="must be a LlamaIndex index, query engine or retriever") as caught:
        attached(given)
    assert said in str(caught.value)


def orphan():
    """The in-memory store keeps vectors only, so without the docstore there is nothing to return."""
    kept = vector_index(contracts())
    context = StorageContext.from_defaults(vector_store=kept.vector_store)
    return VectorStoreIndex(
        nodes=None, index_struct=kept.index_struct, embed_model=FakeEmbedding(dimension=64), storage_context=context,
        callback_manager=CallbackManager([]),
    )  # fmt: skip


def graph():
    made = PropertyGraphIndex.__new__(PropertyGraphIndex)
    made._index_struct, made._docstore = PropertyGraphIndex.index_struct_cls(), summary_index([]).docstore
    return made


@pytest.mark.parametrize(("make", "error", "said"), [
    (orphan, errors.IndexingError, "lists 4 nodes and its docstore has none of them"),
    (graph, errors.IndexingError, "the nodes of a PropertyGraphIndex cannot be listed"),
    (AnswersOnly, errors.IndexingError, "a AnswersOnly cannot retrieve without answering"),
    (lambda: with_model(index_on(Unlisted(), contracts()), None), errors.IndexingError,
     "has no embedding model and its nodes cannot be listed"),
    (lambda: with_model(vector_index(contracts()), FakeEmbedding(dimension=16, model_name="another")),
     errors.EmbeddingMismatchError, r"dimension 64, its embedding model .*another gives 16"),
    (lambda: with_model(vector_index(contracts()), DeadEmbedding(dimension=64, model_name="dead")),
     errors.EmbeddingError, "DeadEmbedding:dead failed: ConnectionError"),
])  # fmt: skip
def test_what_cannot_be_searched_is_refused_without_foreign_words(make, error, said):
    with pytest.raises(error, match=said) as caught:
        attached(make())
    assert "secret" not in str(caught.value)


def test_an_empty_index_finds_nothing_and_odd_metadata_does_no_harm():
    """Nested, mixed, missing and unhashable values: read, and filtered by the one meaning."""
    for empty in (vector_index([]), summary_index([]), index_on(NodeStore(), [])):
        made = attached(empty)
        assert made.count() == made.profile().nodes == 0
        assert search(made, "hybrid", "rent").nodes == []
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


def test_a_store_that_cuts_its_list_or_reads_no_ids_is_asked_as_a_retriever_and_needs_a_description():
    """Ten of twelve nodes are listed: words would be searched in ten of them only."""
    texts = {f"n{i}": (f"rent number {i}", "contract", 2020) for i in range(12)}
    whole = attached(index_on(NodeStore(), contracts(texts=texts)), name="whole")
    assert (served(whole), whole.count()) == (["vector", "hybrid", "planner", "metadata"], 12)
    for store in (NodeStore(cut=10), Unlisted(), Unread()):
        made = attached(index_on(store, contracts(texts=texts)))
        assert (served(made), len(search(made, "vector", "rent number 11", 12).nodes)) == (["vector"], 12)
    for unlisted in (ScriptedRetriever([]), index_on(Unlisted(), contracts())):
        with pytest.raises(errors.IndexingError, match="needs a description"):
            attached(unlisted, description=" ")


def test_an_index_without_an_embedding_model_is_searched_by_words(caplog):
    made = attached(with_model(vector_index(contracts()), None))
    assert "no embedding model" in caplog.text
    assert served(made) == ["hybrid", "planner"]
    found = search(made, "hybrid", "paid leave", 2)
    assert found.nodes[0].node_id == "staff"
    assert not found.degraded
    with pytest.raises(errors.NoEligibleStrategyError, match="it serves: hybrid, planner"):
        search(made, "vector", "paid leave")


def test_a_query_engine_is_asked_for_nodes_and_never_for_an_answer():
    engine = query_engine(vector_index(contracts()).as_retriever(similarity_top_k=1))
    found = ids(search(attached(engine), "vector", "paid leave").nodes)
    assert (len(found), found[0]) == (3, "staff")
    assert engine.retriever.similarity_top_k == 1, "the engine itself was changed"


def test_a_retriever_that_raises_or_gives_no_nodes_is_named_and_what_blocks_is_given_up_on(gate, monkeypatch):
    """Row 24: the search ends with its time; found nodes' neighbours and vectors are read outside of its deadline."""
    with pytest.raises(
        errors.StoreError, match="the ScriptedRetriever of index contracts failed with KeyError"
    ) as caught:
        ask(KeyError("secret-key"))
    assert "secret" not in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)
    for reply in ("text", 7, {"a": 1}, ["text"], iter([])):
        with pytest.raises(errors.StoreError, match="a list of NodeWithScore is needed"):
            ask(reply)
    with within(5), pytest.raises(errors.DeadlineExceededError, match="index contracts did not answer within"):
        ask(lambda _query: gate.wait(30) or [], timeout_s=0.1)
    monkeypatch.setattr(attached_index, "READ_S", 0.05)
    made = attached(vector_index(contracts()))
    for method in ("get", "vectors"):
        monkeypatch.setattr(made.source, method, lambda _ids: gate.wait(60))
    for read in (made.vector_store.vectors, made.vector_store.get_nodes):
        with pytest.raises(errors.StoreError, match="the store of index contracts did not answer within"):
            read(["lease"])


def test_duplicates_come_once_with_their_best_score_others_than_numbers_rank_last_and_results_are_copies():
    """Rows 20 and 22: what a caller does to a result changes nothing that the retriever keeps."""
    found = ask([scored("a", 0.2), scored("b", 0.5), scored("a", 0.9), scored("b", None)])
    assert [(n.node_id, n.score) for n in found] == [("a", 0.9), ("b", 0.5)]
    found = ask([scored("none", None), scored("nan", math.nan), scored("good", -3.0), scored("inf", math.inf)], top_k=9)
    check_result(found, 9)
    assert (found[0].node_id, {n.node_id for n in found[1:]}) == ("good", {"none", "nan", "inf"})
    kept: list[NodeWithScore] = [scored("a", 0.5, year=2024)]
    ask(kept)[0].node.metadata["year"] = 1
    assert (kept[0].node.metadata, kept[0].score) == ({"year": 2024}, 0.5)


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


def test_filters_hold_for_whatever_a_retriever_gives_and_it_is_asked_for_more_while_too_few_satisfy_them():
    """Two of 200 nodes satisfy the filter, and are the farthest from the question."""
    given = [scored(f"n{i}", i / 10, year=2020 + i % 3) for i in range(9)]
    assert ids(ask(given, 9, where("year", 2021, ">"))) == ["n8", "n5", "n2"]
    nodes = [TextNode(id_=f"n{i:03}", text="rent " * (1 + i % 7), metadata={"i": i}) for i in range(198)]
    nodes += [TextNode(id_=f"x{i}", text="other words altogether", metadata={"i": 1_000 + i}) for i in range(2)]
    retriever = vector_index(nodes).as_retriever(similarity_top_k=2)
    made = attached(retriever, description="Rents")
    assert set(ids(search(made, "vector", "rent", 2, where("i", 1_000, ">=")).nodes)) == {"x0", "x1"}
    assert retriever.similarity_top_k == 2


def caught_up(made):
    assert made.catch_up(30) is None
    return made


@pytest.fixture
def qdrant(closed_at_end):
    client = closed_at_end(pytest.importorskip("qdrant_client").QdrantClient(":memory:"))
    return pytest.importorskip("llama_index.vector_stores.qdrant").QdrantVectorStore("contracts", client=client)


def listed(made):
    return set(ids(made.nodes()))


def test_every_kind_of_index_lists_its_nodes_and_no_others():
    expected = {node.node_id for node in contracts()}
    quiet = {"callback_manager": CallbackManager([]), "transformations": []}
    for index in (
        vector_index(contracts()),
        summary_index([*contracts(), *contracts()]),
        SimpleKeywordTableIndex(contracts(), llm=object(), **quiet),
        TreeIndex(contracts(), build_tree=False, llm=FakeLLM(["unused"]), **quiet),
    ):
        assert sorted(listed_ids(index.index_struct)) == sorted(expected), type(index).__name__
        assert listed(attached(index)) == expected
    shared = StorageContext.from_defaults()
    shared.docstore.add_documents(contracts())
    made = attached(vector_index(contracts()[:2], storage_context=shared))
    assert (listed(made), made.count()) == ({"lease", "supply"}, 2)
    index = vector_index(contracts())
    made = attached(index)
    index.delete_nodes(["lease"])  # from the vectors alone
    assert "lease" not in listed(caught_up(made))
    assert [i for i, _ in made.keyword().search("warehouse rent", 5)] == []


def test_a_qdrant_collection_is_read_page_by_page_and_anew_by_a_refresh(qdrant, monkeypatch):
    """Its own ``get_nodes`` stops at 9,999 without a word."""
    assert attached(index_on(qdrant, [])).count() == 0  # there is no collection yet
    monkeypatch.setattr(store_sources, "_PAGE", 2)
    monkeypatch.setattr(type(qdrant), "get_nodes", lambda *_args, **_kwargs: pytest.fail("cut at 9,999"))
    nodes = contracts(uuids=True, texts={f"n{i}": (f"rent number {i}", "contract", 2000 + i) for i in range(7)})
    made = attached(index_on(qdrant, nodes))
    assert isinstance(made.source, QdrantSource)
    assert (listed(made), made.dimension) == ({node.node_id for node in nodes}, 64)
    query = VectorStoreQuery(query_embedding=[1.0] * 64, similarity_top_k=9, filters=where("year", 2005, ">="))
    assert {n.metadata["year"] for n in made.vector_store.query(query).nodes} == {2005, 2006}
    got, rows = made.vector_store.vectors([nodes[0].node_id, "00000000-0000-0000-0000-000000000000"])
    assert got == [nodes[0].node_id]
    assert np.allclose(np.linalg.norm(rows, axis=1), 1)
    index = index_on(qdrant, contracts(uuids=True))
    made = attached(index)
    replaced = contracts(uuids=True, texts={"lease": ("the parking permit", "letter", 2025)})
    index.insert_nodes(replaced)  # the same point
    assert caught_up(made).keyword().search("parking", 5) == []
    made.refresh()
    assert [i for i, _ in caught_up(made).keyword().search("parking", 5)] == [replaced[0].node_id]


def test_changes_are_seen_at_once_in_memory_and_in_the_embedded_store(tmp_path, closed_at_end):
    index = vector_index(contracts())
    made = attached(index)
    seen = [made.version]
    index.insert_nodes([TextNode(id_="new", text="the parking permit")])
    seen.append(caught_up(made).version)
    assert (made.count(), made.profile().nodes) == (5, 5)
    index.delete_nodes(["new"], delete_from_docstore=True)
    seen.append(caught_up(made).version)
    assert made.count() == 4
    index.insert_nodes([TextNode(id_="staff", text="forty days of leave")])
    seen.append(caught_up(made).version)
    assert caught_up(made).version == seen[-1], "nothing changed meanwhile"
    assert seen == sorted(set(seen)), seen
    assert made.keyword().search("forty", 5)
    index = index_on(closed_at_end(QdrantEdgeVectorStore(tmp_path, dimension=64)), contracts())
    made = attached(index)
    assert listed(made) == {"lease", "supply", "loan", "staff"}
    index.insert_nodes([TextNode(id_="new", text="the parking permit")])
    assert [i for i, _ in caught_up(made).keyword().search("parking permit", 5)] == ["new"]
    index.delete_nodes(["new"])
    assert caught_up(made).count() == 4


def test_what_takes_long_to_see_is_looked_at_once_a_second(qdrant):
    """New texts under known ids, and the number of points on a server."""
    now, local, remote = [0.0], vector_index(contracts()), index_on(qdrant, contracts(uuids=True))
    sources = DocstoreSource(local, local.vector_store), QdrantSource(qdrant)
    watched = [WatchedVersion("contracts", source, timer=lambda: now[0]) for source in sources]
    first = [one.current() for one in watched]
    local.docstore.add_documents([TextNode(id_="lease", text="the lease ends in 2030")])
    remote.insert_nodes(contracts(uuids=True, texts={"new": ("parking", "letter", 2025)}))
    assert [one.current() for one in watched] == first
    now[0] = 1.0
    for _ in range(2):
        assert [one.current() for one in watched] == [version + 1 for version in first]
    assert watched[1].grow() == first[1] + 2


def test_a_source_that_cannot_be_looked_at_or_read_any_more_keeps_its_version():
    class Down:
        def mark(self):
            raise ConnectionError

        imprint = mark

    watched = WatchedVersion("contracts", Down(), timer=iter(range(100)).__next__)
    assert {watched.current() for _ in range(5)} == {1}
    made = attached(vector_index(contracts()))

    made.source.nodes = Mock(side_effect=ConnectionError("secret"))
    made.refresh()
    said = made.catch_up(30)
    assert "failed with ConnectionError" in said
    assert "secret" not in said
    assert (made.count(), made.version) == (len(TEXTS), 1)


def test_vectors_of_the_same_model_are_read_and_two_models_of_one_name_told_apart():
    embedding = FakeEmbedding(dimension=64)
    index = vector_index(contracts(), embedding=embedding)
    embedding.calls.clear()
    made = attached(index, router=embedding, description="")
    assert made.profile().sample.shape == (4, 64)
    assert embedding.calls == ["dimension"], "nothing is embedded again"
    assert made.search_profile() is made.profile()
    made = attached(index, router=FakeEmbedding(dimension=32))
    assert (made.embedding.dimension, made.profile().sample.shape) == (64, (4, 32))
    equal = attached(index, router=FakeEmbedding(dimension=64))
    assert equal.search_profile() is equal.profile(), "an equal model counts as the same"


def test_the_sample_for_another_model_is_bounded_reported_and_stays_when_it_cannot_be_embedded_later(caplog):
    texts = {f"n{i:03}": (f"rent number {i} " * 80, "contract", 2020) for i in range(130)}
    router = FakeEmbedding(dimension=16, model_name="small")
    index, told = vector_index(contracts(texts=texts)), Told()
    made = attached(index, router=router, description="")
    assert made.profile().sample.shape == (attached_index.MAX_EMBEDDED, 16)
    assert len(router.calls) == attached_index.MAX_EMBEDDED
    assert max(map(len, router.calls)) <= attached_index.MAX_PASSAGE_CHARS
    assert (made.search_profile().background_mean, made.search_profile().background_std) != (
        made.profile().background_mean,
        made.profile().background_std,
    )
    made.refresh()
    made.load(told)
    assert told.found == told.done == attached_index.MAX_EMBEDDED
    router = FakeEmbedding(dimension=16, model_name="small")
    index = vector_index(contracts())
    made = attached(index, router=router, description="")
    before = made.profile().sample
    object.__setattr__(router, "_vector", lambda _text: [float("nan")] * 16)
    index.insert_nodes([TextNode(id_="new", text="the parking permit")])
    assert caught_up(made).count() == 5
    assert np.array_equal(made.profile().sample, before)
    assert "stays as it was" in caplog.text


def test_citations_point_into_the_document_that_a_pipeline_kept_or_the_node_and_the_store_is_read_only():
    documents = [Document(id_="lease", text="The lease ends in 2027. " * 40, metadata={"file_name": "lease.txt"})]
    docstore = SimpleDocumentStore()
    pipeline = IngestionPipeline(
        transformations=[SentenceSplitter(chunk_size=64, chunk_overlap=0)],
        docstore=docstore,
        docstore_strategy=DocstoreStrategy.DUPLICATES_ONLY,
    )
    nodes = pipeline.run(documents=documents)
    made = attached(vector_index(nodes, storage_context=StorageContext.from_defaults(docstore=docstore)))
    text = made.source_text("lease")
    assert text == documents[0].text
    for node in made.nodes():
        assert text[node.start_char_idx : node.end_char_idx] == node.get_content(metadata_mode=MetadataMode.NONE)
    assert made.doc_ids() == ["lease"]
    made = attached(vector_index(contracts()))
    assert made.source_text("staff") == "Employees have thirty days of paid leave every year."
    assert made.source_text("nobody") is None
    for change, what in ((made.vector_store.add, contracts()), (made.vector_store.delete, "staff")):
        with pytest.raises(errors.StoreError, match="changed through LlamaIndex only"):
            change(what)


VALUES = st.one_of(st.integers(0, 3), st.sampled_from(["a", "b"]), st.none(), st.lists(st.sampled_from(["a", "b"])))


@given(
    metadata=st.lists(st.fixed_dictionaries({}, optional={"k": VALUES, "m": VALUES}), min_size=1, max_size=12),
    clause=st.tuples(st.sampled_from("km"), st.sampled_from(["==", "!=", ">"]), st.sampled_from([1, "a"])),
    top_k=st.integers(1, 12),
    by_ids=st.booleans(),
)
def test_a_filtered_search_is_exact(metadata, clause, top_k, by_ids):
    """Against brute force: the nearest of all that satisfy the filter, however the store is asked."""
    key, operator, value = clause
    nodes = [TextNode(id_=f"n{i:02}", text=f"rent number {i}", metadata=m) for i, m in enumerate(metadata)]
    filters = where(key, value, operator)
    index = vector_index(nodes)
    made = attached(index)
    made.source.takes_ids = by_ids
    vector = FakeEmbedding(dimension=64).get_query_embedding("rent number 3")
    kept = {n.node_id for n in nodes if matches(node_fields(n), filters)}
    held = index.vector_store.data.embedding_dict
    scores = {i: float(np.dot(held[i], vector)) for i in kept}
    found = made.vector_store.query(VectorStoreQuery(query_embedding=vector, similarity_top_k=top_k, filters=filters))
    assert set(found.ids) <= kept
    assert len(found.ids) == min(top_k, len(kept))
    assert np.allclose(sorted(found.similarities), sorted(sorted(scores.values())[-top_k:]) if kept else [])


def test_few_of_many_are_found_by_asking_for_more(monkeypatch):
    monkeypatch.setattr(attached_index, "_MARGIN", 0.01)
    texts = {f"n{i:03}": (f"rent {i}", "letter" if i % 60 else "rare", 2020) for i in range(240)}
    made = attached(vector_index(contracts(texts=texts)))
    made.source.takes_ids = False
    query = VectorStoreQuery(query_embedding=[0.1] * 64, similarity_top_k=4, filters=where("kind", "rare"))
    assert len(made.vector_store.query(query).ids) == 4


def test_all_callers_wait_for_one_reading_once_for_what_hangs_and_what_fails_rests(gate, monkeypatch, caplog):
    """Patience counts from the beginning of the work, whoever asks and how often."""
    running, most, lock = [0], [0], threading.Lock()

    def work():
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        gate.wait(0.1)
        with lock:
            running[0] -= 1

    both = CatchingUp("reading", work)
    assert (in_threads(lambda _: both.run(30), range(8)), most) == ([None] * 8, [1])
    now, tried = [0.0], []

    def fail():
        tried.append(now[0])
        raise errors.StoreError("no such collection")

    failing = CatchingUp("reading index a", fail, timer=lambda: now[0])
    assert ([failing.run(30) for _ in range(3)], tried) == (["no such collection"] * 3, [0.0])
    now[0] = 1.0
    failing.run(30)
    assert tried == [0.0, 1.0]
    assert "reading index a failed, so it stays as it was: no such collection" in caplog.text
    monkeypatch.setattr(attached_index, "PATIENCE_S", 0.05)
    hanging = CatchingUp("reading", lambda: gate.wait(60))
    assert "reading is under way since" in hanging.run(30)
    with within(5):
        assert all(hanging.run(30) for _ in range(50))
    gate.set()
    wait_until(lambda: hanging.run(30) is None, 30)


@pytest.fixture(scope="session")
def attached_workers():
    with pool(4) as workers:
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

    def broken(self, query, **kwargs):
        raise RuntimeError("down")

    index.vector_store.data.metadata_dict = None
    index.vector_store.__class__ = type("Broken", (type(index.vector_store),), {"query": broken})
    found = build_adapter("hybrid", made, AdapterSettings(workers=attached_workers))
    assert found.retrieve(QUERY)[0].node_id == "n07"
