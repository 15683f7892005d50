"""Clauses out of whatever a model replied: fenced, chatty, cut short or hostile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from agentic_retriever.llm import containers, json_values, without_thoughts

MAX_CLAUSES: Final = 20
MAX_LISTED: Final = 100

OPERATORS: Final = frozenset({"eq", "ne", "in", "nin", "gt", "gte", "lt", "lte", "between"})

_SPELLINGS: Final = {
    "=": "eq", "==": "eq", "!=": "ne", ">": "gt", ">=": "gte", "<": "lt", "<=": "lte", "equals": "eq", "is": "eq",
    "not_in": "nin", "not in": "nin", "any": "in", "range": "between",
}  # fmt: skip
_MAX_TEXT: Final = 500


@dataclass(frozen=True, slots=True)
class Asked:
    """A restriction as a model wrote it, not yet held against the index.

    Attributes:
        field: Name of the field.
        op: One of ``OPERATORS``.
        values: One value or several: strings, numbers or booleans.
        words: The words of the question that the model gave for it.
    """

    field: str
    op: str
    values: tuple[object, ...]
    words: str


def read_reply(text: str) -> list[Asked] | None:
    """Read the restrictions in a model's reply.

    Args:
        text: The reply; its first 20,000 characters without what the model thought aloud are looked at.

    Returns:
        At most 20 restrictions, without what has not the form of one; ``None`` when there is no JSON with clauses or
        none of them has that form.
    """
    for found in containers(json_values(without_thoughts(text))):
        listed = _listed(found)
        if listed is not None:
            asked = [one for one in map(_asked, listed[:MAX_CLAUSES]) if one is not None]
            return asked if asked or not listed else None
    return None


def _listed(found: object) -> list[Any] | None:
    if isinstance(found, dict):
        found = found.get("clauses", [found] if "field" in found else None)
    return found if isinstance(found, list) and all(isinstance(one, dict) for one in found) else None


def _asked(raw: dict[str, Any]) -> Asked | None:
    field, op, words = raw.get("field"), raw.get("op", "eq"), raw.get("words", "")
    if not isinstance(field, str) or not isinstance(op, str):
        return None
    op = op.strip().lower()
    op = _SPELLINGS.get(op, op)
    given = raw.get("value")
    values = given if isinstance(given, list) else [given]
    usable = all(isinstance(value, (str, int, float)) for value in values)
    if op not in OPERATORS or not usable or not 0 < len(values) <= MAX_LISTED:
        return None
    cut = tuple(value[:_MAX_TEXT] if isinstance(value, str) else value for value in values)
    return Asked(field[:_MAX_TEXT], op, cut, words[:_MAX_TEXT] if isinstance(words, str) else "")
