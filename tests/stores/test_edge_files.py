"""The files of a collection: one handle per folder and process, graphs, kills, full disks, damage."""

import asyncio
import contextlib
import gc
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import store_processes
from hypothesis import given, settings
from hypothesis import strategies as st
from qdrant_edge import EdgeShard, SearchParams
from store_processes import BATCH
from store_tools import ask, make_node, where
from waiting import in_threads, wait_until

from agentic_retriever import errors
from agentic_retriever.stores import edge
from agentic_retriever.stores.edge import CollectionFile, QdrantEdgeVectorStore, edge_errors

SEGMENT = "shard/segments/*"
WAL_HEADER = 8  # bytes at the beginning of a log file that holds no entry
can_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")


def test_the_same_folder_twice_is_one_store(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    paths = (tmp_path / "real", tmp_path / "link", str(tmp_path / "link" / ".." / "real"))
    first, second, third = (QdrantEdgeVectorStore(path) for path in paths)
    first.add([make_node(1)])
    assert second.client is first.client is third.client
    assert second.count() == third.count() == 1
    first.close()
    with pytest.raises(errors.StoreClosedError):
        first.count()
    second.add([make_node(2)])
    second.close()
    assert third.count() == 2
    third.close()
    with QdrantEdgeVectorStore(tmp_path / "real") as again:
        assert again.count() == 2


def test_collections_are_apart_and_their_dimension_is_pinned(tmp_path):
    thai = QdrantEdgeVectorStore(tmp_path, "โฉนด ที่ดิน-1.b", dimension=3)
    with QdrantEdgeVectorStore(tmp_path, "a") as a, thai as b:
        a.add([make_node(1)])
        assert (a.count(), b.count(), a.dimension, b.dimension) == (1, 0, 8, 3)
        with pytest.raises(errors.EmbeddingMismatchError, match=r"holds vectors of 3 dimensions, got 8"):
            b.add([make_node(1)])
    with pytest.raises(errors.EmbeddingMismatchError, match=r"8 dimensions, got 9"):
        QdrantEdgeVectorStore(tmp_path, "a", dimension=9)
    with QdrantEdgeVectorStore(tmp_path, "a") as store:  # the refusal left nothing locked
        assert store.dimension == 8
        with pytest.raises(errors.EmbeddingMismatchError):
            QdrantEdgeVectorStore(tmp_path, "a", dimension=9)
        assert store.count() == 1
    for dimension in (0, -1, 10**9):
        with pytest.raises(errors.ConfigError, match="dimension"):
            QdrantEdgeVectorStore(tmp_path / "other", dimension=dimension)


def test_names_that_are_no_plain_folder_names(tmp_path):
    for name in ("", ".", "..", "../evil", "a/b", "a\\b", "a\x00b", "a" * 101, "ก" * 100, ".hidden", "a.", " a", "CON",
                 "nul.txt", "a:b", "a\n", "*"):  # fmt: skip
        with pytest.raises(errors.ConfigError, match="collection name"):
            QdrantEdgeVectorStore(tmp_path / "data", name)
        assert not (tmp_path / "data").exists(), name
    QdrantEdgeVectorStore(tmp_path, "a", dimension=3).close()
    (tmp_path / "a").rename(tmp_path / "b")
    with pytest.raises(errors.ConfigError, match="'a', not 'b'"):
        QdrantEdgeVectorStore(tmp_path, "b")


def test_folders_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "default").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below", tmp_path):
        with pytest.raises(errors.StoreError, match="a file is in the way") as caught:
            QdrantEdgeVectorStore(path)
        assert str(path) in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(errors.StoreError, match="permission"):
            QdrantEdgeVectorStore(tmp_path)
    finally:
        tmp_path.chmod(0o700)


class PanicException(BaseException):
    pass


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [(PermissionError(13, "Permission denied"), errors.StoreError, "permission"),
     (OSError(30, "Read-only file system"), errors.StoreError, "permission"),
     (OSError(28, "No space left on device"), errors.StoreError, "space"),
     (Exception("Service runtime error: IO Error: No space left on device (os error 28)"), errors.StoreError, "space"),
     (Exception("failed to open WAL x: Can't init WAL: Kind(WouldBlock)"), errors.StoreBusyError, "already in use"),
     (PanicException("index out of bounds"), errors.StoreError, "index out of bounds"),
     (ValueError("x" * 10_000), errors.StoreError, "xxx")],
)  # fmt: skip
def test_what_the_engine_and_the_system_raise_becomes_ours(tmp_path, error, kind, said):
    with pytest.raises(kind, match=said) as caught, edge_errors("do it", tmp_path):
        raise error
    assert str(tmp_path) in str(caught.value)
    assert caught.value.__cause__ is error
    assert len(str(caught.value)) < 1_000
    for interrupt in (KeyboardInterrupt, SystemExit):
        with pytest.raises(interrupt), edge_errors("do it", tmp_path):
            raise interrupt


