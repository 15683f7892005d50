"""Bounded pools, calls with a total time limit, breakers, and the seam to foreign code."""

import asyncio
import contextvars
import os
import threading
from unittest.mock import Mock

import pytest
from command_line import run_fresh
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule
from waiting import Clock, in_threads, pool, within

from agentic_retriever import errors
from agentic_retriever.threads import Breaker, BreakerState, DeadlineCaller, Workers, guarded


def test_never_more_threads_than_asked_for_none_before_the_first_call_and_none_after_close():
    # Threads that other tests left behind may end at any time, so these are told apart by their name.
    workers = Workers(2, "asked")
    assert "(asked_" not in str(threading.enumerate())
    assert workers.submit(lambda: threading.current_thread().name).result().startswith("asked_")
    workers.close()
    workers.close()
    assert "(asked_" not in str(threading.enumerate())
    with pool(3) as workers:
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
    with pool(1) as workers:
        name.set("mine")
        assert workers.submit(name.get).result() == DeadlineCaller("thing").call(name.get, 1.0) == "mine"

        def change():
            name.set("other")
            raise KeyError("x")

        with pytest.raises(KeyError):
            workers.submit(change).result()
        assert name.get() == "mine"


def test_one_pool_serves_many_loops_and_blocks_none():
    with pool(2) as workers:

        async def main():
            go = threading.Event()
            task = asyncio.ensure_future(workers.run(lambda: (go.wait(5), os.getpid())))
            await asyncio.sleep(0)
            go.set()  # while the call waits for this, the loop must go on
            return await task

        assert [asyncio.run(main()) for _ in range(3)] == [(True, os.getpid())] * 3


async def test_a_cancelled_call_in_line_never_runs():
    ran, go = [], threading.Event()
    with pool(1) as workers:
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
    with pytest.raises(errors.AgenticRetrieverError, match="pool"):
        workers.submit(print)
    go.set()
    for future in futures:
        future.result(5)
    assert done == [1]
    with pytest.raises(ValueError, match="at least 1"):
        Workers(0, "pool")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_gets_threads_of_its_own():
    with pool(1) as workers:
        workers.submit(os.getpid).result()
        child = os.fork()
        if child == 0:
            try:
                os._exit(workers.submit(os.getpid).result(5) != os.getpid())
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("error", [KeyError("x"), TimeoutError("inner")])
def test_a_call_in_time_returns_its_result_or_raises_its_error(error):
    assert DeadlineCaller("thing").call(lambda: 42, 1.0) == 42
    with pytest.raises(type(error)) as raised:
        DeadlineCaller("thing").call(Mock(side_effect=error), 1.0)
    assert raised.value is error


def test_an_abandoned_call_names_what_hung_and_its_place_comes_back(gate):
    with within(0.5), pytest.raises(errors.DeadlineExceededError, match=r"slow thing did not answer within 0\.1 s"):
        DeadlineCaller("slow thing").call(gate.wait, 0.05)
    caller = DeadlineCaller("dead server", max_calls=2)
    for _ in range(2):
        with pytest.raises(errors.DeadlineExceededError, match="did not answer"):
            caller.call(gate.wait, 0.01)
    with pytest.raises(errors.DeadlineExceededError, match="overloaded: 2 calls"):
        caller.call(lambda: 1, 0.01)
    gate.set()
    assert caller.call(lambda: 1, 5.0) == 1


def test_a_program_that_ends_waits_a_moment_for_calls_that_run_in_native_code():
    code = """if True:
        import contextlib, time
        from pydantic import TypeAdapter, WrapValidator
        from typing import Annotated
        from agentic_retriever.threads import DeadlineCaller
        adapter = TypeAdapter(list[Annotated[int, WrapValidator(lambda number, handler: handler(number))]])

        def run():
            ends = time.monotonic() + 0.4
            while time.monotonic() < ends:
                adapter.validate_python([1] * 999)

        with contextlib.suppress(Exception):
            DeadlineCaller("it").call(run, 0.05)
    """
    done = run_fresh(code)
    assert (done.returncode, done.stderr) == (0, "")  # cut off, it ends by a signal


def test_foreign_errors_are_told_by_their_type_and_our_own_pass_as_they_are():
    assert guarded("the store", lambda: 42) == 42
    cause = KeyError("api-key-123")
    with pytest.raises(errors.StoreError) as failed:
        guarded("the store", Mock(side_effect=cause))
    assert str(failed.value) == "the store failed with KeyError; see the cause"
    assert failed.value.__cause__ is cause
    with pytest.raises(errors.RetrievalError) as failed:
        guarded("it", Mock(side_effect=OSError("x")), error=errors.RetrievalError, advice="ask again")
    assert (str(failed.value), failed.value.causes) == ("it failed with OSError; ask again", {})
    for error in [errors.EmbeddingError("down"), KeyboardInterrupt()]:
        with pytest.raises(type(error)) as passed:
            guarded("it", Mock(side_effect=error))
        assert passed.value is error


