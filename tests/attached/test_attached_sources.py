"""What is read of attached indexes, and when they count as changed."""

from __future__ import annotations

import numpy as np
import pytest
from attached_material import attached, contracts, ids, index_on, summary_index, vector_index, where
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core import SimpleKeywordTableIndex, StorageContext, TreeIndex
from llama_index.core.callbacks import CallbackManager
from llama_index.core.ingestion import DocstoreStrategy, IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import Document, MetadataMode, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores.types import VectorStoreQuery

from agentic_retriever.errors import StoreError
from agentic_retriever.filters import matches, node_fields
from agentic_retriever.indices import QdrantEdgeVectorStore
from agentic_retriever.indices.attached import index as attached_index
from agentic_retriever.indices.attached import index as sampling
from agentic_retriever.indices.attached import sources as store_sources
from agentic_retriever.indices.attached.index import WatchedVersion
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
