"""Which payload index a field gets."""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path

import pytest

from agentic_retriever.errors import ConfigError, StoreError
from agentic_retriever.stores.edge.store import INDEX_FROM, QdrantEdgeVectorStore
from agentic_retriever.stores.push_down import MAX_INDEXED_FIELDS, infer_kinds

sys.path.insert(0, str(Path(__file__).parents[1]))
from store_tools import ask, make_node, where


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["a", "b"], "keyword"),
        ([["a", "b"], "c", None], "keyword"),
        ([1, 2.5, [3]], "float"),
        ([True, False], "bool"),
        (["2024-05-01", "2024-05-01T10:00:00Z"], "datetime"),
        (["2024-05-01", "soon"], "keyword"),
        ([1, "a"], None),
        ([1, True], None),
        ([1, "2024-05-01"], None),
        (["a" * 129], None),
        ([{"a": 1}], None),
    ],
)
def test_kinds(values, kind):
    assert infer_kinds([{"k": value} for value in values], set()) == {"k": kind}


def test_fields_without_a_value_or_with_an_unwritable_name_wait():
    assert infer_kinds([{"k": None}, {"k": []}, {'q"': "x"}, {"known": 1}], {"known"}) == {}


def test_indexes_are_made_once_there_are_enough_nodes_and_stay(tmp_path):
    def nodes(start, end):
        return [
            make_node(
                n,
                source=f"d{n % 7}",
                n=n,
                lang="en",
                flag=bool(n % 2),
                day=dt.date(2024, 5, 1 + n % 9),
                mixed=n if n % 2 else "x",
            )
            for n in range(start, end)
        ]

    with QdrantEdgeVectorStore(tmp_path) as store:
        store.add(nodes(0, 10))
        assert store.client.info().payload_schema == {}
        before = store.query(ask(filters=where("n", 5, "<"))).ids
        store.add(nodes(10, INDEX_FROM))
        expected = {"doc_id": "Keyword", "n": "Float", "lang": "Keyword", "flag": "Bool", "day": "Datetime"}
        assert _kinds(store) == expected
        assert store.query(ask(filters=where("n", 5, "<"))).ids == before
        assert store.count(where("day", "2024-05-03", "<=")) == sum(n % 9 <= 2 for n in range(INDEX_FROM))
        assert store.count(where("mixed", "x")) == INDEX_FROM // 2
    with QdrantEdgeVectorStore(tmp_path) as store:
        assert _kinds(store) == expected
        store.add([make_node(9_999, n="a number no more")])
        assert store.count(where("n", "a number no more")) == 1


def _kinds(store):
    return {
        name.strip('"'): str(index.data_type).rpartition(".")[2]
        for name, index in store.client.info().payload_schema.items()
    }


def test_the_number_of_indexes_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr("agentic_retriever.stores.edge.store.INDEX_FROM", 1)
    monkeypatch.setattr("agentic_retriever.stores.node_store.MAX_INDEXED_FIELDS", 3)
    assert MAX_INDEXED_FIELDS == 64
    with QdrantEdgeVectorStore(tmp_path) as store:
        store.add([make_node(1, **{f"f{n}": n for n in range(10)})])
        assert len(_kinds(store)) == 3
        assert store.count(where("f9", 9)) == 1


def test_an_index_by_hand(tmp_path):
    with QdrantEdgeVectorStore(tmp_path) as store:
        with pytest.raises(StoreError, match="nothing yet"):
            store.create_payload_index("a.b", "float")
        store.add([make_node(1, **{"a.b": 3})])
        for kind in ("keyword", "float", "float"):
            store.create_payload_index("a.b", kind)
            assert _kinds(store) == {"a.b": kind.capitalize()}
            assert store.count(where("a.b", 3)) == 1
        with pytest.raises(ConfigError, match="keyword, float, bool, datetime"):
            store.create_payload_index("a.b", "geo")
        for field in ("", 'q"', "_node_content"):
            with pytest.raises(ConfigError, match="cannot be indexed"):
                store.create_payload_index(field, "keyword")
