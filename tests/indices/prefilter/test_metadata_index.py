import enum
import json
import logging
import threading
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import FilterCondition, MetadataFilters
from metadata_strategies import cases, oracle
from store_tools import where
from waiting import pool

from agentic_retriever.embeddings import EmbeddingModel
from agentic_retriever.errors import FilterError, IndexingError, InvalidQueryError, StoreDamagedError
from agentic_retriever.filters import matches
from agentic_retriever.indices import Indexer, IndexStorage
from agentic_retriever.indices.keyword import KeywordIndex
from agentic_retriever.indices.prefilter import index as prefilter
from agentic_retriever.indices.prefilter import snapshot
from agentic_retriever.indices.prefilter.index import IDS_LIMIT, MAX_IDS, MetadataIndex, VectorRows, ids_limit
from agentic_retriever.ingestion.chunking import ChunkSettings
from agentic_retriever.retrievers import AdapterSettings, RetrievalRequest, VectorRetriever
from agentic_retriever.stores.files import read_files, read_header, write_sealed
from agentic_retriever.testing import FakeEmbedding
from agentic_retriever.text import Tokenizer

ROWS = {
    "n1": {"province": "Chiang Mai", "area": 5, "sold": True, "tags": ["a", "b"], "day": "2020-01-31"},
    "n2": {"province": "Bangkok", "area": 7.5, "sold": False, "tags": ["b"], "day": "2020-02-01T10:00"},
    "n3": {"province": "Bangkok", "area": 20, "tags": [], "note": {"x": 1}},
    "n4": {"area": None, "mixed": ["x", 3, True]},
}
COLOUR = enum.Enum("COLOUR", {"RED": "red"})
STAND_INS = {
    "n1": {"int": np.int64(3), "half": Decimal("0.5"), "red": COLOUR.RED, "flag": np.bool_(True), "set": {"x"}},
    "n2": {"a.b": 1, "x') OR '1'='1": 2, "tags[0]": 3},
    "n3": {"a": {"b": 1}},
}
LARGE = {"n1": {"k": 2**53 + 1}, "n2": {"k": 2**53}, "n3": {"k": 0.5}}
FLOATS = {"n1": {"k": 1.5}, "n2": {"k": float("inf")}}
BANGKOK = where("province", "Bangkok")


def both(*filters, condition="and"):
    return MetadataFilters(
        filters=[f for group in filters for f in group.filters], condition=FilterCondition(condition)
    )


def built(rows=ROWS, **kwargs):
    return MetadataIndex.build(rows.items(), 1, **kwargs)


def found(index, *args, **kwargs):
    return sorted(index.candidates(where(*args), **kwargs))


def accepted(rows, filters):
    return {node_id for node_id, row in rows.items() if matches(row, filters)}


@pytest.mark.parametrize(("rows", "key", "value", "operator", "expected"), [
    (ROWS, "province", "Bangkok", "==", ["n2", "n3"]),
    (ROWS, "province", ["Bangkok", "Chiang Mai"], "in", ["n1", "n2", "n3"]),
    (ROWS, "province", "Bangkok", "!=", ["n1"]), (ROWS, "area", 7.5, "<=", ["n1", "n2"]),
    (ROWS, "area", 20.0, "==", ["n3"]), (ROWS, "area", None, "is_empty", ["n4"]),
    (ROWS, "sold", "true", "==", ["n1"]), (ROWS, "tags", ["a", "b"], "all", ["n1"]),
    (ROWS, "tags", "b", "contains", ["n1", "n2"]), (ROWS, "day", "2020-02-01", ">=", ["n2"]),
    (ROWS, "day", "2020-02-01", "<", ["n1"]), (ROWS, "mixed", 3, "==", ["n4"]),
    (ROWS, "mixed", "true", "==", ["n4"]), (ROWS, "province", "ANG", "text_match", []),
    (ROWS, "province", "CHIANG", "text_match_insensitive", ["n1"]),
    (ROWS, "note", None, "is_empty", ["n1", "n2", "n4"]),
    (ROWS, "nowhere", None, "is_empty", ["n1", "n2", "n3", "n4"]), (ROWS, "nowhere", "x", "!=", []),
    (STAND_INS, "int", 3, "==", ["n1"]), (STAND_INS, "half", 0.5, "==", ["n1"]),
    (STAND_INS, "red", "red", "==", ["n1"]), (STAND_INS, "flag", "true", "==", ["n1"]),
    (STAND_INS, "set", "x", "==", ["n1"]), (STAND_INS, "a.b", 1, "==", ["n2"]),
    (STAND_INS, "x') OR '1'='1", 2, "==", ["n2"]), (STAND_INS, "tags[0]", 3, "==", ["n2"]),
    (LARGE, "k", 2**53 + 1, "==", ["n1"]), (LARGE, "k", 2**53, ">", ["n1"]),
    (FLOATS, "k", 10**400, ">=", ["n2"]), ({}, "k", 1, ">", []), ({}, "k", None, "is_empty", []),
])  # fmt: skip
def test_each_operator(rows, key, value, operator, expected):
    assert found(built(rows), key, value, operator) == expected


