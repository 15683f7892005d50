"""Filters that cannot be evaluated are refused, with a message that helps."""

from __future__ import annotations

import math
import time

import pytest
from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from agentic_retriever.errors import FilterError
from agentic_retriever.filters import (
    MAX_CLAUSES,
    MAX_DEPTH,
    MAX_VALUES,
    check_filters,
    is_empty,
    matches,
    merge_and,
    normalise,
)


def group(*filters, condition=FilterCondition.AND):
    return MetadataFilters(filters=list(filters), condition=condition)


def clause(operator="==", value="x", key="k"):
    return MetadataFilter.model_construct(key=key, operator=FilterOperator(operator), value=value)


def nested(depth):
    inner = group(clause())
    for _ in range(depth - 1):
        inner = MetadataFilters.model_construct(filters=[inner], condition=FilterCondition.AND)
    return inner


@pytest.mark.parametrize(
    ("operator", "value", "said"),
    [
        ("==", None, "is_empty"),
        ("==", ["x"], "a string or a number"),
        ("!=", None, "is_empty"),
        ("in", "x,y", "a list"),
        ("nin", 3, "a list"),
        ("any", None, "a list"),
        ("all", "x", "a list"),
        ("in", [None], "a string or a number"),
        (">", ["x"], "a string or a number"),
        (">", None, "is_empty"),
        ("<", True, "a number, a date or a string"),
        ("text_match", 3, "not empty"),
        ("text_match", "", "not empty"),
        ("text_match_insensitive", None, "not empty"),
        ("is_empty", "yes", "no value"),
        ("==", math.nan, "finite"),
        ("<", math.inf, "finite"),
        ("in", [1.0, math.nan], "finite"),
        ("==", "\ud800", "surrogate"),
        ("text_match", "\ud800", "surrogate"),
        ("contains", b"x", "a string or a number"),
    ],
)
def test_wrong_values(operator, value, said):
    with pytest.raises(FilterError, match=said) as caught:
        check_filters(group(clause(operator, value)))
    assert "'k'" in str(caught.value)


@pytest.mark.parametrize("key", ["", "k" * 10_000, "\ud800"])
def test_wrong_keys(key):
    with pytest.raises(FilterError):
        check_filters(group(clause(key=key)))


@pytest.mark.parametrize("key", ["a.b", "a[", "tags[0]", "x') OR '1'='1", "ชื่อ", "\x00"])
def test_odd_keys_are_names_like_any_other(key):
    assert matches({key: "x"}, group(clause(key=key)))
    with pytest.raises(FilterError, match="unknown field"):
        check_filters(group(clause(key=key)), known_fields=["year"])


def test_an_unknown_field_is_named_with_what_was_probably_meant():
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


def test_a_group_that_contains_itself_is_an_error():
    loop = group(clause())
    loop.filters.append(loop)
    with pytest.raises(FilterError):
        check_filters(loop)


def test_sizes_are_limited():
    check_filters(group(clause("in", ["x"] * MAX_VALUES)))
    started = time.monotonic()
    with pytest.raises(FilterError, match="100,000 values"):
        check_filters(group(clause("in", [str(n) for n in range(100_000)])))
    assert time.monotonic() - started < 1
    with pytest.raises(FilterError, match="clauses"):
        check_filters(group(*[clause()] * (MAX_CLAUSES + 1)))


def test_plain_strings_in_place_of_enums_are_refused():
    for wrong in (
        MetadataFilters.model_construct(filters=[clause()], condition="or"),
        group(MetadataFilter.model_construct(key="k", value="x", operator="in")),
        MetadataFilters.model_construct(filters=["k == 1"], condition=None),
    ):
        with pytest.raises(FilterError):
            check_filters(wrong)


def test_is_empty():
    assert is_empty(None)
    assert is_empty(group())
    assert is_empty(group(group(), group(group())))
    assert not is_empty(group(group(), clause()))


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
