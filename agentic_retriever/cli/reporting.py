"""Errors as a person at a terminal wants them: one line and an exit code, never a traceback."""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, ParamSpec

import typer

from agentic_retriever.cli.console import Console
from agentic_retriever.errors import AgenticRetrieverError

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")

INTERRUPTED = 130
OUTPUT_CLOSED = 141
UNEXPECTED = 1
#: Key of the command line's context under which ``--traceback`` is kept.
SHOW_TRACEBACK = "agentic_retriever.traceback"


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
            Console().error("interrupted; what was finished is kept, run the same command to go on")
            raise typer.Exit(INTERRUPTED) from err
        except BrokenPipeError as err:
            # Python would complain again when it flushes at exit, so what is left goes nowhere.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(OUTPUT_CLOSED) from err
        except typer.Exit:
            raise
        except Exception as err:  # the last resort: a program that ends says so in one line
            context = next((arg for arg in (*args, *kwargs.values()) if isinstance(arg, typer.Context)), None)
            if context is not None and context.meta.get(SHOW_TRACEBACK):
                raise
            Console().error(f"unexpected {type(err).__name__}; put --traceback before the command to see where")
            raise typer.Exit(UNEXPECTED) from err

    return wrapper
