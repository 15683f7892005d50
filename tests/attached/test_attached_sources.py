from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from attached_material import TEXTS, attached, contracts, ids, index_on, summary_index, vector_index, where
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core import SimpleKeywordTableIndex, StorageContext, TreeIndex
from llama_index.core.callbacks import CallbackManager
from llama_index.core.ingestion import DocstoreStrategy, IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import Document, MetadataMode, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores.types import VectorStoreQuery
from llama_index.vector_stores.qdrant import QdrantVectorStore
from qdrant_client import QdrantClient

from agentic_retriever import AgenticRouter, Budget, RouterConfig
from agentic_retriever.errors import StoreError
from agentic_retriever.filters import matches, node_fields
from agentic_retriever.indices import QdrantEdgeVectorStore
from agentic_retriever.indices.attached import index as attached_index
from agentic_retriever.indices.attached import index as catching_up
from agentic_retriever.indices.attached import index as sampling
from agentic_retriever.indices.attached import sources as store_sources
from agentic_retriever.indices.attached.index import CatchingUp, WatchedVersion
from agentic_retriever.indices.attached.sources import DocstoreSource, QdrantSource, listed_ids
from agentic_retriever.indices.derived import SilentProgress
from agentic_retriever.testing import FakeEmbedding, FakeLLM


def caught_up(made):
    assert made.catch_up(30) is None
    return made


@pytest.fixture
def qdrant():
    client = pytest.importorskip("qdrant_client").QdrantClient(":memory:")
    module = pytest.importorskip("llama_index.vector_stores.qdrant")
    yield module.QdrantVectorStore("contracts", client=client)
    client.close()


class Told(SilentProgress):
    """Hears of progress."""

    def __init__(self):
        self.found = self.done = 0

    def nodes(self, found):
        self.found += found

    def nodes_done(self, done):
        self.done += done


def listed(made):
    return set(ids(made.nodes()))


def test_every_kind_of_index_lists_its_nodes():
    nodes = contracts()
    expected = {node.node_id for node in nodes}
    quiet = {"callback_manager": CallbackManager([]), "transformations": []}
    for index in (
        vector_index(contracts()),
        summary_index([*contracts(), *contracts()]),
        SimpleKeywordTableIndex(contracts(), llm=object(), **quiet),
        TreeIndex(contracts(), build_tree=False, llm=FakeLLM(["unused"]), **quiet),
    ):
        found = listed_ids(index.index_struct)
        assert sorted(found) == sorted(expected), type(index).__name__
        assert listed(attached(index)) == expected


def test_a_shared_docstore_does_not_mix_indexes_up():
    context = StorageContext.from_defaults()
    context.docstore.add_documents(contracts())
    made = attached(vector_index(contracts()[:2], storage_context=context))
    assert listed(made) == {"lease", "supply"}
    assert made.count() == 2


def test_a_node_deleted_from_the_vectors_alone_is_gone():
    index = vector_index(contracts())
    made = attached(index)
    index.delete_nodes(["lease"])
    assert "lease" not in listed(caught_up(made))
    assert [i for i, _ in made.keyword().search("warehouse rent", 5)] == []


def test_a_qdrant_collection_is_read_page_by_page(qdrant, monkeypatch):
    """Its own ``get_nodes`` stops at 9,999 without a word."""
    monkeypatch.setattr(store_sources, "_PAGE", 2)
    monkeypatch.setattr(type(qdrant), "get_nodes", lambda *_args, **_kwargs: pytest.fail("cut at 9,999"))
    texts = {f"n{i}": (f"rent number {i}", "contract", 2000 + i) for i in range(7)}
    nodes = contracts(uuids=True, texts=texts)
    made = attached(index_on(qdrant, nodes))
    assert isinstance(made.source, QdrantSource)
    assert listed(made) == {node.node_id for node in nodes}
    assert made.dimension == 64
    query = VectorStoreQuery(query_embedding=[1.0] * 64, similarity_top_k=9, filters=where("year", 2005, ">="))
    assert {n.metadata["year"] for n in made.vector_store.query(query).nodes} == {2005, 2006}
    got, rows = made.vector_store.vectors([nodes[0].node_id, "00000000-0000-0000-0000-000000000000"])
    assert got == [nodes[0].node_id]
    assert np.allclose(np.linalg.norm(rows, axis=1), 1)


