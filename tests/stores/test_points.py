"""What can be stored, and filters on real engines, which find exactly the nodes that the plain evaluator accepts."""

import datetime as dt
import itertools
import json
import math
import random
import uuid
from decimal import Decimal
from enum import Enum
from pathlib import Path

import numpy as np
import pytest
from filter_strategies import FIELDS, filter_trees
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llama_index.core.schema import IndexNode, NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import FilterOperator
from metadata_strategies import NODES, messy_rows, oracle, random_filters, random_row, seeds
from server_tools import fresh_name, memory_link, real_link
from store_tools import assert_finds_what_is_accepted, fill, where

from agentic_retriever.errors import IndexingError
from agentic_retriever.filters import matches
from agentic_retriever.stores import points
from agentic_retriever.stores.edge import QdrantEdgeVectorStore
from agentic_retriever.stores.server import QdrantServerVectorStore, client_filter

ON_SERVER = 60  # rows on a server, whose client's memory is slow


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "stored"),
    [(dt.date(2024, 5, 1), "2024-05-01"),
     (dt.datetime(2024, 5, 1, 10, tzinfo=dt.timezone.utc), "2024-05-01T10:00:00+00:00"), (Decimal("10.50"), 10.5),
     (Decimal(7), 7), (math.nan, None), (np.float32(0.5), 0.5), (np.int64(3), 3), (np.bool_(True), True),
     (np.array([1, 2]), [1, 2]), ({"b", "a"}, ["a", "b"]), (("x", math.nan, None), ["x", None, None]),
     (Colour.RED, "red"), (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"), (Path("a/b"), str(Path("a/b"))),
     ({"in": {"ner": [dt.date(2024, 5, 1)]}}, {"in": {"ner": ["2024-05-01"]}}), (2**63 - 1, 2**63 - 1),
     ("\x00 'quoted', %s", "\x00 'quoted', %s")],
)  # fmt: skip
def test_values_are_stored_as_what_they_stand_for(value, stored):
    found = points.plain_metadata({"k": value}, "n")["k"]
    assert found == stored
    assert type(found) is type(stored)
    json.dumps(found, allow_nan=False)


def test_values_and_names_that_cannot_be_stored_are_named():
    loop: list[object] = []
    loop.append(loop)
    for value in (b"x", object(), math.inf, -math.inf, 2**63, -(2**63) - 1, "\ud800", {1: "x"}, [b"x"],
                  {"a": object()}, dt.time(1), loop):  # fmt: skip
        with pytest.raises(IndexingError, match="nested" if value is loop else r"'k' of node 'n1'"):
            points.plain_metadata({"ok": 1, "k": value}, "n1")
    for field in ("_node_content", "_node_type", "document_id", "doc_id", "ref_doc_id"):
        with pytest.raises(IndexingError, match=field):
            points.node_payload(TextNode(id_="n1", text="t", metadata={field: "x"}))
    for field in ("", "k" * 257, 3, None, "\ud800"):
        with pytest.raises(IndexingError):
            points.plain_metadata({field: 1}, "n1")


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
            points.node_payload(node)


def test_a_node_is_not_changed_and_comes_back():
    node = IndexNode(id_="n", index_id="other", text="t", metadata={"d": dt.date(2024, 5, 1)}, embedding=[1.0])
    payload = points.node_payload(node)
    assert (node.metadata, node.embedding) == ({"d": dt.date(2024, 5, 1)}, [1.0])
    found = points.stored_node(payload)
    assert isinstance(found, IndexNode)
    assert (found.node_id, found.index_id, found.metadata, found.embedding) == ("n", "other", {"d": "2024-05-01"}, None)


@given(st.text(min_size=1))
def test_ids_are_read_back_from_the_payload(node_id):
    assert points.point_id(node_id) == str(uuid.UUID(points.point_id(node_id))) == points.point_id(node_id)
    if any("\ud800" <= char <= "\udfff" for char in node_id):
        with pytest.raises(IndexingError):
            points.node_payload(TextNode(id_=node_id, text="t"))
    else:
        assert points.stored_node_id(points.node_payload(TextNode(id_=node_id, text="t"))) == node_id


def test_uuids_stay_and_other_ids_never_share_a_point():
    own = str(uuid.uuid4())
    assert points.point_id(own) == own
    ids = [own, own.upper(), own.replace("-", ""), f"{{{own}}}", "doc-1", "doc-2", "1", "é", "e\u0301", "\ud800"]
    assert len({points.point_id(node_id) for node_id in ids}) == len(ids)
    assert points.point_id("doc-1") == "a5dcf5dd-2726-5c14-804b-fe32de65e93c"  # pinned: stored indexes depend on it