@pytest.mark.parametrize("operator", [">", ">=", "<", "<=", "=="])
@pytest.mark.parametrize("bound", [2**53 + 1, 2**53 + 3, -(2**53) - 1, 10**400, -(10**400)])
def test_bounds_that_no_float64_holds(bound, operator):
    rows = {f"n{i}": {"k": float(2**53 + i)} for i in (0, 2, 4)}
    rows |= {f"m{i}": {"k": -float(2**53 + i)} for i in (0, 2, 4)} | {"inf": {"k": float("inf")}}
    filters = where("k", bound, operator)
    assert built(rows).candidates(filters) == accepted(rows, filters)


def test_numbers_that_no_float64_holds_come_later_and_without_a_filter_all_nodes():
    index = built({"n1": {"k": 1.0}})
    index.update([("n2", {"k": 2**63 + 1}), ("n3", {"k": 10**400})])
    index.update([("n4", {"k": 2.0})])
    assert (found(index, "k", 2**63, ">"), found(index, "k", 1, "==")) == (["n2", "n3"], ["n1"])
    assert found(index, "k", 2, "<=") == ["n1", "n4"]
    for nothing in (None, MetadataFilters(filters=[]), MetadataFilters(filters=[MetadataFilters(filters=[])])):
        assert sorted(built().candidates(nothing)) == list(ROWS)


class TestCandidateSet:
    def test_it_is_a_set_of_ids_that_narrowing_never_widens_and_bm25_takes_as_it_is(self):
        candidates = built().candidates(BANGKOK)
        assert (candidates, candidates & {"n3", "n9"}) == ({"n2", "n3"}, {"n3"})
        assert [node_id in candidates for node_id in ("n2", "n1", "n9", 7)] == [True, False, False, False]
        assert (len(candidates), bool(candidates)) == (2, True)
        assert repr(candidates) == "CandidateSet(count=2, exact=True)"
        assert not built().candidates(where("province", "x"))
        narrowed = built().candidates(BANGKOK).narrowed(["n1", "n2", "n9"])
        assert narrowed == {"n2"}
        assert narrowed.exact
        texts = [("n1", "red cat"), ("n2", "red dog"), ("n3", "blue cat")]
        keyword = KeywordIndex.build(texts, tokenizer=Tokenizer(language="en"), version=1)
        ranked = keyword.search("red cat", 3, allowed=built().candidates(BANGKOK))
        assert [node_id for node_id, _ in ranked] == ["n2", "n3"]
        assert keyword.search("red cat", 3, allowed=built().candidates(where("province", "x"))) == []

    def test_it_holds_ids_of_any_kind_and_stays_as_it_was_when_the_index_changes(self):
        index = built()
        before = index.candidates(BANGKOK)
        index.update([("n2", {"province": "Lampang"}), ("n5", {"province": "Bangkok"})])
        index.update(deleted=["n3"])
        assert (before, index.candidates(BANGKOK)) == ({"n2", "n3"}, {"n5"})
        index.update((f"m{i}", {"province": "Bangkok"}) for i in range(20_000))  # tidied up meanwhile
        assert sorted(before) == ["n2", "n3"]
        ids = ["", "ก" * 50, "half \ud800", "a\0b", "n1" * 500]
        index = MetadataIndex.build([(node_id, {"k": i}) for i, node_id in enumerate(ids)], 1)
        for i, node_id in enumerate(ids):
            assert list(index.candidates(where("k", i))) == [node_id]
            assert node_id in index.candidates(where("k", i))


