from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import NodeWithScore, TextNode

from agentic_retriever.retrievers.planner import PARTS_KEY, merge_parts
from agentic_retriever.text import Tokenizer

EN = Tokenizer("en")


def hit(node_id, score, text="words"):
    return NodeWithScore(node=TextNode(id_=node_id, text=text), score=score)


def merged(found, query="q", top_k=10):
    return merge_parts(found, query, tokenizer=EN, top_k=top_k).nodes


def test_the_score_is_similarity_and_overlap():
    found = {
        "red apple": [hit("a", 0.9, "red apple"), hit("b", 0.5, "red wall"), hit("c", 0.1, "sea")],
        "apple": [hit("b", 7.0, "red wall"), hit("c", 4.0, "sea")],
    }
    result = merge_parts(found, "red apple", tokenizer=EN, top_k=10)
    similarity, overlap = result.sources["similarity"], result.sources["overlap"]
    got = {n.node_id: (n.score, similarity[n.node_id], overlap[n.node_id]) for n in result.nodes}
    assert got["a"] == (1.0, 1.0, 1.0)
    assert got["b"] == (0.7 * 1.0 + 0.3 * 0.5, 1.0, 0.5)
    assert got["c"] == (0.0, 0.0, 0.0)


def test_each_node_names_the_questions_that_found_it():
    source = hit("a", 0.9)
    before = source.node.to_json()
    found = {"part": [source, hit("b", 0.1)], "q": [hit("a", 0.3), hit("c", 0.2)]}
    parts = {c.node.node_id: c.node.metadata[PARTS_KEY] for c in merged(found)}
    assert parts == {"a": ["q", "part"], "b": ["part"], "c": ["q"]}
    assert source.node.to_json() == before
    first = merged(found)[0].node
    assert PARTS_KEY in first.excluded_llm_metadata_keys
    assert PARTS_KEY in first.excluded_embed_metadata_keys


def test_every_question_keeps_its_best_node():
    many = [hit(f"m{i:02d}", 1 - i / 1000, "match all words") for i in range(20)]
    found = {"match all words": many, "second": [hit("s", 0.2, "x")], "third": [hit("t", 0.2, "x")]}
    ids = [c.node.node_id for c in merged(found, "match all words", top_k=4)]
    assert ids == ["m00", "m01", "s", "t"]
    assert [c.node.node_id for c in merged(found, "match all words", top_k=1)] == ["m00"]
    assert [c.node.node_id for c in merged(found, "match all words", top_k=2)] == ["m00", "s"]


SCORES = st.none() | st.floats(allow_nan=True, allow_infinity=True)
LISTS = st.lists(st.tuples(st.sampled_from("abcdefgh"), SCORES), max_size=8)


@given(st.dictionaries(st.sampled_from(["q", "red", "apple pie"]), LISTS, min_size=1), st.integers(1, 6))
def test_any_lists_give_finite_unique_candidates(lists, top_k):
    found = {part: [hit(i, s) for i, s in entries] for part, entries in lists.items()}
    got = merged(found, top_k=top_k)
    ids = [c.node.node_id for c in got]
    every = {i for entries in lists.values() for i, _ in entries}
    assert len(set(ids)) == len(ids) == min(top_k, len(every))
    assert set(ids) <= every
    assert all(math.isfinite(c.score) and 0 <= c.score <= 1 for c in got)
