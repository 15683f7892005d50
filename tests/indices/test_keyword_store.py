from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_retriever.errors import StoreDamagedError, StoreError
from agentic_retriever.indices.keyword import KeywordIndex
from agentic_retriever.stores import files as sealed_folder
from agentic_retriever.text import Tokenizer

ENGLISH = Tokenizer(language="en")
TEXTS = {"n1": "running cats", "n2": "the cat runs", "n3": "แมวนั่งบนเสื่อ", "n4": ""}
QUERIES = ("run", "cats", "the", "แมว", "dog", "")


@pytest.fixture
def saved(tmp_path):
    folder = tmp_path / "keyword"
    index = KeywordIndex.build(TEXTS.items(), tokenizer=ENGLISH, version=7, k1=1.2, b=0.5)
    index.save(folder)
    return folder, index


def load(folder, version=7, tokenizer=ENGLISH):
    return KeywordIndex.load(folder, tokenizer=tokenizer, version=version)


def test_a_loaded_view_answers_as_the_saved_one(saved):
    folder, index = saved
    loaded = load(folder)
    assert (len(loaded), loaded.version, loaded.k1, loaded.b) == (4, 7, 1.2, 0.5)
    assert [loaded.search(q, 3) for q in QUERIES] == [index.search(q, 3) for q in QUERIES]
    assert loaded.search("run", 3, allowed={"n2"}) == index.search("run", 3, allowed={"n2"}) != []


@settings(max_examples=25, deadline=None)
@given(texts=st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=6))
def test_any_ids_and_texts_survive(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("any") / "keyword"
    index = KeywordIndex.build({**texts, "half\ud800": "lone\udfff sign"}.items(), tokenizer=Tokenizer(), version=1)
    index.save(folder)
    loaded = KeywordIndex.load(folder, tokenizer=Tokenizer(), version=1)
    assert [loaded.search(t, 9) for t in [*texts.values(), "sign"]] == [
        index.search(t, 9) for t in [*texts.values(), "sign"]
    ]


def test_an_empty_view_survives(tmp_path):
    KeywordIndex.build([], tokenizer=ENGLISH, version=1).save(tmp_path / "k")
    assert load(tmp_path / "k", 1).search("cat", 3) == []


def test_nothing_there_or_another_version_or_tokenizer_is_none(saved, tmp_path):
    folder, _index = saved
    assert load(tmp_path / "absent") is None
    assert load(folder, version=8) is None
    assert load(folder, tokenizer=Tokenizer(language="es")) is None
    assert load(folder) is not None


@pytest.mark.parametrize("name", ["scores.npy", "rows.npy", "starts.npy", "node_ids.json", "vocabulary.json"])
@pytest.mark.parametrize("damage", ["cut", "emptied", "edited", "removed"])
def test_damage_is_found_and_named(saved, name, damage):
    file = saved[0] / name
    data = file.read_bytes()
    if damage == "removed":
        file.unlink()
    elif damage == "edited":
        file.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
    else:
        file.write_bytes(data[: len(data) // 2] if damage == "cut" else b"")
    with pytest.raises(StoreDamagedError, match=name.replace(".", r"\.")):
        load(saved[0])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"header": {}, "files": {}}',
        b"[" * 100_000,
        b'{"header": 1, "files": 2, "seal": 3}',
    ],
)
def test_a_broken_manifest_is_found_and_named(saved, content):
    (saved[0] / "manifest.json").write_bytes(content)
    with pytest.raises(StoreDamagedError, match=r"manifest\.json"):
        load(saved[0])


def test_an_edited_manifest_is_found(saved):
    file = saved[0] / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["header"]["version"] = 8
    file.write_text(json.dumps(manifest))
    with pytest.raises(StoreDamagedError, match=r"manifest\.json.*edited"):
        load(saved[0], version=8)


def test_a_missing_manifest_is_damage(saved):
    (saved[0] / "manifest.json").unlink()
    with pytest.raises(StoreDamagedError, match=r"manifest\.json"):
        load(saved[0])


def test_a_sealed_folder_with_files_that_disagree_is_damage(saved):
    folder, _index = saved
    header = sealed_folder.read_header(folder)
    names = ("scores.npy", "rows.npy", "starts.npy", "node_ids.json", "vocabulary.json")
    files = sealed_folder.read_files(folder, names)
    sealed_folder.write_sealed(folder, header, {**files, "node_ids.json": b'["n1", "n2"]'})
    with pytest.raises(StoreDamagedError, match="disagree"):
        load(folder)
    sealed_folder.write_sealed(folder, header, {**files, "starts.npy": b"not numpy"})
    with pytest.raises(StoreDamagedError, match="cannot be read back"):
        load(folder)


def test_an_array_with_pickled_objects_is_not_opened(saved, tmp_path):
    import io

    import numpy as np

    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    buffer = io.BytesIO()
    np.save(buffer, np.array([Bomb()], dtype=object), allow_pickle=True)
    folder = saved[0]
    header = sealed_folder.read_header(folder)
    files = sealed_folder.read_files(folder, ("rows.npy", "starts.npy", "node_ids.json", "vocabulary.json"))
    sealed_folder.write_sealed(folder, header, {**files, "scores.npy": buffer.getvalue()})
    with pytest.raises(StoreDamagedError):
        load(folder)
    assert not (tmp_path / "ran").exists()


def test_saving_again_replaces_and_leaves_nothing_beside(saved):
    folder, _index = saved
    (folder / "leftover").write_text("of an older format")
    (folder.parent / ".keyword.tmp").mkdir()
    (folder.parent / ".keyword.tmp" / "half").write_text("of a run that was killed")
    KeywordIndex.build([("z", "zebra")], tokenizer=ENGLISH, version=8).save(folder)
    assert load(folder, 8).search("zebra", 3)[0][0] == "z"
    assert [p.name for p in folder.parent.iterdir()] == ["keyword"]
    assert not (folder / "leftover").exists()


def test_a_full_disk_keeps_the_old_view(saved, monkeypatch):
    folder, index = saved

    def full(_handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left on device; free some space"):
        KeywordIndex.build([("z", "zebra")], tokenizer=ENGLISH, version=8).save(folder)
    assert load(folder).search("run", 3) == index.search("run", 3)
    assert [p.name for p in folder.parent.iterdir()] == ["keyword"]


def test_a_file_in_the_way_is_a_store_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError):
        KeywordIndex.build([], tokenizer=ENGLISH, version=1).save(tmp_path / "file" / "keyword")


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="permissions bind no administrator")
def test_an_unreadable_file_is_a_store_error(saved):
    (saved[0] / "rows.npy").chmod(0)
    with pytest.raises(StoreError, match=r"rows\.npy"):
        load(saved[0])
