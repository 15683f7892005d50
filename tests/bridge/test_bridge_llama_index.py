"""Our vector store under a plain VectorStoreIndex, the router under a RetrieverEvaluator; what importing does."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import textwrap
from contextlib import closing

import pytest
from bridge_material import CAT, synthesizer
from llama_index.core import Document, StorageContext, VectorStoreIndex, load_index_from_storage
from llama_index.core.callbacks import CallbackManager
from llama_index.core.evaluation import RetrieverEvaluator
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import VectorIndexRetriever
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters
from small_indexes import ANIMALS, GOOD, documents

from agentic_retriever import AgenticRouter, QdrantEdgeVectorStore, RouterConfig
from agentic_retriever.embeddings import PackedVectors
from agentic_retriever.sample import SAMPLE_INDEXES, VECTORS, load_questions
from agentic_retriever.schema import Strategy
from agentic_retriever.testing import FakeEmbedding, FakeLLM


@pytest.fixture
def store(tmp_path):
    made = QdrantEdgeVectorStore(path=str(tmp_path / "store"), dimension=64)
    yield made
    made.close()


def reopened(store):
    store.close()
    return closing(QdrantEdgeVectorStore(path=store.path, dimension=64))


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
    with reopened(store) as other:
        assert sorted(found(VectorStoreIndex.from_vector_store(other, **options()))) == ["cats", "cows", "dogs"]


def test_storage_context_kept_beside_it(index, store, tmp_path):
    kept = str(tmp_path / "context")
    index.set_index_id("animals")
    index.storage_context.persist(persist_dir=kept)
    with reopened(store) as other:
        context = StorageContext.from_defaults(vector_store=other, persist_dir=kept)
        again = load_index_from_storage(context, index_id="animals", **options())
        assert sorted(found(again)) == ["cats", "dogs", "owls"]
        again.delete_ref_doc("cats", delete_from_docstore=True)
        assert sorted(found(again)) == ["dogs", "owls"]


async def test_a_query_engine_over_it(index):
    llm = FakeLLM([GOOD])
    engine = RetrieverQueryEngine(retriever(index), synthesizer(llm), callback_manager=CallbackManager([]))
    assert str(engine.query(CAT)) == str(await engine.aquery(CAT)) == GOOD
    assert "sixteen hours" in llm.prompts[0]


async def test_async_indexing(store):
    context = StorageContext.from_defaults(vector_store=store)
    index = VectorStoreIndex(nodes=[], storage_context=context, **options())
    await index.ainsert(Document(text=ANIMALS["cats"], doc_id="cats"))
    assert [n.node.ref_doc_id for n in await retriever(index).aretrieve(CAT)] == ["cats"]
    await index.adelete_ref_doc("cats")
    assert await retriever(index).aretrieve(CAT) == []


# LlamaIndex's own RetrieverEvaluator over the router and over every strategy, on the sample


METRICS = ["hit_rate", "mrr", "precision", "recall", "ap", "ndcg"]
QUESTIONS = [q for q in load_questions() if q["index"]][::6]


@pytest.fixture(scope="module")
def sample(tmp_path_factory, local_embedding):
    """The sample with all its views, from the vectors that ship with it."""
    config = RouterConfig(data_dir=tmp_path_factory.mktemp("evaluated"), query_log="none")
    with AgenticRouter(config, embedding=local_embedding, packed=[PackedVectors(VECTORS)]) as made:
        for s in SAMPLE_INDEXES:
            made.add_index(s.name, s.folder, description=s.description)
            made.build_views(s.name)
        yield made


@pytest.fixture(scope="module")
def expected(sample):
    """The nodes of the gold documents, by question."""
    nodes = {s.name: list(sample.index(s.name).nodes()) for s in SAMPLE_INDEXES}
    return {q["id"]: [n.node_id for n in nodes[q["index"]] if n.ref_doc_id in q["doc_ids"]] for q in QUESTIONS}


async def evaluated(retriever_of, expected):
    """The mean of each metric."""
    values = []
    for q in QUESTIONS:
        evaluator = RetrieverEvaluator.from_metric_names(METRICS, retriever=retriever_of(q))
        result = await evaluator.aevaluate(q["query"], expected_ids=expected[q["id"]])
        values.append(result.metric_vals_dict)
    assert all(set(one) == set(METRICS) for one in values)
    assert all(math.isfinite(value) and 0 <= value <= 1 for one in values for value in one.values())
    return {name: sum(one[name] for one in values) / len(values) for name in METRICS}


async def test_the_router(sample, expected):
    retriever = sample.as_retriever()
    means = await evaluated(lambda _q: retriever, expected)
    assert means["hit_rate"] >= 0.9
    assert means["mrr"] >= 0.6


@pytest.mark.parametrize("strategy", list(Strategy))
async def test_every_strategy(sample, expected, strategy):
    adapters = {s.name: sample.resources.adapter(sample.index(s.name), strategy) for s in SAMPLE_INDEXES}
    means = await evaluated(lambda q: adapters[q["index"]], expected)
    assert means["hit_rate"] >= 0.6
    assert means["mrr"] >= 0.3


def test_a_pinned_router_ranks_as_the_adapter_does(sample):
    for q in QUESTIONS[:4]:
        adapter = sample.resources.adapter(sample.index(q["index"]), Strategy.VECTOR)
        routed = sample.as_retriever(index=q["index"], strategy="vector", top_k=sample.config.top_k)
        found = [n.node.node_id for n in routed.retrieve(q["query"])]
        if routed.retrieve(q["query"])[0].node.metadata["route"]["strategy"] == "vector":
            assert found == [n.node.node_id for n in adapter.retrieve(q["query"])]


# Importing costs nothing and touches nothing


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_import_makes_no_call_and_loads_no_llama_index_until_a_class_is_used():
    assert run(
        """
        import socket, sys, threading

        def refuse(event, args):
            # Libraries below may look whether the system has IPv6, for which they make a socket and connect it nowhere.
            if event.startswith("socket.") and (event != "socket.__new__" or "llama_index" not in sys.modules):
                if not (event == "socket.bind" and args[1][0] == "::1"):
                    raise SystemExit(f"{event} {args}")

        sys.addaudithook(refuse)
        import agentic_retriever

        heavy = {"llama_index", "llama_index_instrumentation", "numpy", "qdrant_edge", "pydantic", "asyncio"}
        print(sorted(heavy & {name.partition(".")[0] for name in sys.modules}) or "light")
        print(sorted(agentic_retriever.__all__) == sorted(set(dir(agentic_retriever))), threading.active_count())
        agentic_retriever.Strategy
        print("llama_index.core" in sys.modules)
        agentic_retriever.AgenticRouter
        print("llama_index.core" in sys.modules)
        """
    ) == ["light", "True", "1", "False", "True"]


def test_using_every_class_and_making_a_router_leaves_settings_and_network_alone(tmp_path):
    assert run(
        f"""
        import asyncio, sys

        def refuse(event, args):
            if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
                raise SystemExit(f"{{event}} {{args}}")

        sys.addaudithook(refuse)
        import agentic_retriever
        from llama_index.core.settings import Settings

        before = dict(vars(Settings))
        for name in agentic_retriever.__all__:
            getattr(agentic_retriever, name)
        config = agentic_retriever.RouterConfig(data_dir={str(tmp_path)!r}, llm="ollama:x", llm_cloud="openrouter:y",
                                                openrouter_api_key="k")
        with agentic_retriever.AgenticRouter(config) as router:
            router.as_retriever(), router.as_query_engine(streaming=True), router.as_tool()
        print(all(value is None for value in before.values()), dict(vars(Settings)) == before)
        print(asyncio.run.__module__, "nest_asyncio" in sys.modules and hasattr(asyncio, "_nest_patched"))
        """
    ) == ["True", "True", "asyncio.runners", "False"]
