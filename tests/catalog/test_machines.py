"""Machines that share a catalog on PostgreSQL, a Qdrant server and Redis, and nothing else."""

import itertools
import threading

import pytest
from command_line import run_forked
from llama_index.core.schema import Document
from qdrant_servers import QdrantServer
from store_tools import PROCESS
from waiting import in_threads

from agentic_retriever import AgenticRouter, RouterConfig, errors
from agentic_retriever.indices import Indexer, stored_nodes
from agentic_retriever.testing import FakeEmbedding

CAT, DOG, OWL = "The cat sleeps sixteen hours a day.", "The dog barks at the postman.", "The owl hunts at night."


@pytest.fixture
def qdrant(closed_at_end):
    return closed_at_end(QdrantServer())


@pytest.fixture
def machine(tmp_path, qdrant, postgres_url, closed_at_end):
    """Makes routers with a data directory of their own each."""
    numbers = itertools.count()

    def make(**settings):
        config = {"qdrant_url": qdrant.url, "database_url": postgres_url, "query_log": "none", "cache_max_entries": 0}
        config |= {"data_dir": tmp_path / f"machine{next(numbers)}", **settings}
        return closed_at_end(AgenticRouter(RouterConfig(**config), embedding=FakeEmbedding(dimension=32)))

    return make


def add(router, **texts):
    router.add_index("docs", [Document(text=text, doc_id=name) for name, text in texts.items()], description="Animals")


def found(router, question):
    return {one.node.ref_doc_id for one in router.retrieve(question, index="docs", strategy="vector").nodes}


def test_what_one_machine_changes_the_other_sees_with_its_next_query(machine):
    here, there = machine(), machine()
    assert there.index_names() == []
    add(here, cat=CAT)
    assert (there.index_names(), found(there, "cat")) == (["docs"], {"cat"})
    assert "sixteen" in there.query("How long does the cat sleep?").text
    add(there, dog=DOG)
    assert found(here, "dog") == {"cat", "dog"}
    assert here.index("docs").version == there.index("docs").version
    assert here.index("docs").keyword().search_words("postman", 1)
    here.remove_documents("docs", ["cat"])
    assert (found(there, "cat"), there.stored_index("docs").source_text("dog")) == ({"dog"}, DOG)


def test_what_is_derived_on_the_server_is_made_once(machine):
    here, there = machine(), machine()
    add(here, cat=CAT, dog=DOG)
    here.build_views("docs")
    calls = there.resources.embedding().base.calls
    there.build_views("docs")
    assert calls == ["Animals"]  # the description, for the profile that each machine has of its own
    assert there.index("docs").views == here.index("docs").views
    assert set(there.index("docs").hierarchy().outlines) == {"cat", "dog"}
    add(there, owl=OWL)
    assert set(here.index("docs").hierarchy().outlines) == {"cat", "dog", "owl"}


def test_an_index_that_another_machine_removes_or_replaces_leaves_nothing_here(machine):
    here, there = machine(), machine()
    add(here, cat=CAT)
    there.query("How long does the cat sleep?")
    assert (there.config.data_dir / "indexes" / "docs" / "profile.npz").exists()
    here.remove_index("docs")
    assert there.index_names() == []
    with pytest.raises(errors.UnknownIndexError):
        there.index("docs")
    add(here, dog=DOG)
    assert (found(there, "dog"), there.index("docs").profile().nodes) == ({"dog"}, 1)
    there.close()
    assert machine(data_dir=there.config.data_dir).index_names() == ["docs"]


def test_answers_are_shared_and_of_one_version(machine, own_server):
    redis = own_server()
    here, there = (machine(redis_url=redis.url, cache_max_entries=50) for _ in range(2))
    add(here, cat=CAT)
    question = "How long does the cat sleep?"
    assert not here.query(question).cached
    assert there.query(question).cached
    add(here, dog=DOG)
    assert not there.query(question).cached
    assert here.query(question).cached


def test_writers_of_one_document_exclude_each_other_and_of_two_do_not(machine, monkeypatch):
    here, there = machine(), machine()
    add(here, cat=CAT, dog=DOG)
    monkeypatch.setattr(stored_nodes, "_LOCK_PATIENCE_S", 0.1)
    held, other = here.stored_index("docs"), there.stored_index("docs")
    with held.exclusive("documents", "cat"):
        with pytest.raises(errors.StoreBusyError, match="another process is changing the documents"):
            Indexer(other).add_documents([Document(text="new", doc_id="cat")])
        assert Indexer(other).add_documents([Document(text="new", doc_id="dog")]).updated == 1
        with pytest.raises(errors.StoreBusyError), other.exclusive("documents"):
            pass
    with held.exclusive("documents"), pytest.raises(errors.StoreBusyError):
        Indexer(other).add_documents([Document(text="newer", doc_id="dog")])
    assert Indexer(other).add_documents([Document(text="new", doc_id="cat")]).updated == 1