@can_fork
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_can_use_nothing_and_writes_nothing(tmp_path):
    store = QdrantEdgeVectorStore(tmp_path)
    store.add([make_node(1)])
    before = _contents(tmp_path)
    assert any(path.parent.name == "wal" for path in before)
    child = os.fork()
    if child == 0:
        refused = 0
        try:
            for use in (store.count, store.clear, store.flush, lambda: store.client, lambda: store.delete("x"),
                        lambda: store.add([make_node(2)]), lambda: store.query(ask())):  # fmt: skip
                with pytest.raises(errors.StoreClosedError, match="fork"):
                    use()
                refused += 1
            store.close()
            with pytest.raises(errors.StoreBusyError):
                QdrantEdgeVectorStore(tmp_path)
            refused += 1
            del use, store
            gc.collect()  # letting go of the engine would write its files
        finally:
            os._exit(refused)
    assert (os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), _contents(tmp_path)) == (8, before)
    store.add([make_node(3)])
    store.close()
    with QdrantEdgeVectorStore(tmp_path) as again:
        assert again.node_ids() == ["node-00001", "node-00003"]


def _contents(folder):
    """Bytes of all files, but for log files without an entry: the parent's engine lays those out in a thread."""
    found = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            content = path.read_bytes()
            if path.parent.name != "wal" or len(content.rstrip(b"\0")) > WAL_HEADER:
                found[path] = content
    return found


SCRIPT = """
import os, sys
sys.path.insert(0, sys.argv[2])
from store_tools import make_node
from agentic_retriever.stores.edge import QdrantEdgeVectorStore
store = QdrantEdgeVectorStore(sys.argv[1])
store.add([make_node(n) for n in range(30)])
child = os.fork() if hasattr(os, "fork") else -1
if child == 0:
    sys.exit(0)  # the whole interpreter is torn down, with the parent's handle in it
if child > 0:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    store.add([make_node(30)])
    try:
        import subprocess
        code = "import sys; from agentic_retriever.stores.edge import *; QdrantEdgeVectorStore(sys.argv[1])"
        busy = subprocess.run([sys.executable, "-c", code, sys.argv[1]], capture_output=True, text=True)
        assert "StoreBusyError" in busy.stderr, busy.stderr
    finally:
        print(store.count())
"""


def test_leaving_without_closing_is_silent_and_complete(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, str(tmp_path), str(Path(__file__).parents[1])],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "default" / "collection.json").read_text())["points"] == int(done.stdout or 30)
    with QdrantEdgeVectorStore(tmp_path) as store:
        assert store.count() == int(done.stdout or 30)


def test_closing_waits_for_what_is_under_way(tmp_path):
    store = QdrantEdgeVectorStore(tmp_path)
    store.add([make_node(n, n=n) for n in range(300)])
    outcomes, endings = [], []

    def use(number):
        if number == 4:
            wait_until(lambda: len(outcomes) >= 20)
            store.close()
            return
        try:
            while True:
                outcomes.append(len(store.query(ask(top_k=5, filters=where("n", 3, ">"))).ids))
        except errors.StoreError as err:
            endings.append(type(err))

    in_threads(use, range(5))
    assert (set(outcomes), endings) == ({5}, [errors.StoreClosedError] * 4)


async def test_async_use_after_close_is_the_same_error(tmp_path):
    store = QdrantEdgeVectorStore(tmp_path)
    await store.async_add([make_node(1)])
    pending = [asyncio.ensure_future(store.aquery(ask())) for _ in range(20)]
    await asyncio.sleep(0)
    store.close()
    results = await asyncio.gather(*pending, return_exceptions=True)
    assert all(isinstance(result, errors.StoreClosedError) or result.ids == ["node-00001"] for result in results)
    with pytest.raises(errors.StoreClosedError):
        await store.aquery(ask())


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


