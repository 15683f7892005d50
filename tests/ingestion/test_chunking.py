import os
from itertools import pairwise
from pathlib import Path

import llama_index.core
import pytest
import tiktoken
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from llama_index.core.schema import MetadataMode, NodeRelationship, TextNode
from waiting import within

from agentic_retriever.errors import ConfigError, IndexingError
from agentic_retriever.ingestion import chunking as tokens
from agentic_retriever.ingestion.chunking import ChunkSettings, chunk_document, count_tokens, leaf_nodes
from agentic_retriever.ingestion.documents import PageSpan, parse_front_matter

SMALL = ChunkSettings(chunk_size=40, chunk_overlap=12, leaf_size=16)
LONG = "Texto de la sección, con varias palabras. " * 22


def test_ids_change_with_text_title_and_place_only(make_doc):
    same = f"# A\n\n{'Some words in a sentence. ' * 5}\n\n# B\n\n{'More of them here. ' * 6}"
    before = chunk_document(make_doc(f"{same}old\n"), SMALL)
    after = chunk_document(make_doc(f"{same}new\n"), SMALL)
    assert before[0].node_id == after[0].node_id
    assert before[1].node_id != after[1].node_id
    assert (
        chunk_document(make_doc("same"), SMALL)[0].node_id
        != chunk_document(make_doc("same", title="T"), SMALL)[0].node_id
    )
    assert before[0].node_id.startswith("doc#0000-")
    twice = f"# A\n\n{'Some words in a sentence. ' * 5}\n\n" * 2
    assert len({node.node_id for node in chunk_document(make_doc(twice), SMALL)}) == 2


@pytest.mark.parametrize("title", ["", "Wing in a slipstream"])
def test_a_record_is_embedded_as_title_and_text(make_doc, title):
    doc = make_doc("  an experimental study .\n", kind="jsonl", title=title, metadata={"author": "b", "year": 1958})
    (node,) = chunk_document(doc, ChunkSettings())
    assert node.get_content(MetadataMode.EMBED) == (f"{title}\n" if title else "") + "an experimental study ."
    assert (node.start_char_idx, node.end_char_idx, node.metadata["year"]) == (2, 25, 1958)


def test_a_record_is_one_node_even_with_headings_unless_it_is_large(make_doc):
    text = "# A\n\nfirst\n\n# B\n\nsecond"
    (node,) = chunk_document(make_doc(text, kind="jsonl"), ChunkSettings())
    assert node.text == text
    assert "section" not in node.metadata
    nodes = chunk_document(make_doc("Eine Zeile Text. " * 100, kind="jsonl", title="T"), SMALL)
    assert len(nodes) > 5
    assert all(node.metadata["title"] == "T" for node in nodes)


def test_title_section_and_text_are_embedded_in_this_order_and_braces_are_no_template(make_doc):
    intro_text, ask = "An introduction. " * 40, "Ask first. " * 40
    text = f"# Guide\n\n{intro_text}\n\n## 1. Travel\n\n### 1.2 Approval\n\n{ask}\n"
    intro, approval = chunk_document(make_doc(text, title="Guide", metadata={"year": 2025}), ChunkSettings())
    assert intro.get_content(MetadataMode.EMBED) == f"Guide\n# Guide\n\n{intro_text.strip()}"
    assert approval.metadata["section"] == "1. Travel > 1.2 Approval"
    assert approval.metadata["heading_hierarchy"] == ["1. Travel", "1.2 Approval"]
    assert (approval.metadata["parent"], approval.metadata["section_number"]) == ("1. Travel", "1.2")
    assert approval.get_content(MetadataMode.EMBED) == f"Guide\n1. Travel > 1.2 Approval\n{approval.text}"
    assert approval.text.startswith("## 1. Travel")
    (node,) = chunk_document(make_doc("{content} and {x}", title="{metadata_str}"), ChunkSettings())
    assert node.get_content(MetadataMode.EMBED) == "{metadata_str}\n{content} and {x}"
    assert (node.ref_doc_id, set(node.relationships)) == ("doc", {NodeRelationship.SOURCE})


