"""Metadata filters: what each operator means, what is refused, and one spelling for filters that mean the same."""

import datetime as dt
import json
import math
import random
from decimal import Decimal

import numpy as np
import pytest
from filter_strategies import filter_trees, metadata
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters
from waiting import within

from agentic_retriever.errors import FilterError
from agentic_retriever.filters import (
    LIST_OPERATORS,
    MAX_CLAUSES,
    MAX_DEPTH,
    MAX_VALUES,
    check_filters,
    is_empty,
    matches,
    merge_and,
    node_fields,
    normalise,
)


def group(*filters, condition=FilterCondition.AND):
    return MetadataFilters(filters=list(filters), condition=condition)


def clause(operator="==", value="x", key="k"):
    return MetadataFilter.model_construct(key=key, operator=FilterOperator(operator), value=value)


def holds(stored, operator, value):
    return matches({} if stored is MISSING else {"k": stored}, group(clause(operator, value)))


MISSING = object()


@pytest.mark.parametrize(
    ("stored", "operator", "value"),
    [("x", "==", "x"), (2020, "==", 2020.0), (2020.0, "in", [1, 2020]), (10**30, "==", 10**30), (["x", "y"], "==", "y"),
     (["x", "y"], "contains", "y"), (["x", "y"], "any", ["z", "y"]), (["x", "y"], "all", ["x", "y"]),
     ("x", "all", ["x"]), ("x", "all", []), ("x", "nin", []), ("x", "!=", "X"), (3, "!=", "3"),
     (["x", "y"], "nin", ["z"]), ([1, 7], ">", 5), ("b", ">", "a"), (True, "==", "true"), (False, "==", "False"),
     (True, "==", True), ("true", "==", "true"), (True, "!=", 1), ("", "==", ""), ("Red fox", "text_match", "ed f"),
     ("Straße", "text_match_insensitive", "STRASSE"), (["a", "Red"], "text_match", "Re"), ({"x": 1}, "!=", "x"),
     (object(), "!=", "x"), (np.int64(3), "==", 3), (np.float32(0.5), ">=", 0.5), (Decimal("10.50"), "<", 11),
     (Decimal(7), "==", 7), ({"x"}, "==", "x"), (dt.date(2024, 5, 1), "==", "2024-05-01"),
     (dt.datetime(2024, 5, 1, 10, tzinfo=dt.timezone.utc), ">=", "2024-05-01T10:00:00Z"), ("a,b", "in", ["a,b"])],
)  # fmt: skip
def test_holds(stored, operator, value):
    assert holds(stored, operator, value)


@pytest.mark.parametrize(
    ("stored", "operator", "value"),
    [("x", "==", "X"), (2020, "==", "2020"), ("2020", "==", 2020), ("2020", ">", 2000), (2020, ">", "2000"),
     (10**30, "==", 10**30 + 1), (2**53 + 1, "==", 2.0**53), (True, "==", 1), (1, "==", "true"), (True, ">", 0),
     (["x", "y"], "!=", "y"), (["x", "y"], "nin", ["y", "z"]), (["x"], "all", ["x", "y"]), ("x", "in", []),
     ("x", "any", []), ([["x"]], "==", "x"), ({"x": 1}, "==", "x"), ("Red", "text_match", "red"),
     (12, "text_match", "1"), ("a", "in", ["a,b"]), (b"x", "==", "x")],
)  # fmt: skip
def test_does_not_hold(stored, operator, value):
    assert not holds(stored, operator, value)


def test_a_missing_field_satisfies_is_empty_and_nothing_else_and_a_falsy_value_is_not_missing():
    for missing in (MISSING, None, math.nan, [], (), np.float64("nan"), Decimal("NaN")):
        assert holds(missing, "is_empty", None)
        for operator in set(FilterOperator) - {FilterOperator.IS_EMPTY}:
            assert not holds(missing, operator.value, ["x"] if operator in LIST_OPERATORS else "x"), operator
    for present in ("", 0, False, [None], [""], {}):
        assert not holds(present, "is_empty", None)
        assert holds(present, "!=", "x")