def test_a_collection_that_is_not_there_is_empty(qdrant):
    assert attached(index_on(qdrant, [])).count() == 0


def test_the_embedded_store_is_read_where_it_is(tmp_path):
    held = QdrantEdgeVectorStore(tmp_path, dimension=64)
    index = index_on(held, contracts())
    made = attached(index)
    assert listed(made) == {"lease", "supply", "loan", "staff"}
    index.insert_nodes([TextNode(id_="new", text="the parking permit")])
    assert [i for i, _ in caught_up(made).keyword().search("parking permit", 5)] == ["new"]
    index.delete_nodes(["new"])
    assert caught_up(made).count() == 4
    held.close()


def test_changes_are_seen_at_once():
    index = vector_index(contracts())
    made = attached(index)
    seen = [made.version]
    index.insert_nodes([TextNode(id_="new", text="the parking permit")])
    seen.append(caught_up(made).version)
    assert made.count() == 5
    assert made.profile().nodes == 5
    index.delete_nodes(["new"], delete_from_docstore=True)
    seen.append(caught_up(made).version)
    assert made.count() == 4
    index.insert_nodes([TextNode(id_="staff", text="forty days of leave")])
    seen.append(caught_up(made).version)
    assert caught_up(made).version == seen[-1], "nothing changed meanwhile"
    assert seen == sorted(set(seen)), seen
    assert made.keyword().search("forty", 5)


def test_a_new_text_under_a_known_id_is_seen_within_a_second():
    now = [0.0]
    index = vector_index(contracts())
    watched = WatchedVersion("contracts", DocstoreSource(index, index.vector_store), timer=lambda: now[0])
    first = watched.current()
    index.docstore.add_documents([TextNode(id_="lease", text="the lease ends in 2030")])
    assert watched.current() == first
    now[0] = 1.0
    assert watched.current() == first + 1
    assert watched.current() == first + 1


def test_a_qdrant_count_is_looked_at_once_a_second(qdrant):
    now = [0.0]
    index = index_on(qdrant, contracts(uuids=True))
    watched = WatchedVersion("contracts", QdrantSource(qdrant), timer=lambda: now[0])
    first = watched.current()
    index.insert_nodes(contracts(uuids=True, texts={"new": ("parking", "letter", 2025)}))
    assert watched.current() == first
    now[0] = 1.0
    assert watched.current() == first + 1
    assert watched.grow() == first + 2


def test_a_source_that_cannot_be_looked_at_keeps_its_version():
    class Down:
        def mark(self):
            raise ConnectionError

        imprint = mark

    watched = WatchedVersion("contracts", Down(), timer=iter(range(100)).__next__)
    assert {watched.current() for _ in range(5)} == {1}


def test_refresh_reads_everything_anew(qdrant):
    index = index_on(qdrant, contracts(uuids=True))
    made = attached(index)
    replaced = contracts(uuids=True, texts={"lease": ("the parking permit", "letter", 2025)})
    index.insert_nodes(replaced)  # the same point
    assert caught_up(made).keyword().search("parking", 5) == []
    made.refresh()
    assert [i for i, _ in caught_up(made).keyword().search("parking", 5)] == [replaced[0].node_id]


def test_vectors_of_the_same_model_are_read_and_not_embedded_again():
    embedding = FakeEmbedding(dimension=64)
    index = vector_index(contracts(), embedding=embedding)
    embedding.calls.clear()
    made = attached(index, router=embedding, description="")
    assert made.profile().sample.shape == (4, 64)
    assert embedding.calls == ["dimension"]
    assert made.search_profile() is made.profile()


