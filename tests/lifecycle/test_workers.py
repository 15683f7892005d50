"""Workers: who processes what, and that whatever becomes of them nothing is lost and nothing is there twice."""

import json
import logging
import os
import subprocess
import sys
import threading
from collections import Counter
from datetime import datetime, timedelta, timezone

import pytest
from document_bench import DOGS, INDEX, Bench
from qdrant_servers import QdrantServer
from waiting import Clock, in_threads, wait_until

from agentic_retriever import errors
from agentic_retriever.catalog.database import Database
from agentic_retriever.catalog.documents import MAX_TRIES, Claims
from agentic_retriever.catalog.records import DocumentStatus
from agentic_retriever.indices import Indexer
from agentic_retriever.ingestion.readers import BoundedReader
from agentic_retriever.lifecycle.worker import DocumentWorker


class Calendar(Clock):
    def __init__(self):
        super().__init__(datetime(2030, 1, 1, tzinfo=timezone.utc))

    def move(self, seconds):
        self.now += timedelta(seconds=seconds)


def texts(count):
    return {f"n{n}.md": f"# Text {n}\n\nThe cat of house {n} sleeps on stone {n}.".encode() for n in range(count)}


def test_a_claim_is_one_worker_s_until_it_ends_and_no_longer_than_three_tries(local_bench):
    bench, clock = local_bench, Calendar()
    records = bench.documents.records
    records.clock = clock
    first = bench.upload()
    clock.move(1)
    second = bench.upload(DOGS, "dogs.md")
    one, other = (Claims(records, owner, lease_s=60) for owner in ("one", "other"))
    assert [one.take().id, other.take().id, one.take()] == [first.id, second.id, None]
    clock.move(59)
    assert one.renew({first.id: 40, second.id: 1}) == {second.id}
    assert bench.documents.get(first.id).processing_progress == 40
    clock.move(30)
    assert other.take().id == second.id  # whose claim ended; the other one was renewed
    assert (one.holds(first.id), one.holds(second.id), other.take()) == (True, False, None)
    one.release()
    assert other.take().id == first.id
    clock.move(61)
    assert [one.take().id, one.take().id] == [first.id, second.id]
    clock.move(61)
    assert [other.take().id, other.take()] == [first.id, None]  # the second was tried three times
    failed = bench.documents.get(second.id)
    assert failed.status is DocumentStatus.FAILED
    assert "cut off 3 times" in failed.error_message
    assert "documents reprocess" in failed.error_message


def test_clocks_that_jump_end_claims_early_at_most(local_bench):
    bench, clock = local_bench, Calendar()
    bench.documents.records.clock = clock
    record = bench.upload()
    one, other = (Claims(bench.documents.records, owner, lease_s=60) for owner in ("one", "other"))
    assert one.take().id == record.id
    clock.move(86_400)
    assert other.take().id == record.id
    assert one.renew({record.id: 50}) == {record.id}
    clock.move(-7 * 86_400)  # a claim that would last a week is taken as ended
    assert one.take().id == record.id


def test_what_was_claimed_is_known_though_the_catalog_goes_away_at_once(local_bench, monkeypatch):
    record, claims, writing = local_bench.upload(), Claims(local_bench.documents.records, "one"), Database.writing

    def gone(_self):
        raise errors.StoreUnreachableError("gone")

    def written_last(self):
        monkeypatch.setattr(Database, "reading", gone)
        return writing(self)

    monkeypatch.setattr(Database, "writing", written_last)
    assert claims.take().id == record.id  # or nobody would process it before the claim ends


def test_an_embedding_model_that_fails_is_asked_again_and_then_told_of(local_bench, monkeypatch):
    monkeypatch.setattr("agentic_retriever.catalog.documents.PAUSE_S", 0.0)
    asked = []

    def broken(_self, _texts, **_rest):
        asked.append(1)
        raise errors.EmbeddingError("the model is down; start it")

    monkeypatch.setattr("agentic_retriever.embeddings.EmbeddingModel.embed_passages", broken)
    failed = local_bench.process(local_bench.upload())
    assert (failed.status, failed.error_message, len(asked)) == (
        DocumentStatus.FAILED, "the model is down; start it", MAX_TRIES,
    )  # fmt: skip
    monkeypatch.undo()
    assert local_bench.process(local_bench.documents.reprocess(failed.id)).status is DocumentStatus.INDEXED


def test_what_no_one_expects_fails_the_document_and_not_the_worker(local_bench, monkeypatch):
    monkeypatch.setattr("agentic_retriever.catalog.documents.PAUSE_S", 0.0)
    real = Indexer.add_document

    def odd(self, document, *told):
        if "dog" in document.text:
            raise ZeroDivisionError
        return real(self, document, *told)

    monkeypatch.setattr(Indexer, "add_document", odd)
    logging.getLogger("agentic_retriever.lifecycle.worker").setLevel(logging.CRITICAL)
    dogs, cats = local_bench.process(local_bench.upload(DOGS, "dogs.md"), local_bench.upload())
    assert (cats.status, dogs.status) == (DocumentStatus.INDEXED, DocumentStatus.FAILED)
    assert "unexpected ZeroDivisionError" in dogs.error_message


