"""An index on a Qdrant server, and moving indexes there and back."""

import logging
from dataclasses import replace

import pytest
from llama_index.core.schema import Document
from qdrant_servers import QdrantServer
from server_tools import collections, drop_collections, memory_server, real_server
from store_tools import WORDS, where
from waiting import in_threads, wait_until

from agentic_retriever import AgenticRouter, RouterConfig, errors
from agentic_retriever.indices import Indexer, IndexStorage, KeywordIndex, QdrantEdgeVectorStore
from agentic_retriever.indices import index as copying
from agentic_retriever.indices import stored_nodes as index_module
from agentic_retriever.indices.index import COPY_FILE, copy_index
from agentic_retriever.ingestion.chunking import ChunkSettings
from agentic_retriever.retrievers import AdapterSettings, RetrievalRequest, build_adapter, source_scores
from agentic_retriever.retrievers.hybrid import FUSED
from agentic_retriever.schema import Strategy
from agentic_retriever.stores.server import QdrantServerVectorStore
from agentic_retriever.testing import FakeEmbedding

CHUNKS = ChunkSettings(chunk_size=64, chunk_overlap=8, leaf_size=32)
ANY = Strategy.VECTOR, Strategy.HYBRID, Strategy.METADATA, Strategy.SUMMARY, Strategy.RECURSIVE


def documents():
    return [
        Document(
            id_=f"doc-{i:02}",
            text=f"{WORDS[i % 18]} {WORDS[(i * 7) % 18]} {WORDS[(i * 5 + 3) % 18]} number {i}. " * 3,
            metadata={"year": 2000 + i, "kind": "odd" if i % 2 else "even"},
        )
        for i in range(36)
    ]


@pytest.fixture(params=[memory_server, real_server])
def storage(tmp_path, request):
    opened = IndexStorage(tmp_path / "data", server=request.param())
    yield opened
    opened.close()
    drop_collections(opened.server)


@pytest.fixture
def index(storage, embedding):
    return made(storage, embedding)


def made(storage, embedding, name="docs", *, server=True):
    kept = storage.server
    storage.server = kept if server else None
    try:
        new = storage.create(name, embedding, description="Topics", chunks=CHUNKS)
    finally:
        storage.server = kept
    Indexer(new).add_documents(documents())
    return new


def found(index, strategy, query="harbour toll bridge", *, filters=None, **settings):
    result = build_adapter(strategy, index, AdapterSettings(**settings)).search(RetrievalRequest(query, 8, filters))
    assert result.degraded == (), result.degraded
    return [(hit.node.node_id, round(hit.score, 4)) for hit in result.nodes]


def test_new_indexes_go_to_the_server_stay_readable_and_take_over_no_collection_of_their_name(
    storage, embedding, index, tmp_path
):
    assert storage.manifest("docs").store == "server"
    assert storage.manifest("docs").collection == f"{storage.server.prefix}docs"
    assert isinstance(index.vector_store, QdrantServerVectorStore)
    assert not (index.folder / "chunks").exists()
    assert index.keyword() is index.both_sides()
    assert (index.count(), index.profile().nodes) == (36, 36)
    assert index.vector_rows() is None
    server = storage.server
    storage.shut("docs")
    again = IndexStorage(storage.data_dir, server=server).open("docs", embedding)
    assert again.count() == 36
    assert again.keyword().search_words("harbour", 3)
    again.close()
    other = IndexStorage(tmp_path / "other", server=storage.server)
    with pytest.raises(errors.IndexExistsError, match="qdrant_prefix"):
        other.create("docs", embedding, description="", chunks=CHUNKS)
    storage.remove("docs")
    assert other.create("docs", embedding, description="", chunks=CHUNKS).count() == 0
    other.close()


