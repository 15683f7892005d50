"""What an earlier version left is taken over, whole, at whatever moment that is cut off, and nothing is embedded."""

import shutil
import signal
import sqlite3
from contextlib import closing

import pytest
from command_line import Fork, run_forked
from llama_index.core.schema import Document
from older import make_old, old_history
from store_tools import PROCESS, copied_store

from agentic_retriever import AgenticRouter, RouterConfig, errors
from agentic_retriever.catalog.history import QueryLog
from agentic_retriever.catalog.history_database import hash_of
from agentic_retriever.testing import FakeEmbedding

TEXTS = {"animals": "The cat sleeps sixteen hours a day.", "planets": "Mars has two moons."}


def opened(folder, embedding=None, **settings):
    config = RouterConfig(data_dir=folder, query_log="none", cache_max_entries=0, **settings)
    return AgenticRouter(config, embedding=embedding or FakeEmbedding(dimension=32))


def state(folder, **settings):
    """All that is known of the indexes, as whoever opens them sees it, and what was embedded for that."""
    embedding = FakeEmbedding(dimension=32)
    with opened(folder, embedding, **settings) as router:
        found = {}
        for name in router.index_names():
            index = router.stored_index(name)
            index.check_contents()
            catalog, nodes = index.catalog, {node.node_id: node.text for node in index.nodes()}
            entries = list(catalog.documents())
            views = sorted(view.value for view in index.views), sorted(index.hierarchy().outlines)
            found[name] = (entries, catalog.checksums(), catalog.unfinished_sources(), index.version, nodes, views)
    return found, [text for call in embedding.calls for text in call]


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """A data directory of the version before, and what is in it."""
    folder = tmp_path_factory.mktemp("before") / "data"
    with opened(folder) as router:
        for name, text in TEXTS.items():
            items = [Document(text=f"{text} Number {n}.", doc_id=f"{name}-{n}", metadata={"n": n}) for n in range(5)]
            router.add_index(name, items, description=name, views=False)
            router.build_views(name)
        router.stored_index("planets").catalog.begin_source("/somewhere")
    held = state(folder)
    make_old(folder)
    shutil.rmtree(folder / "embeddings.sqlite", ignore_errors=True)
    for file in folder.glob("embeddings.sqlite*"):
        file.unlink()  # so that whatever is embedded again is seen
    return folder, held[0]


@pytest.fixture
def old(before, tmp_path):
    return copied_store(before[0], tmp_path / "data")


def test_all_is_taken_over_and_nothing_embedded(old, before):
    assert state(old) == (before[1], [])
    left = {path.name for path in (old / "indexes").rglob("*")}
    assert not left & {"catalog.sqlite", "leaves-state", "summaries-state"}
    assert state(old) == (before[1], [])
    with opened(old) as router:
        assert "sixteen" in router.query("How long does the cat sleep?").text


def test_nodes_of_an_older_catalog_are_described_when_they_are_asked_for(old):
    with opened(old) as router:
        [record] = [one for one in router.documents.list(index="animals") if one.doc_id == "animals-3"]
        blank = router.documents.records.nodes(record.id)
        [node] = router.documents.nodes(record.id)
        assert ([one.content for one in blank], node.content) == ([""], f"{TEXTS['animals']} Number 3.")
        assert (node.char_count, len(node.content_hash)) == (len(node.content), 64)
        assert router.documents.records.nodes(record.id) == [node]


def test_all_is_taken_over_to_a_server(old, before, postgres_url):
    assert state(old, database_url=postgres_url) == (before[1], [])
    assert not (old / "catalog.sqlite").exists()


def test_a_catalog_file_moves_to_the_server_that_is_named_later(old, before, postgres_url):
    state(old)
    assert state(old, database_url=postgres_url) == (before[1], [])
    assert (old / "catalog.sqlite.moved").exists()
    with opened(old.parent / "elsewhere", database_url=postgres_url) as router:
        assert router.index_names() == []  # their vectors are not there


