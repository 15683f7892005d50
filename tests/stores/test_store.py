"""What every store of ours does, in this process and on a server."""

import math
import uuid

import numpy as np
import pytest
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.schema import Document
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import MetadataFilters, VectorStoreQuery, VectorStoreQueryMode
from server_tools import memory_link
from store_tools import DIMENSION, ask, make_node, vector, where

from agentic_retriever import errors
from agentic_retriever.stores import node_store
from agentic_retriever.stores.edge import QdrantEdgeVectorStore
from agentic_retriever.stores.server import QdrantServerVectorStore


@pytest.fixture(params=["edge", "server"])
def store(request, tmp_path):
    if request.param == "edge":
        made = QdrantEdgeVectorStore(tmp_path)
    else:
        made = QdrantServerVectorStore(memory_link(), "c", keywords=True)
    with made:
        yield made


def test_a_fresh_store_is_empty_in_every_way(store):
    assert store.dimension is None
    assert store.count() == 0
    assert store.get_nodes() == list(store.iter_nodes()) == store.node_ids() == []
    assert (store.query(ask()).ids, store.vectors(["x"])[1].shape) == ([], (0, 0))
    store.delete("none")
    store.delete_nodes(["none"])
    store.clear()
    assert store.add([]) == []
    assert store.dimension is None
    with pytest.raises(errors.StoreError):
        store.create_payload_index("k", "float")


def test_lists_are_not_cut(store, monkeypatch):
    monkeypatch.setattr(node_store, "PAGE", 7)
    nodes = [make_node(n, n=n) for n in range(30)]
    ids = [node.node_id for node in nodes]
    assert (store.add(nodes), store.count(), store.node_ids()) == (ids, 30, ids)
    for listed in (store.get_nodes(), store.get_nodes(ids), store.iter_nodes(), store.iter_nodes(4)):
        assert sorted(node.node_id for node in listed) == ids
    assert (len(store.get_nodes(filters=where("n", 10, ">="))), len(store.get_nodes(limit=3))) == (20, 3)
    assert len(store.get_nodes(limit=12)) == 12
    found, matrix = store.vectors([*reversed(ids), "none", ids[0]])
    assert (found, matrix.shape) == (ids[::-1], (30, DIMENSION))
    assert np.allclose(np.linalg.norm(matrix, axis=1), 1, atol=1e-6)
    assert sorted(store.query(ask(7, 10**9)).ids) == ids


@pytest.mark.parametrize("number", [5, 60, 1_500])
def test_equal_scores_are_ordered_by_id_even_at_the_cut(store, number):
    nodes = [make_node(n) for n in range(number)]
    for node in nodes:
        node.embedding = vector(3)
    store.add(list(reversed(nodes)))
    assert store.query(ask(3, 4)).ids == [f"node-{n:05}" for n in range(4)]


def test_replacing(store):
    store.add([make_node(1, kind="a"), make_node(2, kind="a")])
    newer = make_node(1, kind="b")
    newer.text = "new"
    store.add([make_node(1, kind="x"), newer])  # of one id, the last counts
    assert store.count() == 2
    assert [(n.text, n.metadata) for n in store.get_nodes(["node-00001"])] == [("new", {"kind": "b"})]
    assert store.count(where("kind", "a")) == 1


def test_ids_of_every_kind_come_back(store):
    own = [str(uuid.uuid4()), str(uuid.uuid4()).upper(), uuid.uuid4().hex]
    ids = ["doc-1", *own, "1", "ก", "a" * 5_000, " ", "\u00e4", "a\u0308"]
    nodes = [make_node(number) for number in range(len(ids))]
    for node, node_id in zip(nodes, ids, strict=True):
        node.id_ = node_id
    store.add(nodes)
    assert (store.node_ids(), [node.node_id for node in store.get_nodes(ids)]) == (sorted(ids), ids)
    for node_id in ids:
        assert store.query(ask(node_ids=[node_id])).ids == [node_id]
    store.delete_nodes(ids[:3])
    assert store.node_ids() == sorted(ids[3:])


def test_restrictions_narrow_each_other_and_empty_ones_give_nothing_unless_they_come_from_a_retriever(store):
    store.add([make_node(n, source=f"d{n % 3}", even=n % 2) for n in range(12)])
    all_ids = store.node_ids()
    assert sorted(store.query(ask(node_ids=all_ids[:4])).ids) == all_ids[:4]
    assert sorted(store.query(ask(doc_ids=["d1", "none"])).ids) == [all_ids[n] for n in (1, 4, 7, 10)]
    assert store.query(ask(doc_ids=["d1"], node_ids=all_ids[:6], filters=where("even", 0))).ids == [all_ids[4]]
    for nothing in (ask(node_ids=[]), ask(doc_ids=[]), ask(top_k=0), ask(node_ids=["none"]), ask(doc_ids=["None"])):
        assert store.query(nothing).ids == store.query(nothing).nodes == []
    assert store.get_nodes([]) == []
    assert len(store.query(ask(top_k=12, node_ids=[], query_str="text")).ids) == 12  # what as_retriever() sends
    assert store.query(ask(doc_ids=[], query_str="text")).ids == []