@pytest.mark.parametrize("strategy", ANY)
def test_every_strategy_answers_as_on_the_embedded_store(storage, embedding, index, strategy):
    local = made(storage, embedding, "local", server=False)
    assert isinstance(local.vector_store, QdrantEdgeVectorStore)
    for each in (local, index):
        each.build_views()
    assert isinstance(local.keyword(), KeywordIndex)
    here, there = found(local, strategy), found(index, strategy)
    if strategy is Strategy.HYBRID:  # BM25's average length is an estimate there
        assert {i for i, _ in here[:5]} <= {i for i, _ in there}
    else:
        assert here == there
    filters = where("kind", "odd")
    assert found(local, strategy, filters=filters)[0][0] == found(index, strategy, filters=filters)[0][0]
    assert found(index, strategy, filters=where("kind", "neither")) == []


def test_fusion_by_ranks_is_the_servers_both_sides_take_one_request_and_documents_change(index, monkeypatch):
    adapter = build_adapter(
        Strategy.HYBRID, index, AdapterSettings(config=RouterConfig(fusion="rrf", hybrid_alpha=0.5))
    )
    calls = []
    words = index.both_sides()
    asked = words.search_fused
    monkeypatch.setattr(words, "search_fused", lambda *a, **k: (calls.append(k), asked(*a, **k))[1])
    result = adapter.search(RetrievalRequest("harbour toll", 5))
    assert len(calls) == 1
    assert source_scores(result.nodes[0]) == {FUSED: pytest.approx(result.nodes[0].score)}
    # What the server cannot check itself is merged here.
    adapter = build_adapter(Strategy.HYBRID, index, AdapterSettings(config=RouterConfig(fusion="rrf")))
    assert adapter.search(RetrievalRequest("harbour toll", 5, where("kind", "od", "text_match"))).nodes
    client, batches = index.vector_store.client, []
    batched = client.query_batch_points
    monkeypatch.setattr(client, "query_batch_points", lambda **k: (batches.append(len(k["requests"])), batched(**k))[1])
    assert found(index, Strategy.HYBRID)
    assert batches == [2]

    def ask(word):
        for _ in range(3):
            found(index, Strategy.HYBRID, word)
            found(index, Strategy.VECTOR, word, filters=where("kind", "odd"))

    in_threads(ask, WORDS[:6])
    changed = documents()[:35]
    changed[0] = Document(id_="doc-00", text="a new text of the harbour", metadata={"year": 1})
    indexer = Indexer(index)
    report = indexer.add_documents(changed)
    assert (report.updated, report.unchanged) == (1, 34)
    indexer.remove_documents(["doc-35"])
    assert index.count() == 35
    assert {node.metadata["year"] for node in index.nodes() if node.ref_doc_id == "doc-00"} == {1}


def test_another_process_sees_what_is_written_and_writers_wait_for_each_other(storage, embedding, index, monkeypatch):
    reader = IndexStorage(storage.data_dir, server=storage.server).open("docs", embedding)
    before = reader.version
    index.build_views()
    assert reader.summaries() is reader.summaries()
    Indexer(index).add_documents([Document(id_="doc-99", text="zebra crossing")])
    wait_until(lambda: reader.version > before)  # what was read a moment ago is not read again
    assert reader.count() == 37
    assert reader.keyword().search_words("zebra", 1)
    index.build_views()
    wait_until(lambda: reader.views >= index.views)
    reader.close()
    other = IndexStorage(storage.data_dir, server=storage.server).open("docs", embedding)
    monkeypatch.setattr(index_module, "_LOCK_PATIENCE_S", 0.05)
    with index.exclusive("documents"):
        with index.exclusive("documents"):  # the same process may go on
            pass
        with pytest.raises(errors.StoreBusyError, match="another process"):
            Indexer(other).add_documents([Document(id_="x", text="x")])
    other.close()


def test_words_cut_by_another_version_are_told_and_made_again(index, caplog):
    words = index.both_sides()
    words.sparse = replace(words.sparse, fingerprint="older")
    with pytest.raises(errors.StoreError, match="index build docs"):
        index.keyword()
    assert build_adapter(Strategy.HYBRID, index, AdapterSettings()).search(RetrievalRequest("harbour", 3)).nodes
    index.build_views()
    assert index.keyword().search_words("harbour", 3)
    kept = words.sparse
    index.build_views()
    assert words.sparse is kept


