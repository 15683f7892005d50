"""Restrictions by a model, held to the index's own fields and values by the same compiler."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from rapidfuzz import process

from agentic_retriever.errors import DeadlineExceededError, FilterError, LLMError, unknown_name
from agentic_retriever.filters import parse_moment
from agentic_retriever.llm import ask, containers, json_values, random_boundary, without_thoughts
from agentic_retriever.llm.prompts import filter_prompt
from agentic_retriever.schema import Degradation
from agentic_retriever.understanding.clauses import (
    Bound,
    Clause,
    Part,
    Understood,
    make_clause,
    range_part,
    values_part,
)
from agentic_retriever.understanding.fields import FieldInfo, FieldKind
from agentic_retriever.understanding.quantities import year_in
from agentic_retriever.understanding.question import MAX_EXAMINED
from agentic_retriever.understanding.understanding import text_left, understand
from agentic_retriever.understanding.words import fold_query, folded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agentic_retriever.llm import ModelClient
    from agentic_retriever.understanding.fields import FieldDictionary


# Clauses out of whatever a model replied: fenced, chatty, cut short or hostile.

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
    """A restriction as a model wrote it, not yet held against the index."""

    field: str
    op: str
    values: tuple[object, ...]
    words: str


def read_reply(text: str) -> list[Asked] | None:
    """Read the restrictions in a model's reply."""
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


IN_QUESTION: Final = 0.8
"""Certainty of a model's clause whose words stand in the question."""

ELSEWHERE: Final = 0.55
STEP: Final = "filters.llm"

_SHOWN_VALUES: Final = 30
_SHOWN_FIELDS: Final = 60
_SHOWN_NAMES: Final = 20
_MAX_NUMBER: Final = 1e15
_CLOSE: Final = 70.0

_Value: TypeAlias = "str | float"


def extract_with_llm(
    client: ModelClient,
    query: str,
    fields: FieldDictionary,
    *,
    language: str | None = None,
    aliases: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    timeout_s: float | None = None,
    boundary: Callable[[], str] = random_boundary,
) -> Understood:
    """Ask a model for the restrictions in a question; one call.

    Fields and values that the index does not have are refused, each with a line in ``degraded``, so a model can
    neither filter on an undeclared key nor invent a value. Where the call fails, the reply cannot be used or nothing
    in it can be applied, the result is that of :func:`understand`, and ``degraded`` says why.
    """
    examined, lines = query[:MAX_EXAMINED], [_line(info) for info in list(fields.fields.values())[:_SHOWN_FIELDS]]
    try:
        reply = ask(client, lambda mark: filter_prompt(examined, lines, mark), timeout_s=timeout_s, boundary=boundary)
    except (LLMError, DeadlineExceededError) as err:
        return _without(query, fields, language, aliases, (_degraded(str(err)),))
    asked = read_reply(reply.text)
    if asked is None:
        reason = _degraded("the model's reply holds no JSON with clauses; try another model")
        return _without(query, fields, language, aliases, (reason,))
    compiled = [_compile(query, one, fields, aliases) for one in asked]
    refused = tuple(_degraded(one, "left out") for one in compiled if isinstance(one, str))
    clauses = [one for one in compiled if isinstance(one, Clause)]
    if refused and not clauses:
        return _without(query, fields, language, aliases, refused)
    ordered = tuple(sorted(clauses, key=lambda clause: (clause.start, clause.end, clause.say)))
    return Understood(clauses=ordered, text_left=text_left(query, ordered), degraded=refused)


def _without(
    query: str,
    fields: FieldDictionary,
    language: str | None,
    aliases: Mapping[str, Mapping[str, str]],
    why: tuple[Degradation, ...],
) -> Understood:
    return replace(understand(query, fields, language=language, aliases=aliases), degraded=why)


def _degraded(reason: str, fallback: str = "filters from the words of the question") -> Degradation:
    return Degradation(step=STEP, reason=reason, fallback=fallback)


