"""Progress bars on a terminal; elsewhere silence, or a line for each step of what takes minutes."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agentic_retriever.cli.console import Console


class Bars:
    """Two bars: files read and nodes embedded."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._files = progress.add_task("files", total=0)
        self._nodes = progress.add_task("nodes", total=0)
        self._file_total = self._node_total = 0

    def files(self, total: int) -> None:
        """So many more files will be read."""
        self._file_total += total
        self._progress.update(self._files, total=self._file_total)

    def file_done(self, path: str) -> None:
        """One file was read."""
        del path
        self._progress.advance(self._files)

    def nodes(self, found: int) -> None:
        """So many more nodes are to be embedded."""
        self._node_total += found
        self._progress.update(self._nodes, total=self._node_total)

    def nodes_done(self, done: int) -> None:
        """So many more nodes have their vectors."""
        self._progress.advance(self._nodes, done)


@contextmanager
def shown_progress(console: Console) -> Iterator[Bars]:
    """Show bars on standard error while the block runs, if that is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=console.rich_err, transient=True, disable=not console.rich_err.is_terminal
    ) as progress:
        yield Bars(progress)


class Steps:
    """One bar, for one step after the other."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None)

    def begin(self, what: str, total: int) -> None:
        """A step of so many parts begins."""
        self._progress.reset(self._task, description=what, total=total)

    def advance(self, done: int) -> None:
        """So many more parts are done."""
        self._progress.advance(self._task, done)


class Lines:
    """One line for each step, with the seconds since the beginning, for a file or the log of a build.

    Args:
        console: Where to write.
        timer: Seconds.
    """

    def __init__(self, console: Console, timer: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._timer = timer
        self._start = timer()

    def begin(self, what: str, total: int) -> None:
        """A step of so many parts begins."""
        parts = f" ({total:,})" if total > 1 else ""
        self._console.note(f"{self._timer() - self._start:6.0f} s  {what}{parts}")

    def advance(self, done: int) -> None:
        """Say nothing: parts of a step are for a bar."""


@contextmanager
def shown_steps(console: Console) -> Iterator[Steps | Lines]:
    """Show one bar on standard error while the block runs, or lines if that is no terminal."""
    if not console.rich_err.is_terminal:
        yield Lines(console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console.rich_err, transient=True) as progress:
        yield Steps(progress)
