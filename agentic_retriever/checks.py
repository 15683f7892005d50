"""Checks of what callers pass in, shared by every public entry."""

from __future__ import annotations

from agentic_retriever.errors import InvalidQueryError

MAX_QUERY_CHARS = 20_000
MAX_TOP_K = 10_000


def check_query(query: object, *, max_chars: int = MAX_QUERY_CHARS) -> str:
    """Return the question if it can be searched for.

    Args:
        query: What the caller gave.
        max_chars: Longest question allowed, in characters.

    Returns:
        The question, unchanged.

    Raises:
        InvalidQueryError: If it is no string, blank, or too long.
    """
    if not isinstance(query, str):
        raise InvalidQueryError(f"the question must be a str, got {type(query).__name__}")
    if not query.strip():
        raise InvalidQueryError("the question is blank; pass some text")
    if len(query) > max_chars:
        raise InvalidQueryError(
            f"the question has {len(query):,} characters, at most {max_chars:,} are allowed; shorten it"
        )
    return query


def check_top_k(top_k: object, *, maximum: int = MAX_TOP_K) -> int:
    """Return ``top_k`` if it is a usable number of nodes.

    Args:
        top_k: What the caller gave.
        maximum: Largest number allowed.

    Returns:
        The number, unchanged.

    Raises:
        InvalidQueryError: If it is no int (``bool`` and ``str`` included), below 1, or above ``maximum``.
    """
    if isinstance(top_k, bool) or not isinstance(top_k, int):
        raise InvalidQueryError(
            f"top_k must be an int from 1 to {maximum:,}, got {type(top_k).__name__} {str(top_k)[:40]!r}"
        )
    if not 1 <= top_k <= maximum:
        raise InvalidQueryError(f"top_k must be from 1 to {maximum:,}, got {str(top_k)[:40]}")
    return top_k
