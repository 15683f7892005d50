"""Copies of nodes are as independent of what they were made from as deep copies are."""

from __future__ import annotations

import copy
import threading
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.schema import ImageNode, IndexNode, Node, NodeRelationship, RelatedNodeInfo, TextNode

from agentic_retriever.retrievers import REGISTRY, RetrievalRequest, build_adapter
from agentic_retriever.retrievers.base import copied_node, copied_nodes
from agentic_retriever.testing import FakeEmbedding

NAMES = st.text(max_size=6)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
ODD = (
    st.dates()
    | st.tuples(st.lists(PLAIN, max_size=2), PLAIN)
    | st.sets(st.integers(), max_size=2)
    | st.binary(max_size=3)
)
VALUES = st.recursive(
    PLAIN | ODD, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)
METADATA = st.dictionaries(NAMES, VALUES, max_size=5)
RELATED = st.builds(RelatedNodeInfo, node_id=NAMES, metadata=METADATA, hash=st.none() | NAMES)
RELATIONSHIPS = st.dictionaries(
    st.sampled_from(NodeRelationship), RELATED | st.lists(RELATED, max_size=2), max_size=3
)  # fmt: skip
PARTS = {
    "id_": NAMES,
    "metadata": METADATA,
    "relationships": RELATIONSHIPS,
    "excluded_embed_metadata_keys": st.lists(NAMES, max_size=3),
    "excluded_llm_metadata_keys": st.lists(NAMES, max_size=3),
    "embedding": st.none() | st.lists(st.floats(-1, 1), max_size=3),
}
NODES = st.one_of(
    st.builds(TextNode, text=NAMES, start_char_idx=st.none() | st.integers(0, 9), **PARTS),
    st.builds(IndexNode, text=NAMES, index_id=NAMES, **PARTS),
    st.builds(ImageNode, text=NAMES, text_embedding=st.lists(st.floats(-1, 1), max_size=2), **PARTS),
    st.builds(Node, **PARTS),
)


class Own(TextNode):
    """A class with a copy of its own, as a library may have."""

    def __deepcopy__(self, memo=None):
        made = super().__deepcopy__(memo)
        made.text += " copied"
        return made


def changeable(value):
    """Yield all that hangs on a value and can be changed."""
    if isinstance(value, BaseModel):
        yield value
        yield value.__dict__
        yield value.__pydantic_fields_set__
        yield from changeable(value.__dict__)
    elif isinstance(value, dict):
        yield value
        for item in value.values():
            yield from changeable(item)
    elif isinstance(value, (list, tuple, set)):
        if not isinstance(value, tuple):
            yield value
        for item in value:
            yield from changeable(item)


def deface(value):
    """Change everything that can be changed, from the bottom up."""
    for part in list(changeable(value))[::-1]:
        if isinstance(part, BaseModel):
            continue
        if isinstance(part, dict) and "id_" not in part and "node_id" not in part:
            part["defaced"] = ["defaced"]
        elif isinstance(part, dict):
            part.update({name: "defaced" for name, item in part.items() if isinstance(item, str)})
        elif isinstance(part, list):
            part.append("defaced")
        else:
            part.add("defaced")


def picture(node):
    """Return all of a node as a text."""
    return repr((type(node), node.__dict__, sorted(node.__pydantic_fields_set__)))


@given(NODES)
def test_a_copy_is_equal_and_shares_nothing_that_can_be_changed(node):
    before = picture(node)
    made = copied_node(node)
    deep = node.model_copy(deep=True)
    assert made == deep
    assert made.__pydantic_fields_set__ >= deep.__pydantic_fields_set__
    assert made.to_dict() == deep.to_dict()
    assert not {id(part) for part in changeable(made)} & {id(part) for part in changeable(node)}
    deface(made)
    assert picture(node) == before
    assert copied_node(node) == deep


@given(NODES)
def test_what_a_copy_is_made_from_changes_no_copy(node):
    made = copied_node(node)
    before = picture(made)
    deface(node)
    assert picture(made) == before


def test_circles_are_copied_objects_left_out_and_own_ways_to_copy_kept():
    circle = {"name": ["round"]}
    circle["again"] = circle
    node = TextNode(text="a circle")
    node.metadata["circle"] = circle
    made = copied_node(node)
    assert made.metadata["circle"]["again"] is made.metadata["circle"]
    assert made.metadata["circle"] is not circle
    assert made.metadata["circle"]["name"] is not circle["name"]
    node = IndexNode(text="pointer", index_id="elsewhere", obj=threading.Lock())
    made = copied_node(node)
    assert made.obj is None
    assert node.obj is not None
    assert made.index_id == "elsewhere"
    node = Own(text="own", metadata={"list": [1], "date": date(2024, 1, 2)}, embedding=[0.5])
    made = copied_node(node)
    assert (made.text, made.metadata, made.embedding) == ("own copied", node.metadata, [0.5])
    assert made.metadata["list"] is not node.metadata["list"]


@pytest.mark.parametrize("strategy", REGISTRY)
@pytest.mark.parametrize("place", ["memory", "edge"])
def test_whatever_is_done_to_a_result_no_store_cache_or_second_result_shows_it(
    strategy, place, make_index, make_edge_index, settings
):
    def related(name):
        return RelatedNodeInfo(node_id=name, metadata={"deep": [{"er": [name]}]})

    nodes = [
        TextNode(
            id_=f"n{i}",
            text=f"red apple harvest number {i}",
            metadata={"nested": {"list": [i, {"deep": [i]}]}, "tags": ["a", "b"]},
            excluded_llm_metadata_keys=["tags"],
            relationships={NodeRelationship.SOURCE: related(f"doc{i}"), NodeRelationship.CHILD: [related("n9")]},
        )
        for i in range(4)
    ]
    index = (make_index if place == "memory" else make_edge_index)(nodes, FakeEmbedding())
    adapter = build_adapter(strategy, index, settings)
    request = RetrievalRequest("compare the red apple and the harvest", 10)
    stored = [picture(node) for node in index.vector_store.get_nodes()]
    found = adapter.search(request).nodes
    cached = copy.deepcopy(found)
    answered = [picture(n.node) for n in copied_nodes(cached)]
    assert found
    for n in (*found, *copied_nodes(cached)):
        deface(n)
    assert [picture(node) for node in index.vector_store.get_nodes()] == stored
    assert [picture(n.node) for n in copied_nodes(cached)] == answered
    assert [picture(n.node) for n in adapter.search(request).nodes] == answered