def test_unknown_fields_are_in_no_node_aliases_known_and_what_cannot_be_evaluated_is_refused():
    assert found(built(), "provinc", "x") == []
    index = built({"n1": {"doc_id": "d"}})
    assert found(index, "ref_doc_id", "d") == ["n1"]
    index.update([("n2", {"doc_id": "d", "ref_doc_id": "e"})])  # a field may have the name of an alias
    assert found(index, "ref_doc_id", "e") == ["n2"]
    for bad in (where("k" * 1000, 1), where("", 1), where("k", float("nan"), ">")):
        with pytest.raises(FilterError):
            built().candidates(bad)


class TestTextsThatAreLeftOut:
    ROWS = {
        f"n{i}": {"body": f"{i} " * 700, "kind": "ab"[i % 2], "at": f"2020-01-{i % 28 + 1:02}"} for i in range(3_000)
    }

    def test_long_ones_are_left_out_and_the_rest_stays_exact(self):
        index = built(self.ROWS)
        candidates = index.candidates(both(where("body", "17 ", "text_match"), where("kind", "b")))
        assert (candidates.exact, len(candidates)) == (False, 1_500)
        assert index.candidates(where("kind", "b")).exact
        assert len(index.candidates(where("at", "2020-01-03", "<"))) == 216
        assert index.candidates(where("body", None, "is_empty")).exact
        assert len(index.candidates(both(where("body", "x"), condition="not"))) == 3_000
        assert index.candidates(where("body", 5)) == set()
        assert index.candidates(where("body", 5)).exact

    def test_those_that_grow_too_many_are_left_out_later(self):
        def exact(index):
            return {field: index.candidates(where(field, "x")).exact for field in ("body", "kind")}

        index = built({"n": {"body": "x", "kind": "a"}})
        assert exact(index) == {"body": True, "kind": True}
        index.update((node_id, {"body": row["body"], "kind": "a"}) for node_id, row in self.ROWS.items())
        assert exact(index) == {"body": False, "kind": True}
        assert {"n", "n2999"} <= index.candidates(where("body", "x"))
        index.update(deleted=self.ROWS)
        assert found(index, "kind", "a") == found(index, "body", "x") == ["n"]


class TestPlan:
    INSENSITIVE = where("text", "T7", "text_match_insensitive")
    NODES = {f"n{i}": {"i": i, "half": i % 2, "day": f"20{i % 100:02}-01-01", "text": f"t{i % 50}"} for i in range(400)}

    def test_no_filter_or_one_that_few_satisfy(self):
        plan = built().plan(None, 5)
        assert (plan.node_ids, plan.low, plan.high) == (None, 4, 4)
        plan = built(self.NODES).plan(where("i", IDS_LIMIT, "<"), 5)
        assert sorted(plan.node_ids) == sorted(f"n{i}" for i in range(IDS_LIMIT))
        index = built(self.NODES)
        assert index.plan(self.INSENSITIVE, 5).node_ids
        plan = index.plan(where("day", "2050-01-01", "<"), 5)
        assert plan.node_ids is None
        assert plan.high > 0
        assert ids_limit(where("text", "t7"), nodes=10**9, top_k=100) == IDS_LIMIT
        assert ids_limit(self.INSENSITIVE, nodes=50_000, top_k=10) == 4_000
        assert ids_limit(self.INSENSITIVE, nodes=10**9, top_k=100) == MAX_IDS
        assert ids_limit(self.INSENSITIVE, nodes=1, top_k=1) == IDS_LIMIT

    def test_none_or_many_satisfy_it_and_a_bad_top_k_is_refused(self):
        for rows in (self.NODES, {}):
            plan = built(rows).plan(where("i", 1_000, ">"), 5)
            assert (plan.node_ids, plan.low, plan.high) == (None, 0, 0)
        for filters in (
            where("i", IDS_LIMIT, "<="),
            where("half", 1),
            both(where("half", 1), where("i", 50, "<")),
            where("i", 0, ">="),  # all, and still sent: a node that is added meanwhile may not satisfy it
        ):
            plan = built(self.NODES).plan(filters, 5)
            assert plan.node_ids is None
            assert 0 < plan.high >= plan.low
        for top_k in (0, -1, True, "5"):
            with pytest.raises(InvalidQueryError):
                built().plan(None, top_k)