def test_articles_and_pages(make_doc):
    first, second = f"Artículo 41. Uno solo.\n\n{LONG}", f"Artículo 42. Objeto\n\n{LONG}"
    text = f"{first}\n\n{second}"
    pages = (PageSpan(1, 0, len(first)), PageSpan(2, len(first) + 2, len(text)))
    nodes = chunk_document(make_doc(text, kind="pdf", pages=pages), ChunkSettings())
    assert [(node.metadata["article_number"], node.metadata["page"]) for node in nodes] == [("41", 1), ("42", 2)]


def test_short_sections_share_a_node_that_knows_where_each_begins_and_is_found_by_all_their_numbers(make_doc):
    text = (
        f"# Anexo\n\n## 6. Luces\n\n### 6.1. Carretera\n\n{LONG}\n\n### 6.2. Cruce\n\n#### 6.2.1. Presencia\n\n"
        f"Obligatoria.\n\n#### 6.2.2. Número\n\nDos. Véase el artículo 12.\n\n### 6.3. Freno\n\n{LONG}\n"
    )
    beam, dipped, brake = chunk_document(make_doc(text, title="Anexo"), ChunkSettings())
    assert [beam.metadata["section_number"], brake.metadata["section_number"]] == ["6.1", "6.3"]
    assert dipped.metadata["section"] == "6. Luces > 6.2. Cruce"
    assert dipped.metadata["section_number"] == ["6.2.1", "6.2.2"]
    assert dipped.metadata["cross_references"] == ["article 12"]
    paths = {dipped.text[at:].split("\n")[0]: path for at, path in dipped.metadata["section_starts"]}
    assert paths == {
        "### 6.2. Cruce": "6. Luces > 6.2. Cruce > 6.2.1. Presencia",
        "#### 6.2.2. Número": "6. Luces > 6.2. Cruce > 6.2.2. Número",
    }
    assert "section_starts" not in beam.metadata
    articles = f"Artículo 1. Uno\n\nBreve.\n\nArtículo 2. Dos\n\nBreve.\n\nArtículo 3. Tres\n\n{LONG}"
    short, _ = chunk_document(make_doc(articles), ChunkSettings())
    assert short.metadata["article_number"] == ["1", "2"]


def test_a_short_section_is_joined_with_short_ones_and_only_a_stray_line_with_a_long_one(make_doc):
    def parts(*tokens, around=""):
        text = "\n\n".join(f"### {name}\n\n{'word ' * (n - 4)}" for name, n in zip("ABCDEF", tokens, strict=False))
        nodes = chunk_document(make_doc(f"# T\n\n{around}## P\n\n{text}"), ChunkSettings())
        assert all(count_tokens(node.text) <= 512 for node in nodes)
        return ["".join(letter for letter in "ABCDEF" if f"# {letter}\n" in node.text) for node in nodes]

    part = f"## O\n\n{LONG}\n\n"
    assert parts(60, 60, 200, 60, 60, around=part)[-3:] == ["AB", "C", "DE"]
    assert parts(60, 300, around=part)[-2:] == ["A", "B"]
    assert parts(20, 200, 20, 200, 20, around=part)[-2:] == ["AB", "CDE"]
    assert parts(60, 120, 200, around=part)[-2:] == ["AB", "C"]
    assert parts(*[40] * 6, around=part)[-2:] == ["ABC", "DEF"]
    # What does not fit into one node, and a whole document, is about several things.
    assert parts(60, 60, 300, 60, 60, around=part)[-5:] == ["A", "B", "C", "D", "E"]
    assert parts(60, 60, 60) == ["A", "B", "C"]
    assert parts(30, 30, 300, 10, 300, 30, around=part)[-4:] == ["AB", "C", "DE", "F"]
    assert parts(300, 500, 500) == ["A", "B", "C"]


