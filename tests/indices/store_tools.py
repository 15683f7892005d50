"""Small nodes for the tests of the vector store."""

from __future__ import annotations

import random

from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters, VectorStoreQuery

DIMENSION = 8


def vector(number: int, dimension: int = DIMENSION) -> list[float]:
    chosen = random.Random(number)
    return [chosen.gauss(0, 1) for _ in range(dimension)]


def make_node(number: int, *, source: str | None = None, **metadata: object) -> TextNode:
    node = TextNode(id_=f"node-{number:05}", text=f"text {number}", metadata=metadata, embedding=vector(number))
    if source is not None:
        node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=source)
    return node


def ask(number: int = -1, top_k: int = 10, **kwargs) -> VectorStoreQuery:
    return VectorStoreQuery(query_embedding=vector(number), similarity_top_k=top_k, **kwargs)


def where(key: str, value: object, operator: str = "==") -> MetadataFilters:
    return MetadataFilters(filters=[MetadataFilter(key=key, value=value, operator=operator)])
