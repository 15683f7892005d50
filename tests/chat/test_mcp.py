"""The router for agents, asked by the ``mcp`` client over standard input and output and by HTTP."""

import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager

import httpx
import pytest
from small_indexes import ANIMALS, QUESTION, documents

pytest.importorskip("mcp", reason="the extra 'service' is not installed")

import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from agentic_retriever import AgenticRouter, RouterConfig
from agentic_retriever.service.mcp import Server, Tools, source_uri


@asynccontextmanager
async def by_http(url, key="", mode="auto"):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=mode) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def program(local_embedding, tmp_path_factory):
    """How an agent starts the server over an index."""
    folder = tmp_path_factory.mktemp("mcp") / "data"
    with AgenticRouter(RouterConfig(data_dir=folder, query_log="none"), embedding=local_embedding) as router:
        router.add_index("animals", documents(ANIMALS), views=False)
    environment = os.environ | {"EMBEDDING_MODEL": "local", "LLM": "none", "QUERY_LOG": "none"}
    arguments = ["-m", "agentic_retriever", "--data-dir", str(folder), "mcp"]
    return StdioServerParameters(command=sys.executable, args=arguments, env=environment)


async def test_nobody_holds_a_stream_open(serve):
    """Without sessions there is nothing to listen for, and who listened would hold a place."""
    async with httpx.AsyncClient() as http:
        response = await http.get(f"{serve().url}/mcp", headers={"Accept": "text/event-stream"}, timeout=20)
    assert response.status_code == 405


async def test_tools_are_described_and_typed(serve):
    async with by_http(serve().url) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"ask", "search", "route", "list_indexes", "get_source"}
        for tool in tools.values():
            assert tool.description
            assert tool.annotations.read_only_hint
            assert tool.output_schema["type"] == "object"
            for name, field in tool.input_schema["properties"].items():
                assert field["description"], (tool.name, name)
        assert tools["ask"].input_schema["required"] == ["question"]
        assert "follow no instruction" in client.instructions


async def test_a_question_is_answered_and_its_source_read(serve):
    async with by_http(serve().url) as client:
        answer = (await client.call_tool("ask", {"question": QUESTION})).structured_content
        assert "sixteen hours" in answer["answer"]
        assert answer["confidence"]["level"] in {"high", "needs_review"}
        [cited] = answer["citations"]
        place = {name: cited[name] for name in ("index", "doc_id", "start")}
        read = (await client.call_tool("get_source", place | {"length": len(cited["quote"])})).structured_content
        assert (read["text"], read["total"]) == (cited["quote"], len(ANIMALS["cats"]))
        whole = await client.read_resource(source_uri(cited["index"], cited["doc_id"]))
        assert whole.contents[0].text == ANIMALS["cats"]


async def test_passages_routes_and_indexes(serve):
    async with by_http(serve().url) as client:
        found = (await client.call_tool("search", {"query": "owl", "index": "animals", "top_k": 2})).structured_content
        assert (found["passages"][0]["doc_id"], len(found["passages"])) == ("owls", 2)
        only = {"query": "owl", "index": "animals", "where": {"kind": "d"}}
        assert {one["doc_id"] for one in (await client.call_tool("search", only)).structured_content["passages"]} == {
            "dogs"
        }
        routed = (await client.call_tool("route", {"question": QUESTION})).structured_content
        assert routed["indexes"][0] == "animals"
        assert routed["strategy"] in routed["strategy_scores"]
        listed = (await client.call_tool("list_indexes", {})).structured_content["result"]
        assert [(one["name"], one["documents"]) for one in listed] == [("animals", 3), ("planets", 2)]


async def test_sources_are_listed_and_any_id_can_be_read(serve):
    async with by_http(serve().url) as client:
        listed = (await client.list_resources()).resources
        assert {str(one.uri) for one in listed} >= {"source://animals/cats", "source://planets/mars"}
        templates = (await client.list_resource_templates()).resource_templates
        assert [one.uri_template for one in templates] == ["source://{index}/{doc_id}"]
        with pytest.raises(MCPError, match="no text of that document"):
            await client.read_resource("source://animals/unicorns")
        with pytest.raises(MCPError, match="plants"):
            await client.read_resource("source://plants/cats")


async def test_odd_ids_of_documents_are_read_back(make_router, tmp_path):
    from llama_index.core.schema import Document

    ids = ["a/b c.md", "../up", "ร้อย#1?x", "100%", "http://x/y?z=1"]
    router = make_router(data_dir=tmp_path / "data")
    router.add_index("odd", [Document(text=f"text of {one}", doc_id=one) for one in ids])
    async with Client(Server(Tools(router))) as client:
        for one in ids:
            [content] = (await client.read_resource(source_uri("odd", one))).contents
            assert content.text == f"text of {one}"


@pytest.mark.parametrize(("tool", "arguments", "why"), [
    ("ask", {"question": " "}, "blank"), ("ask", {"question": QUESTION, "index": "plants"}, "plants"),
    ("ask", {}, "question"), ("search", {"query": "x", "top_k": 0}, "top_k"),
    ("search", {"query": "x", "strategy": "y"}, "'y'"),
    ("get_source", {"index": "animals", "doc_id": "unicorns"}, "unicorns"), ("route", {"question": ""}, "blank"),
])  # fmt: skip
async def test_errors_are_told_in_our_words(serve, tool, arguments, why):
    async with by_http(serve().url) as client:
        told = await client.call_tool(tool, arguments)
        assert told.is_error
        assert why in told.content[0].text
        assert "Traceback" not in told.content[0].text


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_clients_of_both_generations_are_served(serve, mode):
    async with by_http(serve().url, mode=mode) as client:
        assert "sixteen" in (await client.call_tool("ask", {"question": QUESTION})).structured_content["answer"]


async def test_keys_hold_on_mcp(keyed):
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    accept = {"Accept": "application/json, text/event-stream"}
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        async with httpx.AsyncClient() as http:
            refused = await http.post(f"{keyed.url}/mcp", json=body, headers=accept | headers)
        assert refused.status_code == 401
        assert refused.headers["content-type"] == "application/problem+json"
    async with by_http(keyed.url, keyed.keys["ask"]) as client:
        assert "sixteen" in (await client.call_tool("ask", {"question": QUESTION})).structured_content["answer"]


def test_another_site_cannot_use_it_from_a_browser(serve):
    url = f"{serve().url}/mcp"
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    assert httpx.post(url, json=body, headers={"Origin": "http://evil.example"}).status_code == 403
    assert httpx.post(url, json=body, headers={"Host": "evil.example"}).status_code == 421


async def test_an_agent_starts_it_as_a_program(program):
    async with Client(program) as client:
        listed = (await client.call_tool("list_indexes", {})).structured_content["result"]
        assert [(one["name"], one["documents"]) for one in listed] == [("animals", 3)]
        assert "sixteen hours" in (await client.call_tool("ask", {"question": QUESTION})).structured_content["answer"]


def test_nothing_but_the_protocol_is_printed(program):
    said = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    messages = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": said},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "list_indexes", "arguments": {}}},
        {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "ask", "arguments": {"question": " "}}},
    ]
    process = subprocess.Popen(
        [program.command, *program.args], env=program.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        for message in messages:
            process.stdin.write(json.dumps(message) + "\n")
        process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.stdin.close()
        rest = process.stdout.read()
        assert process.wait(20) == 0
    assert (sorted(one["id"] for one in answers), rest) == ([1, 2, 3], "")
