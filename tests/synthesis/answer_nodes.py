"""Nodes for the tests of synthesis, and what is extracted from them."""

from itertools import pairwise

from llama_index.core.schema import NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode

from agentic_retriever.synthesis import Extraction, ExtractiveSynthesizer, assemble


def make_node(
    text: str, *, start: int | None = None, doc_id: str = "doc", node_id: str | None = None, **metadata: object
) -> NodeWithScore:
    """A node as ingestion makes them when ``start`` is given, else one that does not know its place."""
    node = TextNode(
        text=text, id_=node_id or f"{doc_id}:{start}:{hash(text)}", metadata=metadata,
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=doc_id)}, start_char_idx=start,
        end_char_idx=None if start is None else start + len(text),
    )  # fmt: skip
    return NodeWithScore(node=node, score=1.0)


def chunked(source: str, cuts: list[int], doc_id: str = "doc") -> list[NodeWithScore]:
    """Cut a source at some offsets into nodes that know their places."""
    edges = sorted({0, len(source), *(cut % (len(source) + 1) for cut in cuts)})
    return [make_node(source[a:b], start=a, doc_id=doc_id, title=f"Title of {doc_id}") for a, b in pairwise(edges)]


def extract(query: str, nodes, language: str = "en", **kwargs) -> Extraction:
    """Answer from nodes without a model."""
    synthesizer = ExtractiveSynthesizer(kwargs.pop("max_sentences", 4), kwargs.pop("embed", None))
    return synthesizer.extract(query, assemble(nodes, max_chars=10**6), language=language, **kwargs)
