"""Short ways to search, and to say what was found."""

from llama_index.core.schema import NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode

from agentic_retriever.llm import LLMClient, TieredClient
from agentic_retriever.retrievers import RetrievalRequest
from agentic_retriever.schema import Tier
from agentic_retriever.testing.fakes import FakeLLM

QUERY = "red apple harvest"


def ask(adapter, query=QUERY, top_k=5, filters=None, **more):
    return adapter.search(RetrievalRequest(query, top_k, filters, **more))


def nodes_of(found):
    """The nodes of a result, or of a list of them."""
    return getattr(found, "nodes", found)


def ids(found):
    return [one.node.node_id for one in nodes_of(found)]


def scores(found):
    return [one.score for one in nodes_of(found)]


def pairs(found):
    return list(zip(ids(found), scores(found), strict=True))


def hit(node_id, score, text="", **metadata):
    return NodeWithScore(node=TextNode(id_=node_id, text=text or f"text of {node_id}", metadata=metadata), score=score)


def of_document(node_id, text, doc_id, **metadata):
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=doc_id)}
    return TextNode(id_=node_id, text=text, metadata=metadata, relationships=source)


def client_of(*replies):
    """A client of a model that gives these replies, and the model."""
    llm = FakeLLM(list(replies))
    return TieredClient([LLMClient(llm, tier=Tier.PRIMARY, timeout_s=5)], timeout_s=5), llm
