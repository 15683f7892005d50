import pytest
from evaluation_material import BOAT_QUERIES, BOATS, BREAD, BREAD_QUERIES, DIMENSION, write_beir, write_vectors
from typer.testing import CliRunner

from agentic_retriever import resources
from agentic_retriever.cli.app import app
from agentic_retriever.config import PREFIX, RouterConfig
from agentic_retriever.evaluation import harness
from agentic_retriever.router import AgenticRouter
from agentic_retriever.testing import FakeEmbedding


@pytest.fixture
def model():
    return FakeEmbedding(dimension=DIMENSION)


@pytest.fixture
def boats(tmp_path):
    return write_beir(tmp_path / "boats", BOATS, BOAT_QUERIES, description="boats and the harbour")


@pytest.fixture
def bread(tmp_path):
    return write_beir(tmp_path / "bread", BREAD, BREAD_QUERIES, description="bread, dough and the oven")


@pytest.fixture
def vectors(tmp_path):
    write_vectors(tmp_path / "vectors" / "boats.npz", BOATS, BOAT_QUERIES)
    write_vectors(tmp_path / "vectors" / "bread.npz", BREAD, BREAD_QUERIES)
    return tmp_path / "vectors"


@pytest.fixture
def router(tmp_path, model):
    with AgenticRouter(RouterConfig(data_dir=tmp_path / "data"), embedding=model) as router:
        yield router


@pytest.fixture
def cli(tmp_path, monkeypatch, model):
    """Run the command line in a folder of its own, with an embedding that needs no model."""
    monkeypatch.chdir(tmp_path)
    for name in ("EMBEDDING_MODEL", "OPENROUTER_API_KEY", f"{PREFIX}LLM"):
        monkeypatch.delenv(name, raising=False)
    for module in (harness, resources):
        monkeypatch.setattr(module, "resolve_embedding", lambda *_, **__: model)

    def run(*args):
        return CliRunner().invoke(app, ["--traceback", "--data-dir", str(tmp_path / "data"), *map(str, args)])

    return run
