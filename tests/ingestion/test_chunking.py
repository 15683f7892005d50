from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import pytest
from llama_index.core.schema import MetadataMode, NodeRelationship, TextNode

from agentic_retriever.errors import ConfigError
from agentic_retriever.ingestion import ChunkSettings, PageSpan, SourceDocument, chunk_document, count_tokens, leaves_of

SMALL = ChunkSettings(chunk_size=40, chunk_overlap=12, leaf_size=16)
MakeDoc = Callable[..., SourceDocument]


def test_ids_change_with_text_title_and_place_only(make_doc: MakeDoc) -> None:
    before = chunk_document(make_doc("# A\n\nsame\n\n# B\n\nold\n"), SMALL)
    after = chunk_document(make_doc("# A\n\nsame\n\n# B\n\nnew\n"), SMALL)
    assert before[0].node_id == after[0].node_id
    assert before[1].node_id != after[1].node_id
    assert (
        chunk_document(make_doc("same"), SMALL)[0].node_id
        != chunk_document(make_doc("same", title="T"), SMALL)[0].node_id
    )
    assert before[0].node_id.startswith("doc#0000-")


def test_repeated_text_still_has_distinct_ids(make_doc: MakeDoc) -> None:
    nodes = chunk_document(make_doc("# A\n\nsame\n\n# A\n\nsame\n"), SMALL)
    assert len({node.node_id for node in nodes}) == 2


@pytest.mark.parametrize("title", ["", "Wing in a slipstream"])
def test_a_record_is_embedded_as_title_and_text(make_doc: MakeDoc, title: str) -> None:
    doc = make_doc("  an experimental study .\n", kind="jsonl", title=title, metadata={"author": "b", "year": 1958})
    (node,) = chunk_document(doc, ChunkSettings())
    assert node.get_content(MetadataMode.EMBED) == (f"{title}\n" if title else "") + "an experimental study ."
    assert (node.start_char_idx, node.end_char_idx) == (2, 25)
    assert node.metadata["year"] == 1958


def test_a_record_is_one_node_even_with_headings(make_doc: MakeDoc) -> None:
    text = "# A\n\nfirst\n\n# B\n\nsecond"
    (node,) = chunk_document(make_doc(text, kind="jsonl"), ChunkSettings())
    assert node.text == text
    assert "section" not in node.metadata
    assert len(chunk_document(make_doc(text, kind="md"), ChunkSettings())) == 2


def test_a_large_record_is_cut(make_doc: MakeDoc) -> None:
    nodes = chunk_document(make_doc("Eine Zeile Text. " * 100, kind="jsonl", title="T"), SMALL)
    assert len(nodes) > 5
    assert all(node.metadata["title"] == "T" for node in nodes)


def test_title_section_and_text_are_embedded_in_this_order(make_doc: MakeDoc) -> None:
    doc = make_doc(
        "# Guide\n\nIntro.\n\n## 1. Travel\n\n### 1.2 Approval\n\nAsk first.\n", title="Guide", metadata={"year": 2025}
    )
    intro, approval = chunk_document(doc, ChunkSettings())
    assert intro.get_content(MetadataMode.EMBED) == "Guide\n# Guide\n\nIntro."
    assert approval.metadata["section"] == "1. Travel > 1.2 Approval"
    assert approval.metadata["section_number"] == "1.2"
    assert approval.get_content(MetadataMode.EMBED) == f"Guide\n1. Travel > 1.2 Approval\n{approval.text}"
    assert approval.text.startswith("## 1. Travel")


def test_braces_in_text_and_title_are_no_template(make_doc: MakeDoc) -> None:
    (node,) = chunk_document(make_doc("{content} and {x}", title="{metadata_str}"), ChunkSettings())
    assert node.get_content(MetadataMode.EMBED) == "{metadata_str}\n{content} and {x}"


def test_the_source_relationship_names_the_document(make_doc: MakeDoc) -> None:
    (node,) = chunk_document(make_doc("text"), ChunkSettings())
    assert node.ref_doc_id == "doc"
    assert set(node.relationships) == {NodeRelationship.SOURCE}


