"""The store on a Qdrant server: the contract in memory, over HTTP and on a real server, and what it refuses."""

import copy
import json
import math
import pickle
import random
from dataclasses import asdict

import pytest
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import VectorStoreQuery
from llama_index.vector_stores.qdrant import QdrantVectorStore
from qdrant_client import QdrantClient, models
from qdrant_servers import QdrantServer
from server_tools import fresh_name, memory_link, real_link
from store_tools import WORDS, ask, make_node, vector, where
from waiting import in_threads, wait_until

from agentic_retriever import errors
from agentic_retriever.config import Secret
from agentic_retriever.indices.keyword import KeywordIndex
from agentic_retriever.stores import node_store
from agentic_retriever.stores.points import node_payload
from agentic_retriever.stores.server import QdrantLink, QdrantServerVectorStore
from agentic_retriever.stores.sparse import SPARSE_FILE, SparseBM25, term_number
from agentic_retriever.testing.store_contract import VectorStoreContract, contract_nodes
from agentic_retriever.threads import Breaker, BreakerState

CANARY = "canary-key-4711"
DOWN = errors.StoreUnreachableError


class TestInMemory(VectorStoreContract):
    def make_store(self, tmp_path, dimension):
        return QdrantServerVectorStore(memory_link(), "c", dimension, keywords=True)


@pytest.fixture(scope="module")
def served():
    server = QdrantServer(key=CANARY)
    yield server
    server.close()


class TestOverHttp(VectorStoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, served, closed_at_end):
        self.link = closed_at_end(QdrantLink(served.url, api_key=Secret(CANARY), timeout_s=30))

    def make_store(self, tmp_path, dimension):
        return QdrantServerVectorStore(self.link, fresh_name(), dimension, keywords=True)


class TestOnServer(TestOverHttp):
    @pytest.fixture(autouse=True)
    def _server(self):
        self.link, self.made = real_link(), []
        yield
        for store in self.made:
            store.client.delete_collection(store.collection_name)
        self.link.close()

    def make_store(self, tmp_path, dimension):
        self.made.append(super().make_store(tmp_path, dimension))
        return self.made[-1]


@pytest.fixture
def store():
    with QdrantServerVectorStore(memory_link(), "c", keywords=True) as made:
        yield made


def test_llama_index_reads_the_collection_since_it_is_its_own_store_that_calls_nobody_when_it_is_made(store):
    assert isinstance(store, QdrantVectorStore)
    down = QdrantServerVectorStore(QdrantLink("http://127.0.0.1:9", timeout_s=1), "c", 8)
    assert json.loads(down.to_json())["api_key"] is None
    store.add(contract_nodes())
    theirs = QdrantVectorStore("c", client=store.client)
    query = VectorStoreQuery(query_embedding=contract_nodes()[3].embedding, similarity_top_k=5)
    mine, found = store.query(query), theirs.query(query)
    assert (found.ids, found.similarities) == (mine.ids, pytest.approx(mine.similarities))
    assert [node.to_dict() for node in found.nodes] == [node.to_dict() for node in mine.nodes]
    with pytest.raises(errors.InvalidQueryError, match="qdrant_filters"):
        store.query(ask(), qdrant_filters=models.Filter())
    assert copy.copy(store).count() == copy.deepcopy(store).count() == 24
    with pytest.raises(TypeError, match="key"):
        pickle.dumps(store)


def test_a_collection_of_the_version_before_is_read_and_added_to():
    """It had no place for words where none were searched."""
    client, nodes = QdrantClient(":memory:"), contract_nodes()
    client.create_collection("c", {"text-dense": models.VectorParams(size=8, distance=models.Distance.COSINE)})
    for node in nodes[:20]:
        point = models.PointStruct(id=node.node_id, vector={"text-dense": node.embedding}, payload=node_payload(node))
        client.upsert("c", [point])
    with QdrantServerVectorStore(QdrantLink(client=client), "c") as store:
        assert sorted(store.node_ids()) == sorted(node.node_id for node in nodes[:20])
        store.add(nodes[20:])
        found = store.query(VectorStoreQuery(query_embedding=nodes[3].embedding, similarity_top_k=24))
        assert (found.ids[0], len(found.ids)) == (nodes[3].node_id, 24)