class TestChanges:
    def test_an_id_that_comes_twice_changes_nothing(self):
        with pytest.raises(IndexingError, match="twice"):
            MetadataIndex.build([("a", {}), ("a", {})], 1)
        index = built()
        with pytest.raises(IndexingError, match="twice"):
            index.update([("a", {"area": 1}), ("a", {"area": 2})], ["n1"], version=9)
        assert (len(index), index.version) == (4, 1)
        index.update([("b", {"area": 1})])
        assert found(index, "area", 1) == ["b"]

    def test_replacing_forgets_the_old_values_and_one_change_removes_and_adds(self):
        index = built()
        index.update([("n2", {"province": "Lampang"})])
        assert (len(index), found(index, "province", "Bangkok")) == (4, ["n3"])
        assert found(index, "area", 7.5) == found(index, "sold", "false") == []
        assert found(index, "province", "Lampang") == ["n2"]
        index = built()
        index.update([("n9", {"province": "Bangkok"})], ["n2", "n3", "unknown"], version=5)
        assert (found(index, "province", "Bangkok"), index.version, len(index)) == (["n9"], 5, 3)
        index.update(deleted=["n9"])
        assert index.version == 5
        index.update(version=6)
        assert (index.version, len(index)) == (6, 2)

    def test_from_nothing_to_nothing_and_rows_that_are_gone_are_given_up(self):
        index = built({})
        for items, deleted, expected in [(ROWS, (), ["n2", "n3"]), ({}, ROWS, []), (ROWS, (), ["n2", "n3"])]:
            index.update(items.items(), deleted)
            assert (len(index), found(index, "area", 6, ">")) == (len(items), expected)
        index = built()
        for number in range(12):
            index.update((f"n{i}", {"turn": number, "i": i}) for i in range(1_000))
        assert len(index) == 1_000
        assert len(index.numbering) < 8_000
        assert (len(index.candidates(where("turn", 11))), found(index, "i", 3)) == (1_000, ["n3"])


def test_clustering_changes_nothing_but_the_order(monkeypatch):
    def runs(field):
        values = [rows[node_id].get(field) for node_id in index.candidates(None)]
        return 1 + sum(one != other for one, other in pairwise(values))

    rng = np.random.default_rng(4)
    rows = {
        f"n{i}": {
            "kind": "abc"[rng.integers(3)], "year": int(rng.integers(2000, 2010)), "price": float(rng.random()),
            "tags": ["x", "y", "z"][: rng.integers(4)], **({"flag": bool(rng.integers(2))} if i % 3 else {}),
        }
        for i in range(600)
    }  # fmt: skip
    assert list(built(rows).candidates(None)) == list(rows)  # so few rows keep their order
    monkeypatch.setattr(snapshot, "_MIN_CLUSTERED", 1)
    index = built(rows)
    assert runs("flag") == 3
    assert runs("kind") <= 9
    assert runs("year") <= 90
    for filters in (
        where("kind", "b"), where("year", 2004, ">="), where("price", 0.3, "<"), where("tags", "z"),
        where("flag", "true"), where("flag", None, "is_empty"), both(where("kind", "a"), where("year", 2003)),
    ):  # fmt: skip
        assert index.candidates(filters) == accepted(rows, filters) != set()


KEPT = {
    "n1": {"kind": "a", "year": 2020, "sold": True, "big": 2**53 + 1, "day": "2020-01-31", "tags": ["x", "y"]},
    "n2": {"kind": "half \ud800", "year": 2.5, "big": float("inf"), "note": {"x": 1}},
    "ก": {"year": [1, 9], "day": "2020-01-31T10:00"},
}
FILES = ["arrays.npz", "fields.json", "manifest.json"]


@pytest.fixture
def saved(tmp_path):
    index = MetadataIndex.build(KEPT.items(), version=7)
    index.save(tmp_path / "metadata")
    return tmp_path / "metadata", index


QUESTIONS = [
    where("kind", "a"), where("kind", "half", "text_match"), where("year", 3, ">"), where("sold", "true"),
    where("big", 2**53 + 1), where("big", 2**53, ">"), where("day", "2020-01-31", "<="), where("tags", "y"),
    where("note", None, "is_empty"), where("year", 9), where("nowhere", 1),
]  # fmt: skip


def answers(index):
    return [sorted(index.candidates(question)) for question in QUESTIONS]


def contents(index):
    """What it holds of each field, whatever the row numbers."""
    return {
        name: (
            field.whole, len(field.present), len(field.unindexed),
            {(type(value), value): len(rows) for value, rows in field.words.postings.items()},
            [tree.entries()[0].tolist() for tree in (field.numbers, field.days, field.moments)],
        )
        for name, field in index._snapshot.fields.items()
    }  # fmt: skip


