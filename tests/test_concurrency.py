"""Bounded worker pools."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading

import pytest

from agentic_retriever.errors import AgenticRetrieverError
from agentic_retriever.threads import Workers


def test_no_thread_before_the_first_call_and_none_after_close():
    before = threading.active_count()
    workers = Workers(2, "pool")
    assert threading.active_count() == before
    assert workers.submit(lambda: threading.current_thread().name).result().startswith("pool")
    workers.close()
    workers.close()
    assert threading.active_count() == before


def test_never_more_threads_than_asked_for():
    with Workers(3, "pool") as workers:
        running, most, lock, barrier = 0, 0, threading.Lock(), threading.Barrier(3)

        def call():
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            barrier.wait(5)
            with lock:
                running -= 1

        for future in [workers.submit(call) for _ in range(9)]:
            future.result(10)
    assert most == 3


def test_the_callers_context_and_errors_come_along():
    name = contextvars.ContextVar("name", default="none")
    with Workers(1, "pool") as workers:
        name.set("mine")
        assert workers.submit(name.get).result() == "mine"

        def change():
            name.set("other")
            raise KeyError("x")

        with pytest.raises(KeyError):
            workers.submit(change).result()
        assert name.get() == "mine"


def test_one_pool_serves_many_loops_and_blocks_none():
    with Workers(2, "pool") as workers:

        async def main():
            go = threading.Event()
            task = asyncio.ensure_future(workers.run(lambda: (go.wait(5), os.getpid())))
            await asyncio.sleep(0)
            go.set()  # while the call waits for this, the loop must go on
            return await task

        assert [asyncio.run(main()) for _ in range(3)] == [(True, os.getpid())] * 3


async def test_a_cancelled_call_in_line_never_runs():
    ran, go = [], threading.Event()
    with Workers(1, "pool") as workers:
        first = asyncio.ensure_future(workers.run(go.wait, 5))
        second = asyncio.ensure_future(workers.run(ran.append, 1))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        go.set()
        assert await first
    assert ran == []


def test_closing_finishes_what_was_handed_in_and_refuses_more():
    workers, go, done = Workers(1, "pool"), threading.Event(), []
    futures = [workers.submit(go.wait, 5), workers.submit(done.append, 1)]
    workers.close(wait=False)
    with pytest.raises(AgenticRetrieverError, match="pool"):
        workers.submit(print)
    go.set()
    for future in futures:
        future.result(5)
    assert done == [1]


def test_a_pool_needs_a_thread():
    with pytest.raises(ValueError, match="at least 1"):
        Workers(0, "pool")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_gets_threads_of_its_own():
    with Workers(1, "pool") as workers:
        workers.submit(os.getpid).result()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if workers.submit(os.getpid).result(5) == os.getpid() else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
