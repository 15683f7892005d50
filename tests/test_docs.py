from __future__ import annotations

import importlib
import inspect
import re
import shlex
from pathlib import Path

import pytest

import agentic_retriever
from agentic_retriever import AgenticRouter, RouterConfig, Strategy
from agentic_retriever.cli.app import app
from agentic_retriever.cli.indexes import index_app
from agentic_retriever.retrievers import REGISTRY
from agentic_retriever.testing import FakeEmbedding

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(text, language):
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_python_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, text in (
        ("handbook", "# Leave\n\nEvery employee gets 28 days of annual leave.\n"),
        ("contracts", "# Supply\n\nThe supplier delivers within ten days.\n"),
    ):
        (tmp_path / "docs" / name).mkdir(parents=True)
        (tmp_path / "docs" / name / "a.md").write_text(text, encoding="utf-8")

    class Router(AgenticRouter):
        def __init__(self, *, embedding=None):
            config = RouterConfig(data_dir=tmp_path / ("data" if embedding is None else "attached"))
            super().__init__(config, embedding=embedding or FakeEmbedding(dimension=64))

    codes = blocks(README, "python")
    assert len(codes) == 2
    monkeypatch.setattr(agentic_retriever, "AgenticRouter", Router, raising=False)
    for code in codes:
        exec(compile(code, "README.md", "exec"), {})
    out = capsys.readouterr().out
    assert "28 days of annual leave. [1]" in out
    assert "a.md" in out
    assert "The boiler is serviced in May. [1]" in out


def test_commands_in_the_documentation_exist():
    known = {c.name or c.callback.__name__ for c in app.registered_commands}
    known |= {f"index {c.name}" for c in index_app.registered_commands}
    seen = set()
    for path in DOCS:
        for line in "\n".join(blocks(path.read_text(encoding="utf-8"), "sh")).splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["agentic-retriever"]:
                command = f"index {words[2]}" if words[1] == "index" else words[1]
                assert command in known, line
                seen.add(command)
    assert {"query", "route", "doctor", "index add"} <= seen


def test_make_targets_in_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_strategy_table_says_what_the_registry_has():
    rows = dict(re.findall(r"^\| `(\w+)` \| .* \| (ready|planned) \|$", README, re.MULTILINE))
    assert set(rows) == {s.value for s in Strategy}
    assert {name for name, state in rows.items() if state == "ready"} == {s.value for s in REGISTRY}


def test_settings_in_the_readme_exist():
    settings = (ROOT / ".env.example").read_text(encoding="utf-8")
    for variable in re.findall(r"^\| `([A-Z_]+)` \|", README, re.MULTILINE):
        assert variable in settings, variable


def test_links_between_documents_lead_somewhere():
    for path in DOCS:
        for target in re.findall(r"\]\((?!http)([^)#]+)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


@pytest.mark.parametrize("path", DOCS, ids=lambda p: p.name)
def test_modules_named_in_the_documentation_exist(path):
    text = path.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py|[a-z_]+\.py)`", text):
        assert (ROOT / "agentic_retriever" / name).exists() or (ROOT / name).exists(), name
    for dotted in re.findall(r"`(agentic_retriever(?:\.\w+)+)`", text):
        module, _, attribute = dotted.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute) or importlib.import_module(dotted)


def test_public_names_are_what_they_say():
    for name in agentic_retriever.__all__:
        assert getattr(agentic_retriever, name) is not None
    with pytest.raises(AttributeError):
        agentic_retriever.nothing  # noqa: B018


def test_version_is_one():
    assert f'version = "{agentic_retriever.__version__}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f"## {agentic_retriever.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_architecture_page_names_every_room_and_no_other():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## Layers")[2]
    rows = [row.split(" | ") for row in blocks(page, "text")[0].splitlines()]
    package = ROOT / "agentic_retriever"
    rooms = {path.stem for path in package.glob("*.py")} | {path.parent.name for path in package.glob("*/*.py")}
    assert sorted(room for row in rows for room in row) == sorted(rooms - {"__init__", "__main__"})
    checked = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("\nlayers = [")[2].partition("]")[0]
    assert rows == [row.split(" | ") for row in re.findall('"(.+)"', checked) if row != "__main__"]


def public_callables():
    """Names that users import and the public methods of classes among them, as far as they are ours."""
    for name in agentic_retriever.__all__:
        value = getattr(agentic_retriever, name)
        if callable(value):
            yield name, value
        for attribute in dir(value) if inspect.isclass(value) else ():
            raw = inspect.getattr_static(value, attribute)
            method = raw.fget if isinstance(raw, property) else getattr(raw, "__func__", raw)
            ours = inspect.isfunction(method) and method.__module__.startswith("agentic_retriever")
            if ours and not attribute.startswith("_"):
                yield f"{name}.{attribute}", method


@pytest.mark.parametrize(("name", "value"), [pytest.param(*pair, id=pair[0]) for pair in public_callables()])
def test_what_users_import_has_a_full_docstring(name, value):
    text = inspect.getdoc(value)
    assert text, f"{name} has no docstring"
    summary, _, rest = text.partition("\n")
    assert summary.endswith((".", ":")), name
    assert not rest or rest.startswith("\n"), f"{name}: a blank line comes after the summary"
    if not inspect.isfunction(value):
        return
    parameters = [one for one in inspect.signature(value).parameters if one not in {"self", "cls"}]
    refers = re.search(r"\b[Aa]s (?:every )?:(?:meth|class):|^Do what ``", text)  # the twin of a method
    if len(parameters) > 1 and not refers:
        assert "\nArgs:\n" in text, name
    if "\nArgs:\n" in text:
        told = re.findall(r"^    \*{0,2}(\w+)[:,(]", text.partition("\nArgs:\n")[2], re.MULTILINE)
        assert set(parameters) <= set(told), name
