"""Running the sides of one search next to each other, so that one that fails never fails the whole."""

from __future__ import annotations

from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from agentic_retriever import threads
from agentic_retriever.errors import AgenticRetrieverError, DeadlineExceededError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    from agentic_retriever.threads import Workers

T = TypeVar("T")


def guarded(what: str, call: Callable[[], T]) -> T:
    """Call into a store or view; what it raises comes out as an error of this package.

    Args:
        what: What is called, for the message.
        call: The call.

    Raises:
        StoreError: If the call raised an error that is none of ours; see :func:`agentic_retriever.threads.guarded`.
    """
    return threads.guarded(what, call, advice="see the cause, and check that the store is up and intact")


def run_sides(
    workers: Workers,
    sides: Mapping[str, Callable[[], T]],
    *,
    timeout_s: Callable[[], float | None] = lambda: None,
) -> tuple[dict[str, T], dict[str, AgenticRetrieverError]]:
    """Run the sides at the same time, the first one in the calling thread.

    A side that no worker has begun by the time it is needed is taken back and run here. So it is safe to call this from
    a thread of the same pool, and a pool that is full of slow calls only makes the search sequential.

    Args:
        workers: Threads for all sides but the first.
        sides: What to run, by name.
        timeout_s: Gives the seconds left to wait for a side under way; ``None`` waits to its end.

    Returns:
        Results by name, and errors by name.
    """
    futures: dict[str, Future[T] | None] = {
        name: _submitted(workers, name, call) if i else None for i, (name, call) in enumerate(sides.items())
    }
    results: dict[str, T] = {}
    errors: dict[str, AgenticRetrieverError] = {}
    for name, future in futures.items():
        outcome = _outcome(name, sides[name], future, timeout_s)
        if isinstance(outcome, _Failed):
            errors[name] = outcome.error
        else:
            results[name] = outcome
    return results, errors


@dataclass(frozen=True, slots=True)
class _Failed:
    error: AgenticRetrieverError


def _outcome(
    name: str, call: Callable[[], T], future: Future[T] | None, timeout_s: Callable[[], float | None]
) -> T | _Failed:
    try:
        if future is None or future.cancel():
            return guarded(name, call)
        return _awaited(name, future, timeout_s())
    except AgenticRetrieverError as err:
        return _Failed(err)


def _submitted(workers: Workers, name: str, call: Callable[[], T]) -> Future[T] | None:
    try:
        return workers.submit(guarded, name, call)
    except AgenticRetrieverError:  # the pool is closed or full; the calling thread can do it
        return None


def _awaited(name: str, future: Future[T], timeout_s: float | None) -> T:
    try:
        return future.result(timeout=None if timeout_s is None else max(0.0, timeout_s))
    except FutureTimeoutError as err:
        raise DeadlineExceededError(f"{name} did not end in time; allow more time") from err
