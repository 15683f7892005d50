from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters

from agentic_retriever.embeddings import EmbeddingModel
from agentic_retriever.indices import Indexer, IndexStorage
from agentic_retriever.indices.prefilter import MIN_NODES, VectorRows
from agentic_retriever.ingestion import ChunkSettings
from agentic_retriever.retrievers import AdapterSettings, RetrievalRequest, VectorRetriever
from agentic_retriever.testing import FakeEmbedding
from agentic_retriever.threads import Workers

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
def index(tmp_path):
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


def search(index, workers):
    adapter = VectorRetriever(index, AdapterSettings(workers=workers))
    nodes = adapter.search(RetrievalRequest("word7 word9", 12, FILTERS)).nodes
    return [(n.node.node_id, round(n.score, 5)) for n in nodes]


def test_search_in_memory_equals_search_by_the_engine(index):
    with Workers(2, "test") as workers:
        by_engine = search(index, workers)
        index._vector_rows.wait(30)
        assert index.vector_rows() is not None
        calls = []
        original = type(index.vector_store).query
        type(index.vector_store).query = lambda *args, **kw: calls.append(1) or original(*args, **kw)
        try:
            in_memory = search(index, workers)
        finally:
            type(index.vector_store).query = original
        assert in_memory == by_engine
        assert len(in_memory) == 12
        assert not calls


def test_rows_of_an_old_version_are_never_used(index):
    with Workers(2, "test") as workers:
        search(index, workers)
        index._vector_rows.wait(30)
        metadata = {"kind": "k1", "year": 40}
        fresh = TextNode(
            id_="fresh", text="word7 word9", metadata=metadata, excluded_embed_metadata_keys=list(metadata)
        )
        Indexer(index).add_nodes([fresh])
        assert search(index, workers)[0][0] == "fresh"
        index._vector_rows.wait(30)
        assert index.vector_rows() is not None
        assert search(index, workers)[0][0] == "fresh"
        Indexer(index).remove_documents(["fresh"])
        assert "fresh" not in {node_id for node_id, _ in search(index, workers)}


def test_small_indexes_do_without(tmp_path):
    storage = IndexStorage(tmp_path)
    model = EmbeddingModel(FakeEmbedding(dimension=DIMENSION), name="fake")
    made = storage.create("small", model, description="", chunks=ChunkSettings())
    Indexer(made).add_nodes([TextNode(id_="a", text="a")])
    assert made.vector_rows() is None
    made._vector_rows.wait(1)
    assert made.vector_rows() is None
    storage.close()
