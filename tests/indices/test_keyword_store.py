from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_retriever.errors import StoreDamagedError, StoreError
from agentic_retriever.indices.keyword import KeywordIndex
from agentic_retriever.stores import files as sealed_folder
from agentic_retriever.text import Tokenizer

ENGLISH = Tokenizer(language="en")
TEXTS = {"n1": "running cats", "n2": "the cat runs", "n3": "แมวนั่งบนเสื่อ", "n4": ""}
FILES = ("scores.npy", "rows.npy", "starts.npy", "node_ids.json", "vocabulary.json")
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
    asked = [*texts.values(), "sign"]
    assert [loaded.search(t, 9) for t in asked] == [index.search(t, 9) for t in asked]


def test_an_empty_view_survives(tmp_path):
    KeywordIndex.build([], tokenizer=ENGLISH, version=1).save(tmp_path / "k")
    assert load(tmp_path / "k", 1).search("cat", 3) == []


def test_nothing_there_or_another_version_or_tokenizer_is_none(saved, tmp_path):
    folder, _index = saved
    assert load(tmp_path / "absent") is None
    assert load(folder, version=8) is None
    assert load(folder, tokenizer=Tokenizer(language="es")) is None
    assert load(folder) is not None


@pytest.mark.parametrize("name", FILES)
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
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"header": {}, "files": {}}', b"[" * 100_000,
     b'{"header": 1, "files": 2, "seal": 3}', "edited", None],
)  # fmt: skip
def test_a_broken_manifest_is_found_and_named(saved, content):
    file = saved[0] / "manifest.json"
    if content == "edited":
        manifest = json.loads(file.read_text())
        manifest["header"]["version"] = 8
        file.write_text(json.dumps(manifest))
    elif content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    with pytest.raises(
        StoreDamagedError, match=r"manifest\.json.*edited" if content == "edited" else r"manifest\.json"
    ):
        load(saved[0], version=8)


class Bomb:
    """Runs when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def pickled(path):
    buffer = io.BytesIO()
    np.save(buffer, np.array([Bomb(path)], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def test_a_sealed_folder_with_files_that_disagree_or_hold_pickles_is_damage(saved, tmp_path):
    folder, _index = saved
    header, files = sealed_folder.read_header(folder), sealed_folder.read_files(folder, FILES)
    for name, content, said in (
        ("node_ids.json", b'["n1", "n2"]', "disagree"),
        ("starts.npy", b"not numpy", "cannot be read back"),
        ("scores.npy", pickled(tmp_path / "ran"), "cannot be read back"),
    ):
        sealed_folder.write_sealed(folder, header, {**files, name: content})
        with pytest.raises(StoreDamagedError, match=said):
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
