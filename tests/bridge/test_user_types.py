"""What a user's own program says of the router's LlamaIndex parts is held against their annotations."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.query_engine import RetrieverQueryEngine, SubQuestionQueryEngine
from llama_index.core.schema import NodeWithScore
from llama_index.core.tools import BaseTool, QueryEngineTool

from agentic_retriever import AgenticRouter, Answer, Budget, RoutedQueryEngine, RoutedRetriever, Strategy

with AgenticRouter() as router:
    tool: QueryEngineTool = router.as_tool(name="leave", index="handbook", strategy="hybrid", top_k=3)
    tools: list[BaseTool] = [tool, router.as_tool(description="all", return_direct=True, budget=Budget(max_ms=900))]
    engine: RoutedQueryEngine = router.as_query_engine(streaming=True, strategy=Strategy.VECTOR, filters=None)
    engines: list[BaseQueryEngine] = [engine, router.as_query_engine(), RoutedQueryEngine(router, {"top_k": 3})]
    retriever: BaseRetriever = router.as_retriever(index=None)
    nodes: list[NodeWithScore] = RoutedRetriever(router).retrieve("How many days?")
    answer: Answer = router.query("How many days?", index="handbook")
    print(answer.text, nodes, engine.query("How many days?"), RetrieverQueryEngine.from_args(retriever))
    print(SubQuestionQueryEngine.from_defaults([tool, router.as_tool()]), tools, engines)
    router.as_tool(top_k="three")
    router.as_query_engine(indexes="handbook")
"""


@pytest.mark.slow
def test_a_users_program_passes_mypy_strict_and_is_told_of_wrong_pins(tmp_path):
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    # From the root, for the settings and the cache of the package's own check.
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(program)]
    env = os.environ | {"MYPYPATH": str(ROOT)}
    told = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True).stdout.splitlines()
    lines = PROGRAM.splitlines()
    expected = [(lines.index(f"    router.{call}") + 1, code) for call, code in (
        ('as_tool(top_k="three")', "arg-type"), ('as_query_engine(indexes="handbook")', "call-arg"),
    )]  # fmt: skip
    errors = [line.split(":") for line in told if "error:" in line]
    assert [(int(parts[-3]), parts[-1].split("[")[-1].rstrip("]")) for parts in errors] == expected, "\n".join(told)
