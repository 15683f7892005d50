"""The life of a document: what is acknowledged, what is found after each step, and what is embedded for it."""

import errno
import json
import os
import threading
from pathlib import Path
from uuid import uuid4

import pytest
from document_bench import CATS, DOGS, INDEX
from llama_index.core.schema import Document, TextNode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters
from waiting import in_threads

from agentic_retriever import RouterConfig, errors
from agentic_retriever.catalog.records import DocumentStatus
from agentic_retriever.llm import build_client
from agentic_retriever.schema import Tier
from agentic_retriever.stores.node_store import NodeStore
from agentic_retriever.testing import FakeLLM

LONG = b"# Cats\n\n" + b"\n\n".join(b"## Part %d\n\n%s" % (n, b"The cat sleeps. " * 60) for n in range(6))


def test_an_upload_is_acknowledged_when_it_is_safe_and_indexed_by_a_worker(bench):
    record = bench.upload(filename="a/../b\\cats.md", title="Felines", tags=["pet"], metadata={"year": 2020, "x": None})
    assert (record.status, record.filename, record.title, record.index) == (
        DocumentStatus.PENDING, "cats.md", "Felines", INDEX,
    )  # fmt: skip
    kept = bench.folder / "files" / record.stored_filename
    assert kept.read_bytes() == CATS
    assert kept.name == f"{record.id}.md"
    assert bench.documents.file(record.id) == kept
    assert bench.found() == {}
    done = bench.process(record)
    assert (done.status, done.processing_progress, done.total_chunks, done.version) == (
        DocumentStatus.INDEXED, 100, 1, 1,
    )  # fmt: skip
    assert done.metadata["year"] == 2020
    assert done.metadata["_origins"] == {"year": "caller", "tags": "caller", "language": "text"}
    assert (done.title, done.tags, done.created_at) == ("Felines", ("pet",), record.created_at)
    [node] = bench.documents.nodes(record.id)
    assert (node.position, node.content, node.chunk_type, node.char_count) == (0, CATS.decode(), "text", len(CATS))
    assert (bench.documents.text(record.id), bench.found()) == (CATS.decode(), {record.id: 1})
    filters = MetadataFilters(
        filters=[MetadataFilter(key="year", value=2020), MetadataFilter(key="tags", value=["pet"])]
    )
    assert bench.found(filters=MetadataFilters(filters=filters.filters[:1])) == {record.id: 1}
    assert json.loads(json.dumps(done.to_dict()))["status"] == "indexed"


def test_the_same_file_is_the_same_document_under_every_name(bench, tmp_path):
    record = bench.indexed()
    (tmp_path / "other.md").write_bytes(CATS)
    again = bench.documents.upload(tmp_path / "other.md", index=INDEX)
    assert (again.id, again.filename) == (record.id, "cats.md")
    other = bench.documents.upload(CATS, index="others", filename="cats.md")
    assert other.id != record.id
    assert len(list((bench.folder / "files").iterdir())) == 2


def test_a_manual_page_is_processed_under_the_name_that_it_is_kept_by(bench):
    record = bench.process(bench.upload(b".TH LAMP 8\n.SH NAME\nlamp \\- switch a lamp\n", "lamp.8"))
    [node] = bench.documents.nodes(record.id)
    assert node.content.endswith("lamp - switch a lamp")


def test_two_uploads_of_one_file_at_once_are_one_document(bench):
    records = in_threads(lambda name: bench.upload(LONG, name), [f"n{n}.md" for n in range(6)])
    assert len({record.id for record in records}) == 1
    assert [path.stem for path in (bench.folder / "files").iterdir()] == [records[0].id]
    assert bench.process(records[0]).total_chunks == len(bench.documents.nodes(records[0].id))


@pytest.mark.parametrize(("content", "name", "said"), [
    (b"text", "a.exe", "of no kind that can be read; allowed are .md"), (b"text", "noname", "of no kind"),
    (b"text", "README", "of no kind"), (b"text", "a.txt.gz", "of no kind"),
    (
        b"{}", "a.jsonl",
        "holds many documents, one a line, and an upload is one; add them with: agentic-retriever index add",
    ),
    (b"", "a.md", "is empty"), (b"x" * 2_000_000, "a.txt", "larger than 1 MB"), (b"text", "..", "cannot be used"),
    (b"text", "x/.md", "cannot be used|of no kind"), (b"text", "a" * 300 + ".md", "cannot be used"),
    (b"text", None, "need a filename"),
])  # fmt: skip
def test_what_cannot_be_taken_is_refused_and_leaves_nothing(local_bench, content, name, said):
    made = local_bench.open(max_file_mb=1.0)
    with pytest.raises(errors.SourceError, match=said):
        made.documents.upload(content, index=INDEX, filename=name)
    assert made.index_names() == []
    assert not list(local_bench.folder.rglob("files/*"))


