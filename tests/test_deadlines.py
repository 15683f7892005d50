from __future__ import annotations

import contextvars
import threading
import time

import pytest

from agentic_retriever.errors import DeadlineExceededError
from agentic_retriever.threads import DeadlineCaller


def test_returns_the_result_and_raises_the_error():
    caller = DeadlineCaller("thing")
    assert caller.call(lambda: 42, 1.0) == 42
    with pytest.raises(KeyError):
        caller.call(lambda: {}["x"], 1.0)


def test_context_variables_reach_the_call():
    variable = contextvars.ContextVar("v", default="unset")
    variable.set("set")
    assert DeadlineCaller("thing").call(variable.get, 1.0) == "set"


def test_hanging_call_is_abandoned_in_time_and_names_what_hung():
    release = threading.Event()
    start = time.monotonic()
    with pytest.raises(DeadlineExceededError, match=r"slow thing did not answer within 0\.1 s"):
        DeadlineCaller("slow thing").call(release.wait, 0.05)
    assert time.monotonic() - start < 0.5
    release.set()


def test_timeout_raised_by_the_call_itself_is_passed_on():
    def fails():
        raise TimeoutError("inner")

    with pytest.raises(TimeoutError, match="inner"):
        DeadlineCaller("thing").call(fails, 1.0)


def test_abandoned_calls_are_bounded_and_their_places_come_back():
    release = threading.Event()
    caller = DeadlineCaller("dead server", max_calls=2)
    for _ in range(2):
        with pytest.raises(DeadlineExceededError, match="did not answer"):
            caller.call(release.wait, 0.01)
    with pytest.raises(DeadlineExceededError, match="overloaded: 2 calls"):
        caller.call(lambda: 1, 0.01)
    release.set()
    assert caller.call(lambda: 1, 5.0) == 1
