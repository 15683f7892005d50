import pytest
from doc_pages import isolate, write_sources
from typer.testing import CliRunner

from agentic_retriever.cli.app import app
from agentic_retriever.config import PREFIX


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
