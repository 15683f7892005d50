"""BM25 as sparse vectors ranks as the keyword index does."""

from __future__ import annotations

import math
import random

import pytest
from llama_index.core.schema import TextNode
from server_tools import memory_link
from store_tools import WORDS, vector, where

from agentic_retriever.errors import InvalidQueryError, StoreDamagedError
from agentic_retriever.indices.keyword import KeywordIndex, SparseKeywordView
from agentic_retriever.stores.server import QdrantServerVectorStore
from agentic_retriever.stores.sparse import SPARSE_FILE, SparseBM25, term_number

THAI = [
    "โฉนดที่ดินจังหวัดเชียงใหม่",
    "การโอนกรรมสิทธิ์ห้องชุด",
    "ภาษีธุรกิจเฉพาะและอากรแสตมป์",
    "หนังสือรับรองการทำประโยชน์",
]


def corpus():
    chosen = random.Random(3)
    texts = [" ".join(chosen.choices(WORDS, k=chosen.randint(4, 60))) for _ in range(120)]
    return texts + THAI


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
    items = [(node.node_id, node.text) for node in nodes]
    return store, KeywordIndex.build(items, tokenizer=tokenizer, version=1)


def ndcg(ideal, found):
    gains = dict(ideal)
    best = sum(gain / math.log2(i + 2) for i, (_, gain) in enumerate(ideal[: len(found)]))
    return sum(gains.get(node_id, 0.0) / math.log2(i + 2) for i, (node_id, _) in enumerate(found)) / best


def test_scores_are_those_of_the_keyword_index(both):
    store, index = both
    chosen = random.Random(4)
    for _ in range(40):
        query = " ".join(chosen.sample(WORDS, chosen.randint(1, 4)))
        ours = index.search(query, 10)
        theirs = [(hit.node.node_id, hit.score) for hit in store.words.search_words(query, 10)]
        # The average length was fitted on all of them here, so that only rounding is left.
        assert dict(theirs).keys() == dict(ours).keys()
        assert dict(theirs) == pytest.approx(dict(ours), rel=1e-4)


@pytest.mark.parametrize("text", THAI)
def test_thai_words_are_found_first(both, text):
    store, index = both
    part = text[4:14]
    assert store.words.search_words(part, 3)[0].node.node_id == index.search(part, 1)[0][0]
    assert store.words.search_words(part, 3)[0].node.text == text


def test_an_average_that_is_off_hardly_changes_the_order(both):
    store, index = both
    texts = corpus()
    other = QdrantServerVectorStore(
        memory_link(), "c", keywords=True, sparse=SparseBM25.fitted(sorted(texts, key=len)[20:60])
    )
    other.add(store.export(None, 500)[0])
    assert other.words.sparse.average != pytest.approx(store.words.sparse.average, rel=0.02)
    chosen = random.Random(5)
    for _ in range(20):
        query = " ".join(chosen.sample(WORDS, 3))
        found = [(hit.node.node_id, hit.score) for hit in other.words.search_words(query, 10)]
        assert ndcg(index.search(query, 200), found) > 0.95
    other.words.revise(SparseBM25.fitted(texts))
    query = "harbour toll"
    revised = [(hit.node.node_id, hit.score) for hit in other.words.search_words(query, 5)]
    assert dict(revised) == pytest.approx(dict(index.search(query, 5)), rel=1e-4)


def test_the_view_answers_as_the_keyword_index(both):
    store, index = both
    view = SparseKeywordView(store.words, 1, store.count)
    assert index.search_nodes("river loan", 5, None) is None, "which reads no nodes"
    assert len(view) == len(index)
    assert [i for i, _ in view.search("river loan", 5)] == [i for i, _ in index.search("river loan", 5)]
    allowed = {f"n{i:03}" for i in range(0, 120, 7)}
    expected = [i for i, _ in index.search("river loan", 5, allowed=allowed)]
    assert [i for i, _ in view.search("river loan", 5, allowed=allowed)] == expected
    assert [
        i for i, _ in view.search("river loan", 5, allowed=lambda ids: [i for i in ids if i in allowed])
    ] == expected
    even = view.search_nodes("river loan", 5, where("even", "true"))
    assert all(int(hit.node.node_id[1:]) % 2 == 0 for hit in even)
    assert view.search("of the", 5) == view.search("", 5) == view.search("zzzz", 5) == []
    with pytest.raises(InvalidQueryError):
        view.search("river", 0)


def test_terms_have_the_same_number_everywhere():
    assert (term_number("river"), term_number("ที่ดิน")) == (0x62F4AE7E, 0xF4752683)


def test_settings_are_kept_beside_the_index(tmp_path):
    assert SparseBM25.load(tmp_path) is None
    fitted = SparseBM25.fitted(corpus()[:120])
    assert fitted.is_current
    fitted.save(tmp_path)
    assert SparseBM25.load(tmp_path) == fitted
    (tmp_path / SPARSE_FILE).write_text("{", encoding="utf-8")
    with pytest.raises(StoreDamagedError, match="index build"):
        SparseBM25.load(tmp_path)
    assert not SparseBM25(fitted.language, fitted.average, "other").is_current


def test_server_fusion_is_reciprocal_rank_fusion(both):
    store, _ = both
    question, text = vector(900), "harbour toll"
    dense, words = store.words.search_both(question, text, 50)
    usual = {}
    for hits in (dense, words):
        for rank, hit in enumerate(hits, start=1):
            usual[hit.node.node_id] = usual.get(hit.node.node_id, 0.0) + 1 / (60 + rank)
    fused = store.words.search_fused(question, text, 10, depth=50, alpha=0.5, rrf_k=60)
    assert [hit.score for hit in fused] == pytest.approx(sorted(usual.values(), reverse=True)[:10])
    assert all(hit.score == pytest.approx(usual[hit.node.node_id]) for hit in fused)
    weighted = {}  # by the server's formula, which divides the rank by the weight
    for hits, weight in ((dense, 1.6), (words, 0.4)):
        for rank, hit in enumerate(hits, start=1):
            weighted[hit.node.node_id] = weighted.get(hit.node.node_id, 0.0) + 1 / (60 + rank / weight)
    leaning = store.words.search_fused(question, text, 10, depth=50, alpha=0.8, rrf_k=60)
    assert [hit.score for hit in leaning] == pytest.approx(sorted(weighted.values(), reverse=True)[:10])
    assert store.words.search_fused(question, text, 5, depth=50, alpha=1.0, rrf_k=60) is None
    assert store.words.search_fused(question, "of the", 5, depth=50, alpha=0.5, rrf_k=60) is None
    inexact = where("even", "tr", "text_match")
    assert store.words.search_fused(question, text, 5, depth=50, alpha=0.5, rrf_k=60, filters=inexact) is None
    even = store.words.search_fused(question, text, 5, depth=50, alpha=0.5, rrf_k=60, filters=where("even", "true"))
    assert all(int(hit.node.node_id[1:]) % 2 == 0 for hit in even)