def test_deleting(store):
    store.add([make_node(n, source=f"d{n % 3}", even=n % 2) for n in range(12)])
    store.delete("d0")
    store.delete("None")
    assert store.count() == 8
    store.delete_nodes([f"node-{n:05}" for n in range(6)], where("even", 0))  # both, not either
    assert store.node_ids() == [f"node-{n:05}" for n in (1, 5, 7, 8, 10, 11)]
    store.delete_nodes(filters=where("even", 1))
    assert store.node_ids() == ["node-00008", "node-00010"]
    empty = MetadataFilters(filters=[])
    for nothing in ({}, {"node_ids": []}, {"filters": empty}, {"node_ids": [], "filters": where("even", 0)}):
        with pytest.raises(errors.StoreError, match="clear"):
            store.delete_nodes(**nothing)
    with pytest.raises(errors.StoreError, match="clear"):
        store.delete("")
    with pytest.raises(errors.FilterError):
        store.delete_nodes(filters=where("even", None))
    assert store.count() == 2
    store.clear()
    assert store.count() == 0
    store.add([make_node(1)])
    assert store.count() == 1


def test_bad_queries(store):
    store.add([make_node(1)])
    sparse, mmr = ask(mode=VectorStoreQueryMode.SPARSE), ask(mode=VectorStoreQueryMode.MMR)
    for said, query, more in (
        ("embedding", VectorStoreQuery(similarity_top_k=1), {}),
        ("not supported; allowed are default, mmr, hybrid", sparse, {}),
        ("mmr_threshold is 2", mmr, {"mmr_threshold": 2}),
        ("mmr_threshold", ask(), {"mmr_threshold": 0.5}),
        ("qdrant_filters", ask(), {"qdrant_filters": object()}),
        *(("similarity_top_k", ask(top_k=top_k), {}) for top_k in (-1, True, 2.0, "5", None)),
    ):
        with pytest.raises(errors.InvalidQueryError, match=said):
            store.query(query, **more)
    with pytest.raises(errors.InvalidQueryError, match="limit"):
        store.get_nodes(limit=-1)
    for embedding in ([math.nan] * 8, [0.0] * 8, [math.inf] * 8, []):
        with pytest.raises(errors.EmbeddingError):
            store.query(VectorStoreQuery(query_embedding=embedding, similarity_top_k=1))
    with pytest.raises(errors.EmbeddingMismatchError, match=r"has 5 dimensions, the index holds 8"):
        store.query(VectorStoreQuery(query_embedding=[1.0] * 5, similarity_top_k=1))


def test_mmr_chooses_as_the_store_of_llama_index_does(store):
    nodes = [make_node(n, even=n % 2) for n in range(40)]
    store.add(nodes)
    theirs = SimpleVectorStore()
    theirs.add(nodes)
    for threshold in (0.1, 0.3, None, 1.0):
        query = ask(99, top_k=7, mode=VectorStoreQueryMode.MMR)
        expected = theirs.query(query, mmr_threshold=threshold)
        query.mmr_threshold = threshold
        found = store.query(query)
        assert found.ids == [node.node_id for node in found.nodes] == expected.ids
        assert found.similarities == pytest.approx(expected.similarities, abs=1e-5)
    assert set(store.query(ask(top_k=7, mode=VectorStoreQueryMode.MMR, filters=where("even", 1))).ids) <= {
        node.node_id for node in nodes if node.metadata["even"]
    }
    index = VectorStoreIndex.from_vector_store(store, embed_model=MockEmbedding(embed_dim=DIMENSION))
    retriever = index.as_retriever(vector_store_query_mode="mmr", vector_store_kwargs={"mmr_threshold": 0.3})
    assert len(retriever.retrieve("x")) == 2
    assert store.query(ask(top_k=0, mode=VectorStoreQueryMode.MMR)).ids == []