def test_many_workers_process_each_document_once(bench, monkeypatch):
    seen, real = Counter(), Indexer.add_document

    def counted(self, document, *told):
        seen[document.doc_id] += 1
        return real(self, document, *told)

    monkeypatch.setattr(Indexer, "add_document", counted)
    records = [bench.upload(text, name) for name, text in texts(24).items()]
    workers = [bench.worker(concurrency=2) for _ in range(4)]
    in_threads(lambda worker: worker.start(), workers)
    done = [bench.documents.wait(record.id, timeout_s=60) for record in records]
    for worker in workers:
        worker.stop()
    assert {record.status for record in done} == {DocumentStatus.INDEXED}
    assert seen == {record.id: 1 for record in records}
    index = bench.router.stored_index(INDEX)
    index.check_contents()
    assert index.count() == sum(record.total_chunks for record in done) == 24


@pytest.fixture
def held(bench, gate, monkeypatch):
    """A record, and its worker, who waits with the texts to embed until the gate opens."""
    began, real = threading.Event(), Indexer._embedded

    def embedded(self, nodes):
        began.set()
        gate.wait(20)
        return real(self, nodes)

    monkeypatch.setattr(Indexer, "_embedded", embedded)
    record, worker = bench.upload(), bench.worker()
    worker.start()
    assert began.wait(20)
    return record, worker


def test_a_worker_that_stops_gives_its_document_back(bench, gate, held):
    record, worker = held
    assert bench.documents.get(record.id).status is DocumentStatus.PROCESSING
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    gate.set()
    stopping.join(20)
    waits = bench.documents.get(record.id)
    assert (waits.status, waits.total_chunks, bench.found()) == (DocumentStatus.PENDING, 0, {})
    assert bench.process(waits).status is DocumentStatus.INDEXED


@pytest.mark.parametrize("change", ["deactivate", "delete", "update"])
def test_what_is_changed_while_it_is_processed_is_not_written_from_before(bench, gate, held, change):
    record, worker = held
    options = {"tags": ["new"]} if change == "update" else {}
    getattr(bench.documents, change)(record.id, **options)
    gate.set()
    if change == "update":
        assert bench.documents.wait(record.id, timeout_s=20).tags == ("new",)
        [scored] = bench.router.retrieve("cat", index=INDEX, strategy="vector").nodes
        assert scored.node.metadata["tags"] == ["new"]
    else:
        wait_until(lambda: not worker._progress, 20)
        assert bench.found() == {}
        left = bench.documents.list()
        assert [one.status for one in left] == ([DocumentStatus.INACTIVE] if change == "deactivate" else [])
    worker.stop()


def test_a_document_whose_correction_was_cut_off_is_written_again_by_the_next_worker(bench):
    record = bench.indexed()
    catalog = bench.router.stored_index(INDEX).catalog
    catalog.begin([(catalog.get(record.doc_id), catalog.node_ids(record.doc_id))])  # and it is killed
    assert bench.documents.get(record.id).status is DocumentStatus.PROCESSING
    assert bench.process(record).status is DocumentStatus.INDEXED
    assert (catalog.counts().unfinished, bench.found()) == (0, {record.id: 1})


def test_a_catalog_that_goes_away_and_comes_back_is_waited_for(bench, monkeypatch):
    monkeypatch.setattr("agentic_retriever.lifecycle.worker.POLL_S", 0.05)
    record = bench.upload()
    real, away = Claims.take, [3]

    def take(self, **rest):
        if away[0]:
            away[0] -= 1
            raise errors.StoreUnreachableError("the catalog does not answer")
        return real(self, **rest)

    monkeypatch.setattr(Claims, "take", take)
    assert bench.process(record).status is DocumentStatus.INDEXED
    assert away == [0]


def test_a_store_that_gives_no_answer_for_a_while_is_written_to_again_with_what_was_read(bench, monkeypatch):
    monkeypatch.setattr("agentic_retriever.lifecycle.worker._WRITE_PAUSES_S", (0.0, 0.0))
    add, read, away, times = Indexer.add_document, DocumentWorker._read, [2], Counter()

    def added(self, document, *told):
        if away[0]:
            away[0] -= 1
            raise errors.StoreUnreachableError("no answer within 10.0 s")
        return add(self, document, *told)

    def counted(self, record, reader):
        times[record.id] += 1
        return read(self, record, reader)

    monkeypatch.setattr(Indexer, "add_document", added)
    monkeypatch.setattr(DocumentWorker, "_read", counted)
    done = bench.process(bench.upload())
    assert (done.status, away, times) == (DocumentStatus.INDEXED, [0], {done.id: 1})