@pytest.mark.parametrize(
    ("values", "kind"),
    [(["a", "b"], "keyword"), ([["a", "b"], "c", None], "keyword"), ([1, 2.5, [3]], "float"), ([True, False], "bool"),
     (["2024-05-01", "2024-05-01T10:00:00Z"], "datetime"), (["2024-05-01", "soon"], "keyword"), ([1, "a"], None),
     ([1, True], None), ([1, "2024-05-01"], None), (["a" * 129], None), ([{"a": 1}], None)],
)  # fmt: skip
def test_kinds(values, kind):
    assert points.infer_kinds([{"k": value} for value in values], set()) == {"k": kind}
    # Fields without a value or with an unwritable name wait.
    assert points.infer_kinds([{"k": None}, {"k": []}, {'q"': "x"}, {"known": 1}], {"known"}) == {}


@pytest.fixture(scope="module", params=["unindexed", "keyword", "float", "datetime", "bool"])
def messy(request, tmp_path_factory):
    made = QdrantEdgeVectorStore(tmp_path_factory.mktemp("filters"), dimension=4)
    fields = fill(made, messy_rows(), 4)
    if request.param != "unindexed":
        for field in FIELDS:
            if '"' not in field:
                made.create_payload_index(field, request.param)
    yield made, fields
    made.close()


@pytest.fixture(scope="module", params=itertools.product(("messy", "typed"), (memory_link, real_link)))
def on_server(request):
    (kind, link), chosen = request.param, random.Random(5)
    rows = messy_rows()[:ON_SERVER] if kind == "messy" else [random_row(chosen) for _ in range(ON_SERVER)]
    with QdrantServerVectorStore(link(), fresh_name(), 4) as made:
        yield made, fill(made, rows, 4), kind
        made.client.delete_collection(made.collection_name)


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(filters=filter_trees, top_k=st.sampled_from([1, 3, 20, NODES]))
def test_every_way_in_agrees_with_the_evaluator(messy, filters, top_k):
    assert_finds_what_is_accepted(*messy, filters, matches, top_k)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(filters=filter_trees, chosen=seeds)
def test_a_server_agrees_with_the_evaluator_and_on_typed_metadata_with_the_oracle(on_server, filters, chosen):
    made, fields, kind = on_server
    if kind == "messy":
        assert_finds_what_is_accepted(made, fields, filters, matches, 5)
    else:
        top_k = chosen.choice([1, 5, ON_SERVER])
        assert_finds_what_is_accepted(made, fields, random_filters(chosen), oracle, top_k)


@pytest.mark.parametrize("field", FIELDS[:3])
def test_ranges_over_fields_of_mixed_types(messy, field):
    store, fields = messy
    for operator in (FilterOperator.GT, FilterOperator.GTE, FilterOperator.LT, FilterOperator.LTE):
        for bound in (0, 1, 2020, 0.5, "2020-01-31", "2020-01-31T10:00:00", "x", "9999-12-31", "0001-01-01"):
            filters = where(field, bound, operator)
            expected = [node_id for node_id, row in fields.items() if matches(row, filters)]
            assert store.count(filters) == len(expected), (operator, bound)


def test_the_sample_is_rich_enough(messy):
    store, fields = messy
    assert len(fields) == store.count() == NODES
    kinds = {type(value).__name__ for row in fields.values() for value in row.values()}
    assert kinds >= {"str", "int", "float", "bool", "list", "dict", "NoneType"}


@pytest.mark.parametrize(
    ("key", "operator", "value", "exact", "exact_on_server"),
    [
        ("k", FilterOperator.EQ, "x", True, True),
        ("k", FilterOperator.IN, ["x", "true"], True, True),
        ("k", FilterOperator.GTE, 3, True, True),
        ("k", FilterOperator.NIN, [1, 2], True, True),
        ("k", FilterOperator.IS_EMPTY, None, True, True),
        ("k", FilterOperator.TEXT_MATCH, "x", True, False),  # with a text index a server means tokens
        ("k", FilterOperator.EQ, 2**60, False, False),
        ("k", FilterOperator.LTE, "2020-01-31", False, False),
        ('k"', FilterOperator.EQ, "x", False, False),
    ],
)
def test_what_the_engine_is_trusted_with(key, operator, value, exact, exact_on_server):
    filters = where(key, value, operator)
    assert points.push_down(filters, {}).exact is exact
    wanted = points.wanted_points(filters, {}, substrings=False)
    assert wanted.exact is exact_on_server
    assert (client_filter(wanted.filter) is not None) == (key != 'k"')


def test_nothing_is_nothing_and_numbers_are_not_looked_up_in_an_index_of_dates():
    assert client_filter(None) is None
    wanted = points.wanted_points(where("doc_id", "None"), {})
    assert wanted.exact
    assert client_filter(wanted.filter).must[0].has_id == []
    number = where("k", 1)
    assert points.push_down(number, {}).exact
    assert not points.push_down(number, {"k": "datetime"}).exact
    assert not points.push_down(number, {"k": "other"}).exact
