from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timedelta, timezone

import pytest
from command_line import environment, run_here
from log_material import answer, entry

from agentic_retriever.config import PREFIX
from agentic_retriever.querylog import QueryLog

WAIT_S = 20


def stats(folder, *args, **settings):
    env = environment(**{PREFIX + name: value for name, value in settings.items()})
    return run_here(folder, "--data-dir", str(folder), "stats", *args, env=env)


@pytest.fixture
def folder(tmp_path):
    now = datetime.now(timezone.utc)
    with QueryLog(tmp_path / "queries.sqlite") as log:
        log.record_answer(answer(), cloud_only_usd=1.0)
        log.record(entry(1, index="bad\x1b[31m", recorded_at=now - timedelta(days=40)))
        assert log.flush(WAIT_S)
    return tmp_path


def test_tables_of_the_last_days(folder):
    done = stats(folder)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert "queries\t1" in lines
    assert "news\thybrid\t1" in lines
    assert "saved usd against cloud only\t0.5000 of 1.0000" in lines
    assert "hybrid.keyword\t1" in lines
    assert "total\t1\t30.0\t30.0\t30.0\t30.0" in lines


def test_all_there_is_without_control_characters(folder):
    done = stats(folder, "--days", "0")
    assert "queries\t2" in done.stdout.splitlines()
    assert "\x1b" not in done.stdout


def test_as_json(folder):
    found = json.loads(stats(folder, "--json", "--days", "100").stdout)
    assert (found["queries"], found["saved_usd"]) == (2, 0.5)
    assert found["since"] < found["first_at"]


def test_nothing_yet_makes_no_file(tmp_path):
    done = stats(tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert "no queries" in done.stderr
    assert json.loads(stats(tmp_path, "--json").stdout)["queries"] == 0
    assert not list(tmp_path.iterdir())


def test_what_is_wrong_is_one_line_with_its_exit_code(folder):
    off = stats(folder, QUERY_LOG="none")
    assert (off.returncode, off.stderr.count("\n")) == (3, 1)
    assert "query_log is none" in off.stderr
    assert stats(folder, "--days", "-1").returncode == 2
    assert stats(folder, "--days", "nan").returncode in {2, 4}
    (folder / "queries.sqlite").write_bytes(b"garbage" * 1_000)
    broken = stats(folder)
    assert (broken.returncode, broken.stderr.count("\n")) == (6, 1)
    assert "damaged" in broken.stderr
    gone = stats(folder, QUERY_LOG="postgresql://u:canary@127.0.0.1:1/db")
    assert gone.returncode == 6
    assert "canary" not in gone.stderr + gone.stdout


def test_help_loads_no_database_library():
    code = (
        "import sys\nsys.argv = ['x', 'stats', '--help']\nfrom agentic_retriever.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('llama_index', 'sqlalchemy')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip().endswith("[]")
