"""The prefilter finds exactly what the evaluator accepts, and what a second reading of its rules accepts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters
from metadata_strategies import cases, oracle, random_filters, random_row, seeds

from agentic_retriever.filters import matches
from agentic_retriever.indices.prefilter import btree_nodes, ordered
from agentic_retriever.indices.prefilter.index import MetadataIndex


def named(rows):
    return {f"n{number}": row for number, row in enumerate(rows)}


def check(nodes, filters):
    expected = {node_id for node_id, row in nodes.items() if oracle(row, filters)}
    assert {node_id for node_id, row in nodes.items() if matches(row, filters)} == expected

    index = MetadataIndex.build(nodes.items(), version=1)
    low, high = index.estimate(filters)
    found = index.candidates(filters)
    assert set(found.node_ids()) == expected
    assert found.exact
    assert found.count == len(expected)
    assert low <= found.count <= high
    assert all(found.contains(node_id) == (node_id in expected) for node_id in nodes)


@settings(max_examples=1_000, derandomize=True, database=None, deadline=None)
@given(seeds)
def test_1000_filters_over_typed_metadata(chosen):
    check(named(random_row(chosen) for _ in range(chosen.randint(0, 20))), random_filters(chosen))


@settings(max_examples=250, derandomize=True, database=None, deadline=None)
@given(cases)
def test_filters_and_metadata_that_shrink(case):
    rows, filters = case
    check(named(rows), filters)


@settings(max_examples=300, derandomize=True, database=None, deadline=None)
@given(seeds, st.integers(0, 60), st.integers(0, 3))
def test_small_nodes_and_no_columns_change_nothing(chosen, cut, column_rows):
    nodes, filters = named(random_row(chosen) for _ in range(60)), random_filters(chosen)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordered, "COLUMN_ROWS", column_rows)
        for name, size in {"LEAF": 3, "FANOUT": 3, "RUN": 2}.items():
            patch.setattr(btree_nodes, name, size)
        index = MetadataIndex.build(list(nodes.items())[:cut], version=1)
        index.add(list(nodes.items())[cut:])
        found = set(index.candidates(filters))
    assert found == {node_id for node_id, row in nodes.items() if oracle(row, filters)}


@settings(max_examples=300, derandomize=True, database=None, deadline=None)
@given(seeds)
def test_texts_that_are_left_out_only_widen(chosen):
    nodes, filters = named(random_row(chosen) for _ in range(chosen.randint(0, 9))), random_filters(chosen)
    expected = {node_id for node_id, row in nodes.items() if oracle(row, filters)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agentic_retriever.indices.prefilter.snapshot.TEXT_BYTES", 0)
        patch.setattr("agentic_retriever.indices.prefilter.snapshot.TEXT_BYTES_PER_NODE", 0)
        index = MetadataIndex.build(list(nodes.items())[:4], version=1)
        index.add(list(nodes.items())[4:])
    low, high = index.estimate(filters)
    found = index.candidates(filters)
    assert expected <= set(found)
    assert low <= len(expected) <= high
    assert not found.exact or set(found) == expected
    assert set(found.narrowed(expected)) == expected


@pytest.mark.parametrize("row", [{"year": 2020}, {}], ids=["with", "without"])
def test_an_oracle_that_would_notice(row):
    is_2020 = MetadataFilters(filters=[MetadataFilter(key="year", operator=FilterOperator.EQ, value=2020)])
    assert oracle(row, is_2020) == bool(row)