def test_articles_and_pages(make_doc: MakeDoc) -> None:
    first, second = "Artículo 41. Uno solo.\n\nTexto del primero.", "Artículo 42. Objeto\n\nTexto del segundo."
    text = f"{first}\n\n{second}"
    pages = (PageSpan(1, 0, len(first)), PageSpan(2, len(first) + 2, len(text)))
    nodes = chunk_document(make_doc(text, kind="pdf", pages=pages), ChunkSettings())
    assert [(node.metadata["article"], node.metadata["page"]) for node in nodes] == [("41", 1), ("42", 2)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Plain words.", "text"),
        ("# Only a heading", "text"),
        ("- a\n- b", "list"),
        ("Intro:\n\n- a\n- b", "text"),
        ("Intro:\n\n| a | b |\n|---|---|\n| 1 | 2 |", "table"),
        ("Intro:\n\n```\nx\n```", "code"),
    ],
)
def test_chunk_type(make_doc: MakeDoc, text: str, expected: str) -> None:
    (node,) = chunk_document(make_doc(text), ChunkSettings())
    assert node.metadata["chunk_type"] == expected


def test_a_table_stays_whole_when_it_fits(make_doc: MakeDoc) -> None:
    table = "| clase | valor |\n|---|---|\n" + "| M1 | 12 |\n" * 4
    text = f"{'Una frase de relleno. ' * 3}\n\n{table}\n{'Otra frase de relleno. ' * 3}"
    assert count_tokens(table) <= 48
    nodes = chunk_document(make_doc(text), ChunkSettings(chunk_size=48, chunk_overlap=0, leaf_size=8))
    assert any(table.strip() in node.text for node in nodes)


def test_a_large_table_is_cut_between_rows(make_doc: MakeDoc) -> None:
    rows = [f"| fila {at} | valor {at} |" for at in range(60)]
    nodes = chunk_document(make_doc("\n".join(rows)), SMALL)
    assert len(nodes) > 5
    assert [row for node in nodes for row in node.text.split("\n")] == rows


def test_paragraphs_are_cut_at_sentences_with_whole_sentences_repeated(make_doc: MakeDoc) -> None:
    sentences = [f"This is sentence number {at} of the long paragraph." for at in range(20)]
    nodes = chunk_document(make_doc(" ".join(sentences)), SMALL)
    assert len(nodes) > 3
    for node, after in pairwise(nodes):
        assert node.text.endswith(".")
        assert after.text.startswith("This")
        repeated = node.text[-(node.end_char_idx - after.start_char_idx) :]  # type: ignore[operator] - both are set
        assert repeated in sentences


@pytest.mark.parametrize("size", range(12, 60, 4))
def test_the_limit_holds_where_the_whole_has_more_tokens_than_its_parts(make_doc: MakeDoc, size: int) -> None:
    text = "\n \n".join(["😀😀ที่", "x1"] * 30)
    assert count_tokens("😀😀ที่\n \nx1") > count_tokens("😀😀ที่") + count_tokens("\n \nx1")
    nodes = chunk_document(make_doc(text, kind="txt"), ChunkSettings(chunk_size=size, chunk_overlap=0, leaf_size=8))
    assert max(count_tokens(node.text) for node in nodes) <= size
    assert "".join("".join(node.text for node in nodes).split()) == "".join(text.split())


def test_nothing_is_repeated_across_sections(make_doc: MakeDoc) -> None:
    text = "".join(f"# H{at}\n\n{'Some words in a sentence here. ' * 4}\n\n" for at in range(4))
    nodes = chunk_document(make_doc(text), SMALL)
    assert [node.text for node in nodes if node.text.startswith("# ")] == [
        node.text for node in nodes if "# " in node.text
    ]
    assert len({node.metadata["section"] for node in nodes}) == 4


def test_a_heading_is_not_left_alone_above_a_long_paragraph(make_doc: MakeDoc) -> None:
    paragraph = " ".join(f"Sentence {at} has five words." for at in range(5))
    assert 30 < count_tokens(paragraph) <= 40
    nodes = chunk_document(make_doc(f"# A rather long heading about lights\n\n{paragraph}"), SMALL)
    assert nodes[0].text.count("Sentence") > 1


def test_front_matter_is_in_no_chunk(make_doc: MakeDoc) -> None:
    doc = make_doc("---\ntitle: T\nyear: 2020\n---\n\n# T\n\nBody.\n")
    (node,) = chunk_document(doc, ChunkSettings())
    assert node.text == "# T\n\nBody."
    assert chunk_document(make_doc("---\nyear: 2020\n---\n\nBody.\n", kind="txt"), ChunkSettings())[0].text.startswith(
        "---"
    )


