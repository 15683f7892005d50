"""What can be stored, and what is refused before anything is written."""

from __future__ import annotations

import datetime as dt
import json
import math
import sys
import uuid
from decimal import Decimal
from enum import Enum
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import IndexNode, NodeRelationship, RelatedNodeInfo, TextNode

from agentic_retriever.errors import IndexingError
from agentic_retriever.stores.points import node_payload, plain_metadata, point_id, stored_node, stored_node_id

sys.path.insert(0, str(Path(__file__).parents[1]))


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (dt.date(2024, 5, 1), "2024-05-01"),
        (dt.datetime(2024, 5, 1, 10, tzinfo=dt.timezone.utc), "2024-05-01T10:00:00+00:00"),
        (Decimal("10.50"), 10.5),
        (Decimal(7), 7),
        (math.nan, None),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array([1, 2]), [1, 2]),
        ({"b", "a"}, ["a", "b"]),
        (("x", math.nan, None), ["x", None, None]),
        (Colour.RED, "red"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Path("a/b"), str(Path("a/b"))),
        ({"in": {"ner": [dt.date(2024, 5, 1)]}}, {"in": {"ner": ["2024-05-01"]}}),
        (2**63 - 1, 2**63 - 1),
        ("\x00 'quoted', %s", "\x00 'quoted', %s"),
    ],
)
def test_values_are_stored_as_what_they_stand_for(value, stored):
    found = plain_metadata({"k": value}, "n")["k"]
    assert found == stored
    assert type(found) is type(stored)
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    "value",
    [b"x", object(), math.inf, -math.inf, 2**63, -(2**63) - 1, "\ud800", {1: "x"}, [b"x"], {"a": object()}, dt.time(1)],
)
def test_values_that_cannot_be_stored_are_named(value):
    with pytest.raises(IndexingError, match=r"'k' of node 'n1'"):
        plain_metadata({"ok": 1, "k": value}, "n1")


def test_endless_nesting_is_refused():
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(IndexingError, match="nested"):
        plain_metadata({"k": loop}, "n1")


@pytest.mark.parametrize("field", ["_node_content", "_node_type", "document_id", "doc_id", "ref_doc_id"])
def test_reserved_names_are_refused(field):
    with pytest.raises(IndexingError, match=field):
        node_payload(TextNode(id_="n1", text="t", metadata={field: "x"}))


@pytest.mark.parametrize("field", ["", "k" * 257, 3, None, "\ud800"])
def test_names_that_cannot_be_stored(field):
    with pytest.raises(IndexingError):
        plain_metadata({field: 1}, "n1")


def test_nodes_that_cannot_be_stored():
    no_id = TextNode(text="t")
    no_id.id_ = ""
    for node in (
        no_id,
        TextNode(id_="n", text="half a pair \ud800"),
        TextNode(id_="\ud800", text="t"),
        TextNode(id_="n", text="t", relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id="None")}),
    ):
        with pytest.raises(IndexingError):
            node_payload(node)


def test_a_node_is_not_changed_and_comes_back():
    node = IndexNode(id_="n", index_id="other", text="t", metadata={"d": dt.date(2024, 5, 1)}, embedding=[1.0])
    payload = node_payload(node)
    assert node.metadata == {"d": dt.date(2024, 5, 1)}
    assert node.embedding == [1.0]
    found = stored_node(payload)
    assert isinstance(found, IndexNode)
    assert (found.node_id, found.index_id, found.metadata, found.embedding) == ("n", "other", {"d": "2024-05-01"}, None)


@given(st.text(min_size=1))
def test_ids_are_read_back_from_the_payload(node_id):
    try:
        payload = node_payload(TextNode(id_=node_id, text="t"))
    except IndexingError:
        assert any("\ud800" <= char <= "\udfff" for char in node_id)
    else:
        assert stored_node_id(payload) == node_id
    assert uuid.UUID(point_id(node_id))
    assert point_id(node_id) == point_id(node_id)


def test_uuids_stay_and_other_ids_never_share_a_point():
    own = str(uuid.uuid4())
    assert point_id(own) == own
    ids = [own, own.upper(), own.replace("-", ""), f"{{{own}}}", "doc-1", "doc-2", "1", "é", "e\u0301", "\ud800"]
    assert len({point_id(node_id) for node_id in ids}) == len(ids)
    assert point_id("doc-1") == "a5dcf5dd-2726-5c14-804b-fe32de65e93c"  # pinned: stored indexes depend on it
