"""Questions whose vectors are known, alone and while a worker of the same process takes in documents."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.data import questions, texts
from benchmarks.harness import BenchmarkSkippedError, Row, Timing, timed_row

if TYPE_CHECKING:
    from agentic_retriever.router import AgenticRouter
    from benchmarks.harness import Options

HELD = 2_000  # documents that are there before, one node each
UPLOADED = 500
WORDS = 40  # of each, so that the machine's own model takes minutes, not an hour
QUESTIONS = 200
RUNS = 400
PAUSE_S = 0.02  # between questions, so that one thread asks at most 50 a second
TIMES = 2.0  # of the idle figure, at most
_SEED = 73


def run(options: Options) -> list[Row]:
    """Ask alone, and while 500 documents are taken in."""
    try:
        from agentic_retriever.embeddings import LocalEmbedding

        embedding = LocalEmbedding()
    except ImportError as err:
        raise BenchmarkSkippedError("the extra 'local' is not installed") from err
    from llama_index.core.schema import Document

    from agentic_retriever import AgenticRouter, RouterConfig

    held, uploaded = options.sized(HELD), min(UPLOADED, options.sized(HELD))
    made = texts(held + uploaded, seed=_SEED, words=WORDS)
    asked = questions(made[:held], QUESTIONS, seed=_SEED)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        config = RouterConfig(data_dir=Path(folder), cache_ttl_s=0.0)
        with AgenticRouter(config, embedding=embedding) as router:
            router.add_index("held", [Document(text=text, doc_id=str(i)) for i, text in enumerate(made[:held])])
            router.build_views("held")
            for question in asked:
                _ask(router, question)
            idle = Timing.of([_ask(router, asked[i % QUESTIONS]) for i in range(RUNS)])
            busy, took = _while_ingesting(router, asked, made[held:])
            done = router.documents.count(status="indexed", index="uploads")
    note = f"{held:,} nodes held, index pinned, no answer cache; idle p95 {idle.p95_ms:.1f} ms"
    rate = f"{done} of {uploaded} documents indexed in {took:.0f} s"
    return [
        timed_row("question, idle", idle, note=f"{held:,} nodes held, index pinned, no answer cache"),
        timed_row("question, while documents come in", busy, target_ms=TIMES * idle.p95_ms, note=f"{note}; {rate}"),
    ]


def _ask(router: AgenticRouter, question: str) -> float:
    started = time.perf_counter()
    router.retrieve(question, index="held")
    return (time.perf_counter() - started) * 1_000


def _while_ingesting(router: AgenticRouter, asked: list[str], added: list[str]) -> tuple[Timing, float]:
    documents = router.documents
    records = [
        documents.upload(f"# Paper {i}\n\n{text}".encode(), index="uploads", filename=f"paper-{i}.md")
        for i, text in enumerate(added)
    ]
    done = threading.Event()

    def wait() -> None:
        for record in records:
            documents.wait(record.id, timeout_s=3_600)
        done.set()

    started = time.perf_counter()
    router.start_worker()
    threading.Thread(target=wait, daemon=True).start()
    spent = []
    while not done.is_set() or len(spent) < QUESTIONS:
        spent.append(_ask(router, asked[len(spent) % QUESTIONS]))
        time.sleep(PAUSE_S)
    return Timing.of(spent), time.perf_counter() - started
