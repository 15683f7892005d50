"""Files that are missing, cut off or overwritten are an error, never an empty index."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from agentic_retriever.errors import StoreDamagedError
from agentic_retriever.stores.edge.engine import CollectionFile
from agentic_retriever.stores.edge.store import QdrantEdgeVectorStore

sys.path.insert(0, str(Path(__file__).parents[1]))
from store_tools import ask, make_node

NODES = 400


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole")
    with QdrantEdgeVectorStore(path) as store:
        store.add([make_node(n, n=n) for n in range(NODES)])
    return path


@pytest.fixture
def path(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def test_a_copy_opens(path):
    with QdrantEdgeVectorStore(path) as store:
        assert store.count() == NODES


def _segment(folder):
    return next((folder / "shard" / "segments").iterdir())


def _remove(found):
    shutil.rmtree(found) if found.is_dir() else found.unlink()


def _empty(found):
    for inside in found.iterdir():
        _remove(inside)


def _change(old, new):
    def change(found):
        text = found.read_text()
        assert old in text
        found.write_text(text.replace(old, new))

    return change


def _overwrite(found):
    found.write_bytes(b"\xff\x00garbage" * 40)


@pytest.mark.parametrize(
    ("which", "harm"),
    [
        (lambda c: c / "collection.json", _remove),
        (lambda c: c / "collection.json", _overwrite),
        (lambda c: c / "collection.json", lambda f: f.write_text("")),
        (lambda c: c / "collection.json", lambda f: f.write_text("{}")),
        (lambda c: c / "collection.json", _change('"dimension": 8', '"dimension": "x"')),
        (lambda c: c / "collection.json", _change('_version": 1', '_version": 99')),
        (lambda c: c / "shard", _remove),
        (lambda c: c / "shard", _empty),
        (lambda c: c / "shard" / "segments", _remove),
        (lambda c: c / "shard" / "segments", _empty),
        (lambda c: c / "shard" / "wal", _remove),
        (lambda c: c / "shard" / "wal", _empty),
        (lambda c: c / "shard" / "edge_config.json", _remove),
        (lambda c: c / "shard" / "edge_config.json", _overwrite),
        (lambda c: _segment(c) / "segment.json", _remove),
        (lambda c: _segment(c) / "segment.json", _overwrite),
        (lambda c: _segment(c) / "vector_storage", _remove),
        (lambda c: _segment(c) / "vector_storage" / "vectors" / "chunk_0.mmap", _remove),
        (lambda c: _segment(c) / "vector_storage" / "vectors" / "status.dat", _remove),
        (lambda c: _segment(c) / "payload_storage", _remove),
        (lambda c: next(_segment(c).glob("*id_tracker.mappings")), _overwrite),
        (_segment, _empty),
    ],
)
def test_damage_is_found_on_opening(path, which, harm):
    collection = path / "default"
    harm(which(collection))
    for _ in range(2):  # and stays found: opening must not repair it into an empty index
        with pytest.raises(StoreDamagedError, match="damaged or incomplete") as caught:
            QdrantEdgeVectorStore(path)
        assert str(collection) in str(caught.value)


def test_fewer_nodes_than_were_stored(path):
    description = path / "default" / "collection.json"
    described = json.loads(description.read_text())
    assert described["points"] == NODES
    description.write_text(json.dumps({**described, "points": NODES + 1}))
    with pytest.raises(StoreDamagedError, match="401 nodes were stored, 400 are left"):
        QdrantEdgeVectorStore(path)


def test_a_panic_of_the_engine_is_damage_too(path):
    status = _segment(path / "default") / "vector_storage" / "vectors" / "status.dat"
    status.write_bytes(status.read_bytes()[:2])
    with pytest.raises(StoreDamagedError):
        QdrantEdgeVectorStore(path)


def test_a_making_that_was_cut_off_is_made_again(tmp_path):
    (tmp_path / "default" / "shard" / "segments" / "half").mkdir(parents=True)
    half = CollectionFile(collection="default", dimension=3, created="2024-05-01T00:00:00+00:00")
    half.write(tmp_path / "default")
    with QdrantEdgeVectorStore(tmp_path) as store:
        store.add([make_node(1)])
        assert store.query(ask()).ids == ["node-00001"]


def test_while_changes_are_under_way_no_count_is_promised(tmp_path):
    description = tmp_path / "default" / "collection.json"
    with QdrantEdgeVectorStore(tmp_path) as store:
        store.add([make_node(1)])
        assert json.loads(description.read_text())["points"] is None
        store.flush()
        assert json.loads(description.read_text())["points"] == 1
        store.delete_nodes(["node-00001"])
        assert json.loads(description.read_text())["points"] is None
    assert json.loads(description.read_text())["points"] == 0
    assert sorted(path.name for path in description.parent.iterdir()) == ["collection.json", "collection.lock", "shard"]