def test_a_storage_folder_that_is_away_refuses_uploads_and_documents_wait_for_it(local_bench, tmp_path, monkeypatch):
    monkeypatch.setattr("agentic_retriever.lifecycle.worker.POLL_S", 0.05)
    bench, share, away = local_bench, tmp_path / "share", tmp_path / "away"
    bench.router = bench.open(storage_folder=str(share))
    with pytest.raises(errors.StoreError, match=r"storage_folder .*share is not there; mount it"):
        bench.upload()
    with pytest.raises(errors.StoreError, match="is not there"):
        bench.worker().start()
    share.mkdir()
    others = {"notes.txt", f"{uuid4()}.md"}  # the second one of another catalog
    for name in others:
        (share / name).write_text("of somebody else")
        os.utime(share / name, (0, 0))
    cats = bench.indexed()
    assert {path.name for path in share.iterdir()} == {*others, cats.stored_filename}
    assert not (tmp_path / "data" / "files").exists()
    dogs, worker = bench.upload(DOGS, "dogs.md"), bench.worker()
    looked = threading.Semaphore(0)
    monkeypatch.setattr(worker._documents, "recover", lambda: share.rename(away))  # when it has just begun
    check = worker._documents.check_folder
    monkeypatch.setattr(worker._documents, "check_folder", lambda: (looked.release(), check()))
    worker.start()
    assert all(looked.acquire(timeout=10) for _ in range(4))
    with pytest.raises(errors.StoreError, match="is not there"):
        bench.documents.deactivate(cats.id)
    assert not share.exists()
    assert bench.documents.get(dogs.id).status is DocumentStatus.PENDING
    away.rename(share)
    assert bench.documents.wait(dogs.id, timeout_s=30).status is DocumentStatus.INDEXED


def test_worker_and_folder_have_a_model_describe_a_document_where_one_is_set(local_bench, tmp_path):
    llm = FakeLLM(['{"tags": ["postman", "cat"], "document_type": "note"}'])
    local_bench.router.resources.section_model = build_client(RouterConfig(), models={Tier.PRIMARY: llm})
    dogs = local_bench.indexed(DOGS, "dogs.md", document_type="story")
    told = [dogs.tags, dogs.document_type, dogs.metadata["_origins"]["tags"]]
    assert told == [("postman",), "story", "model"]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "dogs.md").write_bytes(DOGS)
    local_bench.router.add_index("folder", tmp_path / "in")
    [added] = local_bench.documents.list(index="folder")
    assert (added.tags, added.document_type) == (("postman",), "note")
    assert len(llm.prompts) == 2  # one for each document, as there are no sections to name


def test_a_path_that_is_no_file_is_refused(bench, tmp_path):
    for path, said in [(tmp_path / "gone.md", "cannot be read"), (Path(f"{tmp_path}.md"), "cannot be read")]:
        with pytest.raises(errors.SourceError, match=said):
            bench.documents.upload(path, index=INDEX)
    (tmp_path / "folder.md").mkdir()
    with pytest.raises(errors.SourceError, match="no regular file"):
        bench.documents.upload(tmp_path / "folder.md", index=INDEX)


