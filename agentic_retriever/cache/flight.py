"""One computation that many callers wait for."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

V = TypeVar("V")


class AbandonedError(Exception):
    """The caller that computed was interrupted; whoever waits computes for itself."""


@dataclass(frozen=True, slots=True)
class Landed(Generic[V]):
    """What came of a flight.

    Attributes:
        value: The value.
        computed: Whether it was computed; otherwise it came from the second level.
        kept: Whether it was stored.
    """

    value: V
    computed: bool
    kept: bool


class Flight(Generic[V]):
    """A computation under way, or about to be.

    Attributes:
        epoch: How often the cache had been cleared when it began.
        taken: Whether a caller computes already; guarded by the lock of the cache.
        waiting: How many want its result, guarded likewise; when it is none, nobody need compute any more.
        unwanted: Called then.
        future: Its end. It counts as running from the start, so that no task that waits for it can cancel it.
    """

    __slots__ = ("epoch", "future", "taken", "unwanted", "waiting")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.taken = False
        self.waiting = 1
        self.unwanted: Callable[[], None] = lambda: None
        self.future: Future[Landed[V]] = Future()
        self.future.set_running_or_notify_cancel()


class Ticket:
    """Notes for a task whether the computation that it asked for was begun on its behalf."""

    __slots__ = ("led",)

    def __init__(self) -> None:
        self.led = False
