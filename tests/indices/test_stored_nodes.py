from __future__ import annotations

import json
import subprocess
import sys

import pytest
from store_tools import in_threads

from agentic_retriever.errors import IndexingError, StoreClosedError, StoreDamagedError, StoreError
from agentic_retriever.indices.stored_nodes import (
    CATALOG_FILE,
    MANIFEST_FILE,
    Catalog,
    CatalogCounts,
    CatalogEntry,
    Manifest,
    check_index_name,
)
from agentic_retriever.json_files import write_atomically


def entry(doc_id, *, root="/r", text="text", content_hash="h1"):
    return CatalogEntry(
        doc_id=doc_id, source=f"{root}/{doc_id}", root=root, kind="txt", title="T",
        metadata={"year": 2020, "tags": ["a"]}, text=text, content_hash=content_hash,
    )  # fmt: skip


@pytest.fixture
def catalog(tmp_path):
    opened = Catalog(tmp_path, "test")
    yield opened
    opened.close()


def test_a_document_is_unfinished_until_confirmed_and_then_loses_stale_nodes(catalog):
    catalog.begin([(entry("a"), ["n1"])])
    assert catalog.counts() == CatalogCounts(documents=1, nodes=1, unfinished=1, finished_nodes=0)
    assert catalog.get("a").content_hash == ""
    assert catalog.version() == 0
    document = entry("a", text="ข้อความ \U0001f600 \n")
    catalog.begin([(document, ["n1", "n2"])])
    catalog.confirm([(document, ["n1", "n2"])])
    assert catalog.get("a") == document
    assert catalog.node_ids("a") == ["n1", "n2"]
    assert catalog.get("b") is None
    changed = entry("a", content_hash="h2")
    catalog.begin([(changed, ["n2", "n3"])])
    assert catalog.node_ids("a") == ["n1", "n2", "n3"]
    catalog.confirm([(changed, ["n2", "n3"])])
    assert catalog.node_ids("a") == ["n2", "n3"]
    assert catalog.version() == 2


def test_removal_in_two_steps_and_documents_of_one_root(catalog):
    for doc_id in ("a", "b"):
        catalog.begin([(entry(doc_id), [f"{doc_id}1"])])
        catalog.confirm([(entry(doc_id), [f"{doc_id}1"])])
    catalog.begin_removal(["a"])
    assert catalog.counts().unfinished == 1
    catalog.confirm_removal(["a"])
    assert catalog.doc_ids() == ["b"]
    assert catalog.counts() == CatalogCounts(documents=1, nodes=1, unfinished=0, finished_nodes=1)
    for doc_id, root in (("a", "/x"), ("b", "/y"), ("c", "/x")):
        catalog.confirm([(entry(doc_id, root=root), [])])
    assert catalog.doc_ids(root="/x") == ["a", "c"]
    assert [e.doc_id for e in catalog.documents()] == ["a", "b", "c"]


def test_state_survives_reopening_and_garbage_is_damage(tmp_path):
    first = Catalog(tmp_path, "test")
    first.confirm([(entry("a"), ["n1"])])
    first.close()
    first.close()
    with pytest.raises(StoreClosedError, match="'test' is closed"):
        first.version()
    again = Catalog(tmp_path, "test")
    assert (again.version(), again.doc_ids()) == (1, ["a"])
    again.close()
    (tmp_path / CATALOG_FILE).write_bytes(b"this is no database " * 100)
    with pytest.raises(StoreDamagedError, match="'test' is damaged"):
        Catalog(tmp_path, "test")


def test_a_failed_write_changes_nothing_and_threads_share_one_catalog(catalog):
    with pytest.raises(AttributeError):
        catalog.confirm([(entry("a"), ["n1"]), (None, ["n2"])])
    assert catalog.doc_ids() == []
    assert catalog.version() == 0

    def work(i):
        for j in range(10):
            catalog.confirm([(entry(f"d{i}-{j}"), [f"n{i}-{j}"])])
            catalog.counts()

    in_threads(work, range(8))
    assert catalog.counts().documents == 80
    assert catalog.version() == 80


def manifest(**changes):
    pins = {
        "name": "n", "description": "d", "embedding": "e", "dimension": 3, "chunk_size": 512, "chunk_overlap": 50,
        "leaf_size": 128, "created": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    return Manifest(**{**pins, **changes})


def test_a_manifest_comes_back_and_one_of_a_later_version_says_so(tmp_path):
    manifest(description="โฉนด").write(tmp_path)
    assert Manifest.read(tmp_path) == manifest(description="โฉนด")
    assert [p.name for p in tmp_path.iterdir()] == [MANIFEST_FILE]
    manifest().write(tmp_path)
    path = tmp_path / MANIFEST_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(StoreDamagedError, match="format 99, this version reads 1"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"format": 1}', b"null"])
def test_missing_or_unreadable_manifest_is_damage_with_a_remedy(tmp_path, content):
    if content is not None:
        (tmp_path / MANIFEST_FILE).write_bytes(content)
    with pytest.raises(StoreDamagedError, match=r"is missing or not a manifest; remove it .*index remove"):
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


def test_a_full_disk_leaves_the_old_file_and_a_file_in_the_way_is_a_typed_error(tmp_path):
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
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot write"):
        write_atomically(tmp_path / "file" / "f", b"x")
