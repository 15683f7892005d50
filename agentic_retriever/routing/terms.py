"""The terms of a query, cut once for all steps of routing that ask for them."""

from __future__ import annotations

from functools import lru_cache

from agentic_retriever.routing.values import examined
from agentic_retriever.text import Tokenizer


@lru_cache(16)
def query_terms(query: str, language: str) -> tuple[str, ...]:
    """Cut a query into terms; remembered for the steps that ask for the same query.

    Args:
        query: Any text; of a long one, the first and last 1,000 characters count.
        language: ISO 639-1 code of the index, which decides about stems.

    Returns:
        Terms in reading order, with repetitions.
    """
    return tuple(Tokenizer(language=language).query_tokens(examined(query)))
