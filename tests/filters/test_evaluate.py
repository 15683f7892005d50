"""What each operator means, by example."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

import numpy as np
import pytest
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from agentic_retriever.filters import matches, node_fields

LIST_OPERATORS = {"in", "nin", "any", "all"}


def holds(stored, operator, value):
    clause = MetadataFilter.model_construct(key="k", operator=FilterOperator(operator), value=value)
    metadata = {} if stored is MISSING else {"k": stored}
    return matches(metadata, MetadataFilters(filters=[clause]))


MISSING = object()


@pytest.mark.parametrize(
    ("stored", "operator", "value"),
    [
        ("x", "==", "x"),
        (2020, "==", 2020.0),
        (2020.0, "in", [1, 2020]),
        (10**30, "==", 10**30),
        (["x", "y"], "==", "y"),
        (["x", "y"], "contains", "y"),
        (["x", "y"], "any", ["z", "y"]),
        (["x", "y"], "all", ["x", "y"]),
        ("x", "all", ["x"]),
        ("x", "all", []),
        ("x", "nin", []),
        ("x", "!=", "X"),
        (3, "!=", "3"),
        (["x", "y"], "nin", ["z"]),
        ([1, 7], ">", 5),
        ("b", ">", "a"),
        (True, "==", "true"),
        (False, "==", "False"),
        (True, "==", True),
        ("true", "==", "true"),
        (True, "!=", 1),
        ("", "==", ""),
        ("Red fox", "text_match", "ed f"),
        ("Straße", "text_match_insensitive", "STRASSE"),
        (["a", "Red"], "text_match", "Re"),
        ({"x": 1}, "!=", "x"),
        (object(), "!=", "x"),
        (np.int64(3), "==", 3),
        (np.float32(0.5), ">=", 0.5),
        (Decimal("10.50"), "<", 11),
        (Decimal(7), "==", 7),
        ({"x"}, "==", "x"),
        (dt.date(2024, 5, 1), "==", "2024-05-01"),
        (dt.datetime(2024, 5, 1, 10, tzinfo=dt.timezone.utc), ">=", "2024-05-01T10:00:00Z"),
        ("a,b", "in", ["a,b"]),
    ],
)
def test_holds(stored, operator, value):
    assert holds(stored, operator, value)


@pytest.mark.parametrize(
    ("stored", "operator", "value"),
    [
        ("x", "==", "X"),
        (2020, "==", "2020"),
        ("2020", "==", 2020),
        ("2020", ">", 2000),
        (2020, ">", "2000"),
        (10**30, "==", 10**30 + 1),
        (2**53 + 1, "==", 2.0**53),
        (True, "==", 1),
        (1, "==", "true"),
        (True, ">", 0),
        (["x", "y"], "!=", "y"),
        (["x", "y"], "nin", ["y", "z"]),
        (["x"], "all", ["x", "y"]),
        ("x", "in", []),
        ("x", "any", []),
        ([["x"]], "==", "x"),
        ({"x": 1}, "==", "x"),
        ("Red", "text_match", "red"),
        (12, "text_match", "1"),
        ("a", "in", ["a,b"]),
        (b"x", "==", "x"),
    ],
)
def test_does_not_hold(stored, operator, value):
    assert not holds(stored, operator, value)


@pytest.mark.parametrize("missing", [MISSING, None, math.nan, [], (), np.float64("nan"), Decimal("NaN")])
def test_a_missing_field_satisfies_is_empty_and_nothing_else(missing):
    assert holds(missing, "is_empty", None)
    for operator in FilterOperator:
        if operator is not FilterOperator.IS_EMPTY:
            value = ["x"] if operator.value in LIST_OPERATORS else "x"
            assert not holds(missing, operator.value, value), operator


@pytest.mark.parametrize("present", ["", 0, False, [None], [""], {}])
def test_a_falsy_value_is_not_missing(present):
    assert not holds(present, "is_empty", None)
    assert holds(present, "!=", "x")


@pytest.mark.parametrize(
    ("stored", "operator", "value", "expected"),
    [
        ("2024-05-31T15:00:00", "<=", "2024-05-31", True),
        ("2024-05-31T15:00:00", ">", "2024-05-31", False),
        ("2024-05-31T15:00:00", "<", "2024-05-31", False),
        ("2024-06-01T00:00:00", "<=", "2024-05-31", False),
        ("2024-05-31", ">=", "2024-05-31T15:00:00", True),
        ("2024-05-31", ">", "2024-05-31T15:00:00", False),
        ("2024-05-31T10:00:00+07:00", "<", "2024-05-31T04:00:00Z", True),
        ("2024-05-31T10:00:00+0700", ">=", "2024-05-31T03:00:00", True),
        ("2024-05-31 10:00", ">", "2024-05-31T09:59:59.5", True),
        ("2024-06-01T03:00:00+07:00", "<=", "2024-05-31", True),
        ("someday", "<", "2024-05-31", False),
        ("2024-02-30", ">", "2020-01-01", False),
        ("0001-01-01T00:00:00+14:00", "<", "2020-01-01", False),
        ("9999-12-31", ">", "9999-12-30", True),
        ("2024-05-31", "<", "zebra", True),
    ],
)
def test_dates(stored, operator, value, expected):
    assert holds(stored, operator, value) is expected


def _eq(key, value):
    return MetadataFilter(key=key, value=value)


def test_groups():
    a, b = _eq("a", 1), _eq("b", 1)
    both, one, none = {"a": 1, "b": 1}, {"a": 1, "b": 2}, {}
    cases = {
        FilterCondition.AND: (True, False, False),
        FilterCondition.OR: (True, True, False),
        FilterCondition.NOT: (False, False, True),
        None: (True, False, False),
    }
    for condition, expected in cases.items():
        group = MetadataFilters(filters=[a, b], condition=condition)
        assert tuple(matches(row, group) for row in (both, one, none)) == expected, condition
        outside = MetadataFilters(filters=[group], condition=FilterCondition.NOT)
        assert tuple(matches(row, outside) for row in (both, one, none)) == tuple(not want for want in expected)


@pytest.mark.parametrize("condition", [*FilterCondition, None])
def test_empty_groups_restrict_nothing_wherever_they_stand(condition):
    empty = MetadataFilters(filters=[MetadataFilters(filters=[])], condition=condition)
    assert matches({}, None)
    assert matches({}, empty)
    outer = MetadataFilters(filters=[_eq("a", 1), empty], condition=condition)
    alone = MetadataFilters(filters=[_eq("a", 1)], condition=condition)
    for row in ({"a": 1}, {"a": 2}):
        assert matches(row, outer) is matches(row, alone)


def test_keys_are_literal():
    assert not matches({"a": {"b": 1}}, MetadataFilters(filters=[_eq("a.b", 1)]))
    assert matches({"a.b": 1}, MetadataFilters(filters=[_eq("a.b", 1)]))


def test_a_node_shows_its_source():
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id="d1")}
    node = TextNode(text="t", metadata={"year": 2020}, relationships=source)
    for key in ("doc_id", "document_id", "ref_doc_id"):
        assert matches(node_fields(node), MetadataFilters(filters=[_eq(key, "d1"), _eq("year", 2020)]))
    assert not matches(node_fields(TextNode(text="t")), MetadataFilters(filters=[_eq("doc_id", "None")]))
    assert node.metadata == {"year": 2020}
