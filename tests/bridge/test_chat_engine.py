"""The router as a LlamaIndex chat engine."""

import asyncio

import pytest
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.chat_engine.types import BaseChatEngine
from llama_index.core.llms import ChatMessage, MessageRole
from small_indexes import MEANT, QUESTION, THEN

from agentic_retriever.errors import InvalidQueryError


async def say(engine, way, message, **history):
    """Say something in one of the four ways; return the response and its text."""
    if way == "chat":
        response = engine.chat(message, **history)
    elif way == "achat":
        response = await engine.achat(message, **history)
    elif way == "stream_chat":
        response = engine.stream_chat(message, **history)
        assert "".join(response.response_gen).strip() == response.response
    else:
        response = await engine.astream_chat(message, **history)
        assert "".join([piece async for piece in response.async_response_gen()]).strip() == response.response
    return response


@pytest.mark.parametrize("way", ["chat", "achat", "stream_chat", "astream_chat"])
async def test_a_chat_remembers_what_was_said(router, way):
    engine = router.as_chat_engine(index="animals")
    assert isinstance(engine, BaseChatEngine)
    assert not isinstance(engine, BaseQueryEngine)
    first = await say(engine, way, QUESTION)
    assert "sixteen hours" in first.response
    assert first.source_nodes
    assert first.metadata["route"]["understood_as"] == ""
    then = await say(engine, way, THEN)
    assert then.metadata["route"]["understood_as"] == MEANT
    assert then.metadata["citations"] == [*then.metadata["citations"]]
    assert [one.role.value for one in engine.chat_history] == ["user", "assistant"] * 2
    assert engine.chat_history[-1].content == then.response
    engine.reset()
    assert engine.chat_history == []
    assert (await say(engine, way, THEN)).metadata["route"]["understood_as"] == ""


@pytest.mark.parametrize("way", ["chat", "astream_chat"])
async def test_a_history_can_be_given(router, way):
    before = [
        ChatMessage("Be brief.", role=MessageRole.SYSTEM),
        ChatMessage(QUESTION),
        ChatMessage("16 [1]", role="assistant"),
    ]
    engine = router.as_chat_engine(chat_history=before)
    assert (await say(engine, way, THEN)).metadata["route"]["understood_as"].startswith("How many hours does the dog")
    assert engine.chat_history[:3] == before
    fresh = router.as_chat_engine()
    assert (await say(fresh, way, THEN, chat_history=before)).metadata["route"]["understood_as"]
    assert len(fresh.chat_history) == 5


async def test_sync_chats_work_in_a_running_loop(router):
    assert asyncio.get_running_loop().is_running()
    assert "sixteen" in str(router.as_chat_engine().chat(QUESTION))


def test_what_failed_or_was_left_is_not_in_the_history(router):
    engine = router.as_chat_engine()
    with pytest.raises(InvalidQueryError):
        engine.chat(" ")
    stream = engine.stream_chat(QUESTION)
    next(stream.response_gen)
    del stream
    assert engine.chat_history == []
    with pytest.raises(InvalidQueryError):
        router.as_chat_engine(top_k=0)


def test_the_history_is_a_copy(router):
    engine = router.as_chat_engine()
    engine.chat_history.append(ChatMessage("x"))
    assert engine.chat_history == []
