"""Time and threads in tests: waiting for what comes about elsewhere, and limits to how long something may take."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

from agentic_retriever.threads import Workers


def wait_until(condition, seconds: float = 30.0) -> None:
    """Wait for something that comes about in the background."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it did not come about in time"
        time.sleep(0.01)


@contextmanager
def within(seconds: float):
    """See that the block takes less than this."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds


class Clock:
    """Time that stands still until it is told to move: ``clock.now += 5``."""

    def __init__(self, now=0.0):
        self.now = now

    def __call__(self):
        return self.now


def pool(workers: int) -> closing[Workers]:
    """A pool of threads until the block ends."""
    return closing(Workers(workers, "pool"))


def in_threads(call, arguments) -> list:
    """Call with all arguments at once, a thread for each; what goes wrong in one is raised, else all results given."""
    with ThreadPoolExecutor(len(arguments)) as pool:
        return list(pool.map(call, arguments))


def takes_linear_time(call, unit: str, characters: int = 160_000) -> None:
    """See that four times the text takes about four times as long, by the time of this thread on whatever machine."""
    spent = []
    for size in (1, characters // 4, characters):  # the first one compiles what is compiled when needed
        text, tries = unit * max(1, size // len(unit)), []
        for _ in range(2):  # the better of two, as another process takes caches away
            started = time.thread_time()
            call(text)
            tries.append(time.thread_time() - started)
        spent.append(min(tries))
    assert spent[2] < 8 * spent[1] + 0.3  # in quadratic time it would be 16
