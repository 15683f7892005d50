"""Nodes for the tests of synthesis."""

from itertools import pairwise

from llama_index.core.schema import NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode


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
