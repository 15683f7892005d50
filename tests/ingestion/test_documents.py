from __future__ import annotations

from datetime import date

import pytest
from llama_index.core.schema import Document, IndexNode, MediaResource, Node, TextNode

from agentic_retriever.errors import IndexingError, SourceError
from agentic_retriever.ingestion import (
    RESERVED_KEYS,
    ChunkSettings,
    SkippedSource,
    SourceDocument,
    chunk_document,
    from_llama_documents,
    nodes_as_they_are,
)
from agentic_retriever.ingestion.documents import clean_text, flat_metadata


def test_scalars_and_lists_stay():
    given = {"s": "x", "i": 1, "f": 1.5, "b": True, "l": ["a", 1, False]}
    flat = flat_metadata(given, doc_id="d")
    assert flat == given
    assert flat["l"] is not given["l"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"a": None}, {}),
        ({"a": {"b": 1, "c": {"d": "x"}}}, {"a_b": 1, "a_c_d": "x"}),
        ({"a": {"b": 1}, "a_b": 2}, {"a": '{"b": 1}', "a_b": 2}),
        ({"a": {}}, {}),
        ({"a": [{"b": 1}, None]}, {"a": ['{"b": 1}']}),
        ({"a": date(2024, 5, 1)}, {"a": "2024-05-01"}),
        ({"a": {3, 1, 2}}, {"a": [1, 2, 3]}),
        ({1: "x"}, {"1": "x"}),
        ({"a": "x\ud800\0"}, {"a": "x\ufffd\ufffd"}),
        ({"a": {"b": {"c": {"d": {"e": 1}}}}}, {"a_b_c_d": '{"e": 1}'}),
        ({"doc_id": "d", "a": 1}, {"a": 1}),
    ],
)
def test_other_values(given, expected):
    assert flat_metadata(given, doc_id="d") == expected


@pytest.mark.parametrize("key", sorted(RESERVED_KEYS))
def test_reserved_keys_are_refused(key):
    with pytest.raises(SourceError, match=f"'{key}' is reserved for the store; rename it"):
        flat_metadata({key: "other"}, doc_id="d")


def test_an_empty_key_is_refused():
    with pytest.raises(SourceError, match="key is empty"):
        flat_metadata({" ": 1}, doc_id="d")


def test_a_flattened_name_is_never_a_reserved_one():
    assert flat_metadata({"doc": {"id": 7}}, doc_id="d") == {"doc": '{"id": 7}'}


def test_cleaning_keeps_the_length():
    text = "a\ud83dß\0ก"
    assert len(clean_text(text)) == len(text)
    clean_text(text).encode()


def test_documents_keep_id_text_and_metadata():
    given = Document(id_="d1", text=" # A\n\ntext ", metadata={"title": "T", "year": 2020, "when": date(2024, 5, 1)})
    (doc,) = from_llama_documents([given])
    assert isinstance(doc, SourceDocument)
    assert (doc.doc_id, doc.text, doc.title, doc.kind) == ("d1", " # A\n\ntext ", "T", "document")
    assert doc.metadata == {"title": "T", "year": 2020, "when": "2024-05-01"}
    (node,) = chunk_document(doc, ChunkSettings())
    assert node.ref_doc_id == "d1"
    assert node.metadata["section"] == "A"


def test_unusable_documents_are_reported_in_their_place():
    found = list(
        from_llama_documents(
            [
                Document(id_="a", text="text"),
                Document(id_="b", text="  "),
                Document(id_="a", text="again"),
                Document(id_=" ", text="text"),
                Document(id_="c", text="text", metadata={"_node_content": "x"}),
                Document(id_="d", text="text", metadata={"doc_id": "d"}),
            ]
        )
    )
    assert [found[at].doc_id for at in (0, 5)] == ["a", "d"]
    reasons = [item.reason for item in found if isinstance(item, SkippedSource)]
    assert [
        word in text for word, text in zip(("no text", "same id", "blank id", "reserved"), reasons, strict=True)
    ] == [True] * 4


def test_nodes_are_copied_unchanged():
    nodes = [
        TextNode(id_="a", text=" text ", metadata={"k": {"deep": [1]}}, embedding=[1.0, 2.0]),
        IndexNode(id_="b", text="more", index_id="i"),
    ]
    copies = nodes_as_they_are(nodes, on_skip=pytest.fail)
    assert [copy.to_dict() for copy in copies] == [node.to_dict() for node in nodes]
    assert isinstance(copies[1], IndexNode)
    copies[0].metadata["k"]["deep"].append(2)
    assert nodes[0].metadata == {"k": {"deep": [1]}}


def test_a_multimodal_node_becomes_a_text_node():
    (node,) = nodes_as_they_are(
        [Node(id_="n", text_resource=MediaResource(text="words"), metadata={"k": 1})], on_skip=pytest.fail
    )
    assert isinstance(node, TextNode)
    assert (node.node_id, node.text, node.metadata) == ("n", "words", {"k": 1})


def test_nodes_without_text_are_reported():
    skipped: list[SkippedSource] = []
    nodes = [TextNode(id_="a", text=" "), TextNode(id_="b", text="x")]
    assert [node.node_id for node in nodes_as_they_are(nodes, on_skip=skipped.append)] == ["b"]
    assert skipped == [SkippedSource("a", "the node has no text")]


@pytest.mark.parametrize(("ids", "message"), [(["a", "b", "a"], "nodes 0 and 2 share the id 'a'"), ([" "], "blank id")])
def test_ids_must_be_unique(ids, message):
    with pytest.raises(IndexingError, match=message):
        nodes_as_they_are([TextNode(id_=node_id, text="x") for node_id in ids], on_skip=pytest.fail)
