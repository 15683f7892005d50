"""Small nodes for the tests of the vector stores, and what is asked of every store."""

import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters, VectorStoreQuery

from agentic_retriever.filters import node_fields
from agentic_retriever.indices.derived import SilentProgress
from agentic_retriever.indices.index import _copy_sparse
from agentic_retriever.stores.node_store import NodeStore

DIMENSION = 8
WORDS = [
    "river", "bank", "loan", "harbour", "ship", "grain", "wheat", "price", "law", "court", "judge", "appeal", "tax",
    "levy", "duty", "bridge", "toll", "road",
]  # fmt: skip

# How the code of another process begins.
PROCESS = """
import os, signal, sys
from agentic_retriever.embeddings import EmbeddingModel
from agentic_retriever.errors import StoreBusyError
from agentic_retriever.indices import IndexStorage
from agentic_retriever.testing import FakeEmbedding
def kill_at(owner, name, turn, done_first):
    real, turns = getattr(owner, name), []
    def step(*args, **kwargs):
        turns.append(1)
        done = real(*args, **kwargs) if done_first or len(turns) < turn else None
        if len(turns) == turn:
            os.kill(os.getpid(), signal.SIGKILL)
        return done
    setattr(owner, name, step)
"""


def vector(number: int, dimension: int = DIMENSION) -> list[float]:
    chosen = random.Random(number)
    return [chosen.gauss(0, 1) for _ in range(dimension)]


def make_node(number: int, *, source: str | None = None, **metadata: object) -> TextNode:
    node = TextNode(id_=f"node-{number:05}", text=f"text {number}", metadata=metadata, embedding=vector(number))
    if source is not None:
        node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=source)
    return node


def copied_store(source: Path, target: Path) -> Path:
    """Copy a data directory without what the engine only sets aside, which is nearly all of it."""
    return Path(shutil.copytree(source, target, copy_function=_copy_sparse))


def ask(number: int = -1, top_k: int = 10, **kwargs) -> VectorStoreQuery:
    return VectorStoreQuery(query_embedding=vector(number), similarity_top_k=top_k, **kwargs)


def where(key: str, value: object, operator: str = "==") -> MetadataFilters:
    return MetadataFilters(filters=[MetadataFilter(key=key, value=value, operator=operator)])


def ids(found) -> list[str]:
    """The ids of nodes, with or without scores."""
    return [one.node_id for one in found]


def doc_ids(found) -> list[str]:
    """The documents of scored nodes."""
    return [one.node.ref_doc_id for one in found]


def fill(store: NodeStore, rows: Iterable[dict], dimension: int) -> dict[str, dict]:
    """Add a node for each row of metadata; returns what filters see of each node."""
    nodes = [
        TextNode(id_=f"n{number:03}", text="t", metadata=row, embedding=vector(number, dimension))
        for number, row in enumerate(rows)
    ]
    store.add(nodes)
    return {node.node_id: node_fields(node) for node in nodes}


def assert_finds_what_is_accepted(
    store: NodeStore, fields: dict[str, dict], filters: MetadataFilters, accepts: Callable, top_k: int
) -> None:
    """Every way into a store finds exactly the nodes whose fields are accepted, nearest first."""
    expected = {node_id for node_id, row in fields.items() if accepts(row, filters)}
    assert {node.node_id for node in store.get_nodes(filters=filters)} == expected
    assert store.count(filters) == len(expected)
    asked = vector(-1, store.dimension)
    found = store.query(VectorStoreQuery(query_embedding=asked, similarity_top_k=top_k, filters=filters)).ids
    every = store.query(VectorStoreQuery(query_embedding=asked, similarity_top_k=len(fields))).ids
    assert found == [node_id for node_id in every if node_id in expected][:top_k]


class Told(SilentProgress):
    """Hears of progress."""

    def __init__(self):
        self.found = self.done = 0

    def nodes(self, found):
        self.found += found

    def nodes_done(self, done):
        self.done += done
