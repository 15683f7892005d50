from __future__ import annotations

import contextlib
import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.schema import Document, IndexNode, NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode

from agentic_retriever import AgenticRouter, RouterConfig
from agentic_retriever.cache import WarmOutcome
from agentic_retriever.pipeline import MAX_CHARS, AnswerCodec, copied_answer, warm_outcome, worth_keeping
from agentic_retriever.schema import (
    Answer,
    Citation,
    Complexity,
    Confidence,
    Degradation,
    RouteDecision,
    Selection,
    Strategy,
    Tier,
    TierUsage,
    Tried,
    Usage,
)
from agentic_retriever.testing import FakeEmbedding

TEXTS = st.text(max_size=12)
NAMES = st.text(min_size=1, max_size=8)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
COUNTS = st.integers(0, 10**9)
SHARES = st.floats(0, 1)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)
LOST = st.builds(Degradation, step=TEXTS, reason=TEXTS, fallback=TEXTS)
SPENT = st.builds(
    TierUsage, tier=st.sampled_from(Tier), model=TEXTS, calls=COUNTS, prompt_tokens=COUNTS, completion_tokens=COUNTS,
    usd=st.floats(0, 1e6),
)  # fmt: skip
SELECTIONS = st.builds(
    Selection, name=NAMES, names=st.lists(NAMES, max_size=2).map(tuple), confidence=SHARES,
    scores=st.dictionaries(NAMES, SHARES, max_size=3), margin=SHARES, reason=TEXTS, mode=TEXTS, abstained=st.booleans(),
    escalated=st.booleans(), evidence=st.dictionaries(NAMES, st.dictionaries(NAMES, NUMBERS, max_size=2), max_size=2),
    degraded=st.lists(LOST, max_size=2).map(tuple), spent=st.lists(SPENT, max_size=2).map(tuple),
)  # fmt: skip
ROUTES = st.builds(
    RouteDecision, query=TEXTS, index=SELECTIONS, strategy=SELECTIONS, complexity=st.sampled_from(Complexity),
    complexity_score=SHARES, features=st.dictionaries(NAMES, NUMBERS, max_size=3),
    timings_ms=st.dictionaries(NAMES, NUMBERS, max_size=3), degraded=st.lists(LOST, max_size=2).map(tuple),
)  # fmt: skip
TRIED = st.builds(
    Tried, strategy=st.sampled_from(Strategy), confidence=st.none() | SHARES, nodes=COUNTS, ms=st.floats(0, 1e6)
)
CITATIONS = st.builds(
    Citation, number=COUNTS, doc_id=TEXTS, node_id=TEXTS, start=COUNTS, end=COUNTS, quote=TEXTS, score=SHARES,
    index=TEXTS, title=TEXTS, section=TEXTS, page=st.none() | COUNTS,
)  # fmt: skip
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


ANSWERS = st.builds(
    Answer, text=st.text(alphabet=st.characters(), max_size=40), citations=st.lists(CITATIONS, max_size=3).map(tuple),
    confidence=SHARES.map(Confidence.of), route=ROUTES, nodes=st.lists(nodes(), max_size=3).map(tuple),
    usage=st.lists(SPENT, max_size=3).map(lambda tiers: Usage(tuple(tiers))),
    timings_ms=st.dictionaries(NAMES, NUMBERS, max_size=3), tier=st.sampled_from(Tier), cached=st.booleans(),
    degraded=st.lists(LOST, max_size=2).map(tuple), query_id=TEXTS, understood=st.lists(TEXTS, max_size=2).map(tuple),
    tried=st.lists(TRIED, max_size=2).map(tuple),
)  # fmt: skip


def same(one, other):
    assert dataclasses.replace(one, nodes=()) == dataclasses.replace(other, nodes=())
    assert one.to_dict() == other.to_dict()
    assert [type(n.node) for n in one.nodes] == [type(n.node) for n in other.nodes]
    assert [n.to_dict() for n in one.nodes] == [n.to_dict() for n in other.nodes]


@pytest.fixture
def answer():
    selection = Selection(name="a", confidence=0.5, scores={"a": 0.5}, margin=0.5, reason="", mode="pinned")
    route = RouteDecision(
        query="q", index=selection, strategy=selection, complexity=Complexity.SIMPLE, complexity_score=0.1
    )
    node = TextNode(
        text="The cat sleeps.", metadata={"tags": ["x"], "retrieval": {"dense": 0.5}},
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id="doc", metadata={"a": [1]})},
    )  # fmt: skip
    return Answer(
        text="It sleeps [1].", citations=(), confidence=Confidence.of(0.8), route=route,
        nodes=(NodeWithScore(node=node, score=0.5),), usage=Usage(), timings_ms={"total": 1.0}, tier=Tier.EXTRACTIVE,
        cached=False, degraded=(), query_id="1",
    )  # fmt: skip


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


def test_answers_of_the_router_come_back_whole(tmp_path):
    config = RouterConfig(data_dir=tmp_path, cache_max_entries=0)
    texts = {"cats": "The cat sleeps sixteen hours a day.", "dogs": "The dog barks at the postman."}
    documents = [Document(text=text, doc_id=name, metadata={"year": 2020}) for name, text in texts.items()]
    with AgenticRouter(config, embedding=FakeEmbedding(dimension=64)) as router:
        router.add_index("animals", documents, description="Animals")
        for strategy in ("vector", "hybrid", "metadata", "planner", None):
            answer = router.query(
                "How many hours does the cat sleep, and whom does the dog bark at?", strategy=strategy
            )
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


ODD = [b"", b"null", b"[]", b"{}", b'{"format":1}', b'{"format":2}', b"\xff", b"[" * 100_000]


@pytest.mark.parametrize("data", ODD)
def test_other_bytes_are_refused(data):
    with pytest.raises(ValueError):
        AnswerCodec().decode(data)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_damaged_answer_is_refused_or_an_answer(data):
    """Nothing but ValueError, whatever is missing or has another type."""
    selection = Selection(name="a", confidence=0.5, scores={"a": 0.5}, margin=0.5, reason="", mode="pinned")
    route = RouteDecision(
        query="q", index=selection, strategy=selection, complexity=Complexity.SIMPLE, complexity_score=0.1
    )
    answer = Answer(
        text="t", citations=(Citation(number=1, doc_id="d", node_id="n", start=0, end=1, quote="q", score=1.0),),
        confidence=Confidence.of(0.8), route=route, nodes=(NodeWithScore(node=TextNode(text="x"), score=0.5),),
        usage=Usage((TierUsage(tier=Tier.CLOUD, model="m", calls=1, prompt_tokens=1, completion_tokens=1),)),
        timings_ms={"total": 1.0}, tier=Tier.EXTRACTIVE, cached=False, degraded=(), query_id="1",
    )  # fmt: skip
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


def test_what_is_worth_keeping(answer):
    assert worth_keeping(answer)
    lost = Degradation(step="a", reason="b", fallback="c")
    huge = NodeWithScore(node=TextNode(text="x" * (MAX_CHARS + 1)), score=1.0)
    for changes in ({"degraded": (lost,)}, {"tier": Tier.NONE}, {"nodes": (huge,)}):
        assert not worth_keeping(dataclasses.replace(answer, **changes))


def test_what_warming_counts(answer):
    assert warm_outcome(answer) is WarmOutcome.STORED
    assert warm_outcome(dataclasses.replace(answer, cached=True)) is WarmOutcome.CACHED
    assert warm_outcome(dataclasses.replace(answer, tier=Tier.NONE)) is WarmOutcome.NOT_KEPT