def _harm(found, harm):
    """Remove it, empty the folder, overwrite the file, change a word of it, or cut it."""
    if harm == "remove":
        shutil.rmtree(found) if found.is_dir() else found.unlink()
    elif harm == "empty":
        for inside in found.iterdir():
            _harm(inside, "remove")
    elif isinstance(harm, tuple):
        text = found.read_text()
        assert harm[0] in text
        found.write_text(text.replace(*harm))
    else:
        found.write_bytes(found.read_bytes()[:harm] if isinstance(harm, int) else harm)


VECTORS = f"{SEGMENT}/vector_storage/vectors"
GARBAGE = b"\xff\x00garbage" * 40


@pytest.mark.parametrize(
    ("which", "harm"),
    [("collection.json", "remove"), ("collection.json", GARBAGE), ("collection.json", b""), ("collection.json", b"{}"),
     ("collection.json", ('"dimension": 8', '"dimension": "x"')), ("collection.json", ('_version": 1', '_version": 9')),
     ("shard", "remove"), ("shard", "empty"), ("shard/segments", "remove"), ("shard/segments", "empty"),
     ("shard/wal", "remove"), ("shard/wal", "empty"), ("shard/edge_config.json", "remove"),
     ("shard/edge_config.json", GARBAGE), (SEGMENT, "empty"), (f"{SEGMENT}/segment.json", "remove"),
     (f"{SEGMENT}/segment.json", GARBAGE), (f"{SEGMENT}/vector_storage", "remove"),
     (f"{VECTORS}/chunk_0.mmap", "remove"), (f"{VECTORS}/status.dat", "remove"),
     (f"{SEGMENT}/payload_storage", "remove"), (f"{SEGMENT}/*id_tracker.mappings", GARBAGE),
     (f"{VECTORS}/status.dat", 2)],  # on the last the engine panics
)  # fmt: skip
def test_damage_is_found_on_opening(path, which, harm):
    collection = path / "default"
    _harm(next(collection.glob(which)), harm)
    for _ in range(2):  # and stays found: opening must not repair it into an empty index
        with pytest.raises(errors.StoreDamagedError, match="damaged or incomplete") as caught:
            QdrantEdgeVectorStore(path)
        assert str(collection) in str(caught.value)


def test_fewer_nodes_than_were_stored(path):
    with QdrantEdgeVectorStore(path) as store:
        assert store.count() == NODES
    _harm(path / "default" / "collection.json", (f'"points": {NODES}', f'"points": {NODES + 1}'))
    with pytest.raises(errors.StoreDamagedError, match="401 nodes were stored, 400 are left"):
        QdrantEdgeVectorStore(path)


def test_a_making_that_was_cut_off_is_made_again(tmp_path):
    (tmp_path / "default" / "shard" / "segments" / "half").mkdir(parents=True)
    CollectionFile(collection="default", dimension=3, created="2024-05-01T00:00:00+00:00").write(tmp_path / "default")
    with QdrantEdgeVectorStore(tmp_path) as store:
        store.add([make_node(1)])
        assert store.query(ask()).ids == ["node-00001"]


def test_while_changes_are_under_way_no_count_is_promised(tmp_path):
    folder = tmp_path / "default"

    def promised():
        return json.loads((folder / "collection.json").read_text())["points"]

    with QdrantEdgeVectorStore(tmp_path) as store:
        store.add([make_node(1)])
        assert promised() is None
        store.flush()
        assert promised() == 1
        store.delete_nodes(["node-00001"])
        assert promised() is None
    assert promised() == 0
    assert sorted(path.name for path in folder.iterdir()) == ["collection.json", "collection.lock", "shard"]


@pytest.fixture(scope="module")
def processes():
    if "forkserver" not in multiprocessing.get_all_start_methods():
        pytest.skip("the platform cannot fork")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["store_processes", "pytest"])
    return context


