"""Nodes for the tests of what happens after retrieval."""

from __future__ import annotations

from llama_index.core.schema import NodeWithScore, TextNode


def hit(node_id, score, text="", **metadata):
    return NodeWithScore(node=TextNode(id_=node_id, text=text or f"text of {node_id}", metadata=metadata), score=score)


def ids(nodes):
    return [entry.node.node_id for entry in nodes]


def scores(nodes):
    return [entry.score for entry in nodes]


def dump(nodes):
    return [(entry.node.to_json(), entry.score) for entry in nodes]