def test_leaves_keep_to_the_sections_of_their_node(make_doc):
    text = f"# T\n\n## 1. O\n\n{LONG}\n\n## 6.2. Cruce\n\n### 6.2.1. Presencia\n\nSí.\n\n### 6.2.2. Número\n\nDos.\n"
    node = chunk_document(make_doc(text, title="T"), ChunkSettings())[-1]
    leaves = leaf_nodes(node, ChunkSettings())
    assert [leaf.text.split("\n")[-1] for leaf in leaves] == ["Sí.", "Dos."]
    assert all(leaf.text == text[leaf.start_char_idx : leaf.end_char_idx] for leaf in leaves)
    for foreign in ("a", [1, 2], [["x", 1]], [[3]], {"a": 1}, [[9, "Later"]], [[99_999, "Behind"]]):
        node.metadata["section_starts"] = foreign
        assert "".join("".join(leaf.text.split()) for leaf in leaf_nodes(node, ChunkSettings())) == "".join(
            node.text.split()
        )


def test_the_end_of_a_long_section_is_not_left_alone(make_doc):
    text = "Seven words make up this short sentence. " * 70
    assert 512 < count_tokens(text) < 600
    nodes = chunk_document(make_doc(text), ChunkSettings(chunk_overlap=0))
    assert [count_tokens(node.text) > 200 for node in nodes] == [True, True]


def test_rows_of_a_table_that_is_cut_are_embedded_below_its_head_and_stay_spans_of_the_source(make_doc):
    rows = "".join(f"| fila {at} | valor {at} |\n" for at in range(30))
    doc = make_doc(f"Los valores son estos:\n\n| clase | valor |\n|---|---|\n{rows}\nFin del texto.")
    first, *others = chunk_document(doc, SMALL)
    assert "| clase | valor |" in first.text
    assert "table_header" not in first.metadata
    tables = [node for node in others if node.text.startswith("|")]
    assert len(tables) > 3
    for node in tables:
        assert node.get_content(MetadataMode.EMBED) == f"| clase | valor |\n|---|---|\n{node.text}"
        assert node.text == doc.text[node.start_char_idx : node.end_char_idx]


@pytest.mark.parametrize(("text", "expected"), [
    ("Plain words.", "text"), ("# Only a heading", "text"), ("- a\n- b", "list"), ("Intro:\n\n- a\n- b", "text"),
    ("Intro:\n\n| a | b |\n|---|---|\n| 1 | 2 |", "table"), ("Intro:\n\n```\nx\n```", "code"),
])  # fmt: skip
def test_chunk_type(make_doc, text, expected):
    (node,) = chunk_document(make_doc(text), ChunkSettings())
    assert node.metadata["chunk_type"] == expected


def test_a_table_stays_whole_when_it_fits_and_is_cut_between_rows_else(make_doc):
    table = "| clase | valor |\n|---|---|\n" + "| M1 | 12 |\n" * 4
    text = f"{'Una frase de relleno. ' * 3}\n\n{table}\n{'Otra frase de relleno. ' * 3}"
    assert count_tokens(table) <= 48
    nodes = chunk_document(make_doc(text), ChunkSettings(chunk_size=48, chunk_overlap=0, leaf_size=8))
    assert any(table.strip() in node.text for node in nodes)
    rows = [f"| fila {at} | valor {at} |" for at in range(60)]
    nodes = chunk_document(make_doc("\n".join(rows)), SMALL)
    assert len(nodes) > 5
    assert [row for node in nodes for row in node.text.split("\n")] == rows


def test_paragraphs_are_cut_at_sentences_with_whole_sentences_repeated(make_doc):
    sentences = [f"This is sentence number {at} of the long paragraph." for at in range(20)]
    nodes = chunk_document(make_doc(" ".join(sentences)), SMALL)
    assert len(nodes) > 3
    for node, after in pairwise(nodes):
        assert node.text.endswith(".")
        assert after.text.startswith("This")
        repeated = node.text[-(node.end_char_idx - after.start_char_idx) :]
        assert repeated in sentences


@pytest.mark.parametrize("size", range(12, 60, 4))
def test_the_limit_holds_where_the_whole_has_more_tokens_than_its_parts(make_doc, size):
    text = "\n \n".join(["😀😀ที่", "x1"] * 30)
    assert count_tokens("😀😀ที่\n \nx1") > count_tokens("😀😀ที่") + count_tokens("\n \nx1")
    nodes = chunk_document(make_doc(text, kind="txt"), ChunkSettings(chunk_size=size, chunk_overlap=0, leaf_size=8))
    assert max(count_tokens(node.text) for node in nodes) <= size
    assert "".join("".join(node.text for node in nodes).split()) == "".join(text.split())


