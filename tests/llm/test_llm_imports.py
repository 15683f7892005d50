from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

CODE = """
    import sys
    from agentic_retriever.config import RouterConfig
    from agentic_retriever.errors import AgenticRetrieverError
    from agentic_retriever.llm import build_client

    config = RouterConfig(llm="{llm}", llm_small="none", llm_cloud="none", openrouter_api_key="k",
                          ollama_base_url="http://127.0.0.1:9", openrouter_base_url="http://127.0.0.1:9/api/v1")
    client = build_client(config)
    before = set(sys.modules)
    try:
        client.complete("How are you?")
    except AgenticRetrieverError:
        print(sorted(name for name in set(sys.modules) - before if name.partition(".")[0] in {roots}))
"""


@pytest.mark.parametrize(
    ("llm", "roots"),
    [("openrouter:openai/gpt-4o-mini", ("openai", "llama_index")), ("ollama:llama3:8b", ("ollama", "llama_index"))],
)
def test_the_first_call_loads_nothing_within_its_own_deadline(llm, roots):
    pytest.importorskip(f"llama_index.llms.{llm.partition(':')[0]}")
    code = textwrap.dedent(CODE).format(llm=llm, roots=roots)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "[]", done.stderr