def test_a_full_disk_refuses_an_upload_and_leaves_nothing(bench, monkeypatch):
    record = bench.indexed()

    def full(_handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("agentic_retriever.lifecycle.documents.os.fsync", full)
    with pytest.raises(errors.SourceError, match=r"cannot be kept in .*: No space left.*upload it again"):
        bench.upload(DOGS, "dogs.md")
    monkeypatch.undo()
    assert [path.name for path in (bench.folder / "files").iterdir()] == [record.stored_filename]
    assert bench.documents.count() == 1


@pytest.mark.parametrize(("content", "name", "said"), [
    (b"no pdf", "a.pdf", "is no readable PDF; export it again"), (b"   \n", "a.txt", "holds only white space"),
    (b"\0\1", "a.md", "is binary"), (b"PK broken", "a.docx", "a.docx"),
])  # fmt: skip
def test_a_document_that_cannot_be_read_fails_at_once_with_the_reason(local_bench, content, name, said):
    failed = local_bench.process(local_bench.upload(content, name))
    assert (failed.status, failed.total_chunks) == (DocumentStatus.FAILED, 0)
    assert said in failed.error_message
    assert name in failed.error_message
    assert local_bench.documents.list(status="failed") == [failed]


def test_encrypted_and_scanned_pdfs_fail_with_what_to_do(local_bench):
    fpdf = pytest.importorskip("fpdf")
    pdf = fpdf.FPDF()
    pdf.add_page()
    pdf.set_font("helvetica", size=12)
    pdf.cell(text="secret")
    pdf.set_encryption(owner_password="a", user_password="b")
    empty = fpdf.FPDF()
    empty.add_page()
    uploads = [local_bench.upload(bytes(pdf.output()), "locked.pdf")]
    uploads.append(local_bench.upload(bytes(empty.output()), "scan.pdf"))
    locked, scanned = local_bench.process(*uploads)
    assert "locked.pdf is locked by a password; save a copy without one" in locked.error_message
    assert "text recognition (OCR)" in scanned.error_message


def test_a_switched_off_document_is_in_no_result_and_comes_back_without_embedding(bench):
    cats, dogs = bench.process(bench.upload(LONG), bench.upload(DOGS, "dogs.md"))
    assert bench.embedded()
    before = bench.found("cat sleeps", top_k=50)
    off = bench.documents.deactivate(cats.id)
    assert (off.status, off.is_active, off.version) == (DocumentStatus.INACTIVE, False, cats.version)
    assert set(bench.found("cat sleeps", top_k=50)) == {dogs.id}
    index = bench.router.stored_index(INDEX)
    assert (index.count(), {hit for hit, _ in index.keyword().search("cat", 10)}) == (1, set())
    assert bench.documents.list(status="inactive") == [off] == bench.documents.list(is_active=False)
    assert bench.documents.deactivate(cats.id) == off
    with pytest.raises(errors.IndexingError, match="switched off; activate it first"):
        bench.documents.reprocess(cats.id)
    on = bench.documents.activate(cats.id)
    assert (on.status, on.is_active, on.total_chunks) == (DocumentStatus.INDEXED, True, cats.total_chunks)
    assert bench.found("cat sleeps", top_k=50) == before
    assert index.keyword().search("cat", 10)
    assert bench.embedded() == []
    index.check_contents()


def test_a_document_switched_off_while_it_waits_is_processed_when_it_is_switched_on(bench):
    waits, other = bench.upload(), bench.upload(DOGS, "dogs.md")
    assert bench.documents.deactivate(waits.id).status is DocumentStatus.INACTIVE
    bench.process(other)
    assert bench.documents.get(waits.id).status is DocumentStatus.INACTIVE
    assert bench.process(bench.documents.activate(waits.id)).status is DocumentStatus.INDEXED


def test_a_document_whose_kept_nodes_are_gone_is_processed_again_from_known_vectors(bench):
    cats = bench.indexed()
    bench.documents.deactivate(cats.id)
    for path in (bench.folder / "files").glob("*.npz"):
        path.write_bytes(b"damaged")
    bench.embedded()
    assert bench.documents.activate(cats.id).status is DocumentStatus.PENDING
    done = bench.documents.get(cats.id)
    assert bench.process(done).status is DocumentStatus.INDEXED
    assert (bench.found(), bench.embedded()) == ({cats.id: 1}, [])


def test_processing_again_embeds_only_what_changed_and_the_old_version_is_found_until_then(bench, monkeypatch):
    cats = bench.indexed(LONG)
    bench.embedded()
    again = bench.documents.reprocess(cats.id)
    assert again.status is DocumentStatus.PENDING
    before = bench.found("cat sleeps", top_k=50)
    assert sum(before.values()) == cats.total_chunks
    done = bench.process(again)
    assert (done.version, done.total_chunks, bench.embedded()) == (2, cats.total_chunks, [])
    kept = bench.folder / "files" / cats.stored_filename
    kept.write_bytes(LONG + b"\n\n## Part 7\n\nThe dog barks at the postman. " * 4)
    seen = []
    real = NodeStore.add
    monkeypatch.setattr(
        NodeStore, "add", lambda *args, **rest: (seen.append(bench.found("cat", top_k=50)), real(*args, **rest))[1]
    )
    done = bench.process(bench.documents.reprocess(cats.id))
    assert seen[0] == before
    changed = bench.embedded()
    assert 0 < len(changed) < done.total_chunks
    assert sum(bench.found("cat sleeps", top_k=50).values()) == done.total_chunks


def test_a_second_version_that_fails_leaves_the_first(bench):
    cats = bench.indexed()
    (bench.folder / "files" / cats.stored_filename).write_bytes(b"\0")
    failed = bench.process(bench.documents.reprocess(cats.id))
    assert failed.status is DocumentStatus.FAILED
    assert bench.found() == {cats.id: 1}


def test_a_deleted_file_fails_and_uploading_it_again_heals_the_document(bench):
    cats = bench.upload()
    (bench.folder / "files" / cats.stored_filename).unlink()
    failed = bench.process(cats)
    assert failed.status is DocumentStatus.FAILED
    assert "is gone from" in failed.error_message
    assert "upload it again" in failed.error_message
    again = bench.upload(filename="other.md")
    assert (again.id, again.status) == (cats.id, DocumentStatus.PENDING)
    assert bench.process(again).status is DocumentStatus.INDEXED


def test_what_is_known_can_be_corrected_at_once_and_stays(bench):
    cats = bench.indexed(metadata={"year": 2020})
    bench.embedded()
    changed = bench.documents.update(
        cats.id, tags=["a", "b"], document_type="note", metadata={"color": "red", "year": None}
    )
    assert (changed.tags, changed.document_type, changed.metadata["color"]) == (("a", "b"), "note", "red")
    assert "year" not in changed.metadata
    red = MetadataFilters(filters=[MetadataFilter(key="color", value="red")])
    assert (bench.found(filters=red), bench.embedded()) == ({cats.id: 1}, [])
    titled = bench.documents.update(cats.id, title="Felines of the house")
    assert (titled.title, titled.status) == ("Felines of the house", DocumentStatus.PENDING)
    assert bench.process(titled).status is DocumentStatus.INDEXED
    assert {text[:8] for text in bench.embedded()} == {"Felines "}
    done = bench.process(bench.documents.reprocess(cats.id))
    assert (done.title, done.tags, done.metadata["color"]) == (titled.title, titled.tags, "red")
    assert "year" not in done.metadata
    assert bench.found(filters=red) == {cats.id: 1}
    bench.router.stored_index(INDEX).check_contents()


def test_a_correction_while_a_document_waits_or_is_off_holds_later(bench):
    cats = bench.upload()
    bench.documents.update(cats.id, tags=["early"])
    assert bench.process(bench.documents.get(cats.id)).tags == ("early",)
    bench.documents.deactivate(cats.id)
    bench.documents.update(cats.id, tags=["late"])
    on = bench.documents.activate(cats.id)
    done = bench.process(on) if on.status is DocumentStatus.PENDING else on
    assert done.tags == ("late",)
    late = MetadataFilters(filters=[MetadataFilter(key="tags", value="late", operator="contains")])
    assert bench.found(filters=late) == {cats.id: 1}


def test_a_deleted_document_is_gone_with_what_was_kept(bench):
    cats, dogs, waits = bench.indexed(), bench.indexed(DOGS, "dogs.md"), bench.upload(LONG, "long.md")
    bench.documents.deactivate(dogs.id)
    for record in (cats, dogs, waits):
        bench.documents.delete(record.id)
        with pytest.raises(errors.UnknownDocumentError, match="no document"):
            bench.documents.get(record.id)
    assert bench.found() == {}
    assert list((bench.folder / "files").iterdir()) == []
    assert bench.documents.count() == 0
    assert bench.indexed().status is DocumentStatus.INDEXED


def test_records_are_listed_newest_first_and_by_what_they_are(bench):
    made = [
        bench.upload(b"text %d" % n, f"n{n}.md", document_type="ab"[n % 2], tags=[f"t{n % 3}", 'q"%']) for n in range(6)
    ]
    documents = bench.documents
    assert [one.id for one in documents.list()] == [one.id for one in reversed(made)]
    assert [one.filename for one in documents.list(document_type="a", limit=2, offset=1)] == ["n2.md", "n0.md"]
    assert documents.count(tag="t1") == len(documents.list(tag="t1")) == 2
    assert (documents.count(tag='q"%'), documents.count(tag="t")) == (6, 0)
    assert [one.filename for one in documents.list(search="N3")] == ["n3.md"]
    assert documents.list(search="%") == []
    assert documents.count(status="pending", index=INDEX) == 6
    with pytest.raises(errors.IndexingError, match="unknown status 'done'"):
        documents.list(status="done")
    with pytest.raises(errors.UnknownIndexError):
        documents.list(index="nowhere")
    with pytest.raises(errors.DeadlineExceededError, match="still pending"):
        documents.wait(made[0].id, timeout_s=0.02)


def test_adding_a_folder_keeps_the_same_records(bench, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "cats.md").write_bytes(CATS)
    (folder / "dogs.md").write_bytes(DOGS)
    bench.router.add_index(INDEX, folder)
    cats = next(one for one in bench.documents.list() if one.doc_id == "cats.md")
    assert (cats.status, cats.filename, cats.stored_filename, cats.title) == (
        DocumentStatus.INDEXED, "cats.md", "", "Cats",
    )  # fmt: skip
    assert bench.documents.file(cats.id) == folder / "cats.md"
    assert bench.upload(CATS, "other.md").id == cats.id
    bench.process(bench.documents.update(cats.id, title="Felines", tags=["pet"]))
    bench.documents.deactivate(cats.id)
    bench.embedded()
    assert bench.router.add_index(INDEX, folder).unchanged == 2  # what is off stays off
    assert set(bench.found()) == {"dogs.md"}
    bench.documents.activate(cats.id)
    assert bench.router.add_index(INDEX, folder).unchanged == 2  # and what was said of it is no change
    done = bench.process(bench.documents.reprocess(cats.id))
    assert (done.title, done.tags, bench.found()["cats.md"]) == ("Felines", ("pet",), 1)
    assert bench.embedded() == []
    (folder / "cats.md").unlink()
    assert bench.router.add_index(INDEX, folder).removed == 1
    assert [one.doc_id for one in bench.documents.list()] == ["dogs.md"]


def test_documents_and_nodes_of_llamaindex_are_records_too(bench):
    bench.router.add_index(INDEX, [Document(text="The cat purrs.", doc_id="c", metadata={"title": "C"})])
    bench.router.add_index(INDEX, [TextNode(text="The dog barks.", id_="n")])
    records = {one.doc_id: one for one in bench.documents.list()}
    assert bench.process(bench.documents.reprocess(records["c"].id)).version == 2
    with pytest.raises(errors.IndexingError, match="added as nodes"):
        bench.documents.reprocess(records["n"].id)
    bench.documents.deactivate(records["n"].id)
    assert set(bench.found()) == {"c"}
    bench.documents.activate(records["n"].id)
    assert set(bench.found()) == {"c", None}


def test_an_index_that_is_removed_takes_its_files_along(bench):
    bench.indexed()
    bench.router.remove_index(INDEX)
    assert (list((bench.folder / "files").iterdir()), bench.documents.count()) == ([], 0)


def test_a_file_beside_and_patterns_tell_of_a_document_and_filters_use_it(bench, tmp_path):
    (bench.folder / "patterns.yaml").parent.mkdir(exist_ok=True)
    (bench.folder / "patterns.yaml").write_text("'*': {entities: {Purring: ['purrs']}}", encoding="utf-8")
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "cats.md").write_bytes(b"Date: 5 May 2021\n\n" + CATS)
    (folder / "cats.md.meta.json").write_text('{"team": "north"}', encoding="utf-8")
    bench.router.add_index(INDEX, folder)
    [cats] = bench.documents.list()
    assert cats.metadata["_origins"] == {
        "team": "sidecar", "entities": "text", "document_date": "text", "year": "text", "language": "text",
    }  # fmt: skip
    assert (cats.metadata["entities"], cats.metadata["year"]) == (["Purring"], 2021)
    young = MetadataFilters(filters=[MetadataFilter(key="year", value=2020, operator=">")])
    assert bench.found(filters=young) == {"cats.md": 1}
    assert bench.router.index(INDEX).profile().number_ranges["year"] == (2021, 2021)


def test_a_document_whose_headings_say_only_a_number_is_found_by_its_mapped_title(bench):
    words = "Words that fill a part of the annex with some sentences about something. " * 12
    contents = "Contents\n\n6.1 Lamps ..... 2\n6.2 Parking brakes ..... 3"
    text = f"# Annex\n\n{contents}\n\n## 6.1\n\n{words}\n\n## 6.2\n\n{words}"
    annex = bench.indexed(text.encode(), "annex.md")
    assert annex.section_mappings == {"6.1": "Lamps", "6.2": "Parking brakes"}
    nodes = {node.node_id: node for node in bench.documents.nodes(annex.id)}
    found = [nodes[i] for i, _ in bench.router.index(INDEX).keyword().search("parking brakes", 5)]
    assert "6.2" in {node.heading_hierarchy[-1] for node in found if node.heading_hierarchy}
    assert all("arking" not in node.content for node in found if node.heading_hierarchy)
    assert {node.section_title for node in found if node.heading_hierarchy} == {"Parking brakes"}