def test_nothing_is_repeated_across_sections_and_no_heading_left_alone(make_doc):
    text = "".join(f"# H{at}\n\n{'Some words in a sentence here. ' * 5}\n\n" for at in range(4))
    nodes = chunk_document(make_doc(text), SMALL)
    assert [node.text for node in nodes if node.text.startswith("# ")] == [
        node.text for node in nodes if "# " in node.text
    ]
    assert len({node.metadata["section"] for node in nodes}) == 4
    paragraph = " ".join(f"Sentence {at} has five words." for at in range(5))
    assert 30 < count_tokens(paragraph) <= 40
    nodes = chunk_document(make_doc(f"# A rather long heading about lights\n\n{paragraph}"), SMALL)
    assert nodes[0].text.count("Sentence") > 1


def test_front_matter_is_in_no_chunk_and_language_and_file_name_are(make_doc):
    doc = make_doc("---\ntitle: T\nyear: 2020\n---\n\n# T\n\nBody.\n")
    (node,) = chunk_document(doc, ChunkSettings())
    assert node.text == "# T\n\nBody."
    assert chunk_document(make_doc("---\nyear: 2020\n---\n\nBody.\n", kind="txt"), ChunkSettings())[0].text.startswith(
        "---"
    )
    (node,) = chunk_document(make_doc("โฉนดที่ดินเป็นหนังสือสำคัญแสดงกรรมสิทธิ์ที่ดิน", source="/a/โฉนด.txt"), ChunkSettings())
    assert (node.metadata["language"], node.metadata["file_name"]) == ("th", "โฉนด.txt")


def test_metadata_of_the_document_against_that_of_the_chunk(make_doc):
    theirs = {
        "article_number": "9", "parent": "theirs", "page": 7, "language": "xx", "file_name": "x",
        "chunk_type": "poem", "content_hash": "0",
    }  # fmt: skip
    doc = make_doc("Artículo 42. Objeto\n\nTexto.", metadata={**theirs, "section": "mine"}, source="/a/b.md", title="T")
    (node,) = chunk_document(doc, ChunkSettings())
    kept = ("article_number", "parent", "page", "language", "file_name")
    assert {key: node.metadata[key] for key in kept} == {key: theirs[key] for key in kept}
    assert (node.metadata["chunk_type"], len(node.metadata["content_hash"])) == ("text", 64)
    assert (node.metadata["section"], doc.metadata["section"]) == ("Artículo 42. Objeto", "mine")
    (plain,) = chunk_document(make_doc("Texto.", metadata={"section": "mine"}), ChunkSettings())
    assert plain.get_content(MetadataMode.EMBED) == "mine\nTexto."


@pytest.mark.parametrize("text", ["", " \n\t", "---\na: 1\n---\n"])
def test_no_text_gives_no_nodes(make_doc, text):
    assert chunk_document(make_doc(text), ChunkSettings()) == []


def test_size_replaces_the_chunk_size(make_doc):
    doc = make_doc("Eine Zeile Text. " * 60)
    assert max(count_tokens(node.text) for node in chunk_document(doc, ChunkSettings(), size=20)) <= 20
    with pytest.raises(ConfigError, match="size must be a whole number from 8"):
        chunk_document(doc, ChunkSettings(), size=0)


@pytest.mark.parametrize(("given", "message"), [
    ({"chunk_size": 7}, "chunk_size"), ({"chunk_size": True}, "chunk_size"),
    ({"chunk_size": 100, "chunk_overlap": 100, "leaf_size": 10}, "chunk_overlap"),
    ({"chunk_overlap": -1}, "chunk_overlap"), ({"leaf_size": 600}, "leaf_size"),
    ({"leaf_size": 16.0}, "leaf_size"),
])  # fmt: skip
def test_settings_are_checked(given, message):
    with pytest.raises(ConfigError, match=message):
        ChunkSettings(**given)
    assert ChunkSettings().fingerprint == ChunkSettings().fingerprint != ChunkSettings(chunk_size=500).fingerprint