def _line(info: FieldInfo) -> str:
    if info.kind is FieldKind.BOOL:
        return f"{info.name}: true or false"
    if info.kind is not FieldKind.KEYWORD:
        unit = f" {info.unit}" if info.unit else ""
        span = "" if info.low is None else f" from {info.low:g} to {info.high:g}{unit}"
        return f"{info.name}: {'date, years' if info.kind is FieldKind.DATE else 'number'}{span}"
    shown = [originals[0] for _, originals in zip(range(_SHOWN_VALUES), info.values.values(), strict=False)]
    more = f" and {len(info.values) - len(shown)} more of that kind" if len(info.values) > len(shown) else ""
    return f"{info.name}: {'; '.join(shown)}{more}"


def _compile(
    query: str, asked: Asked, fields: FieldDictionary, aliases: Mapping[str, Mapping[str, str]]
) -> Clause | str:
    """Turn what a model asked for into a clause, or say why it is refused."""
    info = fields.fields.get(asked.field)
    if info is None:
        return unknown_name("field", asked.field, list(fields.fields)[:_SHOWN_NAMES])
    try:
        part = _part(info, asked, {**fields.aliases.get(info.name, {}), **aliases.get(info.name, {})})
        span = _find(query, asked.words)
        certainty = IN_QUESTION if span else ELSEWHERE
        return make_clause(query, part, certainty=certainty, spans=[span] if span else [], known=fields.fields)
    except (FilterError, ValueError, OverflowError) as err:
        return str(err)


def _part(info: FieldInfo, asked: Asked, aliases: Mapping[str, str]) -> Part:
    values = [one for value in asked.values for one in _values(info, value, aliases)]
    ordered = info.kind in {FieldKind.NUMBER, FieldKind.DATE} or info.year
    if asked.op in {"eq", "in", "ne", "nin"}:
        return values_part(info.name, values, negated=asked.op in {"ne", "nin"})
    if not ordered:
        raise FilterError(f"the field {info.name!r} has no order; {asked.op} needs a field of numbers or dates")
    if asked.op == "between":
        if len(values) != 2:
            raise FilterError(f"between needs two values for {info.name!r}, got {len(values)}")
        low, high = sorted(values, key=lambda value: (isinstance(value, str), value))
        return range_part(info.name, Bound(low), Bound(high))
    bound = Bound(values[0], asked.op in {"gte", "lte"})
    return range_part(info.name, bound, None) if asked.op in {"gt", "gte"} else range_part(info.name, None, bound)


def _values(info: FieldInfo, value: object, aliases: Mapping[str, str]) -> list[_Value]:
    """Turn a value of a model's reply into those that the index has."""
    if info.kind is FieldKind.NUMBER:
        return [_number(info, value)]
    if info.kind is FieldKind.DATE:
        if not isinstance(value, str) or parse_moment(value) is None:
            raise FilterError(f"the field {info.name!r} needs a date as YYYY-MM-DD, got {str(value)[:40]!r}")
        return [value]
    if info.kind is FieldKind.BOOL:
        said = str(value).casefold()
        if said not in {"true", "false"}:
            raise FilterError(f"the field {info.name!r} needs true or false, got {str(value)[:40]!r}")
        return [said]
    key = folded(str(value))
    by_alias = {folded(word): folded(meant) for word, meant in aliases.items()}
    originals = info.values.get(key) or info.values.get(by_alias.get(key, ""))
    if originals is None:
        raise FilterError(_unknown_value(info, str(value), key))
    return list(originals)


def _number(info: FieldInfo, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise FilterError(f"the field {info.name!r} needs a number, got a {type(value).__name__}")
    number = float(value)
    if not math.isfinite(number) or abs(number) > _MAX_NUMBER:
        raise FilterError(f"the field {info.name!r} needs a number of ordinary size")
    return float(year_in(info, int(number))) if info.year and number.is_integer() else number


def _unknown_value(info: FieldInfo, value: str, key: str) -> str:
    close = process.extractOne(key, info.values.keys(), score_cutoff=_CLOSE)
    hint = f"; did you mean {info.values[close[0]][0]!r}?" if close else ""
    return f"the field {info.name!r} has no value {value[:80]!r}{hint}"


def _find(query: str, words: str) -> tuple[int, int] | None:
    """Find where words stand in the question, whatever their case, accents and white space."""
    wanted = folded(words)
    question = fold_query(query[:MAX_EXAMINED])
    at = question.text.find(wanted) if wanted else -1
    return question.origin(at, at + len(wanted)) if at >= 0 else None