def test_index_build_makes_them_again(tmp_path, closed_at_end):
    server = closed_at_end(QdrantServer())
    config = RouterConfig(data_dir=tmp_path / "data", qdrant_url=server.url, cache_max_entries=0, query_log="none")
    with AgenticRouter(config, embedding=FakeEmbedding(dimension=64)) as router:
        router.add_index("docs", [Document(text="Ships carry grain to the harbour.")], description="The harbour")
        words = router.stored_index("docs").both_sides()
        words.sparse = replace(words.sparse, fingerprint="older")
        router.build_views("docs")
        assert words.sparse.is_current


# Copying.


class InterruptedCopyError(Exception):
    pass


class Cut:
    """Stops a copy after so many pages."""

    def __init__(self, after=10**9):
        self.after, self.pages, self.begun = after, 0, []

    def begin(self, what, total):
        self.begun.append((what, total))

    def advance(self, done):
        self.pages += 1
        if self.pages >= self.after:
            raise InterruptedCopyError


@pytest.fixture
def small_pages(monkeypatch):
    monkeypatch.setattr(copying, "PAGE", 10)


def everything(index):
    nodes = {node.node_id: node.to_dict() for node in index.nodes()}
    ids, vectors = index.vector_store.vectors(sorted(nodes))
    return nodes, dict(zip(ids, vectors.round(5).tolist(), strict=True)), index.source_text("doc-03"), index.version


def test_there_and_back_again(storage, embedding, small_pages, monkeypatch):
    index = made(storage, embedding, server=False)
    index.build_views()
    before = everything(index)
    answers = {strategy: found(index, strategy) for strategy in ANY}
    monkeypatch.setattr(embedding, "embed_passages", None)  # nothing is embedded again
    report = copy_index(storage, "docs", embedding, to="server")
    assert report.moved
    assert (report.nodes["chunks"], report.nodes.keys()) == (36, {"chunks", "leaves", "summaries"})
    moved = storage.open("docs", embedding)
    assert moved.is_remote
    assert not [name for name in ("chunks", "leaves", "summaries", COPY_FILE) if (moved.folder / name).exists()]
    assert everything(moved) == before
    for strategy in ANY:
        assert found(moved, strategy)[0][0] == answers[strategy][0][0]
        if strategy is not Strategy.HYBRID:
            assert found(moved, strategy) == answers[strategy]
        else:  # fitted on all texts, so that only rounding is left
            assert [i for i, _ in found(moved, strategy)] == [i for i, _ in answers[strategy]]

    assert copy_index(storage, "docs", embedding, to="embedded").moved
    back = storage.open("docs", embedding)
    assert not back.is_remote
    assert (everything(back), {strategy: found(back, strategy) for strategy in ANY}) == (before, answers)
    assert not collections(storage.server)


@pytest.mark.parametrize("to", ["server", "embedded"])
@pytest.mark.parametrize("new_name", [None, "copy"])
def test_a_copy_that_was_cut_off_goes_on(storage, embedding, small_pages, to, new_name):
    before = everything(made(storage, embedding, server=to == "embedded"))
    cut = Cut(after=2)
    with pytest.raises(InterruptedCopyError):
        copy_index(storage, "docs", embedding, to=to, new_name=new_name, progress=cut)
    assert (storage.names(), everything(storage.open("docs", embedding))) == (["docs"], before)
    again = Cut()
    report = copy_index(storage, "docs", embedding, to=to, new_name=new_name, progress=again)
    assert (report.resumed, again.begun, again.pages) == (20, [("chunks", 16)], 2)
    target = storage.open(new_name or "docs", embedding)
    assert target.is_remote is (to == "server")
    assert (everything(target), storage.names()) == (before, ["copy", "docs"] if new_name else ["docs"])
    if new_name:
        assert (target.profile().name, everything(storage.open("docs", embedding))) == ("copy", before)


