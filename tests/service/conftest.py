import shutil

import pytest
from service_clients import client_of

pytest.importorskip("fastapi", reason="the extra 'service' is not installed")

from agentic_retriever.indices.index import _copy_sparse
from agentic_retriever.service.app import create_app
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
