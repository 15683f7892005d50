from __future__ import annotations

import threading

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from agentic_retriever.threads import Breaker, BreakerState

FAILURES, COOLDOWN = 3, 30.0


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


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


def test_many_threads_get_one_probe():
    clock = Clock()
    breaker = Breaker(failures=1, cooldown_s=1, clock=clock)
    breaker.leave(breaker.enter(), ok=False)
    clock.now = 2
    got = []
    threads = [threading.Thread(target=lambda: got.append(breaker.enter())) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(ticket is not None for ticket in got) == 1


@pytest.mark.parametrize("wrong", [{"failures": 0}, {"cooldown_s": 0}, {"cooldown_s": float("nan")}])
def test_wrong_numbers_are_refused(wrong):
    with pytest.raises(ValueError, match="at least 1"):
        Breaker(**wrong)


def test_it_tells_its_state_and_when_it_is_tried_again():
    clock = Clock()
    breaker = Breaker(failures=1, cooldown_s=30, clock=clock)
    breaker.leave(breaker.enter(), ok=False)
    clock.now = 10
    assert (breaker.state, breaker.failed, breaker.retry_in_s) == (BreakerState.OPEN, 1, 20.0)
    assert repr(breaker) == "Breaker('open', failures=1, cooldown_s=30)"


def test_failed_probes_wait_twice_as_long_each_up_to_a_limit():
    clock = Clock()
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


def test_only_the_call_that_opens_it_is_told_so():
    breaker = Breaker(failures=1, cooldown_s=1, clock=Clock())
    first, second = breaker.enter(), breaker.enter()
    assert breaker.leave(first, ok=False)
    assert not breaker.leave(second, ok=False)
    assert breaker.openings == 1