def test_a_loaded_index_answers_as_the_saved_one_another_version_is_none_and_saving_again_replaces(saved, tmp_path):
    folder, index = saved
    assert MetadataIndex.load(tmp_path / "nowhere", 7) is None
    assert MetadataIndex.load(folder, 8) is None
    loaded = MetadataIndex.load(folder, 7)
    assert answers(loaded) == answers(index)
    assert (loaded.version, len(loaded), contents(loaded)) == (7, 3, contents(index))
    for changed in (loaded, index):
        changed.update([("n1", {"kind": "b", "year": 5})], ["n2"], version=8)
        changed.update([("n4", {"kind": "a"})])
    assert answers(loaded) == answers(index)
    index.update(deleted=["n1"], version=9)
    index.save(folder)
    assert MetadataIndex.load(folder, 7) is None
    assert len(MetadataIndex.load(folder, 9)) == 2
    assert sorted(path.name for path in folder.iterdir()) == FILES


@settings(max_examples=60, deadline=None)
@given(cases, st.data())
def test_any_metadata_survives_any_changes(tmp_path_factory, case, data):
    rows, filters = case
    nodes = {f"n{number}": row for number, row in enumerate(rows)}
    index = MetadataIndex.build(nodes.items(), version=1)
    gone = data.draw(st.sets(st.sampled_from([*nodes, "n99"])))
    index.update(deleted=gone)
    folder = tmp_path_factory.mktemp("any") / "metadata"
    index.save(folder)
    loaded = MetadataIndex.load(folder, 1)
    left = {node_id: row for node_id, row in nodes.items() if node_id not in gone}
    assert set(loaded.candidates(filters)) == {node_id for node_id, row in left.items() if oracle(row, filters)}
    assert (contents(loaded), len(loaded)) == (contents(index), len(left))


@pytest.mark.parametrize("name", FILES)
def test_a_missing_cut_or_edited_file_is_named(saved, name):
    folder, _ = saved
    content = (folder / name).read_bytes()
    for damaged in (content[:-3], content[:20] + b"#" + content[21:], b""):
        (folder / name).write_bytes(damaged)
        with pytest.raises(StoreDamagedError, match=name):
            MetadataIndex.load(folder, 7)
    (folder / name).unlink()
    with pytest.raises(StoreDamagedError, match=name):
        MetadataIndex.load(folder, 7)


@pytest.mark.parametrize(
    "change",
    [
        lambda header, files: header.update(nodes=99),
        lambda header, files: files.update({"fields.json": b"[]garbage"}),
        lambda header, files: files.update({"fields.json": json.dumps([{"name": "x"}]).encode()}),
        lambda header, files: files.update({"arrays.npz": b"not a zip file"}),
    ],
)
def test_files_that_are_whole_but_wrong(saved, change):
    folder, _ = saved
    header, files = dict(read_header(folder)), read_files(folder, FILES[:2])
    change(header, files)
    write_sealed(folder, header, files)
    with pytest.raises(StoreDamagedError, match="rebuild it"):
        MetadataIndex.load(folder, 7)


# The prefilter of a stored index, and its vectors in memory.


def make_node(number, source=None, **metadata):
    node = TextNode(id_=f"n{number}", text=f"text {number}", metadata=metadata)
    if source:
        node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=source)
    return node


@pytest.fixture
def open_storage(tmp_path, closed_at_end):
    return lambda: closed_at_end(IndexStorage(tmp_path / "data"))


@pytest.fixture
def index(open_storage, embedding):
    made = open_storage().create("docs", embedding, description="Test", chunks=ChunkSettings())
    Indexer(made).add_nodes([
        make_node(1, "d1", province="Bangkok", year=2020), make_node(2, "d1", province="Lampang", year=2021),
        make_node(3, "d2", province="Bangkok", year=2022),
    ])  # fmt: skip
    return made


@pytest.fixture
def builds(monkeypatch):
    made = []
    build = MetadataIndex.build

    def counted(items, version, **kwargs):
        made.append(version)
        return build(items, version, **kwargs)

    monkeypatch.setattr(MetadataIndex, "build", counted)
    return made


