from __future__ import annotations

import logging
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters
from store_tools import where

from agentic_retriever.embeddings import EmbeddingModel
from agentic_retriever.indices import Indexer, IndexStorage
from agentic_retriever.indices.prefilter import snapshot
from agentic_retriever.indices.prefilter.index import MIN_NODES, MetadataIndex, VectorRows
from agentic_retriever.ingestion import ChunkSettings
from agentic_retriever.retrievers import AdapterSettings, RetrievalRequest, VectorRetriever
from agentic_retriever.testing import FakeEmbedding
from agentic_retriever.threads import Workers


def make_node(number, source=None, **metadata):
    node = TextNode(id_=f"n{number}", text=f"text {number}", metadata=metadata)
    if source:
        node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=source)
    return node


@pytest.fixture
def open_storage(tmp_path):
    opened = []

    def make():
        opened.append(IndexStorage(tmp_path / "data"))
        return opened[-1]

    yield make
    for storage in opened:
        storage.close()


@pytest.fixture
def index(open_storage, embedding):
    made = open_storage().create("docs", embedding, description="Test", chunks=ChunkSettings())
    Indexer(made).add_nodes([
        make_node(1, "d1", province="Bangkok", year=2020), make_node(2, "d1", province="Lampang", year=2021),
        make_node(3, "d2", province="Bangkok", year=2022),
    ])  # fmt: skip
    return made


@pytest.fixture
def builds(monkeypatch):
    made = []
    build = MetadataIndex.build

    def counted(items, version, **kwargs):
        made.append(version)
        return build(items, version, **kwargs)

    monkeypatch.setattr(MetadataIndex, "build", counted)
    return made


def test_built_once_for_a_version_and_follows_what_is_added_replaced_and_removed(index, builds):
    assert index.candidates(where("province", "Bangkok")) == {"n1", "n3"}
    assert index.candidates(where("year", 2020, ">")) == {"n2", "n3"}
    assert index.candidates(None) == {"n1", "n2", "n3"}
    assert index.candidates(where("provinc", "x")) == set()
    assert builds == [index.version]
    for key in ("doc_id", "document_id", "ref_doc_id"):
        assert index.candidates(where(key, "d1")) == {"n1", "n2"}
    Indexer(index).add_nodes([make_node(4, "d2", province="Bangkok", year=2030)])
    assert index.candidates(where("province", "Bangkok")) == {"n1", "n4"}  # n3 was of d2 as it was before
    Indexer(index).remove_documents(["d1"])
    assert index.candidates(where("province", "Bangkok")) == {"n4"}
    assert index.metadata().version == index.version


def test_a_change_that_fails_changes_nothing_and_one_that_is_told_is_no_reason_to_build_again(index, builds):
    index.metadata()
    with pytest.raises(KeyError), index.changing(removed=["n1"]):
        raise KeyError
    with index.changing(removed=["n1"]):
        pass  # the version is as it was, so there was no change
    assert index.candidates(where("year", 2020)) == {"n1"}
    assert len(builds) == 1
    before = index.candidates(where("province", "Bangkok"))
    node = make_node(9, "d9", province="Bangkok")
    with index.changing(written=[node], removed=["n1"]):
        index.catalog.confirm_removal(["d1"])
    assert index.candidates(where("province", "Bangkok")) == {"n3", "n9"}
    assert index.candidates(where("doc_id", "d9")) == {"n9"}
    assert before == {"n1", "n3"}
    assert len(builds) == 1


def test_read_from_its_saved_form_with_the_changes_saved_when_it_was_closed(index, open_storage, embedding, builds):
    index.metadata()
    index.close()
    again = open_storage().open("docs", embedding)
    assert again.candidates(where("province", "Bangkok")) == {"n1", "n3"}
    assert len(builds) == 1
    with again.changing(removed=["n1"]):
        again.catalog.confirm_removal([])
    again.close()
    again.close()
    again = open_storage().open("docs", embedding)
    assert again.candidates(where("province", "Bangkok")) == {"n3"}
    assert len(builds) == 1


def test_a_damaged_saved_form_is_built_again(index, open_storage, embedding, builds, caplog):
    index.metadata()
    index.close()
    (index.folder / "metadata" / "arrays.npz").write_bytes(b"x")
    with caplog.at_level(logging.WARNING):
        again = open_storage().open("docs", embedding)
        assert again.candidates(where("province", "Bangkok")) == {"n1", "n3"}
    assert len(builds) == 2
    assert "arrays.npz" in caplog.text


def test_a_disk_that_refuses_costs_nothing_but_time(index, caplog):
    (index.folder / "metadata").parent.mkdir(exist_ok=True)
    (index.folder / ".metadata.tmp").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        assert index.candidates(where("province", "Bangkok")) == {"n1", "n3"}
    assert "could not be saved" in caplog.text


def test_the_store_decides_about_texts_that_are_left_out(index, monkeypatch):
    monkeypatch.setattr(snapshot, "TEXT_BYTES", 0)
    monkeypatch.setattr(snapshot, "TEXT_BYTES_PER_NODE", 0)
    assert not index.metadata().candidates(where("province", "Bangkok")).exact
    found = index.candidates(where("province", "Bangkok"))
    assert found == {"n1", "n3"}
    assert found.exact
    monkeypatch.setattr("agentic_retriever.indices.prefilter.index.MAX_IDS", 1)
    assert index.candidates(where("province", "LAMP", "text_match_insensitive")) == {"n2"}
    assert index.candidates(where("province", "nowhere")) == set()


