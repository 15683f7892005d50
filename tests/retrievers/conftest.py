"""Indexes that live in memory, and the same over the real store."""

from dataclasses import dataclass, field, fields

import numpy as np
import pytest
from llama_index.core.bridge.pydantic import Field
from llama_index.core.schema import MetadataMode, TextNode
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQueryResult
from waiting import pool

from agentic_retriever.config import RouterConfig
from agentic_retriever.errors import StoreError
from agentic_retriever.filters import node_fields, predicate
from agentic_retriever.indices import Index, derived
from agentic_retriever.indices.keyword import KeywordIndex
from agentic_retriever.ingestion.chunking import ChunkSettings
from agentic_retriever.retrievers import AdapterSettings
from agentic_retriever.stores.edge import QdrantEdgeVectorStore
from agentic_retriever.testing.fakes import FakeEmbedding
from agentic_retriever.text import Tokenizer


class MemoryVectorStore(BasePydanticVectorStore):
    """Keeps the node objects it was given and hands out those very objects, as careless stores do."""

    stores_text: bool = True
    kept: dict[str, TextNode] = Field(default_factory=dict)
    queries: list = Field(default_factory=list)
    reads: list = Field(default_factory=list)
    scores: dict = Field(default_factory=dict)  # answers by id, in place of the cosine

    @property
    def client(self):
        return None

    def add(self, nodes, **kwargs):
        self.kept.update((n.node_id, n) for n in nodes)
        return [n.node_id for n in nodes]

    def delete(self, ref_doc_id, **kwargs):
        self.kept = {i: n for i, n in self.kept.items() if n.ref_doc_id != ref_doc_id}

    def get_nodes(self, node_ids=None, filters=None):
        self.reads.append((node_ids, filters))
        allowed = predicate(filters)
        chosen = [self.kept[i] for i in node_ids or self.kept if i in self.kept]  # as elsewhere, no ids means all
        return [n for n in chosen if allowed(node_fields(n))]

    def query(self, query, **kwargs):
        self.queries.append(query)
        nodes = self.get_nodes(query.node_ids, filters=query.filters)
        asked = np.asarray(query.query_embedding)
        scored = [(self.scores.get(n.node_id, float(np.dot(asked, n.embedding))), n) for n in nodes]
        scored.sort(key=lambda pair: -pair[0] if pair[0] is not None and pair[0] == pair[0] else 9.0)
        top = scored[: query.similarity_top_k]
        return VectorStoreQueryResult([n for _, n in top], [s for s, _ in top], [n.node_id for _, n in top])


def embedded(node, model):
    node.embedding = node.embedding or model.get_text_embedding(node.get_content(MetadataMode.NONE))
    return node


@dataclass
class QueryModel:
    base: FakeEmbedding
    timeouts: list = field(default_factory=list)

    def embed_query(self, text, *, timeout_s=None):
        self.timeouts.append(timeout_s)
        return self.base.get_query_embedding(text)


@dataclass
class MemoryIndex(Index):
    """The least that a retriever needs."""

    vector_store: BasePydanticVectorStore
    embedding: QueryModel
    name: str = "stand-in"
    description: str = "for tests"
    version: int = 1
    views: tuple = ()
    chunk_settings: ChunkSettings = field(default_factory=ChunkSettings)

    def profile(self):
        raise StoreError("a stand-in has no profile")

    def search_profile(self):
        return None

    def keyword(self):
        items = ((n.node_id, n.get_content(MetadataMode.NONE)) for n in self._nodes())
        return KeywordIndex.build(items, tokenizer=Tokenizer("en"), version=self.version)

    def hierarchy(self):
        leaves = [leaf for node in self._nodes() for leaf in derived.leaf_nodes(node, self.chunk_settings)]
        outlines = {i: derived.Outline(**derived.outline_of(nodes)) for i, nodes in self._documents().items()}
        return derived.HierarchyView(self._embedded(leaves), outlines)

    def summaries(self):
        documents = self._documents()
        nodes = [derived.summary_node(i, found, derived.central_summary(found)) for i, found in documents.items()]
        chunks = {i: [n.node_id for n in found] for i, found in documents.items()}
        return derived.SummaryView(self._embedded(nodes), chunks, len(nodes))

    def count(self):
        return len(self._nodes())

    def _documents(self):
        documents = {}
        for node in self._nodes():
            documents.setdefault(node.ref_doc_id or node.node_id, []).append(node)
        return documents

    def _embedded(self, nodes):
        return MemoryVectorStore(kept={node.node_id: embedded(node, self.embedding.base) for node in nodes})

    def _nodes(self):
        kept = getattr(self.vector_store, "kept", None)
        return list(self.vector_store.iter_nodes() if kept is None else kept.values())


@pytest.fixture(scope="module")
def edge_stores():
    """Real stores by what is in them; opening one takes longer than a search, so tests that only read share it."""
    stores = {}
    yield stores
    for store in stores.values():
        store.close()


@pytest.fixture
def make_edge_index(make_index, edge_stores, tmp_path_factory):
    """Make an index over the real store."""

    def make(nodes, embedding=None):
        key = tuple(node.to_json() for node in nodes)
        if key in edge_stores:
            return MemoryIndex(edge_stores[key], QueryModel(embedding))
        path = tmp_path_factory.mktemp("edge")
        edge_stores[key] = QdrantEdgeVectorStore(path, collection_name="chunks", dimension=32)
        return make_index(nodes, embedding, edge_stores[key])

    return make


@pytest.fixture
def make_index():
    """Make an index of nodes in memory, or in the given store."""

    def make(nodes, embedding=None, store=None):
        model = embedding or FakeEmbedding()
        store = MemoryVectorStore() if store is None else store
        if nodes:
            store.add([embedded(node, model) for node in nodes])
        model.calls.clear()
        return MemoryIndex(store, QueryModel(model))

    return make


@pytest.fixture
def workers():
    with pool(4) as made:
        yield made


@pytest.fixture
def make_settings(workers):
    """Make settings of retrievers; what is not their own is of the configuration."""

    def make(**given):
        own = {one.name for one in fields(AdapterSettings)}
        config = RouterConfig(**{name: given.pop(name) for name in given.keys() - own})
        return AdapterSettings(**{"workers": workers, "config": config, **given})

    return make


@pytest.fixture
def settings(make_settings):
    return make_settings()