def test_built_once_for_a_version_and_follows_what_is_added_replaced_and_removed(index, builds):
    assert index.candidates(where("province", "Bangkok")) == {"n1", "n3"}
    assert index.candidates(where("year", 2020, ">")) == {"n2", "n3"}
    assert index.candidates(None) == {"n1", "n2", "n3"}
    assert (index.candidates(where("provinc", "x")), builds) == (set(), [index.version])
    for key in ("doc_id", "document_id", "ref_doc_id"):
        assert index.candidates(where(key, "d1")) == {"n1", "n2"}
    Indexer(index).add_nodes([make_node(4, "d2", province="Bangkok", year=2030)])
    assert index.candidates(where("province", "Bangkok")) == {"n1", "n4"}  # n3 was of d2 as it was before
    Indexer(index).remove_documents(["d1"])
    assert index.candidates(where("province", "Bangkok")) == {"n4"}
    assert index.metadata().version == index.version


def test_a_change_that_fails_changes_nothing_and_one_that_is_told_is_no_reason_to_build_again(index, builds):
    index.metadata()
    with pytest.raises(KeyError), index.changing(removed=["n1"]):
        raise KeyError
    with index.changing(removed=["n1"]):
        pass  # the version is as it was, so there was no change
    assert (index.candidates(where("year", 2020)), len(builds)) == ({"n1"}, 1)
    before = index.candidates(where("province", "Bangkok"))
    node = make_node(9, "d9", province="Bangkok")
    with index.changing(written=[node], removed=["n1"]):
        index.catalog.confirm_removal(["d1"])
    assert index.candidates(where("province", "Bangkok")) == {"n3", "n9"}
    assert (index.candidates(where("doc_id", "d9")), before, len(builds)) == ({"n9"}, {"n1", "n3"}, 1)


def test_read_from_its_saved_form_with_later_changes_and_built_again_when_damaged(
    index, open_storage, embedding, builds, caplog
):
    index.metadata()
    index.close()
    again = open_storage().open("docs", embedding)
    assert (again.candidates(where("province", "Bangkok")), len(builds)) == ({"n1", "n3"}, 1)
    with again.changing(removed=["n1"]):
        again.catalog.confirm_removal([])
    again.close()
    again.close()
    again = open_storage().open("docs", embedding)
    assert (again.candidates(where("province", "Bangkok")), len(builds)) == ({"n3"}, 1)
    again.close()
    (index.folder / "metadata" / "arrays.npz").write_bytes(b"x")
    with caplog.at_level(logging.WARNING):
        assert open_storage().open("docs", embedding).candidates(where("province", "Bangkok")) == {"n1", "n3"}
    assert len(builds) == 2
    assert "arrays.npz" in caplog.text


def test_a_disk_that_refuses_costs_nothing_but_time(index, caplog):
    (index.folder / "metadata").parent.mkdir(exist_ok=True)
    (index.folder / ".metadata.tmp").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        assert index.candidates(where("province", "Bangkok")) == {"n1", "n3"}
    assert "could not be saved" in caplog.text


def test_texts_that_were_left_out_stay_so_and_the_store_decides_about_them(index, tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "TEXT_BYTES", 0)
    monkeypatch.setattr(snapshot, "TEXT_BYTES_PER_NODE", 0)
    kept = MetadataIndex.build(KEPT.items(), version=1)
    kept.save(tmp_path / "m")
    loaded = MetadataIndex.load(tmp_path / "m", 1)
    assert contents(loaded) == contents(kept)
    assert not loaded.candidates(where("kind", "a")).exact
    assert loaded.candidates(where("day", "2020-01-31", "<=")) == {"n1", "ก"}
    assert not index.metadata().candidates(where("province", "Bangkok")).exact
    found = index.candidates(where("province", "Bangkok"))
    assert found == {"n1", "n3"}
    assert found.exact
    monkeypatch.setattr("agentic_retriever.indices.prefilter.index.MAX_IDS", 1)
    assert index.candidates(where("province", "LAMP", "text_match_insensitive")) == {"n2"}
    assert index.candidates(where("province", "nowhere")) == set()


def test_filters_stay_true_while_documents_are_written(index):
    """What a reader is told is always what is in one version: documents come whole."""
    stop, wrong = threading.Event(), []

    def read():
        while not stop.is_set():
            found = sorted(index.candidates(where("batch", 0, ">=")))
            if len(found) % 3:
                wrong.append(found)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for turn in range(8):
            Indexer(index).add_nodes([make_node(f"{turn}-{i}", f"batch{turn}", batch=turn) for i in range(3)])
            if turn % 3 == 2:
                Indexer(index).remove_documents([f"batch{turn - 1}"])
    finally:
        stop.set()
        reader.join()
    assert len(index.candidates(where("batch", 0, ">="))) == 18


