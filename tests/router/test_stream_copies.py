"""What a stream shows while it runs belongs to its caller, who may do with it as he likes."""

from __future__ import annotations

import asyncio
import copy

import pytest
from small_indexes import GOOD, QUESTION

from agentic_retriever.testing import FakeLLM


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


def streamed(router):
    """Spoil what is shown as soon as it is; return the answer as it came."""
    stream = router.stream(QUESTION)
    for _ in stream:
        spoil(stream.nodes)
    return stream.answer


def streamed_by_task(router):
    async def read():
        stream = router.astream(QUESTION)
        async for _ in stream:
            spoil(stream.nodes)
        return stream.answer

    return asyncio.run(read())


@pytest.mark.parametrize("read", [streamed, streamed_by_task])
def test_what_a_stream_shows_is_the_callers_own(make_router, read):
    options = {"classifier": "profile", "selector": "heuristic", "answer_rescoring": False}
    expected = told(make_router(model=FakeLLM([GOOD]), **options).query(QUESTION))
    router = make_router(model=FakeLLM([GOOD]), **options)
    first = read(router)
    assert not first.cached
    assert told(first) == expected
    spoil(first.nodes)
    for _ in range(2):
        again = router.query(QUESTION)
        assert again.cached
        assert told(again) == expected
        spoil(again.nodes)
    # A cached answer is one piece, whose nodes are shown with it.
    assert read(router).cached
    assert told(router.query(QUESTION)) == expected
