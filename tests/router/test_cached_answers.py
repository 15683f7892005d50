"""Answers in the cache: written and read whole, copied for each caller, never older than their index."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import math
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import made_up_values
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.schema import Document, IndexNode, NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode
from made_up_values import COUNTS, NAMES, NUMBERS, TEXTS, answers
from small_indexes import GOOD, QUESTION

from agentic_retriever.pipeline.answers import (
    MAX_CHARS,
    AnswerCodec,
    AnswerStream,
    copied_answer,
    warm_outcome,
    worth_keeping,
)
from agentic_retriever.schema import Answer, Degradation, Tier
from agentic_retriever.testing import FakeLLM

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)
RELATED = st.builds(RelatedNodeInfo, node_id=NAMES, metadata=st.dictionaries(NAMES, PLAIN, max_size=2))


@st.composite
def nodes(draw):
    values = {
        "id_": draw(NAMES),
        "text": draw(st.text(alphabet=st.characters(), max_size=30)),
        "metadata": draw(st.dictionaries(NAMES, PLAIN, max_size=3)),
        "relationships": draw(
            st.fixed_dictionaries(
                {}, optional={NodeRelationship.SOURCE: RELATED, NodeRelationship.CHILD: st.lists(RELATED, max_size=2)}
            )
        ),
        "excluded_llm_metadata_keys": draw(st.lists(NAMES, max_size=2)),
        "start_char_idx": draw(st.none() | COUNTS),
        "embedding": draw(st.none() | st.lists(NUMBERS, max_size=3)),
    }
    node = IndexNode(index_id="i", **values) if draw(st.booleans()) else TextNode(**values)
    return NodeWithScore(node=node, score=draw(st.none() | NUMBERS))


ANSWERS = answers(nodes())


def same(one, other):
    assert dataclasses.replace(one, nodes=()) == dataclasses.replace(other, nodes=())
    assert one.to_dict() == other.to_dict()
    assert [type(n.node) for n in one.nodes] == [type(n.node) for n in other.nodes]
    assert [n.to_dict() for n in one.nodes] == [n.to_dict() for n in other.nodes]


@pytest.fixture
def answer():
    node = TextNode(
        text="The cat sleeps.", metadata={"tags": ["x"], "retrieval": {"dense": 0.5}},
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id="doc", metadata={"a": [1]})},
    )  # fmt: skip
    made = made_up_values.answer("It sleeps [1].")
    return dataclasses.replace(made, nodes=(NodeWithScore(node=node, score=0.5),), degraded=())


@settings(max_examples=150, deadline=None)
@given(ANSWERS)
def test_answers_come_back_whole(answer):
    data = AnswerCodec().encode(answer)
    json.loads(data.decode("utf-8"))
    same(AnswerCodec().decode(data), answer)


@settings(max_examples=60, deadline=None)
@given(ANSWERS)
def test_copies_are_equal(answer):
    same(copied_answer(answer), answer)


def test_every_field_is_written(answer):
    row = json.loads(AnswerCodec().encode(answer))
    assert set(row) - {"format"} == {field.name for field in dataclasses.fields(Answer)}


def test_answers_of_the_router_come_back_whole(make):
    texts = {"cats": "The cat sleeps sixteen hours a day.", "dogs": "The dog barks at the postman."}
    sources = [Document(text=text, doc_id=name, metadata={"year": 2020}) for name, text in texts.items()]
    router = make({"animals": sources}, config={"cache_max_entries": 0})
    question = "How many hours does the cat sleep, and whom does the dog bark at?"
    for strategy in ("vector", "hybrid", "metadata", "planner", None):
        answer = router.query(question, strategy=strategy)
        assert answer.nodes
        same(AnswerCodec().decode(AnswerCodec().encode(answer)), answer)


@pytest.mark.parametrize("value", [math.nan, math.inf, b"bytes", object(), (1, 2), {1: 2}, {1, 2}, np.float32(1)])
def test_what_json_cannot_hold_is_refused(answer, value):
    answer.nodes[0].node.metadata["odd"] = value
    with pytest.raises(ValueError, match=r"JSON|text"):
        AnswerCodec().encode(answer)


def test_objects_and_foreign_classes_of_nodes_are_refused(answer):
    class Mine(TextNode):
        pass

    for node in (IndexNode(text="x", index_id="i", obj=TextNode(text="y")), Mine(text="x"), Document(text="x")):
        odd = dataclasses.replace(answer, nodes=(NodeWithScore(node=node, score=1.0),))
        with pytest.raises(ValueError, match="JSON"):
            AnswerCodec().encode(odd)


@pytest.mark.parametrize(
    "data", [b"", b"null", b"[]", b"{}", b'{"format":1}', b'{"format":2}', b"\xff", b"[" * 100_000]
)
def test_other_bytes_are_refused(data):
    with pytest.raises(ValueError):
        AnswerCodec().decode(data)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_damaged_answer_is_refused_or_an_answer(data):
    """Nothing but ValueError, whatever is missing or has another type."""
    answer = made_up_values.answer("t")
    row = json.loads(AnswerCodec().encode(answer))
    place = row
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        inner = place[key]
        if not (isinstance(inner, (dict, list)) and inner and data.draw(st.booleans())):
            break
        place = inner
    if data.draw(st.booleans()):
        del place[key]
    else:
        place[key] = data.draw(PLAIN)
    with contextlib.suppress(ValueError):
        assert isinstance(AnswerCodec().decode(json.dumps(row).encode()), Answer)


def test_callers_cannot_change_what_is_kept(answer):
    before = [node.to_dict() for node in answer.nodes]
    node = copied_answer(answer).nodes[0]
    node.score = 9.0
    node.node.text = "spoiled"
    node.node.metadata["tags"].append("spoiled")
    node.node.metadata["retrieval"]["dense"] = 9
    node.node.relationships[NodeRelationship.SOURCE].metadata["a"].append("spoiled")
    node.node.relationships.clear()
    node.node.excluded_llm_metadata_keys.append("spoiled")
    assert [node.to_dict() for node in answer.nodes] == before


def test_what_is_worth_keeping_and_what_warming_counts(answer):
    assert worth_keeping(answer)
    lost = Degradation(step="a", reason="b", fallback="c")
    huge = NodeWithScore(node=TextNode(text="x" * (MAX_CHARS + 1)), score=1.0)
    for changes in ({"degraded": (lost,)}, {"tier": Tier.NONE}, {"nodes": (huge,)}):
        assert not worth_keeping(dataclasses.replace(answer, **changes))
        assert warm_outcome(dataclasses.replace(answer, **changes)) == "not_kept"
    assert warm_outcome(answer) == "stored"
    assert warm_outcome(dataclasses.replace(answer, cached=True)) == "cached"


HOURS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@pytest.fixture
def router(make):
    return make()


def cat(hours):
    return Document(text=f"The cat sleeps {hours} hours a day.", doc_id="cat")


def test_an_index_that_was_removed_and_made_again(router):
    for hours in HOURS[:3]:
        router.add_index("animals", [cat(hours)], description="Cats")
        assert f"{hours} hours" in router.query(QUESTION).text
        router.remove_index("animals")


@contextmanager
def readers(router):
    """Two threads that ask all the time; what they raise is raised in the end."""
    stop = threading.Event()

    def read():
        while not stop.is_set():
            router.query(QUESTION, index="animals", strategy="vector")

    with ThreadPoolExecutor(2) as pool:
        reading = [pool.submit(read) for _ in range(2)]
        try:
            yield
        finally:
            stop.set()
    for one in reading:
        one.result()


def changed(router, random_, now):
    """Change the index or leave it; return how long the cat sleeps then, according to it."""
    kind = random_.choice(("update", "delete", "nothing"))
    if kind == "update":
        now = random_.choice(HOURS)
        router.add_index("animals", [cat(now)])
    elif kind == "delete" and now:
        router.remove_documents("animals", ["cat"])
        now = ""
    return now


@pytest.mark.parametrize("seed", range(2))
def test_random_changes_with_readers(router, seed):
    random_ = random.Random(seed)
    now = random_.choice(HOURS)
    router.add_index("animals", [cat(now), Document(text="The dog barks.", doc_id="dog")], description="Animals")
    with readers(router):
        for _ in range(25):
            now = changed(router, random_, now)
            answer = router.query(QUESTION, index="animals", strategy="vector")
            texts = " ".join(node.node.text for node in answer.nodes)
            assert [hours for hours in HOURS if f"{hours} hours" in texts] == [now] * bool(now)
    router.add_index("animals", [cat("two")])
    assert [router.query(QUESTION, index="animals", strategy="vector").cached for _ in range(2)] == [False, True]


def spoil(nodes):
    """Change all that a caller can change of nodes."""
    for scored in nodes:
        scored.score = -1.0
        scored.node.text = "spoilt"
        scored.node.metadata.clear()
        scored.node.relationships.clear()


def told(answer):
    nodes = [(scored.score, scored.node.text, scored.node.metadata) for scored in answer.nodes]
    return copy.deepcopy((answer.text, answer.citations, answer.checks, answer.confidence, nodes))


async def streamed(router, stream):
    """Spoil what is shown as soon as it is; return the answer as it came."""
    stream = getattr(router, stream)(QUESTION)
    if isinstance(stream, AnswerStream):
        for _ in stream:
            spoil(stream.nodes)
    else:
        async for _ in stream:
            spoil(stream.nodes)
    return stream.answer


@pytest.mark.parametrize("way", ["stream", "astream"])
async def test_what_a_stream_shows_is_the_callers_own(make_router, way):
    options = {"classifier": "profile", "selector": "heuristic", "answer_rescoring": False}
    expected = told(make_router(model=FakeLLM([GOOD]), **options).query(QUESTION))
    router = make_router(model=FakeLLM([GOOD]), **options)
    first = await streamed(router, way)
    assert not first.cached
    assert told(first) == expected
    spoil(first.nodes)
    for _ in range(2):
        again = router.query(QUESTION)
        assert again.cached
        assert told(again) == expected
        spoil(again.nodes)
    # A cached answer is one piece, whose nodes are shown with it.
    assert (await streamed(router, way)).cached
    assert told(router.query(QUESTION)) == expected