def test_a_query_without_an_embedding_gives_nodes_by_filter(store):
    store.add([make_node(n, source=f"d{n % 3}", even=n % 2) for n in range(12)])
    found = store.query(VectorStoreQuery(filters=where("even", 1), doc_ids=["d1"], similarity_top_k=9))
    assert (sorted(found.ids), found.similarities) == (["node-00001", "node-00007"], [0.0, 0.0])
    assert len(store.query(VectorStoreQuery(filters=where("even", 1), similarity_top_k=4)).ids) == 4
    assert store.query(VectorStoreQuery(node_ids=["node-00002"])).ids == ["node-00002"]
    assert store.query(VectorStoreQuery(filters=where("even", 1), similarity_top_k=0)).ids == []


def test_hybrid_mode_fuses_words_and_meaning_where_words_are_kept(store):
    store.add([make_node(n, topic="boiler" if n == 7 else "roof") for n in range(9)])
    query = ask(top_k=3, mode=VectorStoreQueryMode.HYBRID, query_str="boiler", alpha=0.0)
    if isinstance(store, QdrantEdgeVectorStore):
        with pytest.raises(errors.InvalidQueryError, match="keeps no words"):
            store.query(query)
        return
    assert store.query(query).ids[0] == "node-00007"
    query.alpha = 1.0
    assert store.query(query).ids == store.query(ask(top_k=3)).ids
    query.query_str = "unheard"
    assert len(store.query(query).ids) == 3


def test_closing(store):
    store.add([make_node(n) for n in range(300)])
    pages = store.iter_nodes(100)
    next(pages)
    store.close()
    store.close()
    for use in (store.count, store.node_ids, store.flush, store.clear, lambda: store.client, lambda: list(pages)):
        with pytest.raises(errors.StoreClosedError, match="open it again"):
            use()
    with pytest.raises(errors.StoreClosedError):
        store.add([make_node(1)])


def test_a_payload_index_that_cannot_be(store):
    store.add([make_node(1)])
    with pytest.raises(errors.ConfigError, match="keyword, float, bool, datetime"):
        store.create_payload_index("a.b", "geo")
    for field in ("", 'q"', "_node_content"):
        with pytest.raises(errors.ConfigError, match="cannot be indexed"):
            store.create_payload_index(field, "keyword")


def test_in_a_plain_llama_index_application(store):
    embed_model = MockEmbedding(embed_dim=DIMENSION)
    context = StorageContext.from_defaults(vector_store=store)
    documents = [Document(text=f"about {n}", doc_id=f"d{n}", metadata={"n": n}) for n in range(5)]
    index = VectorStoreIndex.from_documents(documents, storage_context=context, embed_model=embed_model)
    retriever = index.as_retriever(similarity_top_k=3, filters=where("n", 1, ">"))
    assert {found.node.metadata["n"] for found in retriever.retrieve("x")} == {2, 3, 4}
    index.delete_ref_doc("d3")
    assert {found.node.ref_doc_id for found in retriever.retrieve("x")} == {"d2", "d4"}
    again = VectorStoreIndex.from_vector_store(store, embed_model=embed_model)
    found = again.as_retriever(similarity_top_k=1).retrieve("x")[0]
    assert math.isfinite(found.score)
    assert found.node.get_content().startswith("about")


@pytest.mark.parametrize(("embedding", "error", "said"), [
    (None, errors.EmbeddingError, "no embedding"), ([], errors.EmbeddingError, "no embedding"),
    ([math.nan] + [1.0] * 7, errors.EmbeddingError, "NaN"),
    ([1.0] * 7 + [math.inf], errors.EmbeddingError, "infinity"), ([0.0] * 8, errors.EmbeddingError, "zero"),
    ([1.0] * 7, errors.EmbeddingMismatchError, "7 dimensions.* 8|8 dimensions, got 7"),
])  # fmt: skip
def test_one_bad_node_and_nothing_of_the_batch_is_written(store, embedding, error, said):
    store.add([make_node(1)])
    bad = make_node(3)
    bad.embedding = embedding
    for batch in ([bad], [make_node(2), bad, make_node(4)]):
        with pytest.raises(error, match=said):
            store.add(batch)
    with pytest.raises(errors.IndexingError, match="'bad' of node 'node-00003'"):
        store.add([make_node(2), make_node(3, bad=object())])
    assert store.node_ids() == ["node-00001"]


@pytest.mark.parametrize("size", [1e-300, 1e-30, 1e30, 1e300])
def test_vectors_of_any_size_keep_their_direction(store, size):
    node = make_node(3)
    node.embedding = [size * x for x in vector(3)]
    store.add([node])
    found = store.query(ask(3, 1))
    assert found.ids == ["node-00003"]
    assert found.similarities[0] == pytest.approx(1, abs=1e-6)
    assert np.linalg.norm(store.vectors(["node-00003"])[1]) == pytest.approx(1, abs=1e-6)