def test_metadata_of_the_document_against_that_of_the_chunk(make_doc: MakeDoc) -> None:
    theirs = {"article": "9", "page": 7, "language": "xx", "file_name": "x", "chunk_type": "poem", "content_hash": "0"}
    doc = make_doc("Artículo 42. Objeto\n\nTexto.", metadata={**theirs, "section": "mine"}, source="/a/b.md", title="T")
    (node,) = chunk_document(doc, ChunkSettings())
    assert {key: node.metadata[key] for key in ("article", "page", "language", "file_name")} == {
        key: theirs[key] for key in ("article", "page", "language", "file_name")
    }
    assert node.metadata["chunk_type"] == "text"
    assert len(node.metadata["content_hash"]) == 64
    assert node.metadata["section"] == "Artículo 42. Objeto"
    assert doc.metadata["section"] == "mine"
    (plain,) = chunk_document(make_doc("Texto.", metadata={"section": "mine"}), ChunkSettings())
    assert plain.get_content(MetadataMode.EMBED) == "mine\nTexto."


def test_language_and_file_name(make_doc: MakeDoc) -> None:
    (node,) = chunk_document(make_doc("โฉนดที่ดินเป็นหนังสือสำคัญแสดงกรรมสิทธิ์ที่ดิน", source="/a/โฉนด.txt"), ChunkSettings())
    assert node.metadata["language"] == "th"
    assert node.metadata["file_name"] == "โฉนด.txt"


@pytest.mark.parametrize("text", ["", " \n\t", "---\na: 1\n---\n"])
def test_no_text_gives_no_nodes(make_doc: MakeDoc, text: str) -> None:
    assert chunk_document(make_doc(text), ChunkSettings()) == []


def test_size_replaces_the_chunk_size(make_doc: MakeDoc) -> None:
    doc = make_doc("Eine Zeile Text. " * 60)
    nodes = chunk_document(doc, ChunkSettings(), size=20)
    assert max(count_tokens(node.text) for node in nodes) <= 20
    with pytest.raises(ConfigError, match="size must be a whole number from 8"):
        chunk_document(doc, ChunkSettings(), size=0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"chunk_size": 7}, "chunk_size"),
        ({"chunk_size": True}, "chunk_size"),
        ({"chunk_size": 100, "chunk_overlap": 100, "leaf_size": 10}, "chunk_overlap"),
        ({"chunk_overlap": -1}, "chunk_overlap"),
        ({"leaf_size": 600}, "leaf_size"),
        ({"leaf_size": 16.0}, "leaf_size"),
    ],
)
def test_settings_are_checked(given: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ChunkSettings(**given)


def test_the_fingerprint_follows_the_settings() -> None:
    assert ChunkSettings().fingerprint != ChunkSettings(chunk_size=500).fingerprint
    assert ChunkSettings().fingerprint == ChunkSettings().fingerprint


@pytest.mark.parametrize(
    "text",
    [
        ("การจดทะเบียนสิทธิและนิติกรรมเกี่ยวกับอสังหาริมทรัพย์" * 4000)[:200_000],
        "a" * 200_000,
        "中文字符测试" * 33_000,
        "| a | b |\n" * 20_000,
        "line\n" * 40_000,
        "```a\n" * 10_000,
    ],
    ids=["thai", "letters", "chinese", "table", "lines", "fences"],
)
def test_long_texts_take_linear_time(make_doc: MakeDoc, text: str) -> None:
    began = time.perf_counter()
    nodes = chunk_document(make_doc(text, kind="txt"), ChunkSettings())
    # Half a second or less when nothing else runs; quadratic work would take minutes.
    assert time.perf_counter() - began < 4
    assert max(count_tokens(node.text) for node in nodes) <= 512


def test_leaves_of_a_node_without_offsets() -> None:
    node = TextNode(id_="n", text="One sentence here. " * 20, metadata={"k": 1})
    leaves = leaves_of(node, SMALL)
    assert len(leaves) > 3
    assert all(leaf.start_char_idx is None and leaf.end_char_idx is None for leaf in leaves)
    assert all(leaf.metadata == {"k": 1} and NodeRelationship.SOURCE not in leaf.relationships for leaf in leaves)


def test_leaves_copy_metadata_and_templates(make_doc: MakeDoc) -> None:
    (node,) = chunk_document(make_doc("Intro words.\n\n- a\n- b", title="T"), ChunkSettings())
    before = node.to_dict()
    leaves = leaves_of(node, ChunkSettings(leaf_size=8))
    assert [leaf.metadata["chunk_type"] for leaf in leaves] == ["text", "list"] or len(leaves) == 1
    assert leaves[0].get_content(MetadataMode.EMBED).startswith("T\n")
    assert leaves[0].metadata is not node.metadata
    assert node.to_dict() == before
