"""Calls into foreign code: whatever it raises comes out as an error of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from agentic_retriever.errors import AgenticRetrieverError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def guarded(
    what: str,
    call: Callable[[], T],
    *,
    error: type[AgenticRetrieverError] = StoreError,
    advice: str = "see the cause",
) -> T:
    """Call foreign code.

    Args:
        what: What is called, for the message.
        call: The call.
        error: What it failed with, for the caller; made from a message alone.
        advice: What to do, the end of the message.

    Returns:
        What the call returned.

    Raises:
        AgenticRetrieverError: If the call raised one of ours, that one; else one of the kind ``error``. Only the type
            of what was raised is named, since the text of foreign errors may hold keys or documents.
    """
    try:
        return call()
    except AgenticRetrieverError:
        raise
    except Exception as err:  # the seam to foreign code: every library has errors of its own
        raise error(f"{what} failed with {type(err).__name__}; {advice}") from err