def test_a_foreign_point_is_skipped(store, caplog):
    store.add([make_node(n) for n in range(9)])
    store.client.upsert("c", [models.PointStruct(id=5, vector={"text-dense": [1.0] * 8}, payload={"x": 1})])
    assert len(store.query(ask(top_k=20)).ids) == 9
    assert "skipped 1 stored points" in caplog.text
    assert len(store.get_nodes()) == 9


def test_another_programs_collection_is_left_alone_and_one_that_is_gone_is_damage(store):
    assert store.count() == 0  # never made
    store.add([make_node(0)])
    store.client.delete_collection("c")
    with pytest.raises(errors.StoreDamagedError, match="gone"):
        store.count()
    link = memory_link()
    link.call("x", lambda c: c.create_collection("c", models.VectorParams(size=8, distance=models.Distance.DOT)))
    with pytest.raises(errors.StoreError, match="another program"):
        QdrantServerVectorStore(link, "c").add([make_node(0)])


def test_a_filter_that_the_server_cannot_check_is_exact_or_refused(store, monkeypatch):
    store.add([make_node(n, text_field=f"part {n} of a") for n in range(60)])
    wanted = where("text_field", "part 57 ", "text_match")
    monkeypatch.setattr(node_store, "MAX_GUESS", 4)
    assert store.query(ask(top_k=3, filters=wanted)).ids == ["node-00057"]
    monkeypatch.setattr(type(store), "_max_scanned", 20)
    monkeypatch.setattr(node_store, "PAGE", 10)
    with pytest.raises(errors.FilterError, match="text_field"):
        store.query(ask(top_k=3, filters=wanted))


def test_threads_share_a_store(store):
    store.add([make_node(n) for n in range(50)])

    def work(number):
        for _ in range(10):
            store.add([make_node(100 + number)])
            assert store.query(ask(number, 3)).ids
            assert store.words.search_words("text", 3)

    in_threads(work, range(8))
    assert store.count() == 58


@pytest.fixture
def faulty(closed_at_end):
    server = closed_at_end(QdrantServer(key=CANARY))
    link = closed_at_end(QdrantLink(server.url, api_key=Secret(CANARY), timeout_s=5, pause=lambda _s: None))
    made = closed_at_end(QdrantServerVectorStore(link, "c", keywords=True))
    made.add([make_node(n, year=n) for n in range(3)])
    server.requests.clear()
    return server, made


@pytest.mark.parametrize(
    ("fault", "tries", "error", "says"),
    [(500, 3, DOWN, "fails"), (503, 3, DOWN, "fails"), (429, 3, DOWN, "429"), ("full", 3, DOWN, "disk"),
     (401, 1, DOWN, "QDRANT_API_KEY"), (403, 1, DOWN, "QDRANT_API_KEY"), (400, 1, DOWN, "400"),
     (404, 1, errors.StoreDamagedError, "gone"), ("html", 1, DOWN, "no Qdrant server")],
)  # fmt: skip
def test_faults_of_a_server_are_typed_and_retried_where_that_helps(faulty, fault, tries, error, says):
    server, store = faulty
    server.always = fault
    with pytest.raises(error, match=says) as caught:
        store.count()
    assert len(server.requests) == tries
    assert CANARY not in shown(caught.value)


def shown(err):
    told = []
    while err is not None:
        told += [repr(err), str(err), repr(err.args), repr(vars(err))]
        err = err.__cause__ or err.__context__
    return " ".join(told)


def test_a_fault_that_passes_is_not_seen_and_too_long_a_wait_ends_the_call(faulty):
    server, store = faulty
    for server.faults, server.headers in (([500], {}), ([429], {"retry-after": "0"})):
        assert store.count() == 3
    server.requests.clear()
    server.always, server.headers = 429, {"retry-after": "60"}
    with pytest.raises(errors.StoreUnreachableError, match="asked too much"):
        store.count()
    assert len(server.requests) == 1


