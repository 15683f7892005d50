"""Storing, finding, deleting."""

from __future__ import annotations

import copy
import json
import logging
import math
import pickle
import sys
import uuid
from pathlib import Path

import numpy as np
import pytest
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.schema import Document, TextNode
from llama_index.core.vector_stores.types import MetadataFilters, VectorStoreQuery, VectorStoreQueryMode

from agentic_retriever.errors import FilterError, InvalidQueryError, StoreClosedError, StoreError
from agentic_retriever.stores.edge.store import QdrantEdgeVectorStore

sys.path.insert(0, str(Path(__file__).parents[1]))
from store_tools import DIMENSION, ask, make_node, vector, where


@pytest.fixture
def store(tmp_path):
    with QdrantEdgeVectorStore(tmp_path) as opened:
        yield opened


def test_a_fresh_store_is_empty_in_every_way(store):
    assert store.dimension is None
    assert store.client is None
    assert store.count() == 0
    assert store.get_nodes() == list(store.iter_nodes()) == store.node_ids() == []
    assert store.query(ask()).ids == []
    assert store.vectors(["x"])[1].shape == (0, 0)
    store.delete("none")
    store.delete_nodes(["none"])
    store.clear()
    assert store.add([]) == []
    assert store.dimension is None


def test_order_scores_and_ids(store):
    nodes = [make_node(number) for number in range(50)]
    assert store.add(nodes) == [node.node_id for node in nodes]
    found = store.query(ask(7, 50))
    unit = np.array([node.embedding for node in nodes]) / [[np.linalg.norm(node.embedding)] for node in nodes]
    cosines = unit @ (np.array(vector(7)) / np.linalg.norm(vector(7)))
    assert found.ids == [nodes[row].node_id for row in np.argsort(-cosines)]
    assert np.allclose(found.similarities, sorted(cosines, reverse=True), atol=1e-6)
    assert [node.node_id for node in found.nodes] == found.ids
    assert store.query(ask(7, 10**9)).ids == found.ids


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
    ids = [
        "doc-1",
        str(uuid.uuid4()),
        str(uuid.uuid4()).upper(),
        uuid.uuid4().hex,
        "1",
        "ก",
        "a" * 5_000,
        " ",
        "\u00e4",
        "a\u0308",
    ]
    nodes = [make_node(number) for number in range(len(ids))]
    for node, node_id in zip(nodes, ids, strict=True):
        node.id_ = node_id
    store.add(nodes)
    assert store.node_ids() == sorted(ids)
    assert [node.node_id for node in store.get_nodes(ids)] == ids
    for node_id in ids:
        assert store.query(ask(node_ids=[node_id])).ids == [node_id]
    store.delete_nodes(ids[:3])
    assert store.node_ids() == sorted(ids[3:])


def test_restrictions_narrow_each_other_and_empty_ones_give_nothing(store):
    store.add([make_node(n, source=f"d{n % 3}", even=n % 2) for n in range(12)])
    all_ids = store.node_ids()
    assert sorted(store.query(ask(node_ids=all_ids[:4])).ids) == all_ids[:4]
    assert sorted(store.query(ask(doc_ids=["d1", "none"])).ids) == [all_ids[n] for n in (1, 4, 7, 10)]
    both = ask(doc_ids=["d1"], node_ids=all_ids[:6], filters=where("even", 0))
    assert store.query(both).ids == [all_ids[4]]
    for nothing in (ask(node_ids=[]), ask(doc_ids=[]), ask(top_k=0), ask(node_ids=["none"]), ask(doc_ids=["None"])):
        assert store.query(nothing).ids == store.query(nothing).nodes == []
    assert store.get_nodes([]) == []


def test_an_empty_candidate_list_finds_nothing_unless_it_comes_from_a_retriever(store):
    store.add([make_node(1)])
    assert store.query(ask(node_ids=[])).ids == []
    assert store.query(ask(node_ids=[], query_str="text")).ids == ["node-00001"]  # what as_retriever() sends
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
    for nothing in (
        {},
        {"node_ids": []},
        {"filters": MetadataFilters(filters=[])},
        {"node_ids": [], "filters": where("even", 0)},
    ):
        with pytest.raises(StoreError, match="clear"):
            store.delete_nodes(**nothing)
    with pytest.raises(StoreError, match="clear"):
        store.delete("")
    with pytest.raises(FilterError):
        store.delete_nodes(filters=where("even", None))
    assert store.count() == 2
    store.clear()
    assert store.count() == 0
    store.add([make_node(1)])
    assert store.count() == 1


