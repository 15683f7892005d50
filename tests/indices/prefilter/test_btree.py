import random
from itertools import product
from operator import ge, gt, le, lt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from pyroaring import BitMap

from agentic_retriever.indices.prefilter import btree

SMALL = {"LEAF": 4, "FANOUT": 4, "RUN": 3}
WITHIN = BitMap(range(0, 60, 7))
BOUNDS = [float("-inf"), 0.0, 0.5, 7.0, float("inf")]
keys = st.one_of(st.integers(-3, 12).map(float), st.sampled_from([0.5, float("inf"), float("-inf")]))


def shrink(patch):
    for name, size in SMALL.items():
        patch.setattr(btree, name, size)


def arrays(entries, dtype=np.float64):
    made = np.empty(len(entries), dtype=dtype)
    made[:] = [key for key, _ in entries]
    return made, np.array([row for _, row in entries], dtype=np.uint32)


def below(tree, bound, inclusive):
    return tree.cut(btree.Side(bound, False, inclusive)).find()


def above(tree, bound, inclusive):
    return tree.cut(btree.Side(bound, True, inclusive)).find()


def depth(node):
    """Height of a node; also checks everything that must be true of it."""
    if isinstance(node, btree.Leaf):
        held, rows = node.entries()
        assert len(held) == len(rows) > 0
        assert (held[:-1] <= held[1:]).all()
        assert set(rows.tolist()) == set(node.bitmap)
        assert node.rows is None or len(node.rows) <= btree.LEAF or held[0] == held[-1]
        return 1
    assert 1 <= len(node.children) <= btree.FANOUT
    assert list(node.lows) == [child.low for child in node.children] == sorted(node.lows)
    seen = BitMap()
    for child, upto in zip(node.children, node.upto, strict=True):
        seen |= child.bitmap
        assert upto == seen
    heights = {depth(child) for child in node.children}
    assert len(heights) == 1
    return heights.pop() + 1


def check(tree, entries, bounds=BOUNDS):
    held, rows = tree.entries()
    assert sorted(zip(held.tolist(), rows.tolist(), strict=True)) == sorted(set(entries))
    assert (held[:-1] <= held[1:]).all()
    leaves = [leaf.low for leaf in tree.leaves()]
    assert len(set(leaves)) == len(leaves)  # no key in two leaves
    if tree.root is not None:
        depth(tree.root)
    for bound in bounds:
        assert set(tree.equal(bound)) == {row for key, row in entries if key == bound}
        for above, inclusive in product((False, True), repeat=2):
            side = btree.Side(bound, above, inclusive)
            accepts = {(False, False): lt, (False, True): le, (True, False): gt, (True, True): ge}[above, inclusive]
            expected = {row for key, row in entries if accepts(key, bound)}
            assert set(tree.cut(side).find()) == expected
            assert tree.cut(side).find(WITHIN) == BitMap(expected) & WITHIN
            low, high = tree.cut(side).count()
            assert low <= len(expected) <= high
            assert low == high or tree.repeats


