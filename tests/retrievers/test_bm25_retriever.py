"""Our BM25 as a LlamaIndex retriever, and the traps of the one that it stands on."""

import json
import os

import pytest
from llama_index.core import SummaryIndex, VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.retrievers.bm25 import BM25Retriever as LlamaBM25Retriever
from search_material import ids, pairs
from store_tools import where

from agentic_retriever import BM25Retriever
from agentic_retriever.errors import ConfigError, FilterError, IndexingError, StoreDamagedError, StoreError
from agentic_retriever.retrievers import source_scores
from agentic_retriever.testing import FakeEmbedding
from agentic_retriever.testing.retriever_contract import QUERY, RetrieverContract, contract_nodes


def nodes_of(*texts, **metadata):
    return [TextNode(id_=f"n{i}", text=text, metadata=metadata) for i, text in enumerate(texts)]


def found(retriever, *queries):
    return [pairs(retriever.retrieve(query)) for query in queries]


@pytest.mark.parametrize("place", ["nodes", "index"])
class TestContract(RetrieverContract):
    @pytest.fixture(autouse=True)
    def _given(self, place, make_index):
        self.make_index = make_index if place == "index" else None

    def make_adapter(self, nodes, *, embedding, top_k=10, filters=None):
        given = {"index": self.make_index(nodes, embedding)} if self.make_index else {"nodes": nodes}
        return BM25Retriever(**given, similarity_top_k=top_k, filters=filters)


def test_it_is_what_llamaindex_expects_and_may_be_asked_for_more_than_there_is():
    retriever = BM25Retriever(contract_nodes())
    assert isinstance(retriever, LlamaBM25Retriever)
    best = retriever.retrieve(QUERY)[0]
    assert (source_scores(best), retriever.similarity_top_k) == ({"bm25": best.score}, 2)
    retriever = BM25Retriever(nodes_of("red apple", "green apple"), similarity_top_k=10)
    assert (len(retriever.retrieve("apple")), retriever.similarity_top_k) == (2, 10)


@pytest.mark.parametrize("texts", [(), ("",), ("the of and", "  "), ("red pear", "green pear")])
@pytest.mark.parametrize("query", ["the apple", "the of and", "zzzqqq", "?!"])
def test_no_node_without_a_word_of_the_question(texts, query):
    assert BM25Retriever.from_defaults(nodes=nodes_of(*texts)).retrieve(query) == []


@pytest.mark.parametrize(("text", "query"), [
    ("แมวนั่งอยู่บนเสื่อ", "แมว"), ("量子力学入门", "量子"), ("猫が座る", "猫"), ("बिल्ली चटाई पर", "बिल्ली"),
    ("القطة على الحصيرة", "القطة"), ("written in C", "C"), ("written in C++", "C++"), ("part A-12", "A-12"),
])  # fmt: skip
def test_words_of_every_script_and_codes_are_found(text, query):
    best = BM25Retriever(nodes_of("something else", "หมาวิ่ง 学校 犬 कुत्ता كلب", text)).retrieve(query)[0]
    assert (best.node_id, best.score > 0) == ("n2", True)


@pytest.mark.parametrize("top_k", [1, 3])
def test_filters_never_leak(top_k):
    nodes = [*nodes_of(*["apple apple"] * 9), TextNode(id_="only", text="an apple", metadata={"year": 2024})]
    retriever = BM25Retriever(nodes, similarity_top_k=top_k, filters=where("year", 2020, ">"))
    assert ids(retriever.retrieve("apple")) == ["only"]
    assert BM25Retriever(nodes, filters=where("year", "x", ">")).retrieve("apple") == []
    with pytest.raises(FilterError):
        BM25Retriever(nodes, filters=where("", 1))


@pytest.mark.parametrize(
    ("language", "text", "query"),
    [("es", "los caballos corren", "caballo"), ("en", "running", "run"), (None, "แมว", "แมว")],
)
def test_saved_and_loaded_it_finds_the_same(tmp_path, language, text, query):
    nodes = [*nodes_of(text, "apple", "apple pie"), TextNode(id_="late", text="apple", metadata={"year": 2024})]
    saved = BM25Retriever(nodes, language=language, similarity_top_k=3)
    saved.persist(str(tmp_path / "bm25"))
    loaded = BM25Retriever.from_persist_dir(str(tmp_path / "bm25"))
    assert found(loaded, query, "apple", "los") == found(saved, query, "apple", "los")
    assert found(saved, query)[0]
    BM25Retriever(nodes, filters=where("year", 2024)).persist(str(tmp_path / "bm25"))
    assert ids(BM25Retriever.from_persist_dir(str(tmp_path / "bm25")).retrieve("apple")) == ["late"]


def test_words_cut_by_another_version_are_cut_again(tmp_path):
    retriever = BM25Retriever(nodes_of("red apple"))
    retriever.persist(str(tmp_path / "bm25"))
    for file in (tmp_path / "bm25" / "keyword").iterdir():
        file.unlink()
    (tmp_path / "bm25" / "keyword").rmdir()
    assert found(BM25Retriever.from_persist_dir(str(tmp_path / "bm25")), "apple") == found(retriever, "apple")


@pytest.mark.parametrize("name", ["nodes.json", "keyword/node_ids.json", "keyword/scores.npy", "manifest.json"])
def test_a_file_that_was_cut_is_named(tmp_path, name):
    BM25Retriever(nodes_of("red apple", "green pear")).persist(str(tmp_path))
    os.truncate(tmp_path / name, (tmp_path / name).stat().st_size // 2)
    with pytest.raises(StoreDamagedError, match=name.rpartition("/")[2]):
        BM25Retriever.from_persist_dir(str(tmp_path))


def test_a_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(StoreError, match="no retriever"):
        BM25Retriever.from_persist_dir(str(tmp_path / "none"))
    LlamaBM25Retriever(contract_nodes()).persist(str(tmp_path / "theirs"))
    with pytest.raises(StoreError, match=r"manifest\.json"):
        BM25Retriever.from_persist_dir(str(tmp_path / "theirs"))


def test_it_is_made_of_an_index_a_docstore_or_nodes_and_nothing_else(make_index):
    nodes, docstore = contract_nodes(), SimpleDocumentStore()
    docstore.add_documents(nodes)
    expected = found(BM25Retriever(nodes), QUERY)
    dense = VectorStoreIndex(contract_nodes(), embed_model=FakeEmbedding())
    for given in ({"docstore": docstore}, {"nodes": nodes}, {"index": SummaryIndex(nodes)}, {"index": dense}):
        assert found(BM25Retriever.from_defaults(**given), QUERY) == expected
    index = make_index(contract_nodes())
    none = {"nodes": []}
    for given in ({}, none | {"index": index}, none | {"stemmer": None}, none | {"token_pattern": "."}):
        with pytest.raises(ConfigError):
            BM25Retriever(**given)
    with pytest.raises(ConfigError, match="exactly one"):
        BM25Retriever.from_defaults()
    with pytest.raises(IndexingError, match="twice"):
        BM25Retriever([TextNode(id_="a", text="x"), TextNode(id_="a", text="y")])
    with pytest.raises(ConfigError, match="keeps its own files"):
        BM25Retriever(index=index).persist("nowhere")


def test_changes_of_an_index_are_seen(make_index):
    index = make_index(contract_nodes())
    retriever = BM25Retriever.from_defaults(index=index)
    index.vector_store.add([TextNode(id_="new", text="violet plums")])
    assert ids(retriever.retrieve("violet plums")) == ["new"]
    assert json.loads(json.dumps([one.to_dict() for one in retriever.retrieve("violet")]))
