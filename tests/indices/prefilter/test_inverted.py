from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from agentic_retriever.indices.prefilter.btree import VALUE_BYTES, Factorised, InvertedIndex, bitmap_of, rows_of

values = st.sampled_from(["a", "b", "", "ก", "True", True, False])
pairs = st.lists(st.tuples(values, st.integers(0, 200_000)), max_size=30)


def factorised(entries):
    return Factorised.of([value for value, _ in entries], np.array([row for _, row in entries], dtype=np.uint32))


def lists(index):
    return {(type(value), value): set(rows) for value, rows in index.postings.items()}


def expected(entries):
    found = {}
    for value, row in entries:
        found.setdefault((type(value), value), set()).add(row)
    return found


@settings(max_examples=200, deadline=None)
@given(pairs, pairs, st.sets(st.integers(0, 200_000)), st.integers(0, 100))
def test_build_insert_and_delete_equal_plain_sets(first, second, gone, more):
    before = InvertedIndex().insert(factorised(first))
    assert lists(before) == expected(first)

    grown = before.insert(factorised(second))
    assert lists(grown) == expected([*first, *second])
    assert lists(before) == expected(first)  # the old one is as it was

    gone |= {row for _, row in (*first, *second)[:more]}
    left = grown.delete(BitMap(gone))
    assert lists(left) == expected([(v, r) for v, r in [*first, *second] if r not in gone])
    assert lists(grown) == expected([*first, *second])
    assert left.cost == sum(VALUE_BYTES + len(v) for _, v in lists(left) if isinstance(v, str))


def test_text_true_and_the_boolean_are_two_values():
    index = InvertedIndex().insert(factorised([("True", 1), (True, 2)]))
    assert set(index.postings["True"]) == {1}
    assert set(index.postings[True]) == {2}
    assert False not in index.postings
    assert [text for text, _ in index.texts()] == ["True"]


def test_without_texts_keeps_booleans():
    values = factorised([("x", 1), (True, 2), ("y", 2), ("x", 3)])
    texts, booleans = values.split_texts()
    assert texts.tolist() == [1, 2, 3]
    for index in (InvertedIndex().insert(values).without_texts(), InvertedIndex().insert(booleans)):
        assert lists(index) == {(bool, True): {2}}
        assert index.cost == 0


def test_renumbering():
    index = InvertedIndex().insert(factorised([("x", 1), ("x", 3), ("y", 0)]))
    assert lists(index.renumber(np.array([5, 4, 9, 2], dtype=np.uint32))) == {(str, "x"): {4, 2}, (str, "y"): {5}}


def test_deleting_what_is_not_there_shares_everything():
    index = InvertedIndex().insert(factorised([("x", 1)]))
    assert index.delete(BitMap([7])) is index


def test_many_different_values():
    entries = [(str(number), number) for number in range(70_000)]  # more than 16 bits number
    index = InvertedIndex().insert(factorised(entries))
    assert len(index.postings) == 70_000
    assert list(index.postings["69999"]) == [69_999]


def test_bitmaps_and_arrays():
    rows = np.array([9, 2, 2, 70_000], dtype=np.uint32)
    assert list(bitmap_of(rows)) == [2, 9, 70_000]
    assert rows_of(bitmap_of(rows)).tolist() == [2, 9, 70_000]
    assert rows_of(BitMap()).tolist() == []