def test_a_server_that_hangs_or_is_down(faulty):
    server, store = faulty
    store._collection.link.timeout_s = 0.3
    server.always = "hang"
    with pytest.raises(errors.StoreUnreachableError, match=r"within 0\.3 s"):
        store.query(ask())
    server.released.set()
    down = QdrantServer()
    down.close()
    store = QdrantServerVectorStore(QdrantLink(down.url, timeout_s=5, pause=lambda _s: None), "c")
    with pytest.raises(errors.StoreUnreachableError, match="no connection") as caught:
        store.count()
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("fault", [500, "hang", "closed"])
def test_of_the_nodes_of_a_cluster_another_is_asked_when_one_fails(fault):
    first, second = QdrantServer(), QdrantServer()
    second.client, second.indexes, second._lock = first.client, first.indexes, first._lock
    link = QdrantLink(f"{first.url}, {second.url}", timeout_s=2, pause=lambda _s: None)
    with QdrantServerVectorStore(link, "c") as store:
        store.add([make_node(n) for n in range(3)])
        assert not second.requests
        first.always = fault
        if fault == "closed":
            first.close()
        assert store.query(ask()).ids
        asked = len(first.requests)
        assert store.count() == 3
        assert len(first.requests) == asked  # the one that answers is asked from then on
    first.released.set()
    link.close()
    for server in (second, *([] if fault == "closed" else [first])):
        server.close()


def test_a_server_that_never_answers_is_left_alone_for_a_while(faulty, closed_at_end):
    server, _ = faulty
    clock = [0.0]
    breaker = Breaker(failures=3, cooldown_s=1.0, clock=lambda: clock[0])
    link = closed_at_end(QdrantLink(server.url, api_key=Secret(CANARY), pause=lambda _s: None, breaker=breaker))
    for server.always, limit in ((500, 5.0), ("hang", 0.1)):  # the first is an answer
        for _ in range(3):
            with pytest.raises(errors.StoreUnreachableError):
                link.check(limit)
    asked = len(server.requests)
    with pytest.raises(errors.StoreUnreachableError, match="is not asked"):
        link.check(5.0)
    assert len(server.requests) == asked
    server.always = None
    clock[0] = 2.0
    with pytest.raises(errors.StoreUnreachableError, match="is not asked"):
        link.check(5.0)  # which has it probed, and waits for nobody
    wait_until(lambda: breaker.state is BreakerState.CLOSED)
    assert link.check(5.0)
    server.released.set()


def test_a_write_that_is_cut_off_says_how_much_is_stored(faulty, monkeypatch):
    server, store = faulty
    monkeypatch.setattr(QdrantServerVectorStore, "_step", 2)
    answered, upserts = server._answer, []

    def answer(method, path, query, body):
        if method == "PUT" and path.endswith("/points"):
            upserts.append(path)
            if len(upserts) > 1:
                raise ValueError("no space")
        return answered(method, path, query, body)

    server._answer = answer
    with pytest.raises(errors.StoreUnreachableError, match=r"; 2 of the 5 nodes are stored, add all again") as caught:
        store.add([make_node(n) for n in range(10, 15)])
    assert isinstance(caught.value.__cause__, errors.StoreUnreachableError)
    assert store.count() == 5
    server._answer = answered
    assert store.add([make_node(n) for n in range(10, 15)])
    assert store.count() == 8


