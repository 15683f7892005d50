from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metadata_strategies import cases, oracle
from store_tools import where

from agentic_retriever.errors import StoreDamagedError, StoreError
from agentic_retriever.indices.prefilter import MetadataIndex, snapshot
from agentic_retriever.stores.files import read_files, read_header, write_sealed

ROWS = {
    "n1": {"kind": "a", "year": 2020, "sold": True, "big": 2**53 + 1, "day": "2020-01-31", "tags": ["x", "y"]},
    "n2": {"kind": "half \ud800", "year": 2.5, "big": float("inf"), "note": {"x": 1}},
    "ก": {"year": [1, 9], "day": "2020-01-31T10:00"},
}
FILES = ["arrays.npz", "fields.json", "manifest.json"]


@pytest.fixture
def saved(tmp_path):
    index = MetadataIndex.build(ROWS.items(), version=7)
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


def test_a_loaded_index_answers_as_the_saved_one(saved):
    folder, index = saved
    loaded = MetadataIndex.load(folder, 7)
    assert answers(loaded) == answers(index)
    assert (loaded.version, len(loaded), contents(loaded)) == (7, 3, contents(index))
    for changed in (loaded, index):
        changed.update([("n1", {"kind": "b", "year": 5})], ["n2"], version=8)
        changed.update([("n4", {"kind": "a"})])
    assert answers(loaded) == answers(index)


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
    assert contents(loaded) == contents(index)
    assert len(loaded) == len(left)


def test_texts_that_were_left_out_stay_so(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "TEXT_BYTES", 0)
    monkeypatch.setattr(snapshot, "TEXT_BYTES_PER_NODE", 0)
    index = MetadataIndex.build(ROWS.items(), version=1)
    index.save(tmp_path / "m")
    loaded = MetadataIndex.load(tmp_path / "m", 1)
    assert contents(loaded) == contents(index)
    assert not loaded.candidates(where("kind", "a")).exact
    assert loaded.candidates(where("day", "2020-01-31", "<=")) == {"n1", "ก"}


def test_nothing_there_or_another_version_is_none(saved, tmp_path):
    folder, _ = saved
    assert MetadataIndex.load(tmp_path / "nowhere", 7) is None
    assert MetadataIndex.load(folder, 8) is None


def test_saving_again_replaces(saved):
    folder, index = saved
    index.update(deleted=["n1"], version=8)
    index.save(folder)
    assert MetadataIndex.load(folder, 7) is None
    assert len(MetadataIndex.load(folder, 8)) == 2
    assert sorted(path.name for path in folder.iterdir()) == FILES


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


def test_a_folder_that_cannot_be_written(saved, tmp_path):
    _, index = saved
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError):
        index.save(tmp_path / "file" / "metadata")
