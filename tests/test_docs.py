import importlib
import inspect
import re
from pathlib import Path

import pytest

import agentic_retriever
from agentic_retriever import Strategy
from agentic_retriever.pipeline.query import Pipeline
from agentic_retriever.retrievers import REGISTRY

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(text, language):
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def headings(page):
    """Return what links to a page can name, as GitHub writes it."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


def test_tables_of_the_readme_name_what_there_is():
    def first_cells(heading):
        return re.findall(
            r"^\| `([\w-]+)`", README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0], re.MULTILINE
        )

    assert first_cells("Strategies") == [strategy.value for strategy in Strategy]
    assert {strategy.value for strategy in REGISTRY} == set(first_cells("Strategies"))
    assert not [each for each in first_cells("Settings") if each not in (ROOT / ".env.example").read_text("utf-8")]
    extras = PROJECT.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    assert {*first_cells("Install"), "test", "dev"} == set(re.findall(r"^(\w+) = \[(?!\])", extras, re.MULTILINE))


def test_every_page_is_linked_from_the_readme_and_links_lead_somewhere():
    assert not [path.name for path in DOCS[1:] if f"](docs/{path.name})" not in README]
    for path in [*DOCS, ROOT / "CHANGELOG.md"]:
        for target, _, heading in re.findall(r"\]\((?!http)([^)#]*)(#([^)]+))?\)", path.read_text(encoding="utf-8")):
            page = path.parent / target if target else path
            assert page.exists(), f"{path.name}: {target}"
            assert not heading or heading in headings(page), f"{path.name}: {target}#{heading}"


@pytest.mark.parametrize("path", DOCS, ids=lambda p: p.name)
def test_modules_and_tests_named_in_the_documentation_exist(path):
    text = path.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py|[a-z_]+\.py)`", text):
        assert (ROOT / "agentic_retriever" / name).exists() or (ROOT / name).exists(), name
    for dotted in re.findall(r"`(agentic_retriever(?:\.\w+)+)`", text):
        module, _, attribute = dotted.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute) or importlib.import_module(dotted)
    for test in re.findall(r"`(test_\w+)`", text):
        assert any(f"def {test}(" in file.read_text("utf-8") for file in (ROOT / "tests").rglob("test_*.py")), test


def test_public_names_are_what_they_say_and_the_version_is_one():
    for name in agentic_retriever.__all__:
        assert getattr(agentic_retriever, name) is not None
    with pytest.raises(AttributeError):
        agentic_retriever.nothing  # noqa: B018
    assert f'version = "{agentic_retriever.__version__}"' in PROJECT
    assert f"## {agentic_retriever.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_architecture_page_names_every_room_and_no_other():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## Layers")[2]
    rows = [row.split(" | ") for row in blocks(page, "text")[0].splitlines()]
    package = ROOT / "agentic_retriever"
    rooms = {path.stem for path in package.glob("*.py")} | {path.parent.name for path in package.glob("*/*.py")}
    assert sorted(room for row in rows for room in row) == sorted(rooms - {"__init__", "__main__"})
    checked = PROJECT.partition("\nlayers = [")[2].partition("]")[0]
    assert rows == [row.split(" | ") for row in re.findall('"(.+)"', checked) if row != "__main__"]


def test_the_steps_of_a_query_are_methods_in_the_order_of_the_page():
    page = (
        (ROOT / "docs" / "architecture.md")
        .read_text(encoding="utf-8")
        .partition("## One query")[2]
        .partition("\n## ")[0]
    )
    steps = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    lines = {name: inspect.getsourcelines(getattr(Pipeline, name))[1] for name in steps if name != "_hand_out"}
    assert len(lines) > 7
    assert list(lines.values()) == sorted(lines.values())
    assert all(hasattr(Pipeline, name) for name in re.findall(r"`(_\w+)`", page))


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
