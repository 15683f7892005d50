from __future__ import annotations

import pytest
from answer_nodes import make_node
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import IndexNode, NodeWithScore, TextNode

from agentic_retriever.synthesis import assemble


def test_passages_are_numbered_with_header_and_place():
    nodes = [make_node("One.", start=7, title="A\nB", section="1 > 2", page=4), make_node("Two.")]
    first, second = assemble(nodes, max_chars=1_000)
    assert (first.number, first.header, first.text, first.offset, first.page) == (1, "A B · 1 > 2 · p. 4", "One.", 7, 4)
    assert (second.number, second.header, second.offset, second.doc_id) == (2, "", 0, "doc")


def test_a_place_that_does_not_fit_the_text_is_not_trusted():
    node = TextNode(text="stripped", start_char_idx=10, end_char_idx=99)
    (passage,) = assemble([NodeWithScore(node=node)], max_chars=100)
    assert passage.offset == 0
    assert passage.doc_id == node.node_id


@pytest.mark.parametrize(
    ("metadata", "page"),
    [
        ({"page": 2}, 2),
        ({"page_label": "7"}, 7),
        ({"page_label": "iv"}, None),
        ({"page": 0}, None),
        ({"page": True}, None),
    ],
)
def test_page(metadata, page):
    assert assemble([make_node("x", **metadata)], max_chars=100)[0].page == page


def test_blank_and_repeated_nodes_are_dropped():
    nodes = [
        make_node(" \n"),
        make_node("Same text here.", doc_id="a"),
        make_node("Same text here.\n", doc_id="b"),
        make_node("Other.", doc_id="c"),
    ]
    assert [p.doc_id for p in assemble(nodes, max_chars=1_000)] == ["a", "c"]


def test_a_node_inside_another_of_its_document_gives_way_at_the_better_rank():
    fine = make_node("B b.", start=5, doc_id="a", node_id="fine")
    middle = make_node("Middle.", doc_id="m", node_id="middle")
    window = make_node("A a. B b. C c.", start=0, doc_id="a", node_id="window")
    twin = make_node("C c.", start=10, doc_id="a", node_id="late")
    elsewhere = make_node("B b.", doc_id="z", node_id="elsewhere")
    assert [p.node_id for p in assemble([fine, middle, window, twin, elsewhere], max_chars=1_000)] == [
        "window",
        "middle",
        "elsewhere",
    ]


def test_what_does_not_fit_is_cut_at_a_sentence_and_the_rest_left_out():
    sentence = "This sentence has exactly fifty characters in it. "
    nodes = [make_node(sentence * 6 + str(i), doc_id=str(i)) for i in range(4)]
    passages = assemble(nodes, max_chars=560)
    assert [p.number for p in passages] == [1, 2]
    assert passages[0].text == sentence * 6 + "0"
    assert passages[1].text == (sentence * 5).strip()


def test_the_first_node_is_never_left_out():
    (passage,) = assemble([make_node("word " * 1_000)], max_chars=1)
    assert 0 < len(passage.text) <= 200


@given(st.lists(st.tuples(st.text(max_size=60), st.sampled_from("ab")), max_size=6), st.integers(0, 300))
def test_any_nodes_give_prefixes_of_their_texts_in_rank_order(given_nodes, max_chars):
    nodes = [make_node(text, doc_id=doc, node_id=str(i)) for i, (text, doc) in enumerate(given_nodes)]
    passages = assemble(nodes, max_chars=max_chars)
    assert [p.number for p in passages] == list(range(1, len(passages) + 1))
    assert all(p.node.node.text.startswith(p.text) for p in passages)
    assert len({p.text.strip() for p in passages}) == len(passages)
    assert bool(passages) == any(text.strip() for text, _ in given_nodes)


def test_index_nodes_and_nodes_without_score_are_taken():
    nodes = [NodeWithScore(node=IndexNode(text="t", index_id="i")), NodeWithScore(node=TextNode(text="u"), score=None)]
    assert [p.text for p in assemble(nodes, max_chars=100)] == ["t", "u"]


def test_a_near_duplicate_is_left_out_unless_its_numbers_differ():
    text = "The daily allowance for meals is EUR 48 in Germany, and receipts are not needed for any of them."
    nodes = [
        make_node(text, doc_id="a"),
        make_node(text.replace("any of them", "any of those"), doc_id="b"),
        make_node(text.replace("48", "52"), doc_id="c"),
        make_node("Hotels are booked by the travel desk for EUR 48.", doc_id="d"),
    ]
    assert [p.doc_id for p in assemble(nodes, max_chars=10_000)] == ["a", "c", "d"]


@pytest.mark.parametrize(("most", "expected"), [(None, 6), (4, 4), (1, 1), (0, 1)])
def test_the_number_of_passages_can_be_limited(most, expected):
    nodes = [make_node(f"Fact number {i}.", doc_id=str(i)) for i in range(6)]
    assert len(assemble(nodes, max_chars=10_000, max_passages=most)) == expected
