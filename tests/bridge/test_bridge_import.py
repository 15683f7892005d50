"""Importing costs nothing and touches nothing."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_import_makes_no_call_and_loads_no_llama_index_until_a_class_is_used():
    assert run(
        """
        import socket, sys, threading

        def refuse(event, args):
            # Libraries below may look whether the system has IPv6, for which they make a socket and connect it nowhere.
            if event.startswith("socket.") and (event != "socket.__new__" or "llama_index" not in sys.modules):
                if not (event == "socket.bind" and args[1][0] == "::1"):
                    raise SystemExit(f"{event} {args}")

        sys.addaudithook(refuse)
        import agentic_retriever

        heavy = {"llama_index", "llama_index_instrumentation", "numpy", "qdrant_edge", "pydantic", "asyncio"}
        print(sorted(heavy & {name.partition(".")[0] for name in sys.modules}) or "light")
        print(sorted(agentic_retriever.__all__) == sorted(set(dir(agentic_retriever))), threading.active_count())
        agentic_retriever.Strategy
        print("llama_index.core" in sys.modules)
        agentic_retriever.AgenticRouter
        print("llama_index.core" in sys.modules)
        """
    ) == ["light", "True", "1", "False", "True"]


def test_using_every_class_and_making_a_router_leaves_settings_and_network_alone(tmp_path):
    assert run(
        f"""
        import asyncio, sys

        def refuse(event, args):
            if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
                raise SystemExit(f"{{event}} {{args}}")

        sys.addaudithook(refuse)
        import agentic_retriever
        from llama_index.core.settings import Settings

        before = dict(vars(Settings))
        for name in agentic_retriever.__all__:
            getattr(agentic_retriever, name)
        config = agentic_retriever.RouterConfig(data_dir={str(tmp_path)!r}, llm="ollama:x", llm_cloud="openrouter:y",
                                                openrouter_api_key="k")
        with agentic_retriever.AgenticRouter(config) as router:
            router.as_retriever(), router.as_query_engine(streaming=True), router.as_tool()
        print(all(value is None for value in before.values()), dict(vars(Settings)) == before)
        print(asyncio.run.__module__, "nest_asyncio" in sys.modules and hasattr(asyncio, "_nest_patched"))
        """
    ) == ["True", "True", "asyncio.runners", "False"]