def test_a_copy_of_an_index_that_changed_meanwhile_is_whole(storage, embedding, small_pages):
    index = made(storage, embedding, server=False)
    with pytest.raises(InterruptedCopyError):
        copy_index(storage, "docs", embedding, to="server", progress=Cut(after=3))
    Indexer(index).remove_documents(["doc-05", "doc-20"])
    Indexer(index).add_documents([Document(id_="doc-77", text="zebra")])
    expected = everything(index)
    copy_index(storage, "docs", embedding, to="server")
    assert everything(storage.open("docs", embedding)) == expected


def test_what_cannot_be_copied_is_told_and_settings_that_are_missing_are_named(storage, embedding, index):
    with pytest.raises(errors.IndexingError, match="server already"):
        copy_index(storage, "docs", embedding, to="server")
    with pytest.raises(errors.IndexingError, match="embedded"):
        copy_index(storage, "docs", embedding, to="moon")
    made(storage, embedding, "other", server=False)
    with pytest.raises(errors.IndexExistsError):
        copy_index(storage, "docs", embedding, to="embedded", new_name="other")
    storage.close()
    alone = IndexStorage(storage.data_dir)
    with pytest.raises(errors.ConfigError, match="QDRANT_URL"):
        copy_index(alone, "other", embedding, to="server")
    with pytest.raises(errors.StoreError, match="QDRANT_URL"):
        alone.open("docs", embedding)
    with pytest.raises(errors.StoreError, match="QDRANT_URL"):
        alone.remove("docs")
    alone.close()
    with pytest.raises(errors.StoreDamagedError, match="is QDRANT_URL the server"):
        IndexStorage(storage.data_dir, server=memory_server()).open("docs", embedding)


def test_a_server_that_fails_leaves_the_source(tmp_path, embedding, small_pages, closed_at_end):
    server = closed_at_end(QdrantServer())
    config = RouterConfig(data_dir=tmp_path / "data", qdrant_url=server.url, cache_max_entries=0)
    storage = closed_at_end(IndexStorage.from_config(config))
    before = everything(made(storage, embedding, server=False))
    refused = server._answer

    def answer(method, path, query, body):
        if method == "PUT" and path.endswith("/points") and len(server.requests) > 12:
            raise ValueError("no space")
        return refused(method, path, query, body)

    server._answer = answer
    with pytest.raises(errors.StoreUnreachableError):
        copy_index(storage, "docs", embedding, to="server")
    assert everything(storage.open("docs", embedding)) == before
    server._answer = refused
    assert copy_index(storage, "docs", embedding, to="server").resumed > 0
    assert everything(storage.open("docs", embedding)) == before


# Through a router, over HTTP.


def test_a_router_with_a_server(tmp_path, caplog, closed_at_end):
    server = closed_at_end(QdrantServer(key="canary-4711"))
    config = RouterConfig(
        data_dir=tmp_path / "data", qdrant_url=server.url, qdrant_api_key="canary-4711",
        cache_max_entries=0, query_log="none",
    )  # fmt: skip
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text(
        "# Leave\n\nEvery employee gets 28 days of annual leave.\n", encoding="utf-8"
    )
    caplog.set_level(logging.DEBUG)
    with AgenticRouter(config, embedding=FakeEmbedding(dimension=64)) as router:
        assert server.requests == []  # nothing is asked before there is need
        router.add_index("handbook", tmp_path / "docs", description="Company handbook")
        router.add_index("local", [Document(text="Ships carry grain to the harbour.")], description="Harbour")
        router.copy_index("local", to="embedded")
        answer = router.query("How many days of annual leave does an employee get?")
        assert "28 days" in str(answer)
        assert answer.citations[0].quote
        assert "28 days" in str(router.query("How many days of annual leave are there?"))
    server.always = 500
    with AgenticRouter(config, embedding=FakeEmbedding(dimension=64)) as router:
        lost = router.query("Which ships carry grain?")
        assert [step.step for step in lost.degraded if "Qdrant" in step.reason] == ["index.handbook"]
        assert "harbour" in str(lost)
    assert "canary-4711" not in caplog.text + repr(config) + str(config.to_dict())
    for path in (tmp_path / "data").rglob("*"):
        if path.is_file():
            assert b"canary-4711" not in path.read_bytes()
