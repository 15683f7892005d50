"""What a user's own program says of the router's LlamaIndex parts is held against their annotations."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.chat_engine.types import BaseChatEngine, StreamingAgentChatResponse
from llama_index.core.llms import ChatMessage
from llama_index.core.query_engine import RetrieverQueryEngine, SubQuestionQueryEngine
from llama_index.core.schema import NodeWithScore
from llama_index.core.tools import BaseTool, QueryEngineTool
from agentic_retriever import AgenticRouter, Budget, RoutedChatEngine, RoutedQueryEngine, RoutedRetriever, Strategy
from agentic_retriever import Turn

with AgenticRouter() as router:
    tool: QueryEngineTool = router.as_tool(name="leave", index="handbook", strategy="hybrid", top_k=3)
    tools: list[BaseTool] = [tool, router.as_tool(description="all", return_direct=True, budget=Budget(max_ms=900))]
    engine: RoutedQueryEngine = router.as_query_engine(streaming=True, strategy=Strategy.VECTOR, filters=None)
    engines: list[BaseQueryEngine] = [engine, RoutedQueryEngine(router, {"top_k": 3})]
    nodes: list[NodeWithScore] = RoutedRetriever(router).retrieve("How many days?")
    print(RetrieverQueryEngine.from_args(router.as_retriever()), SubQuestionQueryEngine.from_defaults([tool]))
    chat: RoutedChatEngine = router.as_chat_engine(index="handbook", chat_history=[ChatMessage("How many days?")])
    chats: list[BaseChatEngine] = [chat]
    said: str = chat.chat("And interns?").response
    stream: StreamingAgentChatResponse = chat.stream_chat("And in 2025?", chat_history=[])
    history: list[ChatMessage] = chats[0].chat_history
    asked: str = router.query("And?", turns=[Turn(query=said)], conversation_id="1", user_id="2").understood_as
    router.stream("And?", turns=[Turn(query="How many?")], index=["a", "b"]).finish()
    router.query("And?", turns=["How many?"])  # [list-item]
    router.as_chat_engine(chat_history=["How many?"])  # [list-item]
    router.as_tool(top_k="three")  # [arg-type]
    router.as_query_engine(indexes="handbook")  # [call-arg]
"""


@pytest.mark.slow
def test_a_users_program_passes_mypy_strict_and_is_told_of_wrong_pins(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "program.py").write_text(PROGRAM)
    # From the root, for the settings and the cache of the package's own check.
    command = [sys.executable, "-m", "mypy", "--strict", str(tmp_path / "program.py")]
    found = subprocess.run(command, cwd=ROOT, env=os.environ | {"MYPYPATH": str(ROOT)}, capture_output=True, text=True)
    told = re.findall(r"program\.py:(\d+): error: .*(\[.+\])", found.stdout)
    assert told == [(str(at), row.split()[-1]) for at, row in enumerate(PROGRAM.splitlines(), 1) if "#" in row], found
