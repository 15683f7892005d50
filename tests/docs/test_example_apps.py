"""The plain LlamaIndex application of the documentation, and the same with our router: run, and compared."""

import difflib
import importlib.util

import pytest
from doc_blocks import ROOT, read_blocks
from llama_index.core import Settings
from llama_index.core.base.response.schema import Response
from llama_index.core.llms import MockLLM

from agentic_retriever import AgenticRouter
from agentic_retriever.testing import FakeEmbedding, FakeLLM

FOLDER = ROOT / "docs" / "examples"
QUESTION = "How many days of annual leave does every employee get?"


def text(name):
    return (FOLDER / f"{name}.py").read_text(encoding="utf-8")


def load(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ask(name, model):
    app = load(name)
    return app, app.make_engine("docs/handbook", FakeEmbedding(dimension=64), model).query(QUESTION)


@pytest.fixture
def routers(monkeypatch):
    """Closes the routers that an application leaves open until it ends."""
    made = []

    class Kept(AgenticRouter):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr("agentic_retriever.AgenticRouter", Kept, raising=False)
    yield made
    for router in made:
        router.close()


def test_the_page_shows_a_plain_application_of_thirty_lines_and_the_three_that_differ():
    assert len(text("plain_app").splitlines()) == 30
    assert "agentic_retriever" not in text("plain_app")
    lines = [text(name).splitlines(keepends=True) for name in ("plain_app", "routed_app")]
    difference = list(difflib.unified_diff(*lines, "plain_app.py", "routed_app.py", n=0))
    assert len([line for line in difference[2:] if line.startswith("+") and line[1:].strip()]) == 3
    assert len([line for line in difference[2:] if line.startswith("-")]) == 1
    blocks = read_blocks(ROOT / "docs" / "llamaindex_app.md")
    assert next(block.text for block in blocks if block.language == "python") == text("plain_app")
    assert next(block.text for block in blocks if block.language == "diff") == "".join(difference)


def test_the_plain_application_answers(page_folder, capsys):
    app, response = ask("plain_app", MockLLM())
    assert {node.node.metadata["file_name"] for node in response.source_nodes} == {"leave.md", "expenses.md"}
    app.show(response)
    assert "leave.md" in capsys.readouterr().out


def test_the_routed_application_answers_with_citations_and_without_its_model_and_touches_no_settings(
    page_folder, capsys, routers
):
    before = (Settings._llm, Settings._embed_model)
    model = FakeLLM(["Every employee gets 28 days of annual leave. [1]"])
    app, response = ask("routed_app", model)
    assert isinstance(response, Response)
    assert str(response) == "Every employee gets 28 days of annual leave. [1]"
    assert response.source_nodes[0].node.metadata["file_name"] == "leave.md"
    assert model.prompts
    app.show(response)
    assert "leave.md" in capsys.readouterr().out
    assert (len(routers), (Settings._llm, Settings._embed_model)) == (1, before)
    broken = FakeLLM([ConnectionError("no route to the model")])
    assert "28 days" in str(ask("routed_app", broken)[1])
    with pytest.raises(ConnectionError):
        ask("plain_app", broken)
