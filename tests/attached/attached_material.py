"""LlamaIndex indexes, retrievers and query engines to attach, good and bad."""

import uuid

from llama_index.core import StorageContext, SummaryIndex, VectorStoreIndex
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import NodeWithScore, TextNode

from agentic_retriever.embeddings import EmbeddingModel, embedding_name
from agentic_retriever.indices.attached.index import attach_index
from agentic_retriever.indices.attached.sources import recognise
from agentic_retriever.retrievers import AdapterSettings, RetrievalRequest, build_adapter
from agentic_retriever.testing import FakeEmbedding, FakeLLM

TEXTS = {
    "lease": ("The lease of the warehouse ends in March 2027. The rent is paid every month.", "contract", 2024),
    "supply": ("The supplier delivers red apples every Monday. Late deliveries cost a penalty.", "contract", 2023),
    "loan": ("The loan of the bank has a fixed interest rate of three percent.", "letter", 2024),
    "staff": ("Employees have thirty days of paid leave every year.", "policy", 2022),
}


def vector_index(nodes, *, embedding=None, **kwargs):
    """A VectorStoreIndex that reads nothing from the process-wide settings."""
    embedding = embedding or FakeEmbedding(dimension=64)
    return VectorStoreIndex(
        list(nodes), embed_model=embedding, transformations=[], callback_manager=CallbackManager([]), **kwargs
    )


def index_on(store, nodes, *, embedding=None):
    """A VectorStoreIndex over a store."""
    return vector_index(nodes, embedding=embedding, storage_context=StorageContext.from_defaults(vector_store=store))


def summary_index(nodes):
    return SummaryIndex(list(nodes), transformations=[], callback_manager=CallbackManager([]))


def contracts(*, uuids=False, texts=TEXTS):
    """Nodes about contracts, new ones with every call."""
    return [
        TextNode(
            id_=str(uuid.uuid5(uuid.NAMESPACE_OID, node_id)) if uuids else node_id,
            text=text,
            metadata={"kind": kind, "year": year},
        )
        for node_id, (text, kind, year) in texts.items()
    ]


def model_of(embedding):
    return EmbeddingModel(embedding, name=embedding_name(embedding))


def attached(given, *, router=None, name="contracts", description="Contracts, loans and leave"):
    """Attach without a router."""
    router = model_of(router or FakeEmbedding(dimension=64))
    return attach_index(
        name, recognise(name, given), description=description, created="now", router=router, wrap=model_of
    )


def search(made, strategy, query, top_k=3, filters=None, *, timeout_s=None):
    """Search an attached index as a router would."""
    return build_adapter(strategy, made, AdapterSettings()).search(
        RetrievalRequest(query, top_k, filters, timeout_s=timeout_s)
    )


def query_engine(retriever):
    """A RetrieverQueryEngine whose model is never to be asked."""
    synthesizer = get_response_synthesizer(llm=FakeLLM(["unused"]), callback_manager=CallbackManager([]))
    return RetrieverQueryEngine(retriever, synthesizer, callback_manager=CallbackManager([]))


class ScriptedRetriever(BaseRetriever):
    """Gives what it is told to, or raises it, or calls it."""

    def __init__(self, reply):
        super().__init__(callback_manager=CallbackManager([]))
        self.reply = reply
        self.asked = []

    def retrieve(self, str_or_query_bundle):
        self.asked.append(str_or_query_bundle.query_str)
        reply = self.reply(str_or_query_bundle.query_str) if callable(self.reply) else self.reply
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _retrieve(self, query_bundle):
        raise AssertionError


class AnswersOnly(BaseQueryEngine):
    """A query engine that cannot retrieve."""

    def __init__(self):
        super().__init__(CallbackManager([]))

    def _query(self, query_bundle):
        raise AssertionError

    async def _aquery(self, query_bundle):
        raise AssertionError

    def _get_prompt_modules(self):
        return {}


def scored(node_id, score, text="some text about rent", **metadata):
    return NodeWithScore(node=TextNode(id_=node_id, text=text, metadata=metadata), score=score)