def test_fields_are_indexed_on_the_server_and_filters_pushed_down(faulty):
    server, store = faulty
    assert server.indexes["c"] == {'"doc_id"': "keyword", '"year"': "float"}
    seen, answered = [], server._answer
    server._answer = lambda *asked: (seen.append(asked[-1]), answered(*asked))[1]
    assert store.query(ask(filters=where("year", 1, ">="))).ids
    [search] = seen[-1]["searches"]
    assert search["filter"]["must"] == [{"key": "year", "range": {"gte": 1.0}}]
    assert (search["params"]["hnsw_ef"], search["params"]["acorn"]["enable"]) == (256, True)
    made = models.VectorParams(size=8, distance=models.Distance.COSINE)  # as before, with links for filters
    server.client.create_collection("old", {"text-dense": made})
    old = QdrantServerVectorStore(store._collection.link, "old")
    for other, filters in ((store, None), (old, where("year", 1))):
        assert other.query(ask(filters=filters)).ids is not None
        assert seen[-1]["searches"][0]["params"] == {"hnsw_ef": 256}


def test_neither_the_key_nor_an_url_that_cannot_be_used_is_shown(served, closed_at_end):
    for url in ("", "localhost:6333", "ftp://h", f"http://user:{CANARY}@h", "http://h:99999", "http://h?k=v"):
        with pytest.raises(errors.ConfigError, match="qdrant_url") as caught:
            QdrantLink(url)
        assert CANARY not in shown(caught.value)
    link = closed_at_end(QdrantLink(served.url, api_key=Secret(CANARY)))
    store = QdrantServerVectorStore(link, fresh_name())
    store.add([make_node(0)])
    told = [repr(link), str(link), repr(store), str(store), json.dumps(store.to_dict()), store.model_dump_json()]
    assert all(CANARY not in text for text in told)
    with pytest.raises(errors.StoreUnreachableError) as caught:
        QdrantServerVectorStore(QdrantLink(served.url, api_key=Secret("wrong")), "c").count()
    assert CANARY not in shown(caught.value)


# Search by words, which ranks as the keyword index does.

THAI = ["โฉนดที่ดินจังหวัดเชียงใหม่", "การโอนกรรมสิทธิ์ห้องชุด", "ภาษีธุรกิจเฉพาะและอากรแสตมป์", "หนังสือรับรองการทำประโยชน์"]


def corpus():
    chosen = random.Random(3)
    return [" ".join(chosen.choices(WORDS, k=chosen.randint(4, 60))) for _ in range(120)] + THAI


@pytest.fixture(scope="module")
def both():
    """The same nodes in a store with sparse vectors and in a keyword index."""
    nodes = [
        TextNode(id_=f"n{i:03}", text=text, embedding=vector(i), metadata={"even": str(i % 2 == 0).lower()},
                 excluded_embed_metadata_keys=["even"])
        for i, text in enumerate(corpus())
    ]  # fmt: skip
    store = QdrantServerVectorStore(memory_link(), "c", keywords=True)
    store.add(nodes)
    tokenizer = store.words.sparse.tokenizer
    return store, KeywordIndex.build([(node.node_id, node.text) for node in nodes], tokenizer=tokenizer, version=1)


def by_words(store, query, top_k):
    return [(hit.node.node_id, hit.score) for hit in store.words.search_words(query, top_k)]


def ndcg(ideal, found):
    gains = dict(ideal)
    best = sum(gain / math.log2(i + 2) for i, (_, gain) in enumerate(ideal[: len(found)]))
    return sum(gains.get(node_id, 0.0) / math.log2(i + 2) for i, (node_id, _) in enumerate(found)) / best


def test_scores_are_those_of_the_keyword_index_and_thai_words_are_found_first(both):
    store, index = both
    chosen = random.Random(4)
    for _ in range(40):
        query = " ".join(chosen.sample(WORDS, chosen.randint(1, 4)))
        ours, theirs = index.search(query, 10), by_words(store, query, 10)
        # The average length was fitted on all of them here, so that only rounding is left.
        assert dict(theirs).keys() == dict(ours).keys()
        assert dict(theirs) == pytest.approx(dict(ours), rel=1e-4)
    for text in THAI:
        found = store.words.search_words(text[4:14], 3)[0].node
        assert (found.node_id, found.text) == (index.search(text[4:14], 1)[0][0], text)