def test_two_models_of_one_name_are_told_apart():
    index = vector_index(contracts(), embedding=FakeEmbedding(dimension=64))
    made = attached(index, router=FakeEmbedding(dimension=32))
    assert made.embedding.dimension == 64
    assert made.profile().sample.shape == (4, 32)
    equal = attached(index, router=FakeEmbedding(dimension=64))
    assert equal.search_profile() is equal.profile(), "an equal model counts as the same"


def test_the_sample_for_another_model_is_bounded_and_reported():
    texts = {f"n{i:03}": (f"rent number {i} " * 80, "contract", 2020) for i in range(130)}
    router = FakeEmbedding(dimension=16, model_name="small")
    index, told = vector_index(contracts(texts=texts)), Told()
    made = attached(index, router=router, description="")
    assert made.profile().sample.shape == (sampling.MAX_EMBEDDED, 16)
    assert len(router.calls) == sampling.MAX_EMBEDDED
    assert max(map(len, router.calls)) <= sampling.MAX_PASSAGE_CHARS
    assert (made.search_profile().background_mean, made.search_profile().background_std) != (
        made.profile().background_mean,
        made.profile().background_std,
    )
    made.refresh()
    made.load(told)
    assert told.found == told.done == sampling.MAX_EMBEDDED


def test_a_sample_that_cannot_be_embedded_later_stays_as_it_was(caplog):
    router = FakeEmbedding(dimension=16, model_name="small")
    index = vector_index(contracts())
    made = attached(index, router=router, description="")
    before = made.profile().sample
    object.__setattr__(router, "_vector", lambda _text: [float("nan")] * 16)
    index.insert_nodes([TextNode(id_="new", text="the parking permit")])
    assert caught_up(made).count() == 5
    assert np.array_equal(made.profile().sample, before)
    assert "stays as it was" in caplog.text


def test_citations_point_into_the_document_that_a_pipeline_kept():
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
        own = node.get_content(metadata_mode=MetadataMode.NONE)
        assert text[node.start_char_idx : node.end_char_idx] == own
    assert made.doc_ids() == ["lease"]


def test_a_node_of_its_own_is_its_source():
    made = attached(vector_index(contracts()))
    assert made.source_text("staff") == "Employees have thirty days of paid leave every year."
    assert made.source_text("nobody") is None


def test_an_attached_store_is_read_only():
    made = attached(vector_index(contracts()))
    for change, what in ((made.vector_store.add, contracts()), (made.vector_store.delete, "staff")):
        with pytest.raises(StoreError, match="changed through LlamaIndex only"):
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
    query = VectorStoreQuery(query_embedding=vector, similarity_top_k=top_k, filters=filters)
    found = made.vector_store.query(query)
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


LEAVE = "How many days of paid leave do employees have?"


@pytest.fixture
def gate():
    """Opens at the end of a test, so that no thread is left waiting."""
    made = threading.Event()
    yield made
    made.set()


@pytest.fixture
def router(tmp_path):
    config = RouterConfig(data_dir=tmp_path, query_log="none", on_abstain="answer")
    with AgenticRouter(config, embedding=FakeEmbedding(dimension=64)) as made:
        yield made


def slow(source, method, gate):
    """Let a method of a source wait for the gate."""
    fast = getattr(source, method)

    def waiting():
        assert gate.wait(60)
        return fast()

    setattr(source, method, waiting)


def until(is_so):
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end
        threading.Event().wait(0.01)