@pytest.mark.parametrize(
    "text",
    [
        ("การจดทะเบียนสิทธิและนิติกรรมเกี่ยวกับอสังหาริมทรัพย์" * 4000)[:200_000], "a" * 200_000, "中文字符测试" * 33_000,
        "| a | b |\n" * 20_000, "line\n" * 40_000, "```a\n" * 10_000,
    ],
    ids=["thai", "letters", "chinese", "table", "lines", "fences"],
)  # fmt: skip
def test_long_texts_take_linear_time(make_doc, text):
    with within(4):  # half a second or less when nothing else runs; quadratic work would take minutes
        nodes = chunk_document(make_doc(text, kind="txt"), ChunkSettings())
    assert max(count_tokens(node.text) for node in nodes) <= 512


def test_leaves_have_the_metadata_templates_and_offsets_of_their_node(make_doc):
    node = TextNode(id_="n", text="One sentence here. " * 20, metadata={"k": 1})
    leaves = leaf_nodes(node, SMALL)
    assert len(leaves) > 3
    assert all(leaf.start_char_idx is None and leaf.end_char_idx is None for leaf in leaves)
    assert all(leaf.metadata == {"k": 1} and NodeRelationship.SOURCE not in leaf.relationships for leaf in leaves)
    (node,) = chunk_document(make_doc("Intro words.\n\n- a\n- b", title="T"), ChunkSettings())
    before = node.to_dict()
    leaves = leaf_nodes(node, ChunkSettings(leaf_size=8))
    assert [leaf.text for leaf in leaves] == ["Intro words.", "- a\n- b"] or len(leaves) == 1
    assert leaves[0].get_content(MetadataMode.EMBED).startswith("T\n")
    assert leaves[0].metadata is not node.metadata
    assert node.to_dict() == before


PIECES = st.sampled_from(
    [
        "# Uno\n", "## Dos\n", "### 6.2.1. Presencia\n", "Título\n======\n", "\nArtículo 42. Objeto\n\n",
        "Artículo 43. El plazo será de diez días desde la notificación.\n", "1. Buy milk\n", "1.2 Scope\n", "\n\n",
        "   \n", "\r\n", "| a | b |\n|---|---|\n", "| valor largo de celda | otro valor |\n" * 6,
        "```\nx = 1\n\ny = 2\n```\n", "```\n", "- punto de la lista\n- otro punto\n", "---\n", "***\n",
        "\u00a0\u3000", "…", "x" * 90, "😀👨\u200d👩\u200d👧",
        "Una frase corta. Otra frase, algo más larga que la primera. ¿Y una pregunta?\n",
        "The quick brown fox jumps over the lazy dog, and then it rests for a while in the sun. " * 3 + "\n",
        "โฉนดที่ดินเป็นหนังสือสำคัญแสดงกรรมสิทธิ์ที่ดิน" * 3, "พื้นที่ ๕ ไร่ ๒ งาน\n", "中文没有空格的句子。第二句话也在这里。",
    ]
)  # fmt: skip
TEXTS = st.lists(st.one_of(PIECES, st.text(max_size=12)), max_size=14).map("".join)
SIZES = st.sampled_from([(8, 0), (16, 5), (40, 12), (120, 30), (512, 50)])
KINDS = st.sampled_from(["md", "txt", "pdf", "jsonl", "document"])


def body_start(doc):
    front = parse_front_matter(doc.text) if doc.kind == "md" else None
    return front.end if front else 0


def check_spans(text, nodes, start, end, limit):
    covered = [False] * len(text)
    for node in nodes:
        assert node.start_char_idx is not None
        assert node.end_char_idx is not None
        assert node.text == text[node.start_char_idx : node.end_char_idx]
        assert node.text
        assert node.text == node.text.strip()
        # A character such as an emoji is up to four tokens by itself, so 8 always holds one.
        assert count_tokens(node.text) <= limit
        for at in range(node.start_char_idx, node.end_char_idx):
            covered[at] = True
    assert all(covered[at] or text[at].isspace() for at in range(start, end))


