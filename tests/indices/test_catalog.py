from __future__ import annotations

import pytest
from store_tools import in_threads

from agentic_retriever.errors import StoreClosedError, StoreDamagedError
from agentic_retriever.indices.stored_nodes import CATALOG_FILE, Catalog, CatalogCounts, CatalogEntry


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


def test_a_document_comes_back_as_it_went_in(catalog):
    document = entry("a", text="ข้อความ \U0001f600 \n")
    catalog.begin([(document, ["n1", "n2"])])
    catalog.confirm([(document, ["n1", "n2"])])
    assert catalog.get("a") == document
    assert catalog.node_ids("a") == ["n1", "n2"]
    assert catalog.get("b") is None


def test_begun_but_not_confirmed_is_unfinished_and_keeps_the_version(catalog):
    catalog.begin([(entry("a"), ["n1"])])
    assert catalog.counts() == CatalogCounts(documents=1, nodes=1, unfinished=1, finished_nodes=0)
    assert catalog.get("a").content_hash == ""
    assert catalog.version() == 0


def test_confirming_drops_stale_nodes_and_raises_the_version(catalog):
    catalog.begin([(entry("a"), ["n1", "n2"])])
    catalog.confirm([(entry("a"), ["n1", "n2"])])
    changed = entry("a", content_hash="h2")
    catalog.begin([(changed, ["n2", "n3"])])
    assert catalog.node_ids("a") == ["n1", "n2", "n3"]
    catalog.confirm([(changed, ["n2", "n3"])])
    assert catalog.node_ids("a") == ["n2", "n3"]
    assert catalog.version() == 2


def test_removal_in_two_steps(catalog):
    for doc_id in ("a", "b"):
        catalog.begin([(entry(doc_id), [f"{doc_id}1"])])
        catalog.confirm([(entry(doc_id), [f"{doc_id}1"])])
    catalog.begin_removal(["a"])
    assert catalog.counts().unfinished == 1
    catalog.confirm_removal(["a"])
    assert catalog.doc_ids() == ["b"]
    assert catalog.counts() == CatalogCounts(documents=1, nodes=1, unfinished=0, finished_nodes=1)


def test_documents_of_one_root(catalog):
    for doc_id, root in (("a", "/x"), ("b", "/y"), ("c", "/x")):
        catalog.confirm([(entry(doc_id, root=root), [])])
    assert catalog.doc_ids(root="/x") == ["a", "c"]
    assert [e.doc_id for e in catalog.documents()] == ["a", "b", "c"]


def test_state_survives_reopening(tmp_path):
    first = Catalog(tmp_path, "test")
    first.confirm([(entry("a"), ["n1"])])
    first.close()
    first.close()
    with pytest.raises(StoreClosedError, match="'test' is closed"):
        first.version()
    again = Catalog(tmp_path, "test")
    assert (again.version(), again.doc_ids()) == (1, ["a"])
    again.close()


def test_a_failed_write_changes_nothing(catalog):
    with pytest.raises(AttributeError):
        catalog.confirm([(entry("a"), ["n1"]), (None, ["n2"])])
    assert catalog.doc_ids() == []
    assert catalog.version() == 0


def test_garbage_is_damage(tmp_path):
    (tmp_path / CATALOG_FILE).write_bytes(b"this is no database " * 100)
    with pytest.raises(StoreDamagedError, match="'test' is damaged"):
        Catalog(tmp_path, "test")


def test_threads_share_one_catalog(catalog):
    def work(i):
        for j in range(10):
            catalog.confirm([(entry(f"d{i}-{j}"), [f"n{i}-{j}"])])
            catalog.counts()

    in_threads(work, range(8))
    assert catalog.counts().documents == 80
    assert catalog.version() == 80