def test_filters_stay_true_while_documents_are_written(index):
    """What a reader is told is always what is in one version: documents come whole."""
    stop, wrong = threading.Event(), []

    def read():
        while not stop.is_set():
            found = sorted(index.candidates(where("batch", 0, ">=")))
            if len(found) % 3:
                wrong.append(found)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for turn in range(8):
            nodes = [make_node(f"{turn}-{i}", f"batch{turn}", batch=turn) for i in range(3)]
            Indexer(index).add_nodes(nodes)
            if turn % 3 == 2:
                Indexer(index).remove_documents([f"batch{turn - 1}"])
    finally:
        stop.set()
        reader.join()
    assert len(index.candidates(where("batch", 0, ">="))) == 18


DIMENSION = 8


def unit(count, seed=0):
    rows = np.random.default_rng(seed).standard_normal((count, DIMENSION)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@given(st.integers(1, 60), st.integers(1, 20), st.sets(st.integers(0, 59)), st.integers(0, 1000))
def test_nearest_equals_a_full_sort(count, top_k, among, seed):
    matrix = np.round(unit(count, seed), 1)  # rounded, so that cosines tie
    ids = [f"n{i:02d}" for i in range(count)]
    wanted = [f"n{i:02d}" for i in sorted(among)]
    query = unit(1, seed + 1)[0]
    found = VectorRows(ids, matrix, 1).nearest(query.tolist(), wanted, top_k)
    rows = [i for i in sorted(among) if i < count]
    cosines = matrix[rows] @ query if rows else []
    expected = sorted(((ids[i], float(c)) for i, c in zip(rows, cosines, strict=True)), key=lambda p: (-p[1], p[0]))
    assert [i for i, _ in found] == [i for i, _ in expected][:top_k] or np.allclose(
        [c for _, c in found], [c for _, c in expected][:top_k], atol=1e-6
    )


@pytest.mark.parametrize("vector", [[0.0] * DIMENSION, [float("nan")] * DIMENSION, [1.0], []])
def test_a_vector_that_cannot_be_compared_gives_none(vector):
    assert VectorRows(["a"], unit(1), 1).nearest(vector, ["a"], 1) is None


@pytest.fixture
def large(tmp_path):
    storage = IndexStorage(tmp_path)
    model = EmbeddingModel(FakeEmbedding(dimension=DIMENSION, embed_batch_size=512), name="fake", batch_size=512)
    made = storage.create("rows", model, description="", chunks=ChunkSettings())
    nodes = [
        TextNode(
            id_=f"n{i}", text=f"word{i % 53} word{i % 31} word{i}", metadata={"kind": f"k{i % 20}", "year": i % 50}
        )
        for i in range(MIN_NODES + 100)
    ]
    Indexer(made).add_nodes(nodes)
    yield made
    storage.close()


FILTERS = MetadataFilters(
    filters=[
        MetadataFilter(key="kind", value=["k1", "k2", "k3"], operator=FilterOperator.IN),
        MetadataFilter(key="year", value=30, operator=FilterOperator.GTE),
    ]
)


def search(large, workers):
    adapter = VectorRetriever(large, AdapterSettings(workers=workers))
    nodes = adapter.search(RetrievalRequest("word7 word9", 12, FILTERS)).nodes
    return [(n.node.node_id, round(n.score, 5)) for n in nodes]


def test_search_in_memory_equals_search_by_the_engine(large):
    with Workers(2, "test") as workers:
        by_engine = search(large, workers)
        large._vector_rows.wait(30)
        assert large.vector_rows() is not None
        calls = []
        original = type(large.vector_store).query
        type(large.vector_store).query = lambda *args, **kw: calls.append(1) or original(*args, **kw)
        try:
            in_memory = search(large, workers)
        finally:
            type(large.vector_store).query = original
        assert in_memory == by_engine
        assert len(in_memory) == 12
        assert not calls


def test_rows_of_an_old_version_are_never_used(large):
    with Workers(2, "test") as workers:
        search(large, workers)
        large._vector_rows.wait(30)
        metadata = {"kind": "k1", "year": 40}
        fresh = TextNode(
            id_="fresh", text="word7 word9", metadata=metadata, excluded_embed_metadata_keys=list(metadata)
        )
        Indexer(large).add_nodes([fresh])
        assert search(large, workers)[0][0] == "fresh"
        large._vector_rows.wait(30)
        assert large.vector_rows() is not None
        assert search(large, workers)[0][0] == "fresh"
        Indexer(large).remove_documents(["fresh"])
        assert "fresh" not in {node_id for node_id, _ in search(large, workers)}


def test_small_indexes_do_without(tmp_path):
    storage = IndexStorage(tmp_path)
    model = EmbeddingModel(FakeEmbedding(dimension=DIMENSION), name="fake")
    made = storage.create("small", model, description="", chunks=ChunkSettings())
    Indexer(made).add_nodes([TextNode(id_="a", text="a")])
    assert made.vector_rows() is None
    made._vector_rows.wait(1)
    assert made.vector_rows() is None
    storage.close()
