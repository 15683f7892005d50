"""Documents whose workers are killed (-9) again and again: what becomes of them, held against a run without kills.

``python -m benchmarks.worker_kills [--documents N] [--kills N] [--url URL]`` prints one line of JSON. Workers are
forked, so that each begins at once; half of the kills come at random moments, the others each in another state. With
``--workers N --qdrant URL [--redis URL]`` so many processes share the work instead, on a Qdrant server, and it is
counted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from itertools import cycle, islice
from pathlib import Path

from agentic_retriever.catalog.contents import Catalog
from agentic_retriever.catalog.documents import CUT_OFF
from agentic_retriever.config import RouterConfig, Secret
from agentic_retriever.indices import Indexer
from agentic_retriever.ingestion.chunking import count_tokens
from agentic_retriever.lifecycle.worker import DocumentWorker
from agentic_retriever.router import AgenticRouter
from agentic_retriever.testing import FakeEmbedding
from agentic_retriever.text import detect_language

INDEX = "papers"
LEASE_S = 1.0
WORDS = ("river", "stone", "light", "engine", "cloud", "forest", "iron", "letter", "market", "signal")
#: In which state a worker dies: the call that it does not return from, or does not begin.
STATES = {
    "claimed": (DocumentWorker, "_read", "before"),
    "read": (DocumentWorker, "_read", "after"),
    "embedded": (Indexer, "_embedded", "after"),
    "begun": (Catalog, "begin", "after"),
    "stored": (Catalog, "confirm", "before"),
    "confirmed": (Catalog, "confirm", "after"),
}


class SlowEmbedding(FakeEmbedding):
    """Takes some milliseconds a text, so that random kills come at every step."""

    def _vector(self, text: str) -> list[float]:
        time.sleep(0.004)
        return super()._vector(text)


def texts(count: int, seed: int = 3) -> dict[str, bytes]:
    """Make documents of a few sections each; every ninth cannot be read."""
    draw = random.Random(seed)
    made = {}
    for n in range(count):
        parts = [f"## {i}. {draw.choice(WORDS)}\n\n{_words(draw, n)}" for i in range(1, draw.randint(3, 9))]
        made[f"paper-{n}.md"] = f"# Paper {n}\n\n".encode() + "\n\n".join(parts).encode()
        if n % 9 == 8:
            made[f"paper-{n}.md"] += b"\0"
    return made


def _words(draw: random.Random, n: int) -> str:
    return " ".join(draw.choice(WORDS) + (f"-{n}." if draw.random() < 0.1 else "") for _ in range(120))


def router(folder: Path, url: str, qdrant: str = "", redis: str = "") -> AgenticRouter:
    places = {"database_url": Secret(url), "qdrant_url": Secret(qdrant), "redis_url": Secret(redis)}
    config = RouterConfig(data_dir=folder, chunk_size=128, chunk_overlap=0, **places)
    return AgenticRouter(config, embedding=SlowEmbedding())


def run_worker(folder: Path, url: str, die: str = "", qdrant: str = "", redis: str = "") -> None:
    """Be a worker until killed, or until nothing waits any more; ``die`` in a state, with the first document."""
    count_work(folder)
    if die:
        owner, name, when = STATES[die]
        call = getattr(owner, name)

        def dying(*args: object, **kwargs: object) -> object:
            result = None if when == "before" else call(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(owner, name, dying)
    with router(folder, url, qdrant, redis) as made:
        worker = DocumentWorker(made.resources, made.documents, lease_s=60.0 if qdrant else LEASE_S)
        worker.start()
        while made.documents.count(status="pending") + made.documents.count(status="processing"):
            time.sleep(0.05)
        worker.stop()


def count_work(folder: Path) -> None:
    """Note each document that is processed, in a file that all workers append to."""
    call = DocumentWorker._read  # noqa: SLF001 - what is counted is no part of its interface

    def counted(self: DocumentWorker, record: object, reader: object) -> object:
        with (folder / "processed").open("a") as file:
            file.write(f"{record.id}\n")
        return call(self, record, reader)

    DocumentWorker._read = counted  # noqa: SLF001


def forked(folder: Path, url: str, die: str = "", **servers: str) -> int:
    child = os.fork()
    if not child:
        try:
            run_worker(folder, url, die, **servers)
        finally:
            os._exit(0)
    return child


def measure(folder: Path, url: str, documents: dict[str, bytes], kills: int, seed: int = 5) -> dict[str, object]:
    draw, started, done = random.Random(seed), time.monotonic(), Counter[str]()
    with router(folder, url) as made:
        for name, content in documents.items():
            made.documents.upload(content, index=INDEX, filename=name)
    states = list(islice(cycle(STATES), kills // 2)) + [""] * (kills - kills // 2)
    draw.shuffle(states)
    for die in states:
        child = forked(folder, url, die)
        ends = time.monotonic() + (20.0 if die else draw.uniform(0.05, 2.5))
        while time.monotonic() < ends and os.waitpid(child, os.WNOHANG) == (0, 0):
            time.sleep(0.01)
        if time.monotonic() < ends:
            done["by itself in a state" if die else "by itself"] += 1
            continue
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        done["at random"] += 1
    os.waitpid(forked(folder, url), 0)
    with router(folder, url) as made:  # who was killed three times at one document gives it up, and a person asks again
        failed = made.documents.list(index=INDEX, status="failed", limit=100_000)
        given_up = [record.id for record in failed if record.error_message == CUT_OFF]
        for document_id in given_up:
            made.documents.reprocess(document_id)
    if given_up:
        os.waitpid(forked(folder, url), 0)
    told: dict[str, object] = {"given_up": len(given_up), "kills": dict(done)}
    return summary(folder, url) | told | {"seconds": round(time.monotonic() - started, 1)}


def share(folder: Path, url: str, documents: dict[str, bytes], workers: int, **servers: str) -> dict[str, object]:
    """Have many processes work at the same documents, and say how often each document was processed."""
    started = time.monotonic()
    with router(folder, url, **servers) as made:
        for name, content in documents.items():
            made.documents.upload(content, index=INDEX, filename=name)
    for child in [forked(folder, url, **servers) for _ in range(workers)]:
        os.waitpid(child, 0)
    times = Counter((folder / "processed").read_text().split())
    told = summary(folder, url, servers["qdrant"])
    told.pop("contents")
    return told | {"processed": dict(Counter(times.values())), "seconds": round(time.monotonic() - started, 1)}


def summary(folder: Path, url: str, qdrant: str = "") -> dict[str, object]:
    """Say what is there, and hold catalog and store against each other."""
    with router(folder, url, qdrant) as made:
        records = made.documents.list(limit=100_000)
        nodes = [node for record in records for node in made.documents.nodes(record.id)]
        index = made.stored_index(INDEX)
        index.check_contents()
        stored = list(index.vector_store.node_ids())
        return {
            "documents": dict(Counter(record.status.value for record in records)),
            "reasons": dict(Counter(record.error_message for record in records if record.status.value == "failed")),
            "nodes": len(nodes),
            "stored": len(stored),
            "same": sorted(stored) == sorted(node.node_id for node in nodes),
            "contents": sorted(node.content_hash for node in nodes),
            "duplicates": len(nodes) - len({(node.document_id, node.position) for node in nodes}),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=100)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--url", default="", help="PostgreSQL for the catalog, an empty schema of it; else SQLite")
    parser.add_argument("--clean-url", default="", help="the same for the run without kills")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--qdrant", default="", help="a Qdrant server, for --workers")
    parser.add_argument("--redis", default="", help="a Redis that wakes them, for --workers")
    chosen = parser.parse_args()
    documents = texts(chosen.documents)
    detect_language(f"{documents}"), count_tokens("word")  # else every worker loads them anew
    folder = Path(tempfile.mkdtemp(prefix="worker-kills-"))
    try:
        if chosen.workers:
            servers = {"qdrant": chosen.qdrant, "redis": chosen.redis}
            print(json.dumps(share(folder, chosen.url, documents, chosen.workers, **servers)))
            return 0
        killed = measure(folder / "killed", chosen.url, documents, chosen.kills)
        clean = measure(folder / "clean", chosen.clean_url, documents, 0)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    same = {name: killed[name] == clean[name] for name in ("nodes", "contents")}
    short = {name: value for name, value in killed.items() if name != "contents"}
    print(json.dumps(short | {"as_without_kills": same, "clean_documents": clean["documents"]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