@pytest.mark.parametrize(
    ("stored", "operator", "value", "expected"),
    [("2024-05-31T15:00:00", "<=", "2024-05-31", True), ("2024-05-31T15:00:00", ">", "2024-05-31", False),
     ("2024-05-31T15:00:00", "<", "2024-05-31", False), ("2024-06-01T00:00:00", "<=", "2024-05-31", False),
     ("2024-05-31", ">=", "2024-05-31T15:00:00", True), ("2024-05-31", ">", "2024-05-31T15:00:00", False),
     ("2024-05-31T10:00:00+07:00", "<", "2024-05-31T04:00:00Z", True),
     ("2024-05-31T10:00:00+0700", ">=", "2024-05-31T03:00:00", True),
     ("2024-05-31 10:00", ">", "2024-05-31T09:59:59.5", True),
     ("2024-06-01T03:00:00+07:00", "<=", "2024-05-31", True), ("someday", "<", "2024-05-31", False),
     ("2024-02-30", ">", "2020-01-01", False), ("0001-01-01T00:00:00+14:00", "<", "2020-01-01", False),
     ("9999-12-31", ">", "9999-12-30", True), ("2024-05-31", "<", "zebra", True)],
)  # fmt: skip
def test_dates(stored, operator, value, expected):
    assert holds(stored, operator, value) is expected


def test_groups():
    a, b = clause(key="a", value=1), clause(key="b", value=1)
    both, one, none = {"a": 1, "b": 1}, {"a": 1, "b": 2}, {}
    cases = {
        FilterCondition.AND: (True, False, False), FilterCondition.OR: (True, True, False),
        FilterCondition.NOT: (False, False, True), None: (True, False, False),
    }  # fmt: skip
    for condition, expected in cases.items():
        pair = group(a, b, condition=condition)
        assert tuple(matches(row, pair) for row in (both, one, none)) == expected, condition
        outside = group(pair, condition=FilterCondition.NOT)
        assert tuple(matches(row, outside) for row in (both, one, none)) == tuple(not want for want in expected)


@pytest.mark.parametrize("condition", [*FilterCondition, None])
def test_empty_groups_restrict_nothing_wherever_they_stand(condition):
    empty = MetadataFilters(filters=[MetadataFilters(filters=[])], condition=condition)
    assert matches({}, None)
    assert matches({}, empty)
    outer = group(clause(key="a", value=1), empty, condition=condition)
    alone = group(clause(key="a", value=1), condition=condition)
    for row in ({"a": 1}, {"a": 2}):
        assert matches(row, outer) is matches(row, alone)


def test_a_node_shows_its_source():
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id="d1")}
    node = TextNode(text="t", metadata={"year": 2020}, relationships=source)
    for key in ("doc_id", "document_id", "ref_doc_id"):
        assert matches(node_fields(node), group(clause(key=key, value="d1"), clause(key="year", value=2020)))
    assert not matches(node_fields(TextNode(text="t")), group(clause(key="doc_id", value="None")))
    assert node.metadata == {"year": 2020}


def nested(depth):
    inner = group(clause())
    for _ in range(depth - 1):
        inner = MetadataFilters.model_construct(filters=[inner], condition=FilterCondition.AND)
    return inner


@pytest.mark.parametrize(
    ("operator", "value", "said"),
    [("==", None, "is_empty"), ("==", ["x"], "a string or a number"), ("!=", None, "is_empty"),
     ("in", "x,y", "a list"), ("nin", 3, "a list"), ("any", None, "a list"), ("all", "x", "a list"),
     ("in", [None], "a string or a number"), (">", ["x"], "a string or a number"), (">", None, "is_empty"),
     ("<", True, "a number, a date or a string"), ("text_match", 3, "not empty"), ("text_match", "", "not empty"),
     ("text_match_insensitive", None, "not empty"), ("is_empty", "yes", "no value"), ("==", math.nan, "finite"),
     ("<", math.inf, "finite"), ("in", [1.0, math.nan], "finite"), ("==", "\ud800", "surrogate"),
     ("text_match", "\ud800", "surrogate"), ("contains", b"x", "a string or a number")],
)  # fmt: skip
def test_wrong_values(operator, value, said):
    with pytest.raises(FilterError, match=said) as caught:
        check_filters(group(clause(operator, value)))
    assert "'k'" in str(caught.value)


def test_keys_are_literal_and_wrong_ones_are_refused():
    assert not matches({"a": {"b": 1}}, group(clause(key="a.b", value=1)))
    assert matches({"a.b": 1}, group(clause(key="a.b", value=1)))
    for key in ("", "k" * 10_000, "\ud800"):
        with pytest.raises(FilterError):
            check_filters(group(clause(key=key)))
    for key in ("a.b", "a[", "tags[0]", "x') OR '1'='1", "ชื่อ", "\x00"):
        assert matches({key: "x"}, group(clause(key=key)))
        with pytest.raises(FilterError, match="unknown field"):
            check_filters(group(clause(key=key)), known_fields=["year"])
    with pytest.raises(FilterError, match="unknown field 'yaer'; did you mean 'year'") as caught:
        check_filters(group(group(clause(key="yaer"))), known_fields={"kind", "year"})
    assert "kind, year" in str(caught.value)
    check_filters(group(clause(key="year")), known_fields={"kind", "year"})