FAILURES, COOLDOWN = 3, 30.0


class BreakerMachine(RuleBasedStateMachine):
    """The breaker against a model that keeps an explicit list of what happened."""

    tickets = Bundle("tickets")

    def __init__(self):
        super().__init__()
        self.clock = Clock()
        self.breaker = Breaker(failures=FAILURES, cooldown_s=COOLDOWN, clock=self.clock)
        self.row = 0  # failures in a row
        self.opened_at = None  # when it opened, or None
        self.probe = None  # the ticket that probes
        self.epoch = 0  # tickets from before the last change of state are stale

    def refresh(self):
        if self.opened_at is not None and self.opened_at != "half" and self.clock.now - self.opened_at >= COOLDOWN:
            self.opened_at, self.probe, self.epoch = "half", None, self.epoch + 1

    @rule(target=tickets)
    def enter(self):
        self.refresh()
        ticket = self.breaker.enter()
        allowed = self.opened_at is None or (self.opened_at == "half" and self.probe is None)
        assert (ticket is not None) == allowed
        entry = (ticket, self.epoch)
        if allowed and self.opened_at == "half":
            self.probe = entry
        return entry

    @rule(entry=consumes(tickets), ok=st.sampled_from([True, False, None]))
    def leave(self, entry, ok):
        ticket, epoch = entry
        if ticket is None:
            return
        self.refresh()
        self.breaker.leave(ticket, ok=ok)
        if epoch != self.epoch:
            return
        was_half = self.opened_at == "half"
        self.probe = None
        if ok:
            self.row = 0
            if was_half:
                self.opened_at, self.epoch = None, self.epoch + 1
        elif ok is False:
            self.row += 1
            if was_half or self.row >= FAILURES:
                self.opened_at, self.epoch = self.clock.now, self.epoch + 1

    @rule(seconds=st.sampled_from([0.5, 10.0, COOLDOWN - 0.5, COOLDOWN]))
    def wait(self, seconds):
        self.clock.now += seconds

    @precondition(lambda self: self.opened_at is not None)
    @rule()
    def cool_down(self):
        self.clock.now += COOLDOWN

    @invariant()
    def same_state(self):
        self.refresh()
        expected = {None: BreakerState.CLOSED, "half": BreakerState.HALF_OPEN}.get(self.opened_at, BreakerState.OPEN)
        assert self.breaker.state is expected
        assert (self.breaker.retry_in_s > 0) == (expected is BreakerState.OPEN)


TestBreaker = BreakerMachine.TestCase
TestBreaker.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_one_call_opens_it_many_threads_get_one_probe():
    clock = Clock()
    breaker = Breaker(failures=1, cooldown_s=1, clock=clock)
    breaker.leave(breaker.enter(), ok=False)
    clock.now = 2
    assert sum(ticket is not None for ticket in in_threads(lambda _i: breaker.enter(), range(32))) == 1
    breaker = Breaker(failures=1, cooldown_s=1, clock=Clock())
    first, second = breaker.enter(), breaker.enter()
    assert breaker.leave(first, ok=False)
    assert not breaker.leave(second, ok=False)
    assert breaker.openings == 1


def test_it_tells_its_state_and_failed_probes_wait_twice_as_long_each_up_to_a_limit():
    clock = Clock()
    breaker = Breaker(failures=1, cooldown_s=30, clock=clock)
    breaker.leave(breaker.enter(), ok=False)
    clock.now = 10
    assert (breaker.state, breaker.failed, breaker.retry_in_s) == (BreakerState.OPEN, 1, 20.0)
    assert repr(breaker) == "Breaker('open', failures=1, cooldown_s=30)"
    for wrong in ({"failures": 0}, {"cooldown_s": 0}, {"cooldown_s": float("nan")}):
        with pytest.raises(ValueError, match="at least 1"):
            Breaker(**wrong)
    breaker = Breaker(failures=1, cooldown_s=1, max_cooldown_s=8, clock=clock)
    assert breaker.leave(breaker.enter(), ok=False)
    clock.now += 1
    for wait in (2, 4, 8, 8):
        assert not breaker.leave(breaker.enter(), ok=False)
        assert breaker.retry_in_s == wait
        clock.now += wait
    probe = breaker.enter()
    assert probe.is_probe
    breaker.leave(probe, ok=True)
    call = breaker.enter()
    assert not call.is_probe
    assert breaker.leave(call, ok=False)
    assert (breaker.retry_in_s, breaker.openings) == (1, 2)