def start(processes, target, *arguments):
    mine, theirs = processes.Pipe()
    process = processes.Process(target=target, args=(*arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    return process, mine


def receive(connection, seconds=60):
    assert connection.poll(seconds), "the other process is silent"
    return connection.recv()


def test_nothing_acknowledged_is_lost_by_kill_9(processes, tmp_path):
    acknowledged = 0
    for rounds in (1, 3, 15, 8):
        process, connection = start(processes, store_processes.write_until_killed, tmp_path, acknowledged)
        for _ in range(rounds):
            acknowledged = receive(connection)
        process.kill()
        process.join()
        with contextlib.suppress(EOFError):
            while True:  # what it still said before it died
                acknowledged = connection.recv()
        with QdrantEdgeVectorStore(tmp_path) as store:
            ids = store.node_ids()
            assert len(ids) == len(set(ids)) == store.count()
            assert set(ids) >= {f"node-{number:05}" for number in range(acknowledged)}
            assert all(node.text == f"text {node.metadata['n']}" for node in store.iter_nodes())
            store.add(store_processes.batch(0))  # again, without duplicates
            assert (store.count(), store.query(ask(5, 1)).ids) == (len(ids), ["node-00005"])
    assert acknowledged >= 27 * BATCH


def test_a_second_process_is_told_what_to_do_and_harms_nobody(processes, tmp_path):
    process, connection = start(processes, store_processes.hold, tmp_path)
    assert receive(connection) == "open"
    for _ in range(2):
        with pytest.raises(errors.StoreBusyError, match=r"already in use.*server") as caught:
            QdrantEdgeVectorStore(tmp_path)
        assert str(tmp_path) in str(caught.value)
    connection.send("go on")
    assert receive(connection) == 2 * BATCH
    process.join(30)
    with QdrantEdgeVectorStore(tmp_path) as store:
        assert store.count() == 2 * BATCH


@pytest.mark.parametrize("attempt", range(2))
def test_processes_racing_for_a_fresh_folder(processes, tmp_path, attempt):
    barrier, done = processes.Barrier(3), processes.Event()
    started = [start(processes, store_processes.race, tmp_path / "new", number, barrier, done) for number in range(3)]
    results = [receive(connection) for _, connection in started]
    done.set()
    for process, _ in started:
        process.join(30)
    winners = [number for number, outcome, _ in results if outcome == "ok"]
    assert (len(winners), {outcome for _, outcome, _ in results}) == (1, {"ok", "StoreBusyError"})
    with QdrantEdgeVectorStore(tmp_path / "new") as store:
        assert store.node_ids() == [f"node-{winners[0] * BATCH + number:05}" for number in range(BATCH)]


def test_a_full_disk_loses_nothing_that_was_stored(processes, tmp_path):
    process, connection = start(processes, store_processes.fill_a_disk, tmp_path)
    said, acknowledged, readable = receive(connection)
    process.join(30)
    assert said.startswith("StoreError")
    assert "disk" in said
    assert str(tmp_path) in said
    assert readable == BATCH, readable
    with QdrantEdgeVectorStore(tmp_path) as store:
        assert set(store.node_ids()) >= {f"node-{number:05}" for number in range(acknowledged)}
        assert store.query(ask(5, 1)).ids == ["node-00005"]
        store.add(store_processes.batch(acknowledged))
        assert f"node-{acknowledged:05}" in store.node_ids()


# Graphs.

numbers = st.integers(0, NODES + 50)
changes = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(numbers, min_size=1, max_size=30), st.integers(1, 3)),
        st.tuples(st.just("remove"), st.lists(numbers, min_size=1, max_size=30), st.none()),
        st.tuples(st.just("index"), st.just(["year"]), st.sampled_from(["keyword", "float"])),
    ),
    max_size=4,
)


def change(store, changed):
    for kind, of, how in changed:
        if kind == "add":
            store.add([make_node(n, year=how, text=str(n), n=n * how) for n in of])
        elif kind == "remove":
            store.delete_nodes([f"node-{n:05}" for n in of])
        else:
            store.create_payload_index(of[0], how)


def everything(store):
    nodes, filters = store.get_nodes(), [None, where("year", 2), where("n", 150, ">"), where("text", "7", "text_match")]
    vectors = store.vectors([node.node_id for node in nodes])[1].tobytes()
    asked = [(found := store.query(ask(-2, 40, filters=one))).ids + found.similarities for one in filters]
    return nodes, vectors, asked, [store.count(one) for one in filters], dict(store._shard.kinds)


@settings(max_examples=8, deadline=None)
@given(before=changes, during=changes, between=changes)
def test_with_a_graph_is_what_was_written_before_and_while_it_was_built(tmp_path_factory, before, during, between):
    with (
        pytest.MonkeyPatch.context() as patched,
        QdrantEdgeVectorStore(folder := tmp_path_factory.mktemp("graph")) as store,
        QdrantEdgeVectorStore(tmp_path_factory.mktemp("exact")) as oracle,
    ):
        for one in (store, oracle):
            change(one, [("add", range(NODES), 1), *before])
        states = iter((during, between))

        def build(_shard, work, _dimension):
            copied = EdgeShard.load(str(work))
            copied.optimize()
            copied.close()
            for one in (store, oracle):
                change(one, changed)

        patched.setattr(edge.SharedShard, "_await_builder", build)
        for changed in states:  # noqa: B007 - build() reads it
            assert store.build_graph(from_nodes=1) or 5 * store._shard._ungraphed < store.count()
            assert everything(store) == everything(oracle)
        assert store.search_kind == "graph"
        store.close()
        with QdrantEdgeVectorStore(folder) as again:
            assert everything(again) == everything(oracle)
            assert len(list((folder / "default").iterdir())) == 3


