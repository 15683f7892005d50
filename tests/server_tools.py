"""Stores and indexes on a Qdrant server that is the client's own memory, or a real one."""

import itertools
import os

import pytest
from qdrant_client import QdrantClient

from agentic_retriever.config import Secret
from agentic_retriever.errors import StoreError
from agentic_retriever.indices.stored_nodes import StoreServer
from agentic_retriever.stores.server import QdrantLink

_numbers = itertools.count()


def memory_link() -> QdrantLink:
    return QdrantLink(client=QdrantClient(":memory:"))


def memory_server() -> StoreServer:
    return StoreServer(memory_link(), "test-")


def real_link() -> QdrantLink:
    """The server that QDRANT_URL names; skips the test where none answers."""
    url = os.environ.get("TEST_QDRANT_URL", "")
    if not url:
        pytest.skip("no Qdrant server: QDRANT_URL is not set")
    link = QdrantLink(url, api_key=Secret(os.environ.get("TEST_QDRANT_API_KEY", "")), timeout_s=30)
    try:
        link.check(2.0)
    except StoreError as err:
        pytest.skip(f"no Qdrant server answers: {err}")
    return link


def real_server() -> StoreServer:
    return StoreServer(real_link(), f"{fresh_name()}-")


def drop_collections(server: StoreServer) -> None:
    """Remove what a test has made on a server."""
    for name in collections(server):
        server.link.call("clean", lambda client, name=name: client.delete_collection(name))
    server.link.close()


def collections(server: StoreServer) -> list[str]:
    found = server.link.call("list", lambda client: client.get_collections().collections)
    return [one.name for one in found if one.name.startswith(server.prefix)]


def fresh_name() -> str:
    return f"agentic-retriever-test-{os.getpid()}-{next(_numbers)}"
