from __future__ import annotations

import json
import subprocess
import sys

import pytest

from agentic_retriever.errors import IndexingError, StoreDamagedError, StoreError
from agentic_retriever.indices.stored_nodes import MANIFEST_FILE, Manifest, check_index_name
from agentic_retriever.json_files import write_atomically


def manifest(**changes):
    pins = {
        "name": "n", "description": "d", "embedding": "e", "dimension": 3, "chunk_size": 512, "chunk_overlap": 50,
        "leaf_size": 128, "created": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    return Manifest(**{**pins, **changes})


def test_round_trip(tmp_path):
    manifest(description="โฉนด").write(tmp_path)
    assert Manifest.read(tmp_path) == manifest(description="โฉนด")
    assert [p.name for p in tmp_path.iterdir()] == [MANIFEST_FILE]


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"format": 1}', b"null"])
def test_missing_or_unreadable_manifest_is_damage_with_a_remedy(tmp_path, content):
    if content is not None:
        (tmp_path / MANIFEST_FILE).write_bytes(content)
    with pytest.raises(StoreDamagedError, match=r"is missing or not a manifest; remove it .*index remove"):
        Manifest.read(tmp_path)


def test_manifest_of_a_later_version_says_so(tmp_path):
    manifest().write(tmp_path)
    path = tmp_path / MANIFEST_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(StoreDamagedError, match="format 99, this version reads 1"):
        Manifest.read(tmp_path)


def test_good_names_and_one_form_of_each():
    for name in ("a", "docs-2024", "โฉนด", "homologación", "a.b_c", "x" * 64):
        assert check_index_name(name) == name
    assert check_index_name("homologacio\u0301n") == "homologaci\u00f3n"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "a\\b", "a\0b", ".hidden", "-x", "x" * 65, "a b", "a.", 5, None]
)
def test_names_that_are_no_safe_folder_are_refused(name):
    with pytest.raises(IndexingError, match="cannot be used"):
        check_index_name(name)


def test_full_disk_leaves_the_old_file(tmp_path):
    path = tmp_path / "f"
    write_atomically(path, b"old")
    code = (
        "import resource, signal, sys, pathlib\n"
        "from agentic_retriever.errors import StoreError\n"
        "from agentic_retriever.json_files import write_atomically\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n    write_atomically(pathlib.Path(sys.argv[1]), b'x' * 5000)\n"
        "except StoreError as err:\n    print('typed', 'free space' in str(err))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "typed True"
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_folder_that_is_a_file_is_a_typed_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot write"):
        write_atomically(tmp_path / "file" / "f", b"x")