def test_connections_that_a_server_dropped_are_made_again(postgres_url, tmp_path, closed_at_end):
    import psycopg

    bench = closed_at_end(Bench(tmp_path / "data", postgres_url))
    first = bench.upload()
    bench.router.start_worker()
    assert bench.documents.wait(first.id, timeout_s=30).status is DocumentStatus.INDEXED
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND application_name = 'agentic-retriever'"
        )
    second = bench.upload(DOGS, "dogs.md")
    assert bench.documents.wait(second.id, timeout_s=30).status is DocumentStatus.INDEXED


@pytest.mark.skipif(os.name == "nt", reason="there are no limits to set there")
def test_a_file_that_takes_too_much_fails_and_the_worker_goes_on(local_bench, monkeypatch):
    monkeypatch.setattr("agentic_retriever.lifecycle.worker._LARGE", 1_000)
    real = BoundedReader.__init__
    limits = {"max_seconds": 0}
    monkeypatch.setattr(BoundedReader, "__init__", lambda self, **rest: real(self, **limits, **rest))
    bomb = b"".join(b"<b>%d" % n for n in range(900_000))
    failed, cats = local_bench.process(local_bench.upload(bomb, "bomb.html"), local_bench.upload())
    assert (failed.status, cats.status) == (DocumentStatus.FAILED, DocumentStatus.INDEXED)
    assert "took more than 0 s of computing" in failed.error_message
    assert "broke its reader; split it" in failed.error_message


def test_an_index_that_another_process_holds_is_left_to_it(local_bench, monkeypatch):
    record = local_bench.upload()
    worker = local_bench.worker()

    def held(*_args, **_rest):
        raise errors.StoreBusyError("held elsewhere")

    monkeypatch.setattr("agentic_retriever.lifecycle.worker.Indexer", held)
    worker.start()
    wait_until(lambda: INDEX in worker._busy, 20)
    wait_until(lambda: local_bench.documents.get(record.id).status is DocumentStatus.PENDING, 20)
    worker.stop()
    monkeypatch.undo()
    assert local_bench.process(local_bench.documents.get(record.id)).status is DocumentStatus.INDEXED


@pytest.mark.parametrize("by", ["postgresql", "redis"])
def test_workers_of_other_processes_are_woken(by, request, tmp_path, monkeypatch, own_server, closed_at_end):
    monkeypatch.setattr("agentic_retriever.lifecycle.worker.POLL_S", 600.0)
    server = own_server() if by == "redis" else None
    bench = closed_at_end(Bench(tmp_path / "data", "" if server else request.getfixturevalue("postgres_url")))
    redis = {"redis_url": server.url} if server else {}
    bench.router = bench.open(**redis)
    bench.indexed()  # so that the index is there
    worker = bench.worker()
    worker.start()
    wait_until(lambda: not bench.documents.changed.is_set(), 20)
    other = bench.open(**redis)  # whose event is another one, as in another process
    record = other.documents.upload(DOGS, index=INDEX, filename="dogs.md")
    assert other.documents.wait(record.id, timeout_s=30).status is DocumentStatus.INDEXED


def test_a_router_runs_one_worker_and_ends_it(tmp_path):
    before, bench = set(threading.enumerate()), Bench(tmp_path / "data")
    bench.router.start_worker(2)
    with pytest.raises(errors.ConfigError, match="runs already"):
        bench.router.start_worker()
    record = bench.upload()
    assert bench.documents.wait(record.id, timeout_s=30).status is DocumentStatus.INDEXED
    bench.close()
    assert not [one for one in {*threading.enumerate()} - before if one.name == "document-worker"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_workers_killed_in_every_state_and_at_random_lose_nothing_and_do_nothing_twice(kind, request):
    urls = []
    if kind == "postgresql":
        for option in ("--url", "--clean-url"):
            urls += [option, _another_schema(request.getfixturevalue("postgres_database"), option)]
    command = [sys.executable, "-m", "benchmarks.worker_kills", "--documents", "24", "--kills", "14", *urls]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-2000:]
    told = json.loads(run.stdout)
    assert told["kills"]["by itself in a state"] == 7
    assert told["documents"] == told["clean_documents"] == {"indexed": 22, "failed": 2}
    assert all("is binary, not text" in reason for reason in told["reasons"])
    assert told["as_without_kills"] == {"nodes": True, "contents": True}
    assert (told["same"], told["duplicates"], told["nodes"]) == (True, 0, told["stored"])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")
def test_processes_that_share_a_catalog_and_a_server_process_each_document_once(postgres_url, closed_at_end):
    command = [sys.executable, "-m", "benchmarks.worker_kills", "--documents", "18", "--workers", "4"]
    command += ["--url", postgres_url, "--qdrant", closed_at_end(QdrantServer()).url]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-2000:]
    told = json.loads(run.stdout)
    assert (told["processed"], told["documents"]) == ({"1": 18}, {"indexed": 16, "failed": 2})
    assert (told["same"], told["duplicates"], told["nodes"]) == (True, 0, told["stored"])


def _another_schema(database, option):
    import psycopg

    name = f"kills_{option.strip('-').replace('-', '_')}"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
    return f"{database}?options=-csearch_path%3D{name}"
