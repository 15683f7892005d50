"""Output: tables and colour on a terminal, plain lines in a pipe, nothing that could drive a terminal."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console as RichConsole
from rich.table import Table
from rich.text import Text

from agentic_retriever.text.cleaning import TerminalPieces, safe_terminal

if TYPE_CHECKING:
    from collections.abc import Sequence


class Console:
    """Writes to standard output, and errors to standard error.

    Args:
        out: Where output goes.
        err: Where errors and progress go.
    """

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out = _tolerant(out or sys.stdout)
        self._err = _tolerant(err or sys.stderr)
        self._pieces = TerminalPieces()
        self.rich = RichConsole(file=self._out, highlight=False, markup=False, emoji=False)
        self.rich_err = RichConsole(file=self._err, highlight=False, markup=False, emoji=False)

    @property
    def is_terminal(self) -> bool:
        """Whether a person is looking at the output."""
        return self.rich.is_terminal

    def line(self, text: str = "", *, style: str = "") -> None:
        """Write one text; ``style`` counts on a terminal only."""
        clean = safe_terminal(text)
        if self.is_terminal:
            self.rich.print(Text(clean, style=style))
        else:
            self._out.write(clean + "\n")

    def piece(self, text: str) -> None:
        """Write a piece of a text that goes on, at once."""
        self._out.write(self._pieces.shown(text))
        self._out.flush()

    def end_pieces(self) -> None:
        """End the text that came in pieces, and its line."""
        self._out.write(self._pieces.end() + "\n")
        self._out.flush()

    def json(self, data: Any) -> None:  # noqa: ANN401 - any JSON value
        """Write JSON; escapes keep control characters harmless."""
        self._out.write(
            json.dumps(data, ensure_ascii=False, indent=2, allow_nan=False).replace("\x7f", "\\u007f") + "\n"
        )

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> None:
        """Write a table: drawn on a terminal, else one line a row with tabs between the cells."""
        cells = [[safe_terminal(str(cell)) for cell in row] for row in rows]
        if not self.is_terminal:
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
        """Write a remark for a person to standard error."""
        self._write_err(safe_terminal(text), "dim")

    def warn(self, text: str) -> None:
        """Write a warning to standard error, on one line."""
        self._write_err("warning: " + _one_line(text), "yellow")

    def error(self, text: str) -> None:
        """Write an error to standard error, on one line."""
        self._write_err("error: " + _one_line(text), "red")

    def _write_err(self, text: str, style: str) -> None:
        if self.rich_err.is_terminal:
            self.rich_err.print(Text(text, style=style))
        else:
            self._err.write(text + "\n")


def _one_line(text: str) -> str:
    return " ".join(safe_terminal(text).split())


def _tolerant(stream: TextIO) -> TextIO:
    """Let a stream with a narrow encoding show a question mark instead of failing."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
    return stream