def test_many_writers_lose_nothing(machine):
    routers = [machine() for _ in range(3)]
    add(routers[0], cat=CAT)
    start = threading.Barrier(6)

    def work(who):
        index = routers[who % 3].stored_index("docs")
        start.wait(20)
        for turn in range(5):
            # Each writes one of its own, and one that all write.
            Indexer(index).add_documents([Document(text=f"mine {who} {turn}", doc_id=f"d{who}-{turn}")])
            Indexer(index).add_documents([Document(text=f"ours {who} {turn}", doc_id="shared")])

    before = routers[0].index("docs").version
    in_threads(work, range(6))
    for router in routers:
        index = router.stored_index("docs")
        assert index.count() == len(index.doc_ids()) == 32
        assert index.catalog.counts() == (32, 32, 0, 32)
        assert index.version == before + 60
        assert len(list(index.nodes())) == 32


def test_what_one_machine_was_given_a_worker_of_another_reads_from_their_storage_folder(machine, tmp_path):
    (tmp_path / "share").mkdir()
    here, there = (machine(storage_folder=str(tmp_path / "share")) for _ in range(2))
    record = here.documents.upload(b"The cat sleeps all day.", index="docs", filename="cats.md")
    there.start_worker()
    assert here.documents.wait(record.id, timeout_s=30).status.value == "indexed"
    assert found(here, "cat") == found(there, "cat") == {record.id}
    assert there.documents.file(record.id) == tmp_path / "share" / record.stored_filename
    there.documents.deactivate(record.id)
    assert here.documents.activate(record.id).status.value == "indexed"
    assert found(there, "cat") == {record.id}
    # What is cached is the same on both, wherever the folder is mounted.
    assert machine(storage_folder=str(tmp_path)).resources.config_key == here.resources.config_key


def test_an_embedded_index_belongs_to_its_data_directory(machine, qdrant):
    here, there = machine(qdrant_url=""), machine(qdrant_url="")
    add(here, cat=CAT)
    assert there.index_names() == []
    add(there, dog=DOG)
    assert (found(here, "cat"), found(there, "cat")) == ({"cat"}, {"dog"})
    there.close()
    again = machine(qdrant_url="", data_dir=there.config.data_dir)
    assert found(again, "dog") == {"dog"}
    moved = machine(data_dir=here.config.data_dir)
    here.close()
    moved.copy_index("docs", to="server", new_name="shared")
    assert again.index_names() == ["docs", "shared"]


def test_a_database_that_goes_away_and_comes_back(machine, postgres_url):
    import psycopg

    router = machine()
    add(router, cat=CAT, dog=DOG)
    for turn in range(3):
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name = 'agentic-retriever'"
            )
        assert found(router, "cat") == {"cat", "dog"}
        add(router, dog=f"{DOG} {turn}")


KILLED = f"""{PROCESS}
from llama_index.core.schema import Document
from agentic_retriever import AgenticRouter, RouterConfig
from agentic_retriever.catalog.contents import Catalog
from agentic_retriever.indices import Indexer
data_dir, qdrant, database, step = sys.argv[1:]
config = RouterConfig(data_dir=data_dir, qdrant_url=qdrant, database_url=database, query_log="none")
router = AgenticRouter(config, embedding=FakeEmbedding(dimension=32))
index = router.stored_index("docs")
kill_at(Catalog, step, turn=1, done_first=False)
Indexer(index).add_documents([Document(text="changed by a machine that dies", doc_id="cat")])
"""


@pytest.mark.parametrize("step", ["begin", "confirm"])
def test_a_machine_that_is_killed_holds_up_nobody_and_its_document_is_written_again(
    machine, qdrant, postgres_url, tmp_path, step
):
    router = machine()
    add(router, cat=CAT, dog=DOG)
    assert run_forked(KILLED, tmp_path / "dies", qdrant.url, postgres_url, step).returncode == -9
    index = router.stored_index("docs")
    assert index.catalog.counts().unfinished == (step == "confirm")
    add(router, cat=CAT)
    assert (index.catalog.counts(), {node.text for node in index.nodes()}) == ((2, 2, 0, 2), {CAT, DOG})