def test_an_average_that_is_off_hardly_changes_the_order(both):
    store, index = both
    texts = corpus()
    other = QdrantServerVectorStore(
        memory_link(), "c", keywords=True, sparse=SparseBM25.fitted(sorted(texts, key=len)[20:60])
    )
    other.add([node.model_copy(update={"embedding": vector(0)}) for node in store.get_nodes()])
    assert other.words.sparse.average != pytest.approx(store.words.sparse.average, rel=0.02)
    chosen = random.Random(5)
    for _ in range(20):
        query = " ".join(chosen.sample(WORDS, 3))
        assert ndcg(index.search(query, 200), by_words(other, query, 10)) > 0.95
    other.words.revise(SparseBM25.fitted(texts))
    query = "harbour toll"
    assert dict(by_words(other, query, 5)) == pytest.approx(dict(index.search(query, 5)), rel=1e-4)


def test_what_is_found_by_words_is_what_the_keyword_index_finds_with_filters_too(both):
    store, index = both
    assert [i for i, _ in by_words(store, "river loan", 5)] == [i for i, _ in index.search("river loan", 5)]
    evens = {node.node_id for node in store.get_nodes(filters=where("even", "true"))}
    even = store.words.search_words("river loan", 5, where("even", "true"))
    assert [hit.node.node_id for hit in even] == [i for i, _ in index.search("river loan", 5, allowed=evens)]
    assert all(int(hit.node.node_id[1:]) % 2 == 0 for hit in even)
    assert by_words(store, "of the", 5) == by_words(store, "", 5) == by_words(store, "zzzz", 5) == []


def test_all_of_the_first_nodes_decide_how_long_a_text_is(store, monkeypatch):
    monkeypatch.setattr(type(store), "_step", 2)
    lengths = [2, 2, 10, 12, 14]
    store.add([TextNode(text="ship " * n, embedding=vector(n)) for n in lengths])
    assert store.words.sparse.average == sum(lengths) / len(lengths)


def test_settings_are_kept_beside_the_index_and_terms_have_the_same_number_everywhere(tmp_path):
    assert (term_number("river"), term_number("ที่ดิน")) == (0x62F4AE7E, 0xF4752683)
    assert SparseBM25.load(tmp_path) is None
    fitted = SparseBM25.fitted(corpus()[:120])
    assert fitted.is_current
    (tmp_path / SPARSE_FILE).write_text(json.dumps(asdict(fitted)), encoding="utf-8")
    assert SparseBM25.load(tmp_path) == fitted
    (tmp_path / SPARSE_FILE).write_text("{", encoding="utf-8")
    with pytest.raises(errors.StoreDamagedError, match="index build"):
        SparseBM25.load(tmp_path)
    assert not SparseBM25(fitted.language, fitted.average, "other").is_current


def test_server_fusion_is_reciprocal_rank_fusion(both):
    store, _ = both
    question, text = vector(900), "harbour toll"
    sides = store.words.search_both(question, text, 50)

    def fused(top_k=5, text=text, alpha=0.5, filters=None):
        return store.words.search_fused(question, text, top_k, depth=50, alpha=alpha, rrf_k=60, filters=filters)

    def merged(weights):  # by the server's formula, which divides the rank by the weight
        scores = {}
        for hits, weight in zip(sides, weights, strict=True):
            for rank, hit in enumerate(hits, start=1):
                scores[hit.node.node_id] = scores.get(hit.node.node_id, 0.0) + 1 / (60 + rank / weight)
        return scores

    usual = merged((1, 1))
    assert [hit.score for hit in fused(10)] == pytest.approx(sorted(usual.values(), reverse=True)[:10])
    assert all(hit.score == pytest.approx(usual[hit.node.node_id]) for hit in fused(10))
    best = sorted(merged((1.6, 0.4)).values(), reverse=True)[:10]
    assert [hit.score for hit in fused(10, alpha=0.8)] == pytest.approx(best)
    assert fused(alpha=1.0) is fused(text="of the") is fused(filters=where("even", "tr", "text_match")) is None
    assert all(int(hit.node.node_id[1:]) % 2 == 0 for hit in fused(filters=where("even", "true")))