@pytest.mark.parametrize("use", [check_filters, lambda filters: matches({}, filters), normalise, is_empty])
def test_deep_nesting_is_an_error_and_no_recursion(use):
    use(nested(MAX_DEPTH))
    for depth in (MAX_DEPTH + 1, 1_000):
        if use is is_empty and depth == MAX_DEPTH + 1:
            continue
        with pytest.raises(FilterError, match="deeper than 32"):
            use(nested(depth))


def test_sizes_are_limited():
    check_filters(group(clause("in", ["x"] * MAX_VALUES)))
    with within(1), pytest.raises(FilterError, match="100,000 values"):
        check_filters(group(clause("in", [str(n) for n in range(100_000)])))
    with pytest.raises(FilterError, match="clauses"):
        check_filters(group(*[clause()] * (MAX_CLAUSES + 1)))
    loop = group(clause())
    loop.filters.append(loop)
    with pytest.raises(FilterError):
        check_filters(loop)


def test_plain_strings_in_place_of_enums_are_refused():
    for wrong in (
        MetadataFilters.model_construct(filters=[clause()], condition="or"),
        group(MetadataFilter.model_construct(key="k", value="x", operator="in")),
        MetadataFilters.model_construct(filters=["k == 1"], condition=None),
    ):
        with pytest.raises(FilterError):
            check_filters(wrong)


def test_merging_can_only_narrow():
    tenant = group(clause(key="tenant", value="a"))
    wide = group(clause(key="tenant", value="b"), clause(key="x", value=1), condition=FilterCondition.OR)
    merged = merge_and(tenant, wide)
    assert matches({"tenant": "a", "x": 1}, merged)
    assert not matches({"tenant": "b", "x": 1}, merged)
    assert not matches({"tenant": "a"}, merged)
    assert merge_and(tenant, None) is tenant
    assert merge_and(group(), wide) is wide
    assert merge_and(None, group()) is None
    for _ in range(100):
        merged = merge_and(merged, tenant)
    check_filters(merged)


def shuffled(filters, chosen):
    if isinstance(filters, MetadataFilter):
        value = filters.value
        value = chosen.sample(value, len(value)) + value[:1] if isinstance(value, list) else value
        return MetadataFilter.model_construct(key=filters.key, operator=filters.operator, value=value)
    children = [shuffled(child, chosen) for child in filters.filters]
    children += chosen.sample(children, chosen.randint(0, len(children)))
    chosen.shuffle(children)
    return MetadataFilters.model_construct(filters=children, condition=filters.condition)


@given(filter_trees, st.integers(0, 10**6), metadata)
def test_order_and_repetition_make_no_difference(filters, seed, row):
    other = shuffled(filters, random.Random(seed))
    assert normalise(other) == normalise(filters)
    assert matches(row, other) is matches(row, filters)


@given(filter_trees, filter_trees, st.lists(metadata, min_size=1, max_size=8))
def test_filters_written_alike_accept_alike_and_merging_is_and(first, second, rows):
    if normalise(first) == normalise(second):
        assert [matches(row, first) for row in rows] == [matches(row, second) for row in rows]
    for row in rows:
        assert matches(row, merge_and(first, second)) is (matches(row, first) and matches(row, second))


@given(filter_trees, metadata)
def test_not_is_the_complement(filters, row):
    opposite = MetadataFilters(filters=[filters], condition=FilterCondition.NOT)
    if normalise(filters):
        assert matches(row, opposite) is not matches(row, filters)


def one(key, value, operator="=="):
    return group(clause(operator, value, key))


def test_alike_and_not_alike():
    for first, second in (
        (None, MetadataFilters(filters=[])),
        (one("k", 2020), one("k", 2020.0)),
        (one("k", "x"), one("k", "x", "contains")),
        (one("k", ["a", "b"], "in"), one("k", ["b", "a", "b"], "any")),
        (one("k", 1), MetadataFilters(filters=[one("k", 1), MetadataFilters(filters=[])])),
    ):
        assert normalise(first) == normalise(second)
    opposite = MetadataFilters(filters=[one("k", 1)], condition=FilterCondition.NOT)
    for first, second in (
        *((one("k", 1), other) for other in (one("k", "1"), one("k", 1, "!="), opposite, None)),
        (one("k", "x"), one("K", "x")),
        (one("k", ["a"], "in"), one("k", ["a"], "all")),
    ):
        assert normalise(first) != normalise(second)
    assert json.loads(normalise(one("ชื่อ", ["x", 'q"'], "in"))) == [FilterOperator.IN.value, "ชื่อ", ['q"', "x"]]
    assert normalise(None) == ""
    assert is_empty(None)
    assert is_empty(group())
    assert is_empty(group(group(), group(group())))
    assert not is_empty(group(group(), clause()))
