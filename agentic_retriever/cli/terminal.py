"""What commands share: output that cannot drive a terminal, progress, errors in one line, options, the router."""

from __future__ import annotations

import errno
import functools
import json
import logging
import os
import re
import signal
import sys
import time
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, ParamSpec, TextIO

import typer
from rich.console import Console as RichConsole
from rich.table import Table
from rich.text import Text

from agentic_retriever.errors import AgenticRetrieverError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from rich.progress import Progress, TaskID

    from agentic_retriever.catalog.records import DocumentRecord
    from agentic_retriever.config import RouterConfig
    from agentic_retriever.router import AgenticRouter


# ECMA-48: CSI (parameters, intermediates, a final byte), the string sequences that end in BEL or ST, and two- or
# three-byte escapes; U+009B and its kin are the one-character spellings of the same. A string is only taken as such
# when it is terminated, so that a stray introducer cannot swallow the text behind it.
_ESCAPE_RE: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]{0,4096}(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]{0,2}[0-~]"
)
# What may be the beginning of such a sequence, at the end of a text that goes on.
_OPEN_ESCAPE_RE: Final = re.compile(
    r"(?:(?:\x1b\[|\x9b)[0-?]*[ -/]*"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]{0,4096}\x1b?"
    r"|\x1b[ -/]{0,2})\Z"
)
_UNPRINTABLE_RE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def safe_terminal(text: str) -> str:
    """Take out of a text what could steer the terminal that shows it."""
    text = _UNPRINTABLE_RE.sub("", _ESCAPE_RE.sub("", text))
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


class TerminalPieces:
    """Does as :func:`safe_terminal` for a text that comes in pieces, wherever it is cut; not safe for threads."""

    def __init__(self) -> None:
        self._held = ""

    def shown(self, piece: str) -> str:
        text = self._held + piece
        begun = _OPEN_ESCAPE_RE.search(text)
        self._held = begun[0] if begun else ""
        return safe_terminal(text[: len(text) - len(self._held)])

    def end(self) -> str:
        left, self._held = safe_terminal(self._held), ""
        return left


class Console:
    """Writes to standard output, and errors to standard error."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out = _tolerant(out or sys.stdout)
        self._pieces = TerminalPieces()
        self.rich = RichConsole(file=self._out, highlight=False, markup=False, emoji=False)
        self.rich_err = RichConsole(file=_tolerant(err or sys.stderr), highlight=False, markup=False, emoji=False)

    def line(self, text: str = "", *, style: str = "") -> None:
        _write(self.rich, safe_terminal(text), style)

    def piece(self, text: str) -> None:
        self._out.write(self._pieces.shown(text))
        self._out.flush()

    def end_pieces(self) -> None:
        self._out.write(self._pieces.end() + "\n")
        self._out.flush()

    def json(self, data: Any) -> None:  # noqa: ANN401 - any JSON value
        """Write JSON; escapes keep control characters harmless."""
        text = json.dumps(data, ensure_ascii=False, indent=2, allow_nan=False)
        self._out.write(text.replace("\x7f", "\\u007f") + "\n")

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> None:
        """Write a table: drawn on a terminal, else one line a row with tabs between the cells."""
        cells = [[safe_terminal(str(cell)) for cell in row] for row in rows]
        if not self.rich.is_terminal:
            for row in [list(headers), *cells]:
                self._out.write("\t".join(cell.replace("\t", " ").replace("\n", " ") for cell in row) + "\n")
            return
        table = Table(title=title or None, title_justify="left", header_style="bold")
        for header in headers:
            table.add_column(header, overflow="fold")
        for row in cells:
            table.add_row(*(Text(cell) for cell in row))
        self.rich.print(table)

    def note(self, text: str) -> None:
        _write(self.rich_err, safe_terminal(text), "dim")

    def warn(self, text: str) -> None:
        _write(self.rich_err, "warning: " + " ".join(safe_terminal(text).split()), "yellow")

    def error(self, text: str) -> None:
        _write(self.rich_err, "error: " + " ".join(safe_terminal(text).split()), "red")


def _write(console: RichConsole, text: str, style: str) -> None:
    if console.is_terminal:
        console.print(Text(text, style=style))
    else:
        console.file.write(text + "\n")


def _tolerant(stream: TextIO) -> TextIO:
    """Let a stream show each line at once, and a question mark where its encoding is too narrow, instead of failing."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace", line_buffering=True)
    return stream


_SHOWN_DOCUMENTS: Final = 20

# Progress bars on a terminal; elsewhere silence, or a line for each step of what takes minutes.


