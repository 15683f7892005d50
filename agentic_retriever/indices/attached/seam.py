"""Calls into somebody else's index: whatever they raise comes out as an error of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from agentic_retriever.errors import AgenticRetrieverError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def asked(what: str, call: Callable[[], T]) -> T:
    """Call into a foreign index.

    Args:
        what: What is called, for the message.
        call: The call.

    Raises:
        StoreError: If the call raised an error that is none of ours; only its type is named, since the text of foreign
            errors may hold keys or documents.
    """
    try:
        return call()
    except AgenticRetrieverError:
        raise
    except Exception as err:  # the seam to foreign indexes: every one has errors of its own
        raise StoreError(f"{what} failed with {type(err).__name__}; see the cause") from err