DIMENSION = 8


def unit(count, seed=0):
    rows = np.random.default_rng(seed).standard_normal((count, DIMENSION)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@given(st.integers(1, 60), st.integers(1, 20), st.sets(st.integers(0, 59)), st.integers(0, 1000))
def test_nearest_equals_a_full_sort(count, top_k, among, seed):
    matrix = np.round(unit(count, seed), 1)  # rounded, so that cosines tie
    ids = [f"n{i:02d}" for i in range(count)]
    everything = built({f"n{i:02d}": {} for i in range(60)}).candidates(None)
    query = unit(1, seed + 1)[0]
    wanted = everything.narrowed(f"n{i:02d}" for i in among)
    found = VectorRows(ids, matrix, 1, everything.numbering).nearest(query.tolist(), wanted, top_k)
    rows = [i for i in sorted(among) if i < count]
    cosines = matrix[rows] @ query if rows else []
    expected = sorted(((ids[i], float(c)) for i, c in zip(rows, cosines, strict=True)), key=lambda p: (-p[1], p[0]))
    assert [i for i, _ in found] == [i for i, _ in expected][:top_k] or np.allclose(
        [c for _, c in found], [c for _, c in expected][:top_k], atol=1e-6
    )


FILTERS = both(where("kind", ["k1", "k2", "k3"], "in"), where("year", 30, ">="))


def search(large, workers):
    adapter = VectorRetriever(large, AdapterSettings(workers=workers))
    nodes = adapter.search(RetrievalRequest("word7 word9", 12, FILTERS)).nodes
    return [(n.node.node_id, round(n.score, 5)) for n in nodes]


def test_search_in_memory_equals_search_by_the_engine_and_rows_of_an_old_version_are_never_used(storage, monkeypatch):
    model = EmbeddingModel(FakeEmbedding(dimension=DIMENSION, embed_batch_size=512), name="fake", batch_size=512)
    large = storage.create("rows", model, description="", chunks=ChunkSettings())
    rows = [
        (f"word{i % 53} word{i % 31} word{i}", {"kind": f"k{i % 20}", "year": i % 50})
        for i in range(prefilter.MIN_NODES + 100)
    ]
    Indexer(large).add_nodes([TextNode(id_=f"n{i}", text=text, metadata=row) for i, (text, row) in enumerate(rows)])
    large.build_search()
    with pool(2) as workers:
        by_engine = search(large, workers)
        large._vector_rows._reader.join(30)
        assert large.vector_rows() is not None
        calls = []
        original = type(large.vector_store).query
        with monkeypatch.context() as patch:
            patch.setattr(type(large.vector_store), "query", lambda *a, **kw: calls.append(1) or original(*a, **kw))
            in_memory = search(large, workers)
        assert (in_memory, len(in_memory)) == (by_engine, 12)
        assert not calls
        metadata = {"kind": "k1", "year": 40}
        fresh = TextNode(
            id_="fresh", text="word7 word9", metadata=metadata, excluded_embed_metadata_keys=list(metadata)
        )
        Indexer(large).add_nodes([fresh])
        assert search(large, workers)[0][0] == "fresh"
        large._vector_rows._reader.join(30)
        assert large.vector_rows() is not None
        assert search(large, workers)[0][0] == "fresh"
        Indexer(large).remove_documents(["fresh"])
        assert "fresh" not in {node_id for node_id, _ in search(large, workers)}


def test_small_indexes_do_without_and_a_vector_that_cannot_be_compared_gives_none(storage):
    a, other = (built({"a": {}}).candidates(None) for _ in range(2))
    rows = VectorRows(["a"], unit(1), 1, a.numbering)
    for vector in ([0.0] * DIMENSION, [float("nan")] * DIMENSION, [1.0], []):
        assert rows.nearest(vector, a, 1) is None
    assert rows.nearest([1.0] * DIMENSION, other, 1) is None
    model = EmbeddingModel(FakeEmbedding(dimension=DIMENSION), name="fake")
    made = storage.create("small", model, description="", chunks=ChunkSettings())
    Indexer(made).add_nodes([TextNode(id_="a", text="a")])
    assert made.vector_rows() is None
    assert made._vector_rows._reader is None
    assert made.vector_rows() is None
