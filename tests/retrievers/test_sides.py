from __future__ import annotations

import threading

import pytest

from agentic_retriever.errors import DeadlineExceededError, EmbeddingError, StoreError
from agentic_retriever.retrievers.base import run_guarded, run_sides
from agentic_retriever.threads import Workers


def run(pool, sides, seconds=5.0):
    return run_sides(pool, sides, timeout_s=lambda: seconds)


def failing(error):
    def call():
        raise error

    return call


def test_sides_run_at_the_same_time(workers):
    met = threading.Barrier(2, timeout=5)
    results, errors = run(workers, {"a": met.wait, "b": met.wait})
    assert sorted(results.values()) == [0, 1]
    assert errors == {}


@pytest.mark.parametrize("broken", ["a", "b"])
def test_one_that_fails_leaves_the_other(workers, broken):
    error = EmbeddingError("down")
    sides = {"a": lambda: 1, "b": lambda: 1}
    results, errors = run(workers, {**sides, broken: failing(error)})
    assert list(results.values()) == [1]
    assert errors == {broken: error}


def test_foreign_errors_come_out_as_ours_without_their_text(workers):
    cause = KeyError("api-key-123")
    for sides in ({"a": failing(cause), "b": lambda: 1}, {"b": lambda: 1, "a": failing(cause)}):
        _results, errors = run(workers, sides)
        assert isinstance(errors["a"], StoreError)
        assert errors["a"].__cause__ is cause
        assert "KeyError" in str(errors["a"])
        assert "api-key-123" not in str(errors["a"])


def test_what_is_no_error_is_not_swallowed():
    with pytest.raises(KeyboardInterrupt):
        run_guarded("a", failing(KeyboardInterrupt()))


def test_sides_may_start_in_a_thread_of_the_same_pool():
    with Workers(1, "one") as pool:
        # Without taking the second side back, the pool's only thread would wait for itself.
        future = pool.submit(run, pool, {"a": lambda: 1, "b": lambda: 2})
        assert future.result(timeout=5) == ({"a": 1, "b": 2}, {})


def test_a_closed_pool_makes_it_sequential():
    pool = Workers(2, "closed")
    pool.close()
    assert run(pool, {"a": lambda: 1, "b": lambda: 2}) == ({"a": 1, "b": 2}, {})


def test_a_side_that_hangs_is_given_up_in_time(workers):
    release, started = threading.Event(), threading.Event()

    def hang():
        started.set()
        release.wait(10)

    results, errors = run(workers, {"a": lambda: started.wait(5), "b": hang}, 0.01)
    release.set()
    assert results == {"a": True}
    assert isinstance(errors["b"], DeadlineExceededError)
