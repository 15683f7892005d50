import json
import os
import shutil
from unittest.mock import Mock

import pytest
from command_line import run_forked, run_fresh
from llama_index.core.schema import Document, TextNode
from store_tools import PROCESS
from waiting import in_threads

from agentic_retriever import AgenticRouter, RouterConfig, errors
from agentic_retriever.catalog.address import CATALOG_FILE, Address
from agentic_retriever.catalog.contents import Catalog, CatalogCounts, CatalogEntry
from agentic_retriever.catalog.indexes import Indexes
from agentic_retriever.catalog.takeover import MANIFEST_FILE
from agentic_retriever.embeddings import DiskVectorCache, EmbeddingModel
from agentic_retriever.indices import Indexer, stored_nodes
from agentic_retriever.indices.index import copy_index
from agentic_retriever.ingestion.chunking import ChunkSettings
from agentic_retriever.json_files import write_atomically
from agentic_retriever.testing import FakeEmbedding


def entry(doc_id, *, root="/r", text="text", content_hash="h1"):
    return CatalogEntry(
        doc_id=doc_id, source=f"{root}/{doc_id}", root=root, kind="txt", title="T",
        metadata={"year": 2020, "tags": ["a"]}, text=text, content_hash=content_hash,
    )  # fmt: skip


@pytest.fixture(params=["sqlite", "postgres"])
def address(request, tmp_path):
    """Where a catalog is made: a file, or a schema of a server where one answers."""
    file = Address.in_folder(tmp_path)
    return file if request.param == "sqlite" else Address.of(request.getfixturevalue("postgres_url"))


@pytest.fixture
def catalog(tmp_path, address, closed_at_end):
    indexes = closed_at_end(Indexes(tmp_path, address))
    indexes.create("test", manifest(name="test").to_json(), embedded=True)
    return Catalog(indexes, "test")


def test_a_document_is_unfinished_until_confirmed_then_loses_stale_nodes_and_is_removed_in_two_steps(catalog):
    catalog.begin([(entry("a"), ["n1"])])
    assert catalog.counts() == CatalogCounts(documents=1, nodes=1, unfinished=1, finished_nodes=0)
    assert (catalog.get("a").content_hash, catalog.version()) == ("", 0)
    document = entry("a", text="ข้อความ \U0001f600 \n")
    catalog.begin([(document, ["n1", "n2"])])
    catalog.confirm([(document, ["n1", "n2"])])
    assert (catalog.get("a"), catalog.node_ids("a")) == (document, ["n1", "n2"])
    assert catalog.get("b") is None
    changed = entry("a", content_hash="h2")
    catalog.begin([(changed, ["n2", "n3"])])
    assert catalog.node_ids("a") == ["n1", "n2", "n3"]
    catalog.confirm([(changed, ["n2", "n3"])])
    assert (catalog.node_ids("a"), catalog.version()) == (["n2", "n3"], 2)
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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_writes_nothing(catalog):
    child = os.fork()
    if child == 0:
        try:
            catalog.confirm([(entry("a"), ["n1"])])
        except errors.StoreClosedError as err:
            os._exit(0 if "fork" in str(err) else 2)
        os._exit(1)
    assert (os.waitpid(child, 0)[1], catalog.version(), catalog.doc_ids()) == (0, 0, [])


def test_state_survives_reopening_and_garbage_is_damage(tmp_path, catalog):
    catalog.confirm([(entry("a"), ["n1"])])
    catalog.close()
    catalog.close()
    with pytest.raises(errors.StoreClosedError, match="'test' is closed"):
        catalog.version()
    catalog.indexes.close()
    again = Catalog(Indexes(tmp_path, catalog.indexes.database.address), "test")
    assert (again.version(), again.doc_ids()) == (1, ["a"])
    again.indexes.close()
    (tmp_path / CATALOG_FILE).write_bytes(b"this is no database " * 100)
    with pytest.raises(errors.StoreDamagedError, match="is damaged; move it away and add the sources"):
        Catalog(Indexes(tmp_path), "test")


def test_a_failed_write_changes_nothing_and_threads_share_one_catalog(catalog):
    with pytest.raises(AttributeError):
        catalog.confirm([(entry("a"), ["n1"]), (None, ["n2"])])
    assert (catalog.doc_ids(), catalog.version()) == ([], 0)

    def work(i):
        for j in range(10):
            catalog.confirm([(entry(f"d{i}-{j}"), [f"n{i}-{j}"])])
            catalog.counts()

    in_threads(work, range(8))
    assert (catalog.counts().documents, catalog.version()) == (80, 80)


