"""From one question to several, by its words alone."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Final

from agentic_retriever.retrievers.planning.clauses import asked
from agentic_retriever.retrievers.planning.comparisons import compared
from agentic_retriever.retrievers.planning.spans import named_spans, without
from agentic_retriever.retrievers.planning.tables import load_table, table_languages
from agentic_retriever.text import detect_language

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentic_retriever.retrievers.planning.tables import ClauseTable

MIN_PARTS: Final = 2
MAX_PARTS: Final = 4
MOST_PARTS: Final = 5
"""However many parts are asked for or a model returns, no more are searched for."""

MAX_SPLIT_CHARS: Final = 1_000
"""Longer texts are pasted documents rather than questions, and are not split."""

_QUESTION: Final = re.compile(r"\w[^?？؟]{0,20}[?？؟]")


def split_question(query: str, *, max_parts: int = MAX_PARTS) -> tuple[str, ...]:
    """Cut a question into questions that can be searched for one by one.

    Tried in this order: a comparison (one part for each thing compared); several questions; several names, titles or
    long numbers (one part for each, without the others); clauses that ask different things. English, Spanish and Thai
    have tables; for other languages all tables are tried.

    Args:
        query: Any text.
        max_parts: Most parts, from 2 to 5.

    Returns:
        From 2 to ``max_parts`` distinct parts, none of them the question itself; ``()`` for a question that cannot be
        split, and for a text of more than 1,000 characters.
    """
    text = " ".join(unicodedata.normalize("NFC", query[: MAX_SPLIT_CHARS + 1]).split())
    if len(text) > MAX_SPLIT_CHARS:
        return ()
    limit = max(MIN_PARTS, min(max_parts, MOST_PARTS))
    tables = _tables(text)
    several = len(_QUESTION.findall(text)) >= MIN_PARTS
    for way in (compared, asked, _by_name) if several else (compared, _by_name, asked):
        for table in tables:
            parts = distinct(way(text, table), query)[:limit]
            if len(parts) >= MIN_PARTS:
                return parts
    return ()


def distinct(parts: Iterable[str], query: str) -> tuple[str, ...]:
    """Return the parts that have a letter or digit and are neither the question itself nor a repetition.

    Args:
        parts: Parts in any form.
        query: The question that they come from.

    Returns:
        New texts with single spaces, in order.
    """
    seen = {_key(query)}
    kept: list[str] = []
    for part in parts:
        key = _key(part)
        if key and key not in seen:
            seen.add(key)
            kept.append(" ".join(part.split()))
    return tuple(kept)


def _tables(text: str) -> tuple[ClauseTable, ...]:
    language = detect_language(text)
    known = table_languages()
    return tuple(load_table(code) for code in ((language,) if language in known else known))


def _by_name(text: str, table: ClauseTable) -> list[str]:
    """One question for each name, without the others; of many, those with most words tell most."""
    spans = named_spans(text, table)
    long = [span for span in spans if span.words > 1]
    chosen = sorted(long if len(long) >= MIN_PARTS else spans, key=lambda span: -span.words)[:MAX_PARTS]
    ordered = sorted(chosen, key=lambda span: span.start)
    return [without(text, ordered, span, table) for span in ordered] if len(ordered) >= MIN_PARTS else []


def _key(text: str) -> str:
    return "".join(char for char in text.casefold() if char.isalnum())
