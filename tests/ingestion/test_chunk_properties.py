from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_retriever.ingestion import ChunkSettings, SourceDocument, chunk_document, count_tokens, leaves_of
from agentic_retriever.ingestion.front_matter import parse_front_matter

if TYPE_CHECKING:
    from llama_index.core.schema import TextNode

SMALL = ChunkSettings(chunk_size=40, chunk_overlap=12, leaf_size=16)

PIECES = st.sampled_from(
    [
        "# Uno\n",
        "## Dos\n",
        "### 6.2.1. Presencia\n",
        "Título\n======\n",
        "\nArtículo 42. Objeto\n\n",
        "Artículo 43. El plazo será de diez días desde la notificación.\n",
        "1. Buy milk\n",
        "1.2 Scope\n",
        "\n\n",
        "   \n",
        "\r\n",
        "| a | b |\n|---|---|\n",
        "| valor largo de celda | otro valor |\n" * 6,
        "```\nx = 1\n\ny = 2\n```\n",
        "```\n",
        "- punto de la lista\n- otro punto\n",
        "Una frase corta. Otra frase, algo más larga que la primera. ¿Y una pregunta?\n",
        "The quick brown fox jumps over the lazy dog, and then it rests for a while in the sun. " * 3 + "\n",
        "โฉนดที่ดินเป็นหนังสือสำคัญแสดงกรรมสิทธิ์ที่ดิน" * 3,
        "พื้นที่ ๕ ไร่ ๒ งาน\n",
        "中文没有空格的句子。第二句话也在这里。",
        "x" * 90,
        "😀👨‍👩‍👧",
        "---\n",
        "***\n",
        "\u00a0\u3000",
        "…",
    ]
)
TEXTS = st.lists(st.one_of(PIECES, st.text(max_size=12)), max_size=14).map("".join)
SIZES = st.sampled_from([(8, 0), (16, 5), (40, 12), (120, 30), (512, 50)])
KINDS = st.sampled_from(["md", "txt", "pdf", "jsonl", "document"])


def document(text: str, kind: str = "md", title: str = "") -> SourceDocument:
    return SourceDocument(doc_id="doc", text=text, metadata={}, source="", root="", title=title, kind=kind)


def body_start(doc: SourceDocument) -> int:
    front = parse_front_matter(doc.text) if doc.kind == "md" else None
    return front.end if front else 0


def check_spans(text: str, nodes: list[TextNode], start: int, end: int, limit: int) -> None:
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
@settings(max_examples=300, deadline=None)
def test_chunk_invariants(text: str, sizes: tuple[int, int], kind: str) -> None:
    size, overlap = sizes
    doc = document(text, kind)
    nodes = chunk_document(doc, ChunkSettings(chunk_size=size, chunk_overlap=overlap, leaf_size=8))
    check_spans(text, nodes, body_start(doc), len(text), size)
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
@settings(max_examples=100, deadline=None)
def test_leaf_invariants(text: str) -> None:
    for node in chunk_document(document(text), SMALL):
        leaves = leaves_of(node, SMALL)
        check_spans(text, leaves, node.start_char_idx or 0, node.end_char_idx or 0, SMALL.leaf_size)
        assert [leaf.node_id for leaf in leaves] == [f"{node.node_id}/L{at:02d}" for at in range(len(leaves))]
        assert all(leaf.parent_node is not None and leaf.parent_node.node_id == node.node_id for leaf in leaves)
        assert all(leaf.ref_doc_id == "doc" for leaf in leaves)


@given(text=TEXTS)
@settings(max_examples=50, deadline=None)
def test_the_same_document_gives_the_same_nodes(text: str) -> None:
    one, two = (chunk_document(document(text), SMALL) for _ in range(2))
    assert [node.to_dict() for node in one] == [node.to_dict() for node in two]
