import os
import socket

import pytest
from doc_pages import write_sources
from typer.testing import CliRunner

from agentic_retriever import config
from agentic_retriever.cli.app import app
from agentic_retriever.config import PREFIX, RouterConfig
from agentic_retriever.testing import FakeEmbedding

SHARED = tuple(name.upper() for name in config.SHARED)
REAL_CONNECT = socket.socket.connect


def _connect(self, address):
    """Connect to this machine only."""
    if self.family in {socket.AF_INET, socket.AF_INET6} and address[0] not in {"localhost", "127.0.0.1", "::1"}:
        self.close()
        raise AssertionError(f"the documentation reached for the network: {address[0]}")
    return REAL_CONNECT(self, address)


def _embedding(config: RouterConfig, **_):
    """Stand in for the packaged model and for the choice among models."""
    if config.embedding_model not in {"auto", "local"}:
        raise AssertionError(f"no test has the embedding model {config.embedding_model}; mark the block as not run")
    return FakeEmbedding(dimension=64)


def isolate(patch: pytest.MonkeyPatch, folder) -> None:
    """Take away the settings of this machine, the network and the packaged model; work in ``folder``."""
    for name in [name for name in os.environ if name.startswith(PREFIX) or name in SHARED]:
        patch.delenv(name)
    patch.setattr(socket.socket, "connect", _connect)
    patch.setattr("agentic_retriever.resources.resolve_embedding", _embedding)
    patch.chdir(folder)


@pytest.fixture(scope="session")
def prepared_data(tmp_path_factory):
    """A data directory with an index, as the commands of the documentation find it."""
    folder = tmp_path_factory.mktemp("prepared")
    write_sources(folder)
    with pytest.MonkeyPatch.context() as patch:
        isolate(patch, folder)
        for name in ("handbook", "contracts"):
            add = ["--data-dir", str(folder / "data"), "index", "add", name, f"docs/{name}"]
            assert CliRunner().invoke(app, add).exit_code == 0
    return folder / "data"


@pytest.fixture
def page_folder(tmp_path, monkeypatch):
    """A folder of its own for a page, without network, settings or model."""
    write_sources(tmp_path)
    isolate(monkeypatch, tmp_path)
    monkeypatch.setenv(PREFIX + "DATA_DIR", str(tmp_path / "data"))
    return tmp_path