def test_more_than_a_page_is_listed_completely(tmp_path):
    with QdrantEdgeVectorStore(tmp_path, dimension=2) as store:
        number = 10_050
        nodes = [TextNode(id_=f"n{n:05}", text="t", metadata={"n": n}, embedding=[1.0, n + 1.0]) for n in range(number)]
        store.add(nodes)
        assert store.count() == number
        expected = [node.node_id for node in nodes]
        assert store.node_ids() == expected
        assert sorted(node.node_id for node in store.get_nodes()) == expected
        assert sorted(node.node_id for node in store.iter_nodes()) == expected
        assert len(store.get_nodes(filters=where("n", 10_000, ">="))) == 50
        assert len(store.get_nodes(limit=3)) == 3
        found, matrix = store.vectors([*reversed(expected), "none", expected[0]])
        assert found == expected[::-1]
        assert matrix.shape == (number, 2)
        assert np.allclose(np.linalg.norm(matrix, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("top_k", [-1, True, 2.0, "5", None])
def test_bad_top_k(store, top_k):
    store.add([make_node(1)])
    with pytest.raises(InvalidQueryError, match="similarity_top_k"):
        store.query(ask(top_k=top_k))


def test_bad_queries(store):
    store.add([make_node(1)])
    with pytest.raises(InvalidQueryError, match="embedding"):
        store.query(VectorStoreQuery(similarity_top_k=1))
    with pytest.raises(InvalidQueryError, match="not supported"):
        store.query(ask(mode=VectorStoreQueryMode.HYBRID))
    with pytest.raises(InvalidQueryError, match="qdrant_filters"):
        store.query(ask(), qdrant_filters=object())
    with pytest.raises(InvalidQueryError, match="limit"):
        store.get_nodes(limit=-1)


def test_foreign_and_broken_points_are_skipped_with_one_warning(store, caplog):
    from qdrant_edge import Point, UpdateOperation

    store.add([make_node(n) for n in range(9)])
    strange = [
        None,
        {"a": 1},
        {"_node_content": "{", "_node_type": "TextNode"},
        {"_node_content": 3},
        {"_node_content": '{"id_": "x", "text": 3}'},
    ]
    points = [Point(str(uuid.uuid4()), vector(-1), payload) for payload in strange]
    store.client.update(UpdateOperation.upsert_points(points))
    with caplog.at_level(logging.WARNING):
        assert len(store.query(ask(-1, 9)).ids) == 9
        assert len(store.query(ask(-1, 100)).ids) == 9
    assert all("skipped" in record.message for record in caplog.records)
    caplog.clear()
    assert len(store.get_nodes()) == 9
    assert len(caplog.records) == 1


def test_closing(tmp_path):
    store = QdrantEdgeVectorStore(tmp_path)
    store.add([make_node(n) for n in range(300)])
    pages = store.iter_nodes(100)
    next(pages)
    store.close()
    store.close()
    for use in (store.count, store.node_ids, store.flush, store.clear, lambda: store.client, lambda: list(pages)):
        with pytest.raises(StoreClosedError, match="open it again"):
            use()
    with pytest.raises(StoreClosedError):
        store.add([make_node(1)])
    with QdrantEdgeVectorStore(tmp_path) as again:
        assert again.count() == 300
        assert again.dimension == DIMENSION


def test_describing_and_copying(store):
    store.add([make_node(1)])
    written = store.to_dict()
    assert written == {
        "path": store.path,
        "collection_name": "default",
        "dimension": DIMENSION,
        "class_name": "QdrantEdgeVectorStore",
    }
    assert json.loads(store.to_json()) == written
    assert "path" in repr(store)
    copies = [copy.copy(store), copy.deepcopy(store), pickle.loads(pickle.dumps(store)), type(store).from_dict(written)]
    for other in copies:
        assert other.count() == 1
        other.close()
    assert store.count() == 1


def test_optimizing_keeps_the_answers(store):
    nodes = [make_node(n, n=n) for n in range(400)]
    store.add(nodes)
    store.delete_nodes(filters=where("n", 150, "<"))
    before = store.query(ask(3, 20, filters=where("n", 300, "<"))).ids
    store.optimize()
    assert store.query(ask(3, 20, filters=where("n", 300, "<"))).ids == before
    assert store.count() == 250


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