def test_questions_go_on_while_a_change_is_read(router, gate):
    """The answer of the earlier state says so and is not kept; then the change is there."""
    index = vector_index(contracts())
    router.add_index("contracts", index=index, description="Contracts")
    slow(router.index("contracts").source, "nodes", gate)
    before = router.query(LEAVE, budget=Budget(max_ms=20_000))
    index.insert_nodes([TextNode(id_="new", text="The parking permit of the director ends in May.")])
    start = time.monotonic()
    answer = router.query("When does the parking permit end?", budget=Budget(max_ms=600))
    assert time.monotonic() - start < 5
    assert [(step.step, step.fallback) for step in answer.degraded if step.step == "index.contracts"] == [
        ("index.contracts", "its nodes as they were read last")
    ]
    assert answer.route.versions == before.route.versions
    assert router.query(LEAVE, budget=Budget(max_ms=600)).cached, "the key is that of the state that is served"
    gate.set()
    until(lambda: router.index("contracts").count() == 5)
    answer = router.query("When does the parking permit end?")
    assert not answer.cached
    assert not answer.degraded
    assert answer.citations[0].node_id == "new"


def test_a_server_that_hangs_on_its_count_keeps_nobody(router, gate):
    """Row 24, for callers without an event loop, too."""
    held = QdrantVectorStore("contracts", client=QdrantClient(":memory:"))
    router.add_index("contracts", index=index_on(held, contracts(uuids=True)), description="Contracts")
    made = router.index("contracts")
    made._watched._next_look = 0.0
    slow(made.source, "count", gate)
    start = time.monotonic()
    found = router.retrieve(LEAVE, strategy="hybrid", budget=Budget(max_ms=600))
    assert time.monotonic() - start < 5
    assert "thirty days of paid leave" in found.nodes[0].node.get_content()
    assert found.degraded[0].step == "index.contracts"
    router.refresh_index("contracts")
    assert made.version == 1


def test_all_callers_wait_for_one_reading():
    running, most, lock = [0], [0], threading.Lock()
    begun = threading.Event()

    def work():
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        begun.wait(0.1)
        with lock:
            running[0] -= 1

    both = CatchingUp("reading", work)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: both.run(30), range(8))) == [None] * 8
    assert most == [1]


def test_what_hangs_is_waited_for_once(gate, monkeypatch):
    """Patience counts from the beginning of the work, whoever asks and how often."""
    monkeypatch.setattr(catching_up, "PATIENCE_S", 0.05)
    hanging = CatchingUp("reading", lambda: gate.wait(60))
    assert "reading is under way since" in hanging.run(30)
    start = time.monotonic()
    assert all(hanging.run(30) for _ in range(50))
    assert time.monotonic() - start < 5
    gate.set()
    until(lambda: hanging.run(30) is None)


def test_what_fails_rests_before_it_is_tried_again(caplog):
    now, tried = [0.0], []

    def work():
        tried.append(now[0])
        raise StoreError("no such collection")

    failing = CatchingUp("reading index a", work, timer=lambda: now[0])
    assert [failing.run(30) for _ in range(3)] == ["no such collection"] * 3
    assert tried == [0.0]
    now[0] = 1.0
    failing.run(30)
    assert tried == [0.0, 1.0]
    assert "reading index a failed, so it stays as it was: no such collection" in caplog.text


def test_an_index_that_can_no_longer_be_read_stays_as_it_was():
    made = attached(vector_index(contracts()))

    def broken():
        raise ConnectionError("secret")

    made.source.nodes = broken
    made.refresh()
    said = made.catch_up(30)
    assert "failed with ConnectionError" in said
    assert "secret" not in said
    assert made.count() == len(TEXTS)
    assert made.version == 1


def test_reading_by_id_is_given_up_on(gate, monkeypatch):
    """Neighbours and vectors of nodes that were found are read outside of the search and its deadline."""
    monkeypatch.setattr(attached_index, "READ_S", 0.05)
    made = attached(vector_index(contracts()))
    for method in ("get", "vectors"):
        monkeypatch.setattr(made.source, method, lambda _ids: gate.wait(60))
    for read in (made.vector_store.vectors, made.vector_store.get_nodes):
        with pytest.raises(StoreError, match="the store of index contracts did not answer within"):
            read(["lease"])
