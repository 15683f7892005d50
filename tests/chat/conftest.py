"""A running service on a free port, over the two small indexes."""

from types import SimpleNamespace

import pytest
from small_indexes import ANIMALS, documents

pytest.importorskip("fastapi", reason="the extra 'service' is not installed")


@pytest.fixture
def serve(make_router, serve):
    """Starts services; each runs in a thread of its own until the test ends."""
    from agentic_retriever.service.app import create_app
    from agentic_retriever.service.settings import ServiceSettings

    def start(*, model=None, stages=None, settings=None, **changes):
        fixed = {"classifier": "profile", "selector": "heuristic", "answer_rescoring": False, "query_log": "none"}
        router = make_router(model=model, stages=stages, **(fixed | changes))
        app = create_app(router, ServiceSettings(document_workers=0, grace_s=1, **(settings or {})))
        return SimpleNamespace(url=serve(app), router=router, service=app.state.service)

    return start


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
