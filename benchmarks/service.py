"""The service in a process of its own, asked by HTTP: hits, the first piece, two hundred clients."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import BenchmarkSkippedError, Row, Timing, Unit, say, timed_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.harness import Options

CONNECTIONS = 16
SECONDS = 8.0
HITS_TARGET = 300.0
STREAMED = 20  # questions whose first piece is waited for
CLIENTS = 200
CROWD_S = 60.0
CROWD_FACTOR = 3.0
_SEED = 67


def run(options: Options) -> list[Row]:
    """Measure hits, first pieces and a crowd; a quick run (``--nodes``) has the crowd for a tenth of the time."""
    try:
        import uvicorn  # noqa: F401
    except ImportError as err:
        raise BenchmarkSkippedError("the extra 'service' is not installed") from err
    from agentic_retriever.sample import load_questions

    questions = [str(one["query"]) for one in load_questions() if one["answerable"]]
    seconds = CROWD_S if options.nodes is None else CROWD_S / 10
    with tempfile.TemporaryDirectory() as folder:
        _build(Path(folder))
        with _served(Path(folder)) as (port, _):
            rows = [asyncio.run(_first_piece(port, questions)), asyncio.run(_hits(port, questions[0]))]
        with _served(Path(folder), CACHE_MAX_ENTRIES="0") as (port, pid):
            return [*rows, asyncio.run(_crowd(port, pid, questions, seconds))]


def _build(folder: Path) -> None:
    from agentic_retriever import AgenticRouter, RouterConfig
    from agentic_retriever.embeddings import PackedVectors
    from agentic_retriever.sample import SAMPLE_INDEXES, VECTORS

    say("building the sample ...")
    config = RouterConfig(data_dir=folder, embedding_model="local")
    with AgenticRouter(config, packed=[PackedVectors(VECTORS)]) as router:
        for sample in SAMPLE_INDEXES:
            router.add_index(sample.name, sample.folder, description=sample.description)
            router.build_views(sample.name)


@contextmanager
def _served(folder: Path, *options: str, **settings: str) -> Iterator[tuple[int, int]]:
    """Start the service; gives its port and process."""
    command = [
        sys.executable,
        "-m",
        "agentic_retriever",
        "--data-dir",
        str(folder),
        "serve",
        "--port",
        "0",
        "--workers",
        "0",
    ]
    ours = {f"AGENTIC_RETRIEVER_{name}": value for name, value in {"EMBEDDING_MODEL": "local", **settings}.items()}
    process = subprocess.Popen([*command, *options], env=os.environ | ours, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        found = re.search(r"http://[^\s]*:(\d+)", process.stdout.readline())
        if found is None:
            raise RuntimeError("the service did not start")
        yield int(found[1]), process.pid
    finally:
        process.terminate()
        process.wait(60)


class _Client:
    """One connection that stays open."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def ask(self, query: str, until: bytes = b"", **more: Any) -> tuple[int, bytes]:  # noqa: ANN401 - JSON
        """Send a question; return status and body, or what came until some bytes were seen."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port) if until else await self._kept()
        body = json.dumps({"query": query, **more}).encode()
        head = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(b"POST /v1/query HTTP/1.1\r\n" + head.encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        status = int(lines.split(" ", 2)[1])
        if until and status == 200:
            await reader.readuntil(until)
            writer.close()
            return status, b""
        length = re.search(r"content-length: (\d+)", lines)
        return status, await reader.readexactly(int(length[1]) if length else 0)

    async def _kept(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not hasattr(self, "_pair"):
            self._pair = await asyncio.open_connection("127.0.0.1", self._port)
        return self._pair


async def _hits(port: int, query: str) -> Row:
    clients = [_Client(port) for _ in range(CONNECTIONS)]
    await clients[0].ask(query)
    done, ends = 0, time.perf_counter() + SECONDS

    async def keep_asking(client: _Client) -> None:
        nonlocal done
        while time.perf_counter() < ends:
            status, body = await client.ask(query)
            if status != 200 or b'"cached":true' not in body:
                raise RuntimeError(f"no hit: {status}")
            done += 1

    start = time.perf_counter()
    await asyncio.gather(*map(keep_asking, clients))
    rate = done / (time.perf_counter() - start)
    note = f"{done:,} answers to {CONNECTIONS} connections, whole JSON each; the client, Python too, shares the cores"
    return Row(name="service: cached answers", ours=rate, unit=Unit.ANSWERS_PER_S, target=HITS_TARGET, note=note)


async def _first_piece(port: int, questions: list[str]) -> Row:
    await _Client(port).ask(questions[-1])  # loads what answers
    taken = []
    for query in questions[:STREAMED]:
        start = time.perf_counter()
        await _Client(port).ask(query, until=b"event: piece\n", stream=True)
        taken.append((time.perf_counter() - start) * 1000)
    return timed_row("service: first streamed piece", Timing.of(taken), note="sample, extractive, none cached")


async def _crowd(port: int, pid: int, questions: list[str], seconds: float) -> Row:
    """Ask alone, then all at once; who is asked to wait does so, as Retry-After says."""
    chance = random.Random(_SEED)
    alone, codes = [], dict.fromkeys((200, 503), 0)

    async def keep_asking(taken: list[float], ends: float) -> None:
        client = _Client(port)
        while time.perf_counter() < ends:
            start = time.perf_counter()
            status, _ = await client.ask(chance.choice(questions))
            codes[status] = codes.get(status, 0) + 1
            if status == 200:
                taken.append((time.perf_counter() - start) * 1000)
            elif status == 503:
                await asyncio.sleep(chance.uniform(1.0, 2.0))

    await keep_asking([], time.perf_counter() + 2)
    await keep_asking(alone, time.perf_counter() + seconds / 3)
    codes, before, together = dict.fromkeys((200, 503), 0), _memory_mb(pid), []
    ends = time.perf_counter() + seconds
    await asyncio.gather(*(keep_asking(together, ends) for _ in range(CLIENTS)))
    one, all_ = Timing.of(alone), Timing.of(together)
    said = ", ".join(f"{count:,} x {code}" for code, count in codes.items())
    note = f"{CLIENTS} clients for {seconds:.0f} s, which share its cores, cache off: {said}; memory {before:.0f} to "
    note += f"{_memory_mb(pid):.0f} MB"
    return timed_row(
        "service: 200 clients", all_, peer="one client", peer_timing=one, target_ms=CROWD_FACTOR * one.p95_ms, note=note
    )


def _memory_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
