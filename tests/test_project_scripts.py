"""The project's own measuring: counts of the house, the trace of a query, recordings and their comparison."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"


def load(name):
    spec = importlib.util.spec_from_file_location(f"scripts_{name}", SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


house, recording, trace_query = load("house"), load("recording"), load("trace_query")


def written(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return folder


def ran(module, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, arguments)])
    return module.main()


# --- the house ---


HOUSE = {
    "agentic_retriever/__init__.py": "",
    "agentic_retriever/config.py": "class RouterConfig:\n    a: int = 1\n    b: ClassVar[int]\n    _c: int\n    d: str",
    "agentic_retriever/room/__init__.py": "from agentic_retriever.room.a import x\n",
    "agentic_retriever/room/a.py": "from agentic_retriever.room import b\nimport agentic_retriever.config\n",
    "agentic_retriever/room/b.py": "def f():\n    from agentic_retriever.room.c import y\n",
    "agentic_retriever/room/c.py": "if TYPE_CHECKING:\n    from agentic_retriever.room.a import x\n",
    "tests/test_a.py": "\n\n" + "a" * 121 + "\n",
    "docs/page.md": "three small words\n",
}


def test_the_house_is_counted(tmp_path):
    lines = ["def long():", '    """Say."""', *["    pass"] * 41]
    counts = {one.name: one for one in house.count_house(written(tmp_path, HOUSE | {
        "agentic_retriever/long.py": "\n".join([*lines, *["x = 1"] * 900]),
    }))}  # fmt: skip
    values = {name: one.value for name, one in counts.items()}
    assert values == {
        "lines of the library": 5 + 1 + 2 + 2 + 2 + 943, "files of the library": 7, "lines of tests": 3,
        "settings": 2, "files of the largest folder": 4, "import cycles": 1, "files over 900 lines": 1,
        "functions over 40 lines": 1, "lines over 120 characters": 1, "words in docs": 3,
    }  # fmt: skip
    room = "agentic_retriever.room"
    assert counts["import cycles"].places == (f"{room}.a - {room}.b - {room}.c",)
    assert counts["lines over 120 characters"].places == (str(Path("tests", "test_a.py")) + ":3",)
    assert [name for name, one in counts.items() if one.broken] == ["import cycles"]


def test_a_broken_limit_ends_the_check_and_no_plain_call(tmp_path, monkeypatch, capsys):
    written(tmp_path, HOUSE)
    assert ran(house, monkeypatch, tmp_path) == 0
    assert "BROKEN import cycles: 1 (at most 0)" in capsys.readouterr().out
    assert ran(house, monkeypatch, tmp_path, "--check") == 1
    written(tmp_path, {"agentic_retriever/room/c.py": ""})
    assert ran(house, monkeypatch, tmp_path, "--check") == 0


# --- the way of a query ---


def test_a_query_is_traced(tmp_path):
    trace = trace_query.trace_one_query(tmp_path)
    assert len(trace.files) > 10
    assert not any(name.startswith("testing") for name in trace.files)
    assert len(trace.deepest) > 5
    assert trace.deepest[0].endswith(":query")
    assert sys.getprofile() is None


# --- recordings ---


def test_what_differs_from_run_to_run_is_masked():
    value = {"query_id": "a", "total_ms": 1.5, "timings_ms": {"llm": 2.0}, "score": 0.12345678, "all": (1, None)}
    assert recording.plain(value) == {
        "query_id": "*", "total_ms": "*", "timings_ms": {"llm": "*"}, "score": 0.123457, "all": [1, None]
    }  # fmt: skip


def test_files_of_a_data_directory_are_described(tmp_path):
    written(tmp_path, {
        "indexes/one/manifest.json": {"name": "one", "size": 1},
        "indexes/two/manifest.json": {"name": "two", "size": 1.5},
        "indexes/one/known.json": {"Doc-1": [1, "a"], "Doc-2": [2, "b"]},
        "indexes/one/chunks/shard/segment.bin": "engine",
        "log-17.jsonl": '{"a": []}\n{"a": [true]}\n',
    })  # fmt: skip
    np.savez(tmp_path / "profile.npz", vectors=np.zeros((2, 3), dtype=np.float32))
    engine = recording.create_engine(f"sqlite:///{tmp_path / 'a.sqlite'}")
    with engine.begin() as connection:
        connection.execute(recording.text("CREATE TABLE t (a INTEGER)"))
    engine.dispose()
    assert recording.inventory(tmp_path) == {
        "indexes/NAME/manifest.json": {"any of": [{"name": "str", "size": "float"}, {"name": "str", "size": "int"}]},
        "indexes/NAME/known.json": {"*": [{"any of": ["int", "str"]}]},
        "log-N.jsonl": {"any of": [{"a": ["bool"]}, {"a": []}]},
        "profile.npz": {"vectors": "f2"},
        "a.sqlite": ["CREATE TABLE t (a INTEGER)"],
    }


def bench(**figures):
    rows = {name: {"nDCG@10": value, "p50_ms": 3.0} for name, value in figures.items()}
    return {"seed": 0, "datasets": {"cacm": {"strategies": rows | {"bm25s": {"nDCG@10": 0.9, "peer": True}}}}}


def routing(macro=0.97, recall=0.6, complexity=0.9):
    abstention = {"precision": None, "recall": recall, "false_rate": 0.1}
    return {
        "seed": 0, "datasets": [{"name": "cacm"}, {"name": "cisi"}],
        "stage_one": {
            "profile": {"macro_accuracy": macro, "abstention": abstention},
            "embedding": {"macro_accuracy": 0.6},
        },
        "stage_two": {"heuristic": {"macro_f1": 0.9}}, "complexity": {"accuracy": complexity, "macro_f1": 0.9},
    }  # fmt: skip


@pytest.mark.parametrize(("new", "allow", "said"), [
    ({}, [], None),
    ({"bench.json": bench(vector=0.4981, hybrid=0.61)}, [], None),
    ({"bench.json": bench(vector=0.4979, hybrid=0.6)}, [], "bench:cacm.vector is worse: 0.5000 -> 0.4979"),
    ({"bench.json": bench(vector=0.5)}, [], "bench:cacm.hybrid is worse: 0.6000 -> nan"),
    ({"bench.json": bench(vector=0.5)}, ["bench:cacm.hybrid"], None),
    ({"routing.json": routing(macro=0.964)}, ["stage one:*"], "macro_accuracy is below 0.965: 0.9640"),
    ({"routing.json": routing(recall=0.59)}, [], "abstention:cacm+cisi.profile.recall is worse"),
    ({"routing.json": routing(complexity=0.8)}, [], "complexity:cacm+cisi.accuracy is worse"),
    ({"golden/answers.json": {"q1": {"score": 0.50001, "text": "a"}, "q2": {"score": 1, "text": "b"}}}, [], None),
    ({"golden/answers.json": {"q1": {"score": 0.6, "text": "a"}, "q2": {"score": 2, "text": "b"}}}, [],
     "golden/answers.json:*.score (2), first q1.score: 0.5 -> 0.6"),
    ({"golden/answers.json": {"q1": {"score": 0.5}, "q2": {"score": 1, "text": "b", "more": 1}}}, [],
     "golden/answers.json:*.text (1), first q1.text: is gone"),
    ({"golden/answers.json": {"q1": {"score": 0.5}, "q2": {"score": 1, "text": "b", "more": 1}}},
     ["golden/answers.json:*.text", "*.more"], None),
])  # fmt: skip
def test_two_recordings_are_compared(tmp_path, monkeypatch, capsys, new, allow, said):
    files = {
        "bench.json": bench(vector=0.5, hybrid=0.6),
        "routing.json": routing(),
        "golden/answers.json": {"q1": {"score": 0.5, "text": "a"}, "q2": {"score": 1, "text": "b"}},
    }
    old, now = written(tmp_path / "old", files), written(tmp_path / "new", files | new)
    (tmp_path / "allowed").write_text("# intended\n" + "\n".join(allow), encoding="utf-8")
    code = ran(recording, monkeypatch, "compare", old, now, "--allow-file", tmp_path / "allowed")
    out = capsys.readouterr().out
    assert code == (said is not None), out
    assert (said or "nothing is worse") in out


def test_measurements_are_taken_in_without_times_and_nothing_recorded_is_no_success(tmp_path, monkeypatch, capsys):
    assert ran(recording, monkeypatch, "compare", tmp_path, tmp_path) == 1
    assert "no recording" in capsys.readouterr().out
    source = written(tmp_path, {"bench.json": bench(vector=0.5)}) / "bench.json"
    assert ran(recording, monkeypatch, "take", tmp_path / "kept", source) == 0
    kept = json.loads((tmp_path / "kept" / "bench.json").read_text(encoding="utf-8"))
    assert kept["datasets"]["cacm"]["strategies"]["vector"] == {"nDCG@10": 0.5, "p50_ms": "*"}
    assert ran(recording, monkeypatch, "compare", tmp_path / "kept", tmp_path / "kept") == 0
