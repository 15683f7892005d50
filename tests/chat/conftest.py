"""A running service on a free port, over the two small indexes."""

import threading
from types import SimpleNamespace

import pytest
from small_indexes import ANIMALS, documents
from waiting import wait_until

pytest.importorskip("fastapi", reason="the extra 'service' is not installed")


@pytest.fixture
def serve(make_router, tmp_path):
    """Starts services; each runs in a thread of its own until the test ends."""
    from agentic_retriever.service.app import Server, create_app
    from agentic_retriever.service.settings import ServiceSettings

    running = []

    def start(*, model=None, stages=None, settings=None, **changes):
        fixed = {"classifier": "profile", "selector": "heuristic", "answer_rescoring": False, "query_log": "none"}
        router = make_router(model=model, stages=stages, **(fixed | changes))
        app = create_app(router, ServiceSettings(port=0, document_workers=0, grace_s=1, **(settings or {})))
        urls = []
        server = Server(app, on_start=urls.append)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        running.append((server, thread))
        wait_until(lambda: urls, 20)
        return SimpleNamespace(url=urls[0], router=router, service=app.state.service)

    yield start
    for server, _ in running:
        server.should_exit = True
    for _, thread in running:
        thread.join(10)
        assert not thread.is_alive()


@pytest.fixture
def keyed(serve, tmp_path):
    """A service with a key for each role, over an index of its own."""
    from agentic_retriever.service.keys import KeyTable
    from agentic_retriever.service.settings import Role

    found = serve(data_dir=tmp_path / "data")
    found.router.add_index("animals", documents(ANIMALS), description="Animals and how they live")
    table = KeyTable(found.service.database)
    found.keys = {role.name.lower(): table.create(role.name, role) for role in Role}
    found.service.keys.load()
    return found