@given(text=TEXTS, sizes=SIZES, kind=KINDS)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_chunk_invariants(text, sizes, kind, make_doc):
    size, overlap = sizes
    doc = make_doc(text, kind=kind)
    nodes = chunk_document(doc, ChunkSettings(chunk_size=size, chunk_overlap=overlap, leaf_size=8))
    check_spans(text, nodes, body_start(doc), len(text), size)
    again = chunk_document(doc, ChunkSettings(chunk_size=size, chunk_overlap=overlap, leaf_size=8))
    assert [node.to_dict() for node in nodes] == [node.to_dict() for node in again]
    ids = [node.node_id for node in nodes]
    assert len(set(ids)) == len(ids)
    spans = [(node.start_char_idx, node.end_char_idx) for node in nodes]
    assert spans == sorted(set(spans))
    assert all(one[1] < two[1] for one, two in pairwise(spans))
    if overlap == 0:
        assert all(one[1] <= two[0] for one, two in pairwise(spans))
    if kind == "jsonl" and text.strip() and count_tokens(text.strip()) <= size:
        assert [node.text for node in nodes] == [text.strip()]


@given(text=TEXTS)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_leaf_invariants(text, make_doc):
    for node in chunk_document(make_doc(text), SMALL):
        leaves = leaf_nodes(node, SMALL)
        check_spans(text, leaves, node.start_char_idx or 0, node.end_char_idx or 0, SMALL.leaf_size)
        assert [leaf.node_id for leaf in leaves] == [f"{node.node_id}/L{at:02d}" for at in range(len(leaves))]
        assert all(leaf.parent_node is not None and leaf.parent_node.node_id == node.node_id for leaf in leaves)
        assert all(leaf.ref_doc_id == "doc" for leaf in leaves)


BUNDLED = Path(llama_index.core.__file__).parent / "_static" / "tiktoken_cache"


@pytest.fixture(scope="module")
def reference():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(BUNDLED))
        return tiktoken.get_encoding("cl100k_base")


@given(text=st.text(max_size=200))
@example(text="I've 1234567 cats!!\n\n  ok")
@example(text="การจดทะเบียน")
@example(text="Señalización luminosa, 42 €")
@example(text="中文 字符")
@example(text="<|endoftext|>")
def test_counts_are_those_of_cl100k_base(reference, text):
    assert count_tokens(text) == len(reference.encode_ordinary(text))


def test_counting_touches_nothing_global_and_a_missing_file_is_a_clear_error(monkeypatch):
    before, environment = llama_index.core.global_tokenizer, dict(os.environ)
    tokens._encoding.cache_clear()
    assert count_tokens("hello world") == 2
    assert llama_index.core.global_tokenizer is before
    assert dict(os.environ) == environment
    monkeypatch.setattr(tokens, "_RANKS_FILE", "absent")
    tokens._encoding.cache_clear()
    with pytest.raises(IndexingError, match="reinstall"):
        count_tokens("x")


@given(text=st.text(min_size=1, max_size=300), limit=st.integers(8, 40))
@settings(max_examples=150)
def test_cuts_move_on_and_keep_the_limit(text, limit):
    start = 0
    while start < len(text):
        end = tokens.take(text, start, len(text), limit)
        assert start < end <= len(text)
        assert end - start == 1 or count_tokens(text[start:end].strip()) <= limit
        start = end


@pytest.mark.parametrize("limit", range(8, 40, 3))
def test_cuts_keep_marks_and_leading_vowels_with_their_letter(limit):
    text = "ที่ดินเกษตรกรรมน้ำ" * 40
    start = 0
    while start < len(text):
        end = tokens.take(text, start, len(text), limit)
        if end < len(text):
            assert text[end] not in "ิีึืุู่้๊๋์ั็ำ"
            assert text[end - 1] not in "เแโใไ"
        start = end


def test_cuts_prefer_white_space():
    text = "palabra " * 200
    assert text[tokens.take(text, 0, len(text), 30) - 1] == " "