def manifest(**changes):
    pins = {
        "name": "n", "description": "d", "embedding": "e", "dimension": 3, "chunk_size": 512, "chunk_overlap": 50,
        "leaf_size": 128, "created": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    return stored_nodes.Manifest(**{**pins, **changes})


def test_a_manifest_comes_back_and_one_that_is_none_says_so():
    text = manifest(description="โฉนด").to_json()
    assert stored_nodes.Manifest.from_json("n", text) == manifest(description="โฉนด")
    with pytest.raises(errors.StoreDamagedError, match="format 99, this version reads 1"):
        stored_nodes.Manifest.from_json("n", json.dumps({**json.loads(text), "format": 99}))
    for content in ("", "{", "[]", "{}", '{"format": 1}', "null"):
        with pytest.raises(errors.StoreDamagedError, match=r"'n' is damaged.*is none; remove it .*index remove n"):
            stored_nodes.Manifest.from_json("n", content)


def test_good_names_one_form_of_each_and_those_that_are_no_safe_folder():
    for name in ("a", "docs-2024", "โฉนด", "homologación", "a.b_c", "x" * 64):
        assert stored_nodes.check_index_name(name) == name
    assert stored_nodes.check_index_name("homologacio\u0301n") == "homologaci\u00f3n"
    for name in ("", ".", "..", "../x", "a/b", "a\\b", "a\0b", ".hidden", "-x", "x" * 65, "a b", "a.", 5, None):
        with pytest.raises(errors.IndexingError, match="cannot be used"):
            stored_nodes.check_index_name(name)


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
    done = run_fresh(code, path, check=True)
    assert (done.stdout.strip(), path.read_bytes()) == ("typed True", b"old")
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(errors.StoreError, match="cannot write"):
        write_atomically(tmp_path / "file" / "f", b"x")


@pytest.fixture
def embedding(tmp_path, base, closed_at_end):
    return closed_at_end(EmbeddingModel(base, name="fake", disk=DiskVectorCache(tmp_path / "data" / "vectors.sqlite")))


@pytest.fixture
def index(storage, embedding):
    chunks = ChunkSettings(chunk_size=64, chunk_overlap=8, leaf_size=32)
    return storage.create("docs", embedding, description="Test documents", chunks=chunks)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "sources"
    folder.mkdir()
    for name in ("alpha", "beta", "gamma"):
        (folder / f"{name}.md").write_text(
            f"# {name}\n\nThe {name} document tells of {name} things.\n", encoding="utf-8"
        )
    return folder


def execute(index, sql):
    with index.catalog.indexes.changing() as connection:
        connection.exec_driver_sql(sql)


def doc_ids_in_store(index):
    return sorted(node.ref_doc_id for node in index.nodes())


def test_a_run_costs_what_has_changed_a_removed_file_leaves_nothing_and_the_nodes_of_a_broken_one_stay(
    index, folder, base, tmp_path
):
    first = Indexer(index).add_path(folder)
    assert (first.added, first.unchanged, first.nodes, first.embedded) == (3, 0, 3, 3)
    base.calls.clear()
    version = index.version
    second = Indexer(index).add_path(folder)
    assert (second.added, second.updated, second.unchanged, second.nodes) == (0, 0, 3, 0)
    assert (base.calls, index.version) == ([], version)
    (folder / "beta.md").write_text("# beta\n\nEverything is different now.\n", encoding="utf-8")
    report = Indexer(index).add_path(folder)
    assert (report.updated, report.unchanged) == (1, 2)
    texts = [node.get_content() for node in index.nodes() if node.ref_doc_id == "beta.md"]
    assert len(texts) == 1
    assert "different" in texts[0]
    (folder / "beta.md").unlink()
    assert Indexer(index).add_path(folder).removed == 1
    assert doc_ids_in_store(index) == ["alpha.md", "gamma.md"]
    assert index.catalog.get("beta.md") is None
    with pytest.raises(errors.SourceError):
        Indexer(index).add_path(tmp_path / "nowhere")
    (folder / "gamma.md").write_bytes(b"\x00\x01\x02binary\x00")
    (folder / "empty.txt").write_text("")
    report = Indexer(index).add_path(folder)
    assert (len(report.skipped), report.removed) == (2, 0)
    assert "gamma.md" in doc_ids_in_store(index)


def test_a_file_under_two_names_is_one_document_and_the_second_takes_its_place(index, folder):
    (folder / "copy.md").write_bytes((folder / "beta.md").read_bytes())
    report = Indexer(index).add_path(folder)
    assert (report.added, report.unread, [one.kind for one in report.skipped]) == (3, 0, ["duplicate"])
    assert report.skipped_lines() == [f"{folder / 'copy.md'}: is the same file as {folder / 'beta.md'}"]
    (folder / "beta.md").unlink()
    report = Indexer(index).add_path(folder)
    assert (report.added, report.removed, report.skipped) == (1, 1, ())
    assert doc_ids_in_store(index) == ["alpha.md", "copy.md", "gamma.md"]


def test_twins_of_a_file_that_cannot_be_read_are_each_told(index, folder):
    for name in ("x.txt", "y.txt"):
        (folder / name).write_bytes(b"\0\1")
    assert [one.kind for one in Indexer(index).add_path(folder).skipped] == ["unread", "unread"]


def test_removal_looks_below_its_own_root_and_two_files_of_one_name_are_kept_apart(index, folder, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "delta.txt").write_text("Delta stands alone.", encoding="utf-8")
    Indexer(index).add_path(folder)
    report = Indexer(index).add_path(other)
    assert (report.added, report.removed, len(doc_ids_in_store(index))) == (1, 0, 4)
    (other / "alpha.md").write_text("# other\n\nAnother alpha altogether.\n", encoding="utf-8")
    Indexer(index).add_path(other)
    ids = index.catalog.doc_ids()
    assert (len(ids), len([i for i in ids if i.startswith("alpha.md")])) == (5, 2)
    moved = tmp_path / "moved"
    folder.rename(moved)
    assert Indexer(index).add_path(moved).unchanged == 3
    assert len(index.catalog.doc_ids()) == 5
    assert Indexer(index).add_path(moved).unchanged == 3


def test_every_node_points_at_its_source_text_until_its_document_is_removed(index, folder):
    (folder / "long.md").write_text("# Long\n\n" + "A sentence about things. " * 200, encoding="utf-8")
    Indexer(index).add_path(folder)
    for node in index.nodes():
        assert index.source_text(node.ref_doc_id)[node.start_char_idx : node.end_char_idx] == node.text
    with pytest.raises(errors.IndexingError, match="no document 'nope'"):
        Indexer(index).remove_documents(["alpha.md", "nope"])
    assert Indexer(index).remove_documents(["alpha.md"]).removed == 1
    assert sorted(set(doc_ids_in_store(index))) == ["beta.md", "gamma.md", "long.md"]


def test_documents_and_nodes_of_llama_index(index):
    documents = [Document(text="Uno dos tres.", doc_id="d1"), Document(text="", doc_id="d2")]
    report = Indexer(index).add_documents(documents)
    assert (report.added, len(report.skipped)) == (1, 1)
    again = Indexer(index).add_documents([Document(text="Cuatro cinco.", doc_id="d1")])
    assert (again.updated, doc_ids_in_store(index)) == (1, ["d1"])
    nodes = [TextNode(id_="n1", text="seis"), TextNode(id_="n2", text="siete")]
    assert Indexer(index).add_nodes(nodes).added == 2
    assert {node.node_id for node in index.nodes()} >= {"n1", "n2"}
    assert Indexer(index).add_nodes(nodes).unchanged == 2


def test_a_value_that_cannot_be_stored_costs_its_own_document_only(index, folder):
    (folder / "wild.md").write_text("---\nk: !!float 1.0e999\n---\n# Wild\n\nText.\n", encoding="utf-8")
    (folder / "wild.jsonl").write_text('{"_id": "a", "text": "x", "k": 1.0e999}\n{"_id": "b", "text": "y"}\n')
    for added in (4, 0):  # a rerun goes through as well
        report = Indexer(index).add_path(folder)
        assert report.added == added
        assert ["inf is no finite number" in skipped.reason for skipped in report.skipped] == [True, True]
    assert doc_ids_in_store(index) == ["alpha.md", "b", "beta.md", "gamma.md"]


def test_adding_that_was_cut_off_between_two_batches_is_told_until_it_is_done_again(
    storage, index, folder, monkeypatch, caplog, embedding
):
    with monkeypatch.context() as patch:
        patch.setattr(Indexer, "_flush", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            Indexer(index).add_path(folder)
    storage.shut("docs")
    index = storage.open("docs", embedding)
    assert f"adding {folder} was cut off" in caplog.text
    assert index.catalog.unfinished_sources() == [str(folder)]
    Indexer(index).add_path(folder)
    assert index.catalog.unfinished_sources() == []


def test_texts_and_vectors_that_are_not_what_was_added_are_damage(storage, index, embedding, tmp_path):
    (tmp_path / "a.md").write_text("---\nat: 0.1\n---\n# Title\n\nText.\n\n| k |\n|--|\n| 0.1 |\n")
    Indexer(index).add_documents([Document(text=text, doc_id=text, metadata={"at": 0.1}) for text in ("one", "two")])
    Indexer(index).add_nodes([TextNode(id_="n", text="three")])
    Indexer(index).add_path(tmp_path / "a.md")
    index.check_contents()
    copy_index(storage, "docs", embedding, to="embedded", new_name="copy")
    storage.open("copy", embedding).check_contents()
    Indexer(index).remove_documents(["two"])
    assert set(index.catalog.checksums()) == {node.node_id for node in index.nodes()}
    [node] = index.vector_store.get_nodes(["n"])
    index.vector_store.add([node.model_copy(update={"embedding": embedding.embed_query("other").tolist()})])
    with pytest.raises(errors.StoreDamagedError, match="vectors of 1 nodes or more are not those"):
        index.check_contents()
    execute(index, "UPDATE agentic_retriever_documents SET text = 'One' WHERE doc_id = 'one'")
    with pytest.raises(errors.StoreDamagedError, match="text of 1 documents is not what was added, as of 'one'"):
        index.check_contents()
    execute(index, "UPDATE agentic_retriever_documents SET text = 'one' WHERE doc_id = 'one'")
    execute(index, "UPDATE agentic_retriever_nodes SET checksum = NULL")  # as earlier versions had none
    index.check_contents()


def test_a_closed_index_answers_nothing_even_of_what_it_has_read(storage, index, folder):
    Indexer(index).add_path(folder)
    index.build_search()
    for read in (index.metadata, index.keyword, index.profile):
        read()
    storage.shut("docs")
    for use in (index.metadata, index.keyword, index.profile, index.count):
        with pytest.raises(errors.StoreClosedError):
            use()


def test_embedder_that_dies_half_way_then_a_second_run(storage, tmp_path, folder):
    for i in range(200):
        (folder / f"f{i:03d}.txt").write_text(f"File number {i} tells of number {i}.", encoding="utf-8")
    alive = [3]

    class Dying(FakeEmbedding):
        def _get_text_embeddings(self, texts):
            alive[0] -= 1
            if alive[0] < 0:
                raise ConnectionError
            return super()._get_text_embeddings(texts)

    model = EmbeddingModel(
        Dying(embed_batch_size=64), name="fake", batch_size=64, disk=DiskVectorCache(tmp_path / "v.sqlite")
    )
    index = storage.create("dying", model, description="", chunks=ChunkSettings())
    with pytest.raises(errors.EmbeddingError):
        Indexer(index).add_path(folder)
    stored = index.count()
    assert 0 < stored < 203
    assert index.catalog.counts().unfinished == 0
    alive[0] = 100
    report = Indexer(index).add_path(folder)
    assert (report.added, report.unchanged) == (203 - stored, stored)
    assert len(set(doc_ids_in_store(index))) == index.count() == 203
    model.close()


def test_views_follow_the_version_are_read_back_and_built_again_when_damaged(storage, index, embedding, folder):
    Indexer(index).add_path(folder)
    with pytest.raises(errors.StoreError, match="index build docs"):
        index.keyword()
    assert (index.profile().nodes, index.profile().whole) == (3, False)
    index.build_search()
    assert index.keyword().search("gamma", 5)[0][0].startswith("gamma.md")
    assert index.profile().nodes == 3
    (folder / "gamma.md").unlink()
    Indexer(index).add_path(folder)
    assert index.profile().nodes == 3  # the one before, until there is another
    index.build_search()
    assert (index.keyword().search("gamma", 5), index.profile().nodes) == ([], 2)
    before = index.profile()
    storage.close()
    again = storage.open("docs", embedding)
    assert again.profile().document_frequency == before.document_frequency
    assert (again.profile().sample == before.sample).all()
    assert again.keyword().search("alpha", 5)
    for path in [*(index.folder / "keyword").iterdir(), index.folder / "profile.npz"]:
        path.write_bytes(path.read_bytes()[: max(1, path.stat().st_size // 2)])
    storage.close()
    again = storage.open("docs", embedding)
    assert not again.is_searchable
    again.build_search()
    assert again.keyword().search("alpha", 5)
    assert again.profile().nodes == 2


@pytest.mark.parametrize("lost", ["catalog.sqlite", "indexes/docs/chunks", "indexes/docs"])
def test_a_lost_part_is_damage_and_never_an_empty_index(storage, index, embedding, folder, lost):
    Indexer(index).add_path(folder)
    storage.close()
    for path in [storage.data_dir / lost, *storage.data_dir.glob(f"{lost}-*")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert storage.names() == ["docs"]
    with pytest.raises(errors.StoreDamagedError, match="index remove"):
        storage.open("docs", embedding)
    storage.remove("docs")


def test_a_second_process_reads_a_copy_of_what_is_settled_and_changes_nothing(
    storage, index, folder, embedding, tmp_path
):
    Indexer(index).add_path(folder)
    index.build_views()
    code = PROCESS + (
        "embedding, storage = EmbeddingModel(FakeEmbedding(), name='fake'), IndexStorage(sys.argv[1])\n"
        "try:\n    index = storage.open('docs', embedding)\nexcept StoreBusyError:\n    sys.exit(7)\n"
        "print(index.count(), len(index.vector_store.get_nodes()), len(index.doc_ids()))\n"
        "print(len(index.hierarchy().outlines), len(index.keyword().search('cat', 5)))\n"
        "try:\n    storage.open('docs', embedding, to_change=True)\nexcept StoreBusyError:\n    print('busy')\n"
        "storage.close()\n"
    )

    def read():
        return run_forked(code, storage.data_dir, env={**os.environ, "TMPDIR": str(tmp_path)})

    paths = (path for path in index.folder.rglob("*") if path.suffix != ".sqlite-shm" and path.name != "wal")
    before = {path: path.stat().st_mtime_ns for path in paths}  # the engine makes its next log when it has time
    done = read()
    assert done.returncode == 0, done.stderr
    counts, _, busy = done.stdout.splitlines()
    assert (counts, busy) == ("3 3 3", "busy")
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert not list(tmp_path.glob("agentic-retriever-*"))
    index.vector_store.delete_nodes([index.catalog.node_ids(index.doc_ids()[0])[0]])  # changed, not settled yet
    assert read().returncode == 7


def test_a_second_process_is_told_who_is_busy_another_model_refused_and_unknown_names_are_listed(
    storage, index, folder, embedding
):
    Indexer(index).add_path(folder)
    code = PROCESS + (
        "model = EmbeddingModel(FakeEmbedding(), name='fake')\n"
        "try:\n    IndexStorage(sys.argv[1]).open('docs', model, to_change=True)\n"
        "except StoreBusyError as err:\n    print('busy')\n"
        "try:\n    IndexStorage(sys.argv[1]).remove('docs')\nexcept StoreBusyError as err:\n    print('kept')\n"
    )
    done = run_forked(code, storage.data_dir)
    assert done.stdout.split() == ["busy", "kept"], done.stderr
    assert (index.count(), errors.StoreBusyError.exit_code) == (3, 7)
    storage.close()
    other = EmbeddingModel(FakeEmbedding(dimension=8), name="other")
    with pytest.raises(
        errors.EmbeddingMismatchError, match="built with the embedding model 'fake', the router uses 'other'"
    ):
        storage.open("docs", other)
    with pytest.raises(errors.IndexExistsError):
        storage.create("docs", embedding, description="", chunks=ChunkSettings())
    with pytest.raises(errors.UnknownIndexError, match=r"did you mean 'docs'\? \(known: docs\)"):
        storage.open("dosc", embedding)
    storage.remove("docs")
    assert (storage.names(), list((storage.data_dir / "indexes").iterdir())) == ([], [])


@pytest.mark.parametrize("left", [[], [stored_nodes.CHUNKS], [MANIFEST_FILE], [MANIFEST_FILE, stored_nodes.CHUNKS]])
def test_making_an_index_that_was_cut_off_can_be_done_again(tmp_path, left):
    with AgenticRouter(RouterConfig(data_dir=tmp_path, query_log="none"), embedding=FakeEmbedding()) as router:
        router.add_index("docs", [Document(id_="a", text="one")], description="docs")
    folder = tmp_path / "indexes" / "docs"
    for item in tmp_path.glob("catalog.sqlite*"):
        item.unlink()
    for item in folder.iterdir():
        if item.name == stored_nodes.CHUNKS:
            shutil.rmtree(item)
            if stored_nodes.CHUNKS in left:
                item.mkdir()
        elif item.name not in left:
            shutil.rmtree(item) if item.is_dir() else item.unlink()
    with AgenticRouter(RouterConfig(data_dir=tmp_path, query_log="none"), embedding=FakeEmbedding()) as router:
        if left == [stored_nodes.CHUNKS]:  # perhaps the nodes of an index that has lost its manifest
            with pytest.raises(errors.StoreDamagedError):
                router.add_index("docs", [Document(id_="a", text="one")], description="docs")
        else:
            assert router.add_index("docs", [Document(id_="a", text="one")], description="docs").added == 1
            assert router.index("docs").count() == 1


KILLED = """
import traceback
from llama_index.core.schema import Document
from agentic_retriever.indices import Indexer, ingest
from agentic_retriever.catalog.contents import Catalog
from agentic_retriever.ingestion.chunking import ChunkSettings
from agentic_retriever.stores.edge import QdrantEdgeVectorStore as Store

STEPS = [(Catalog, "begin"), (Store, "add"), (Store, "delete_nodes"), (Catalog, "confirm")]
ingest.FLUSH_NODES = 3

def text(number, version):
    return f"Record {number} tells of subject {version}."

def opened():
    storage, model = IndexStorage(sys.argv[1]), EmbeddingModel(FakeEmbedding(), name="fake")
    if "docs" in storage.names():
        return storage.open("docs", model)
    return storage.create("docs", model, description="", chunks=ChunkSettings())

def update(version):
    index = opened()
    Indexer(index).add_documents([Document(doc_id=str(i), text=text(i, version)) for i in range(12)])
    assert sorted(node.text for node in index.nodes()) == sorted(text(i, version) for i in range(12))
    assert index.catalog.counts().unfinished == 0

def killed(version):
    kind, name = STEPS[version % 4]
    kill_at(kind, name, turn=1 + version // 8 % 4, done_first=version // 4 % 2)
    update(version)

def ended(version):
    kept = {node.ref_doc_id for node in opened().nodes() if node.text in (text(int(node.ref_doc_id), version - 1),
            text(int(node.ref_doc_id), version))}
    assert kept == {str(i) for i in range(12)}, kept
    update(version)

def status(work, version):
    pid = os.fork()  # nothing is open here
    if pid:
        return os.waitpid(pid, 0)[1]
    try:
        work(version)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)

assert status(update, 0) == 0
for version in range(1, 1 + int(sys.argv[2])):
    assert os.WTERMSIG(status(killed, version)) == signal.SIGKILL, version
    assert status(ended, version) == 0, version
print("done")
"""


def test_kills_in_the_write_phase_of_updates_lose_nothing_and_leave_nothing_twice(tmp_path):
    """Eight moments, before and after each of four steps; KILLS=100 takes two minutes."""
    done = run_fresh(PROCESS + KILLED, tmp_path, os.environ.get("KILLS", "8"), timeout=300)
    assert done.stdout == "done\n", done.stderr[-2_000:]


@pytest.mark.parametrize(("is_local", "limit"), [(True, None), (False, 1.0)])
def test_a_model_in_this_process_may_take_long_to_load_before_a_description_is_embedded(
    is_local, limit, index, monkeypatch
):
    asked = Mock(return_value=[0.0] * 8)
    monkeypatch.setattr(EmbeddingModel, "embed_query", asked)
    monkeypatch.setattr(index.embedding, "is_local", is_local)
    monkeypatch.setattr(index, "description", "Pumps")
    Indexer(index).add_documents([Document(text="The pump runs.")])
    index.build_search()
    asked.assert_called_with("Pumps", timeout_s=limit)
