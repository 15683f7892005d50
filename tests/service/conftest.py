import asyncio
import shutil
import threading

import pytest
from service_clients import client_of
from waiting import wait_until

pytest.importorskip("fastapi", reason="the extra 'service' is not installed")

from agentic_retriever.indices.index import _copy_sparse
from agentic_retriever.service.app import Server, create_app
from agentic_retriever.service.settings import Role, ServiceSettings


@pytest.fixture
def folder(small_store, tmp_path):
    """A copy of the small store, gone with the test that it is for."""
    copied = tmp_path / "data"
    shutil.copytree(small_store, copied, copy_function=_copy_sparse)  # nearly all of it is zeros
    yield copied
    shutil.rmtree(copied)


@pytest.fixture
def make_app(folder, make_router):
    """Makes applications over that copy, with its own keys and documents."""

    def make(*, settings=None, **parts):
        router = make_router(data_dir=folder, **{"query_log": "plain"} | parts)
        return create_app(router, ServiceSettings(**{"document_workers": 0} | (settings or {})))

    return make


@pytest.fixture
def app(make_app):
    return make_app()


@pytest.fixture
async def client(app):
    async with client_of(app) as made:
        yield made


@pytest.fixture
def keys(make_app):
    """A key of each role, by its name; whoever takes this makes the service ask for keys."""
    table = make_app().state.service.keys._table
    return {role.name.lower(): table.create(role.name, role) for role in Role}


@pytest.fixture
def serve():
    """Starts servers on free ports, in threads of their own; gives their addresses."""
    started = []

    def start(app):
        object.__setattr__(app.state.service.settings, "port", 0)
        urls = []
        server = app.state.server = Server(app, on_start=urls.append)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
        started.append((server, thread))
        thread.start()
        wait_until(lambda: urls or not thread.is_alive(), 30)
        assert urls, "the server did not start"
        return urls[0]

    yield start
    for server, _ in started:
        server.should_exit = True
    for _, thread in started:
        thread.join(30)
        assert not thread.is_alive()