KILLED = f"""{PROCESS}
from pathlib import Path
from agentic_retriever.catalog import indexes, takeover
place, name, turn, done_first = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4] == "after"
kill_at(indexes.Indexes if hasattr(indexes.Indexes, name) else takeover, name, turn, done_first)
IndexStorage(place).names()
"""


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("step", ["insert", "_copy_old", "_take_folder", "discard"])
@pytest.mark.parametrize("turn", [1, 2])
def test_a_takeover_that_is_killed_is_harmless(old, before, step, turn, moment):
    assert run_forked(KILLED, old, step, turn, moment).returncode == -signal.SIGKILL
    assert state(old) == (before[1], [])


def test_a_damaged_catalog_of_one_index_leaves_the_others(old, before, caplog):
    (old / "indexes" / "planets" / "catalog.sqlite").write_bytes(b"no database " * 500)
    with opened(old) as router:
        assert router.index_names() == ["animals", "planets"]
        assert router.stored_index("animals").version == before[1]["animals"][3]
        with pytest.raises(errors.StoreDamagedError, match="index remove planets"):
            router.stored_index("planets")
        router.remove_index("planets")
        assert router.index_names() == ["animals"]
    assert "not a readable catalog" in caplog.text


def test_two_processes_take_over_at_once(old, before):
    code = "import sys; from agentic_retriever.indices import IndexStorage; print(IndexStorage(sys.argv[1]).names())"
    running = [Fork(code, old) for _ in range(3)]
    assert [process.communicate()[0].strip() for process in running] == ["['animals', 'planets']"] * 3
    assert state(old) == (before[1], [])


def test_a_history_is_taken_over_with_what_its_hashes_are_made_with(tmp_path, monkeypatch):
    monkeypatch.setattr("agentic_retriever.catalog.history_database._PRUNED_AT_ONCE", 3)
    salt = old_history(tmp_path / "queries.sqlite", [f"question {n}" for n in range(8)])
    with QueryLog(
        tmp_path / "catalog.sqlite", text="hashed", before=tmp_path / "queries.sqlite", retention_days=None
    ) as log:
        log.record_answer(None, query="new")
        kept = log.list()
        assert [one.query for one in kept[1:]] == [f"question {n}" for n in reversed(range(8))]
        assert (kept[0].query_hash, log.analytics().queries) == (hash_of("new", bytes.fromhex(salt)), 9)
    assert not (tmp_path / "queries.sqlite").exists()


def test_the_takeover_of_a_history_that_is_killed_goes_on(tmp_path):
    old_history(tmp_path / "queries.sqlite", [f"question {n}" for n in range(8)])
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from agentic_retriever.catalog import history_database\n"
        "from agentic_retriever.catalog.history import QueryLog\n"
        "history_database._PRUNED_AT_ONCE, turns, real = 3, [], history_database.put_rows\n"
        "def put_rows(*args):\n    turns.append(1)\n"
        "    return real(*args) if len(turns) < 3 else os.kill(os.getpid(), signal.SIGKILL)\n"
        "history_database.put_rows = put_rows\n"
        "QueryLog(Path(sys.argv[1]) / 'catalog.sqlite', before=Path(sys.argv[1]) / 'queries.sqlite').list()\n"
    )
    assert run_forked(code, tmp_path).returncode == -signal.SIGKILL
    with closing(sqlite3.connect(tmp_path / "catalog.sqlite")) as connection:
        assert connection.execute("SELECT COUNT(*) FROM agentic_retriever_queries").fetchone() == (6,)
    with QueryLog(tmp_path / "catalog.sqlite", before=tmp_path / "queries.sqlite", retention_days=None) as log:
        assert sorted(one.query for one in log.list()) == [f"question {n}" for n in range(8)]


def test_a_history_that_cannot_be_read_is_left_and_told(tmp_path, caplog):
    (tmp_path / "queries.sqlite").write_bytes(b"no database " * 500)
    with QueryLog(tmp_path / "catalog.sqlite", before=tmp_path / "queries.sqlite", retention_days=None) as log:
        log.record_answer(None, query="new")
        assert [one.query for one in log.list()] == ["new"]
    assert (tmp_path / "queries.sqlite").exists()
    assert "is not taken over" in caplog.text
