"""Faults of real Qdrant servers while clients ask and write: a node of a cluster goes and comes back, a disk fills up.

``python -m benchmarks.server_faults --program /path/to/qdrant [--case NAME ...] [--seconds N] [--small FOLDER]`` starts
three nodes on this machine with two copies of everything, for each case anew, and prints one line of JSON for it.
``--small`` names a folder on a file system with at most a few hundred megabytes free, which the case ``full`` needs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
from llama_index.core.vector_stores.types import VectorStoreQuery

from agentic_retriever.errors import StoreError
from agentic_retriever.stores.server import QdrantLink, QdrantServerVectorStore
from benchmarks.data import BATCH
from benchmarks.server import Vectors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from llama_index.core.schema import TextNode

PORTS = 16_333  # HTTP, gRPC and the cluster's own of the first node, ten apart from one node to the next
COLLECTION = "faults"
CLIENTS = 16
STEP = 20  # nodes that are written at a time
FIRST = 2_000  # nodes that are there before
AFTERWARDS_S = 15.0
_WAITS_S = 90.0
_WORDS = "bada dofa"
_BALLAST_MB = 48  # what is left free on a small disk when the case begins
#: Which node goes, how, and how many of them the client knows. The first is the one that is asked.
CASES = {
    "other-killed": (1, signal.SIGKILL, 1),
    "asked-killed": (0, signal.SIGKILL, 3),
    "other-still": (1, signal.SIGSTOP, 1),
    "asked-still": (0, signal.SIGSTOP, 3),
    "alone-killed": (0, signal.SIGKILL, 1),
}


@dataclass
class Server:
    """One node of a cluster, or a server by itself; it can be killed and started again."""

    program: Path
    folder: Path
    number: int = 0
    clustered: bool = True
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{PORTS + 10 * self.number}"

    def start(self) -> None:
        http = PORTS + 10 * self.number
        settings = {
            "STORAGE__STORAGE_PATH": str(self.folder / "all"), "STORAGE__SNAPSHOTS_PATH": str(self.folder / "shots"),
            "SERVICE__HOST": "127.0.0.1", "SERVICE__HTTP_PORT": str(http), "SERVICE__GRPC_PORT": str(http + 1),
            "STORAGE__COLLECTION__REPLICATION_FACTOR": "2" if self.clustered else "1", "TELEMETRY_DISABLED": "true",
            "CLUSTER__ENABLED": str(self.clustered).lower(), "CLUSTER__P2P__PORT": str(http + 2),
        }  # fmt: skip
        command = [str(self.program)]
        if self.clustered:
            command += ["--uri", f"http://127.0.0.1:{http + 2}"]
            command += ["--bootstrap", f"http://127.0.0.1:{PORTS + 2}"] if self.number else []
        environment = os.environ | {f"QDRANT__{name}": value for name, value in settings.items()}
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log)
        _wait(lambda: httpx.get(f"{self.url}/readyz", timeout=2).is_success)

    def send(self, what: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(what)
            if what == signal.SIGKILL:
                self.process.wait()


@dataclass
class Work:
    """What clients and the writer have done so far."""

    asked: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    written: list[str] = field(default_factory=list)  # ids of acknowledged nodes
    over: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, number: int, store: QdrantServerVectorStore, vectors: list[list[float]]) -> None:
        words = store.words
        assert words is not None
        for turn in count(number):
            if self.over.is_set():
                return
            vector = vectors[turn % len(vectors)]
            calls: tuple[Callable[[], object], ...] = (
                partial(store.query, VectorStoreQuery(query_embedding=vector, similarity_top_k=10)),
                partial(words.search_words, _WORDS, 10),
                partial(words.search_both, vector, _WORDS, 10),
            )
            self._count("queries", calls[turn % 3])

    def write(self, store: QdrantServerVectorStore, nodes: Iterable[list[TextNode]]) -> None:
        for some in nodes:
            if self.over.is_set():
                return
            if self._count("writes", partial(store.add, some)):
                self.written += [node.node_id for node in some]
            else:
                self.over.wait(0.1)

    def _count(self, kind: str, call: Callable[[], object]) -> bool:
        start, failed = time.monotonic(), list[str]()
        try:
            call()
        except StoreError as err:
            failed = [kind, f"{type(err).__name__}: {str(err)[:160]}"]
        with self.lock:  # of all clients
            self.asked[kind] += 1
            self.failures.update(failed)
            self.slowest_s = max(self.slowest_s, time.monotonic() - start)
        return not failed

    def told(self, store: QdrantServerVectorStore) -> dict[str, object]:
        there = {str(node_id) for node_id in store.node_ids()}
        failed = {kind: self.failures.pop(kind, 0) for kind in ("queries", "writes")}
        return {
            "asked": dict(self.asked), "failed": failed, "errors": dict(self.failures.most_common(5)),
            "slowest_s": round(self.slowest_s, 2), "acknowledged": len(self.written),
            "lost": len(set(self.written) - there),
        }  # fmt: skip


def measure(program: Path, folder: Path, case: str, seconds: float) -> dict[str, object]:
    """Take a node away for some seconds while clients ask and one writes."""
    which, how, known = CASES[case]
    with ExitStack() as undo:
        nodes = [Server(program, folder / str(number), number) for number in range(3)]
        for node in nodes:
            undo.callback(node.send, signal.SIGKILL)
            node.start()
        _wait(lambda: len(httpx.get(f"{nodes[0].url}/cluster").json()["result"]["peers"]) == len(nodes))
        link = QdrantLink(",".join(node.url for node in nodes[:known]))
        store = QdrantServerVectorStore(link, COLLECTION, keywords=True)
        undo.callback(link.close)

        def fault(_: Work) -> None:
            nodes[which].send(how)
            time.sleep(seconds)
            nodes[which].send(signal.SIGCONT) if how == signal.SIGSTOP else nodes[which].start()
            time.sleep(AFTERWARDS_S)

        work = _under_load(store, fault)
        _wait(lambda: all(_is_whole(node) for node in nodes))
        return {"case": case, "seconds": seconds} | work.told(store)


def measure_full(program: Path, small: Path) -> dict[str, object]:
    """Let a disk fill up while clients ask and one writes, then free it; the server is not started again."""
    folder = Path(tempfile.mkdtemp(prefix="full-", dir=small))
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        server = Server(program, folder / "one", clustered=False)
        undo.callback(server.send, signal.SIGKILL)
        server.start()
        link = QdrantLink(server.url)
        store, told = QdrantServerVectorStore(link, COLLECTION, keywords=True), dict[str, object]()
        undo.callback(link.close)
        ballast = folder / "ballast"

        def fault(work: Work) -> None:
            ballast.write_bytes(b"\1" * max(0, shutil.disk_usage(folder).free - _BALLAST_MB * 2**20))
            _wait(lambda: work.failures["writes"] >= 3)
            asked, failed = work.asked["queries"], work.failures["queries"]
            time.sleep(AFTERWARDS_S)
            told["while_full"] = {
                "queries": work.asked["queries"] - asked,
                "failed_queries": work.failures["queries"] - failed,
                "free_mb": round(shutil.disk_usage(folder).free / 2**20, 1),
            }
            ballast.unlink()
            acknowledged = len(work.written)
            time.sleep(AFTERWARDS_S)
            told["acknowledged_after"] = len(work.written) - acknowledged

        return {"case": "full"} | _under_load(store, fault).told(store) | told


def _under_load(store: QdrantServerVectorStore, fault: Callable[[Work], None]) -> Work:
    nodes = 1_000 * BATCH
    work, batches = Work(), Vectors.made_up(nodes).batches(nodes)
    steps = (batch[at : at + STEP] for batch in batches for at in range(0, BATCH, STEP))
    for some in islice(steps, FIRST // STEP):
        store.add(some)
        work.written += [node.node_id for node in some]
    vectors = [node.embedding for node in some if node.embedding]
    threads = [threading.Thread(target=work.ask, args=(n, store, vectors)) for n in range(CLIENTS)]
    threads.append(threading.Thread(target=work.write, args=(store, steps)))
    for thread in threads:
        thread.start()
    try:
        time.sleep(3.0)
        fault(work)
    finally:
        work.over.set()
        for thread in threads:
            thread.join()
    return work


def _is_whole(node: Server) -> bool:
    """Whether all copies of the collection that a node knows of can be asked."""
    told = httpx.get(f"{node.url}/collections/{COLLECTION}/cluster", timeout=5).json()["result"]
    shards = [*told["local_shards"], *told["remote_shards"]]
    return not told["shard_transfers"] and all(shard["state"] == "Active" for shard in shards)


def _wait(is_so: Callable[[], bool]) -> None:
    ends = time.monotonic() + _WAITS_S
    while True:
        try:
            if is_so():
                return
        except (httpx.HTTPError, KeyError, ValueError):
            pass  # it is not up yet
        if time.monotonic() > ends:
            raise TimeoutError(f"a server is not ready after {_WAITS_S:.0f} s; its folder has a log")
        time.sleep(0.2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", type=Path, required=True, help="the server's program, 1.18 or newer")
    parser.add_argument("--case", nargs="*", choices=[*CASES, "full"], default=list(CASES))
    parser.add_argument("--seconds", type=float, default=30.0, help="how long a node is away")
    parser.add_argument("--small", type=Path, help="a folder on a small file system, for the case full")
    chosen = parser.parse_args()
    for case in chosen.case:
        if case == "full":
            if chosen.small is None:
                parser.error("the case full needs --small, a folder on a small file system")
            print(json.dumps(measure_full(chosen.program.resolve(), chosen.small)), flush=True)
            continue
        with tempfile.TemporaryDirectory(prefix="faults-") as folder:
            print(json.dumps(measure(chosen.program.resolve(), Path(folder), case, chosen.seconds)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