class TreeAsList(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        shrink(self.patch)
        self.tree, self.entries, self.rows = btree.BPlusTree(), [], 0

    @rule(found=st.lists(st.lists(keys, min_size=1, max_size=3), max_size=20), seed=st.integers(0, 100))
    def insert(self, found, seed):
        new = [(key, self.rows + i) for i, of_row in enumerate(found) for key in of_row]
        random.Random(seed).shuffle(new)
        self.rows += len(found)
        self.change(self.tree.insert(*arrays(new)), self.entries + new)

    @rule(share=st.floats(0, 1), seed=st.integers(0, 100))
    def delete(self, share, seed):
        chosen = random.Random(seed)
        gone = {row for row in range(self.rows) if chosen.random() < share}
        self.change(self.tree.delete(BitMap(gone)), [entry for entry in self.entries if entry[1] not in gone])

    def change(self, tree, entries):
        check(self.tree, self.entries, bounds=[])  # the old one is as it was
        self.tree, self.entries = tree, entries

    @invariant()
    def equal(self):
        check(self.tree, self.entries)

    def teardown(self):
        self.patch.undo()


def test_any_run_of_changes():
    run_state_machine_as_test(TreeAsList, settings=settings(max_examples=15, stateful_step_count=30, deadline=None))


@pytest.mark.parametrize("small", [True, False])
def test_a_tall_tree(small, monkeypatch):
    if small:
        shrink(monkeypatch)
    rng = np.random.default_rng(1)
    found = rng.permutation(np.repeat(np.arange(20_000.0), rng.integers(1, 3, 20_000)))
    rows = np.arange(len(found), dtype=np.uint32)
    half = len(found) // 2
    tree = btree.BPlusTree().insert(found[:half], rows[:half])
    for part in np.array_split(np.arange(half, len(found)), 5):
        tree = tree.insert(found[part], rows[part])
    depth(tree.root)
    for bound in (0.0, 1.0, 777.5, 19_999.0):
        assert list(below(tree, bound, True)) == np.flatnonzero(found <= bound).tolist()
        assert list(above(tree, bound, False)) == np.flatnonzero(found > bound).tolist()
        assert tree.cut(btree.Side(bound, False, False)).count() == ((found < bound).sum(),) * 2
    tall = depth(tree.root)
    tree = tree.delete(BitMap(rows[:-50].tolist()))
    assert sorted(tree.entries()[1].tolist()) == rows[-50:].tolist()
    assert depth(tree.root) < tall
    assert sum(1 for _ in tree.leaves()) <= 50
    assert tree.delete(BitMap(rows.tolist())).root is None


def test_a_range_takes_few_bitmaps_whatever_its_width():
    tree = btree.BPlusTree().insert(np.random.default_rng(2).random(300_000), np.arange(300_000, dtype=np.uint32))
    height = depth(tree.root)
    assert height == 4
    for bound in (0.001, 0.3, 0.5, 0.999):
        assert len(tree._cut(bound, inclusive=True)[0]) < height


def test_heavy_keys_keep_no_arrays_and_keys_of_any_kind_compare():
    found = np.repeat([1.0, 2.0, 3.0], [5_000, 10, 5_000])
    tree = btree.BPlusTree().insert(found, np.arange(len(found), dtype=np.uint32))
    assert [leaf.rows is None for leaf in tree.leaves()] == [True, False, True]
    tree = tree.insert(np.array([0.5, 1.0, 1.5, 3.5]), np.arange(len(found), len(found) + 4, dtype=np.uint32))
    depth(tree.root)
    assert (len(tree.equal(1.0)), len(above(tree, 1.0, False))) == (5_001, 5_012)
    assert len(tree.delete(BitMap(range(4_995))).equal(1.0)) == 6
    entries = [(2**53, 1), (2**53 + 1, 2), (1.5, 3), (10**30, 4), (float("inf"), 5), (-(10**400), 6)]
    tree = btree.BPlusTree().insert(*arrays(entries, object))
    assert (list(tree.equal(2**53)), list(above(tree, 2**53, False))) == ([1], [2, 4, 5])
    assert (list(below(tree, 1.5, False)), list(above(tree, 10**400, True))) == ([6], [5])


def test_rows_with_several_keys_are_on_both_sides_and_an_empty_tree_has_none():
    tree = btree.BPlusTree().insert(*arrays([(1.0, 7), (10.0, 7), (1.0, 7), (5.0, 8)]))
    assert list(tree.repeats) == [7]
    assert list(below(tree, 3.0, True)) == [7]
    assert list(above(tree, 3.0, True)) == [7, 8]
    assert list(tree.cut(btree.Side(3.0, True, True)).find(BitMap([7]))) == [7]
    assert list(tree.delete(BitMap([7])).repeats) == []
    tree = btree.BPlusTree().insert(*arrays([]))
    assert not tree
    check(tree, [])
    assert tree.insert(*arrays([])) is tree
    assert tree.delete(BitMap([1])) is tree
    one = tree.insert(*arrays([(1.0, 1)]))
    assert one.delete(BitMap([2])) is one


values = st.sampled_from(["a", "b", "", "ก", "True", True, False])
pairs = st.lists(st.tuples(values, st.integers(0, 200_000)), max_size=30)


def factorised(entries):
    return btree.Factorised.of([value for value, _ in entries], np.array([row for _, row in entries], dtype=np.uint32))


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
    before = btree.InvertedIndex().insert(factorised(first))
    assert lists(before) == expected(first)

    grown = before.insert(factorised(second))
    assert lists(grown) == expected([*first, *second])
    assert lists(before) == expected(first)  # the old one is as it was

    gone |= {row for _, row in (*first, *second)[:more]}
    left = grown.delete(BitMap(gone))
    assert lists(left) == expected([(v, r) for v, r in [*first, *second] if r not in gone])
    assert lists(grown) == expected([*first, *second])
    assert left.cost == sum(btree.VALUE_BYTES + len(v) for _, v in lists(left) if isinstance(v, str))


def test_text_true_and_the_boolean_are_two_of_many_values_and_without_texts_booleans_stay_and_rows_are_renumbered():
    index = btree.InvertedIndex().insert(factorised([("True", 1), (True, 2)]))
    assert set(index.postings["True"]) == {1}
    assert set(index.postings[True]) == {2}
    assert False not in index.postings
    assert [text for text, _ in index.texts()] == ["True"]
    values = factorised([("x", 1), (True, 2), ("y", 2), ("x", 3)])
    texts, booleans = values.split_texts()
    assert texts.tolist() == [1, 2, 3]
    for index in (btree.InvertedIndex().insert(values).without_texts(), btree.InvertedIndex().insert(booleans)):
        assert (lists(index), index.cost) == ({(bool, True): {2}}, 0)
    index = btree.InvertedIndex().insert(factorised([("x", 1), ("x", 3), ("y", 0)]))
    assert lists(index.renumber(np.array([5, 4, 9, 2], dtype=np.uint32))) == {(str, "x"): {4, 2}, (str, "y"): {5}}
    index = btree.InvertedIndex().insert(factorised([("x", 1)]))
    assert index.delete(BitMap([7])) is index
    entries = [(str(number), number) for number in range(70_000)]  # more than 16 bits number
    index = btree.InvertedIndex().insert(factorised(entries))
    assert len(index.postings) == 70_000
    assert list(index.postings["69999"]) == [69_999]


def test_bitmaps_and_arrays():
    rows = np.array([9, 2, 2, 70_000], dtype=np.uint32)
    assert list(btree.bitmap_of(rows)) == [2, 9, 70_000]
    assert btree.rows_of(btree.bitmap_of(rows)).tolist() == [2, 9, 70_000]
    assert btree.rows_of(BitMap()).tolist() == []