class Bars:
    """Two bars: files read and nodes embedded."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._files = progress.add_task("files", total=0)
        self._nodes = progress.add_task("nodes", total=0)
        self._file_total = self._node_total = 0

    def files(self, total: int) -> None:
        self._file_total += total
        self._progress.update(self._files, total=self._file_total)

    def file_done(self, path: str) -> None:
        del path
        self._progress.advance(self._files)

    def nodes(self, found: int) -> None:
        self._node_total += found
        self._progress.update(self._nodes, total=self._node_total)

    def nodes_done(self, done: int) -> None:
        self._progress.advance(self._nodes, done)


@contextmanager
def shown_progress(console: Console) -> Iterator[Bars]:
    """Show bars on standard error while the block runs, if that is a terminal."""
    with _progress(console) as progress:
        yield Bars(progress)


def _progress(console: Console) -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console.rich_err, transient=True, disable=not console.rich_err.is_terminal)


@contextmanager
def shown_documents(console: Console) -> Iterator[Callable[[Sequence[DocumentRecord]], None]]:
    """Show a bar for each of the first documents on standard error; the block says what is known of them now."""
    with _progress(console) as progress:
        tasks: dict[str, TaskID] = {}

        def show(records: Sequence[DocumentRecord]) -> None:
            for record in records[:_SHOWN_DOCUMENTS]:
                if record.id not in tasks:
                    tasks[record.id] = progress.add_task("", total=100)
                title = safe_terminal(f"{record.title[:40]} ({record.status.value})")
                progress.update(tasks[record.id], completed=record.processing_progress, description=title)

        yield show


class Steps:
    """One bar, for one step after the other."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None)

    def begin(self, what: str, total: int) -> None:
        self._progress.reset(self._task, description=what, total=total)

    def advance(self, done: int) -> None:
        self._progress.advance(self._task, done)


class Lines:
    """One line for each step, with the seconds since the beginning, for a file or the log of a build."""

    def __init__(self, console: Console, timer: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._timer = timer
        self._start = timer()

    def begin(self, what: str, total: int) -> None:
        parts = f" ({total:,})" if total > 1 else ""
        self._console.note(f"{self._timer() - self._start:6.0f} s  {what}{parts}")

    def advance(self, done: int) -> None:
        """Say nothing: parts of a step are for a bar."""


@contextmanager
def shown_steps(console: Console) -> Iterator[Steps | Lines]:
    if not console.rich_err.is_terminal:
        yield Lines(console)
        return
    with _progress(console) as progress:
        yield Steps(progress)


# Errors as a person at a terminal wants them: one line and an exit code, never a traceback.

P = ParamSpec("P")

INTERRUPTED = 130
OUTPUT_CLOSED = 141
UNEXPECTED = 1
_UNWRITABLE = {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG}
#: Key of the command line's context under which ``--traceback`` is kept.
SHOW_TRACEBACK = "agentic_retriever.traceback"


def _output_lost(err: OSError) -> typer.Exit:
    # Python would complain again when it flushes at exit, so what is left goes nowhere.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if err.errno != errno.EPIPE:
        Console().error(f"the output cannot be written ({err.strerror}); make room, or send it elsewhere")
    return typer.Exit(OUTPUT_CLOSED)


def reported(command: Callable[P, None]) -> Callable[P, None]:
    """Turn what a command raises into one line on standard error and the documented exit code."""

    @functools.wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except AgenticRetrieverError as err:
            Console().error(str(err))
            raise typer.Exit(err.exit_code) from err
        except KeyboardInterrupt as err:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            Console().error("interrupted; what was finished is kept, run the same command to go on")
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # who cannot wait for the end of threads ends it at once
            raise typer.Exit(INTERRUPTED) from err
        except typer.Exit:
            raise
        except Exception as err:  # the last resort: a program that ends says so in one line
            if isinstance(err, OSError) and err.filename is None and err.errno in _UNWRITABLE:
                raise _output_lost(err) from err
            # Known by what it has: newer versions of typer do not show its class.
            context = next((arg for arg in (*args, *kwargs.values()) if hasattr(arg, "meta")), None)
            if context is not None and context.meta.get(SHOW_TRACEBACK):
                raise
            Console().error(f"unexpected {type(err).__name__}; put --traceback before the command to see where")
            raise typer.Exit(UNEXPECTED) from err

    return wrapper


# Options that several commands have, and the way from the command line to a router.

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Question = Annotated[str, typer.Argument(metavar="TEXT", help="The question; - reads it from standard input.")]
PinnedIndex = Annotated[
    list[str] | None,
    typer.Option("--index", help="Search this index whatever the router thinks; of several, what it chooses."),
]
PinnedStrategy = Annotated[str | None, typer.Option("--strategy", help="Use this strategy whatever the router thinks.")]


def load_config(data_dir: Path | None) -> RouterConfig:
    """Read the settings; ``--data-dir`` wins."""
    from agentic_retriever.config import RouterConfig

    # Warnings of our own reach a person through the output, where they tear no progress bar; others would only puzzle.
    logging.getLogger("agentic_retriever").addHandler(logging.NullHandler())
    with warnings.catch_warnings(record=True) as gone:
        warnings.simplefilter("always", FutureWarning)
        config = RouterConfig.load()
    for warning in gone:
        typer.echo(f"warning: {warning.message}", err=True)
    return config.with_changes(data_dir=data_dir) if data_dir is not None else config


def opened_router(config: RouterConfig) -> AgenticRouter:
    from agentic_retriever.router import AgenticRouter

    return AgenticRouter(config)


def router_of(ctx: typer.Context) -> AgenticRouter:
    return opened_router(load_config(ctx.obj))
