"""The prefilter as part of an index: built on first use, saved, and true while documents come and go."""

from __future__ import annotations

import logging
import threading

import pytest
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from store_tools import where

from agentic_retriever.errors import FilterError, StoreClosedError
from agentic_retriever.indices import Indexer, IndexStorage
from agentic_retriever.indices.prefilter import MetadataIndex, snapshot
from agentic_retriever.ingestion import ChunkSettings


def make_node(number, source=None, **metadata):
    node = TextNode(id_=f"n{number}", text=f"text {number}", metadata=metadata)
    if source:
        node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=source)
    return node


@pytest.fixture
def open_storage(tmp_path):
    opened = []

    def make():
        opened.append(IndexStorage(tmp_path / "data"))
        return opened[-1]

    yield make
    for storage in opened:
        storage.close()


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


def test_built_once_for_a_version(index, builds):
    assert index.candidates(where("province", "Bangkok")) == {"n1", "n3"}
    assert index.candidates(where("year", 2020, ">")) == {"n2", "n3"}
    assert index.candidates(None) == {"n1", "n2", "n3"}
    assert builds == [index.version]


@pytest.mark.parametrize("key", ["doc_id", "document_id", "ref_doc_id"])
def test_sources_by_any_of_their_names(index, key):
    assert index.candidates(where(key, "d1"), known_only=True) == {"n1", "n2"}


def test_unknown_fields(index):
    assert index.candidates(where("provinc", "x")) == set()
    with pytest.raises(FilterError, match="did you mean 'province'"):
        index.candidates(where("provinc", "x"), known_only=True)


def test_follows_what_is_added_replaced_and_removed(index):
    index.metadata()
    Indexer(index).add_nodes([make_node(4, "d2", province="Bangkok", year=2030)])
    assert index.candidates(where("province", "Bangkok")) == {"n1", "n4"}  # n3 was of d2 as it was before
    Indexer(index).remove_documents(["d1"])
    assert index.candidates(where("province", "Bangkok")) == {"n4"}
    assert index.metadata().version == index.version


def test_a_change_that_is_told_is_not_a_reason_to_build_again(index, builds):
    before = index.candidates(where("province", "Bangkok"))
    node = make_node(9, "d9", province="Bangkok")
    with index.changing(written=[node], removed=["n1"]):
        index.catalog.confirm_removal(["d1"])
    assert index.candidates(where("province", "Bangkok")) == {"n3", "n9"}
    assert index.candidates(where("doc_id", "d9")) == {"n9"}
    assert before == {"n1", "n3"}
    assert len(builds) == 1


def test_a_change_that_fails_changes_nothing(index, builds):
    index.metadata()
    with pytest.raises(KeyError), index.changing(removed=["n1"]):
        raise KeyError
    with index.changing(removed=["n1"]):
        pass  # the version is as it was, so there was no change
    assert index.candidates(where("year", 2020)) == {"n1"}
    assert len(builds) == 1


def test_read_from_its_saved_form(index, open_storage, embedding, builds):
    index.metadata()
    index.close()
    again = open_storage().open("docs", embedding)
    assert again.candidates(where("province", "Bangkok")) == {"n1", "n3"}
    assert len(builds) == 1


def test_changes_are_saved_when_it_is_closed(index, open_storage, embedding, builds):
    index.metadata()
    with index.changing(removed=["n1"]):
        index.catalog.confirm_removal([])
    index.close()
    index.close()
    again = open_storage().open("docs", embedding)
    assert again.candidates(where("province", "Bangkok")) == {"n3"}
    assert len(builds) == 1


def test_a_damaged_saved_form_is_built_again(index, open_storage, embedding, builds, caplog):
    index.metadata()
    index.close()
    (index.folder / "metadata" / "arrays.npz").write_bytes(b"x")
    with caplog.at_level(logging.WARNING):
        again = open_storage().open("docs", embedding)
        assert again.candidates(where("province", "Bangkok")) == {"n1", "n3"}
    assert len(builds) == 2
    assert "arrays.npz" in caplog.text


def test_a_disk_that_refuses_costs_nothing_but_time(index, caplog):
    (index.folder / "metadata").parent.mkdir(exist_ok=True)
    (index.folder / ".metadata.tmp").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        assert index.candidates(where("province", "Bangkok")) == {"n1", "n3"}
    assert "could not be saved" in caplog.text


def test_the_store_decides_about_texts_that_are_left_out(index, monkeypatch):
    monkeypatch.setattr(snapshot, "TEXT_BYTES", 0)
    monkeypatch.setattr(snapshot, "TEXT_BYTES_PER_NODE", 0)
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
            nodes = [make_node(f"{turn}-{i}", f"batch{turn}", batch=turn) for i in range(3)]
            Indexer(index).add_nodes(nodes)
            if turn % 3 == 2:
                Indexer(index).remove_documents([f"batch{turn - 1}"])
    finally:
        stop.set()
        reader.join()
    assert len(index.candidates(where("batch", 0, ">="))) == 18


def test_after_closing(index):
    index.close()
    with pytest.raises(StoreClosedError):
        index.metadata()