@pytest.mark.parametrize("step", ["copied", "building", "loaded", "named"])
def test_kill_9_while_a_graph_is_built_loses_nothing(processes, tmp_path, step):
    with QdrantEdgeVectorStore(tmp_path) as store:
        store.add([make_node(number) for number in range(NODES)])
    process, connection = start(processes, store_processes.build_a_graph, tmp_path, step)
    assert receive(connection) == "there"
    process.kill()
    process.join()
    with QdrantEdgeVectorStore(tmp_path) as store:
        assert store.node_ids() == [f"node-{number:05}" for number in range(NODES + BATCH) if number != 3]
        assert len(store.query(ask(5, 2 * NODES)).ids) == NODES + BATCH - 1
        assert len(list((tmp_path / "default").iterdir())) == 3
        assert store.search_kind == ("graph" if step == "named" else "exact")
    wait_until(lambda: not any(str(tmp_path) in _command(folder) for folder in Path("/proc").glob("[0-9]*")))


def _command(process):
    with contextlib.suppress(OSError):
        return (process / "cmdline").read_text(errors="replace")  # another test asks in bytes that are no UTF-8
    return ""


@pytest.mark.parametrize("ending", [QdrantEdgeVectorStore.clear, QdrantEdgeVectorStore.close])
def test_who_clears_or_closes_a_collection_does_not_wait_for_its_graph(tmp_path, monkeypatch, ending):
    monkeypatch.setattr(edge, "_BUILDER", "import time; time.sleep(600)")
    store = QdrantEdgeVectorStore(tmp_path)
    store.add(store_processes.batch(0))
    begun = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        building = thread.submit(store.build_graph, lambda count: begun.set(), from_nodes=1)
        assert begun.wait(30)
        assert "being built" in store.search_kind
        assert store.build_graph(from_nodes=1, wait=False) == 0
        ending(store)
        with pytest.raises(errors.StoreClosedError, match="closed or cleared"):
            building.result(30)
    store.close()
    with QdrantEdgeVectorStore(tmp_path) as again:
        assert again.count() == (BATCH if ending is QdrantEdgeVectorStore.close else 0)
        assert len(list((tmp_path / "default").iterdir())) == 3


def test_a_graph_is_built_where_it_is_wanted_and_asked_where_it_finds_enough(tmp_path, monkeypatch):
    with QdrantEdgeVectorStore(tmp_path) as store:
        store.add([make_node(number, n=number) for number in range(NODES)])
        assert store.build_graph() == store.build_graph(from_nodes=NODES + 1) == 0  # too few
        with monkeypatch.context() as patched:
            patched.setattr(edge, "_BUILDER", "raise SystemExit('out of memory')")
            with pytest.raises(errors.StoreError, match="could not be built: out of memory"):
                store.build_graph(from_nodes=1)
        assert (store.search_kind, store.count(), len([*(tmp_path / "default").iterdir()])) == ("exact", NODES, 3)
        store.create_payload_index("n", "float")
        assert store.build_graph(from_nodes=1) == NODES
        store.add([make_node(number) for number in range(NODES, NODES + 90)])
        assert store.build_graph(from_nodes=1) == 0  # nearly all are in it
        store.add([make_node(number) for number in range(NODES + 90, NODES + 100)])
        assert store.build_graph(from_nodes=1) == NODES + 100
        asked = []  # the few nodes that a filter leaves are all compared
        monkeypatch.setattr(edge, "_COMPARED", 100)
        monkeypatch.setattr("qdrant_edge.SearchParams", lambda **how: asked.append([*how]) or SearchParams(**how))
        for filters in (None, where("n", 50, ">"), where("n", 50, "<")):
            assert len(store.query(ask(-2, 5, filters=filters)).ids) == 5
        assert asked == [["hnsw_ef", "acorn"], ["hnsw_ef", "acorn"], ["exact"]]
