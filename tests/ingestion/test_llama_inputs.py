from __future__ import annotations

from datetime import date

import pytest
from llama_index.core.schema import Document, IndexNode, MediaResource, Node, TextNode

from agentic_retriever.errors import IndexingError
from agentic_retriever.ingestion import (
    ChunkSettings,
    SkippedSource,
    SourceDocument,
    chunk_document,
    from_llama_documents,
    nodes_as_they_are,
)


def test_documents_keep_id_text_and_metadata() -> None:
    given = Document(id_="d1", text=" # A\n\ntext ", metadata={"title": "T", "year": 2020, "when": date(2024, 5, 1)})
    (doc,) = from_llama_documents([given])
    assert isinstance(doc, SourceDocument)
    assert (doc.doc_id, doc.text, doc.title, doc.kind) == ("d1", " # A\n\ntext ", "T", "document")
    assert doc.metadata == {"title": "T", "year": 2020, "when": "2024-05-01"}
    (node,) = chunk_document(doc, ChunkSettings())
    assert node.ref_doc_id == "d1"
    assert node.metadata["section"] == "A"


def test_unusable_documents_are_reported_in_their_place() -> None:
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
    assert [found[at].doc_id for at in (0, 5)] == ["a", "d"]  # type: ignore[union-attr] - the comparison checks it
    reasons = [item.reason for item in found if isinstance(item, SkippedSource)]
    assert [
        word in text for word, text in zip(("no text", "same id", "blank id", "reserved"), reasons, strict=True)
    ] == [True] * 4


def test_nodes_are_copied_unchanged() -> None:
    nodes = [
        TextNode(id_="a", text=" text ", metadata={"k": {"deep": [1]}}, embedding=[1.0, 2.0]),
        IndexNode(id_="b", text="more", index_id="i"),
    ]
    copies = nodes_as_they_are(nodes)
    assert [copy.to_dict() for copy in copies] == [node.to_dict() for node in nodes]
    assert isinstance(copies[1], IndexNode)
    copies[0].metadata["k"]["deep"].append(2)
    assert nodes[0].metadata == {"k": {"deep": [1]}}


def test_a_multimodal_node_becomes_a_text_node() -> None:
    (node,) = nodes_as_they_are([Node(id_="n", text_resource=MediaResource(text="words"), metadata={"k": 1})])
    assert isinstance(node, TextNode)
    assert (node.node_id, node.text, node.metadata) == ("n", "words", {"k": 1})


def test_nodes_without_text_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    skipped: list[SkippedSource] = []
    nodes = [TextNode(id_="a", text=" "), TextNode(id_="b", text="x")]
    assert [node.node_id for node in nodes_as_they_are(nodes, on_skip=skipped.append)] == ["b"]
    assert skipped == [SkippedSource("a", "the node has no text")]
    assert not caplog.records
    nodes_as_they_are(nodes)
    assert "skipped node a: the node has no text" in caplog.text


@pytest.mark.parametrize(("ids", "message"), [(["a", "b", "a"], "nodes 0 and 2 share the id 'a'"), ([" "], "blank id")])
def test_ids_must_be_unique(ids: list[str], message: str) -> None:
    with pytest.raises(IndexingError, match=message):
        nodes_as_they_are([TextNode(id_=node_id, text="x") for node_id in ids])
