"""Our embedded vector store under a plain VectorStoreIndex and StorageContext."""

from __future__ import annotations

import asyncio
import math

import pytest
from bridge_material import CAT, synthesizer
from llama_index.core import Document, StorageContext, VectorStoreIndex, load_index_from_storage
from llama_index.core.callbacks import CallbackManager
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import VectorIndexRetriever
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters
from small_indexes import ANIMALS, GOOD, documents

from agentic_retriever import QdrantEdgeVectorStore
from agentic_retriever.testing import FakeEmbedding, FakeLLM


@pytest.fixture
def store(tmp_path):
    made = QdrantEdgeVectorStore(path=str(tmp_path / "store"), dimension=64)
    yield made
    made.close()


def options():
    """Everything that LlamaIndex would take from ``Settings`` else."""
    return {
        "embed_model": FakeEmbedding(dimension=64, callback_manager=CallbackManager([])),
        "callback_manager": CallbackManager([]),
        "transformations": [SentenceSplitter(chunk_size=64, chunk_overlap=0, callback_manager=CallbackManager([]))],
    }


def retriever(index, **more):
    return VectorIndexRetriever(
        index,
        **{"similarity_top_k": 10, "embed_model": index._embed_model, "callback_manager": CallbackManager([])} | more,
    )


def found(index, query=CAT, **more):
    return [n.node.ref_doc_id for n in retriever(index, **more).retrieve(query)]


def where(key, value, operator="=="):
    return MetadataFilters(filters=[MetadataFilter(key=key, value=value, operator=FilterOperator(operator))])


@pytest.fixture
def index(store):
    context = StorageContext.from_defaults(vector_store=store)
    return VectorStoreIndex.from_documents(documents(ANIMALS), storage_context=context, **options())


def test_insert_query_and_delete(index, store):
    assert found(index)[0] == "cats"
    assert sorted(found(index)) == ["cats", "dogs", "owls"]
    scores = [n.score for n in retriever(index).retrieve(CAT)]
    assert scores == sorted(scores, reverse=True)
    assert all(map(math.isfinite, scores))
    index.insert(Document(text="The ant sleeps never.", doc_id="ants", metadata={"kind": "a", "legs": 6}))
    index.insert_nodes([TextNode(text="The bee hums.", id_="bee", metadata={"kind": "b", "legs": 6})])
    assert store.count() == 5
    index.delete_ref_doc("dogs")
    assert "dogs" not in found(index)
    index.delete_nodes(["bee"])
    assert store.count() == 3
    index.update_ref_doc(Document(text="The ant sleeps at times.", doc_id="ants", metadata={"kind": "a"}))
    [ant] = retriever(index, filters=where("kind", "a")).retrieve("ant")
    assert ant.node.get_content() == "The ant sleeps at times."


def test_filters(index):
    index.insert(Document(text="The ant sleeps never.", doc_id="ants", metadata={"kind": "a", "legs": 6}))
    assert found(index, filters=where("kind", "d")) == ["dogs"]
    assert sorted(found(index, filters=where("kind", ["d", "o"], "in"))) == ["dogs", "owls"]
    assert found(index, filters=where("legs", 5, ">")) == ["ants"]
    assert found(index, filters=where("legs", 7, ">")) == []
    assert asyncio.run(retriever(index, filters=where("kind", "c")).aretrieve(CAT))[0].node.ref_doc_id == "cats"
    assert found(index, similarity_top_k=1, doc_ids=["owls"]) == ["owls"]


def test_reopening_from_the_store_alone(index, store):
    again = VectorStoreIndex.from_vector_store(store, **options())
    assert found(again) == found(index)
    again.insert(Document(text="The cow moos.", doc_id="cows"))
    again.delete_ref_doc("owls")
    assert sorted(found(index)) == ["cats", "cows", "dogs"]
    path = store.path
    store.close()
    other = QdrantEdgeVectorStore(path=path, dimension=64)
    try:
        assert sorted(found(VectorStoreIndex.from_vector_store(other, **options()))) == ["cats", "cows", "dogs"]
    finally:
        other.close()


def test_storage_context_kept_beside_it(index, store, tmp_path):
    kept = str(tmp_path / "context")
    index.set_index_id("animals")
    index.storage_context.persist(persist_dir=kept)
    path = store.path
    store.close()
    other = QdrantEdgeVectorStore(path=path, dimension=64)
    try:
        context = StorageContext.from_defaults(vector_store=other, persist_dir=kept)
        again = load_index_from_storage(context, index_id="animals", **options())
        assert sorted(found(again)) == ["cats", "dogs", "owls"]
        again.delete_ref_doc("cats", delete_from_docstore=True)
        assert sorted(found(again)) == ["dogs", "owls"]
    finally:
        other.close()


def test_a_query_engine_over_it(index):
    llm = FakeLLM([GOOD])
    engine = RetrieverQueryEngine(retriever(index), synthesizer(llm), callback_manager=CallbackManager([]))
    assert str(engine.query(CAT)) == str(asyncio.run(engine.aquery(CAT))) == GOOD
    assert "sixteen hours" in llm.prompts[0]


def test_async_indexing(store):
    async def work():
        context = StorageContext.from_defaults(vector_store=store)
        index = VectorStoreIndex(nodes=[], storage_context=context, **options())
        await index.ainsert(Document(text=ANIMALS["cats"], doc_id="cats"))
        first = await retriever(index).aretrieve(CAT)
        await index.adelete_ref_doc("cats")
        return first, await retriever(index).aretrieve(CAT)

    first, then = asyncio.run(work())
    assert [n.node.ref_doc_id for n in first] == ["cats"]
    assert then == []
