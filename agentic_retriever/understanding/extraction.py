"""Restrictions by a model, held to the index's own fields and values by the same compiler."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from rapidfuzz import process

from agentic_retriever.errors import DeadlineExceededError, FilterError, LLMError, unknown_name
from agentic_retriever.filters import parse_moment
from agentic_retriever.llm import ModelClient, ask, containers, json_values, random_boundary, without_thoughts
from agentic_retriever.llm.prompts import filter_prompt
from agentic_retriever.schema import Degradation
from agentic_retriever.understanding.clauses import Clause, Restriction, Understood, in_reading_order, one_of, within
from agentic_retriever.understanding.fields import FieldDictionary, FieldInfo, FieldKind
from agentic_retriever.understanding.question import MAX_EXAMINED
from agentic_retriever.understanding.understanding import understand, year_in
from agentic_retriever.understanding.words import fold_query, folded

MAX_CLAUSES: Final = 20
OPERATORS: Final = frozenset({"eq", "ne", "in", "nin", "gt", "gte", "lt", "lte", "between"})

_OTHER_OPERATORS: Final = {
    "=": "eq", "==": "eq", "!=": "ne", ">": "gt", ">=": "gte", "<": "lt", "<=": "lte", "equals": "eq", "is": "eq",
    "not_in": "nin", "not in": "nin", "any": "in", "range": "between",
}  # fmt: skip
_MAX_LISTED: Final = 100
_MAX_TEXT: Final = 500
_MAX_NUMBER: Final = 1e15
_SHOWN_VALUES: Final = 30
_SHOWN_FIELDS: Final = 60
_SHOWN_NAMES: Final = 20
_CLOSE: Final = 70.0

_IN_QUESTION: Final = 0.8
"""Certainty of a model's clause whose words stand in the question."""

_ELSEWHERE: Final = 0.55


def extract_with_llm(
    client: ModelClient,
    query: str,
    fields: FieldDictionary,
    *,
    timeout_s: float | None = None,
    boundary: Callable[[], str] = random_boundary,
) -> Understood:
    """Ask a model for the restrictions in a question; one call.

    Fields and values that the index does not have are refused, each with a line in ``degraded``, so a model can
    neither filter on an undeclared key nor invent a value. Where the call fails, the reply cannot be used or nothing
    in it can be applied, the result is that of :func:`understand`, and ``degraded`` says why.
    """

    def without_model(*why: Degradation) -> Understood:
        return replace(understand(query, fields), degraded=why)

    examined, lines = query[:MAX_EXAMINED], [_line(info) for info in list(fields.fields.values())[:_SHOWN_FIELDS]]
    try:
        reply = ask(client, lambda mark: filter_prompt(examined, lines, mark), timeout_s=timeout_s, boundary=boundary)
    except (LLMError, DeadlineExceededError) as err:
        return without_model(_degraded(str(err)))
    wishes = read_reply(reply.text)
    if wishes is None:
        return without_model(_degraded("the model's reply holds no JSON with clauses; try another model"))
    compiled = [_compile(query, wish, fields) for wish in wishes]
    refused = [_degraded(one, "left out") for one in compiled if isinstance(one, str)]
    clauses = [one for one in compiled if isinstance(one, Clause)]
    if refused and not clauses:
        return without_model(*refused)
    return Understood(clauses=in_reading_order(clauses), degraded=tuple(refused))


def _degraded(reason: str, fallback: str = "filters from the words of the question") -> Degradation:
    return Degradation(step="filters.llm", reason=reason, fallback=fallback)


def _line(info: FieldInfo) -> str:
    """Describe a field to the model."""
    if info.kind is FieldKind.BOOL:
        return f"{info.name}: true or false"
    if info.kind is not FieldKind.KEYWORD:
        unit = f" {info.unit}" if info.unit else ""
        span = "" if info.low is None else f" from {info.low:g} to {info.high:g}{unit}"
        return f"{info.name}: {'date, years' if info.kind is FieldKind.DATE else 'number'}{span}"
    shown = [originals[0] for _, originals in zip(range(_SHOWN_VALUES), info.values.values(), strict=False)]
    more = f" and {len(info.values) - len(shown)} more of that kind" if len(info.values) > len(shown) else ""
    return f"{info.name}: {'; '.join(shown)}{more}"


# --- what the model wishes, out of whatever it replied: fenced, chatty, cut short or hostile -------------------------


@dataclass(frozen=True, slots=True)
class Wish:
    """A restriction as a model wrote it, not yet held against the index."""

    field: str
    op: str
    values: tuple[object, ...]
    words: str


def read_reply(text: str) -> list[Wish] | None:
    """Read the restrictions in a model's reply."""
    for found in containers(json_values(without_thoughts(text))):
        listed = _listed(found)
        if listed is not None:
            wishes = [one for one in map(_wish, listed[:MAX_CLAUSES]) if one is not None]
            return wishes if wishes or not listed else None
    return None


def _listed(found: object) -> list[Any] | None:
    if isinstance(found, dict):
        found = found.get("clauses", [found] if "field" in found else None)
    return found if isinstance(found, list) and all(isinstance(one, dict) for one in found) else None


def _wish(raw: dict[str, Any]) -> Wish | None:
    field, op, words = raw.get("field"), raw.get("op", "eq"), raw.get("words", "")
    if not isinstance(field, str) or not isinstance(op, str):
        return None
    op = op.strip().lower()
    op = _OTHER_OPERATORS.get(op, op)
    given = raw.get("value")
    values = given if isinstance(given, list) else [given]
    usable = all(isinstance(value, (str, int, float)) for value in values)
    if op not in OPERATORS or not usable or not 0 < len(values) <= _MAX_LISTED:
        return None
    cut = tuple(value[:_MAX_TEXT] if isinstance(value, str) else value for value in values)
    return Wish(field[:_MAX_TEXT], op, cut, words[:_MAX_TEXT] if isinstance(words, str) else "")


# --- wishes held against the index ----------------------------------------------------------------------------------


def _compile(query: str, wish: Wish, fields: FieldDictionary) -> Clause | str:
    """Turn what a model asked for into a clause, or say why it is refused."""
    info = fields.fields.get(wish.field)
    if info is None:
        return unknown_name("field", wish.field, list(fields.fields)[:_SHOWN_NAMES])
    try:
        restriction = _restriction(info, wish)
        span = _find(query, wish.words)
        certainty = _IN_QUESTION if span else _ELSEWHERE
        return restriction.clause(certainty=certainty, spans=[span] if span else [], known_fields=fields.fields)
    except (FilterError, ValueError, OverflowError) as err:
        return str(err)


def _restriction(info: FieldInfo, wish: Wish) -> Restriction:
    values = [one for value in wish.values for one in _values(info, value)]
    if wish.op in {"eq", "in", "ne", "nin"}:
        return one_of(info.name, values, negated=wish.op in {"ne", "nin"})
    if info.kind not in {FieldKind.NUMBER, FieldKind.DATE} and not info.year:
        raise FilterError(f"the field {info.name!r} has no order; {wish.op} needs a field of numbers or dates")
    if wish.op == "between":
        if len(values) != 2:
            raise FilterError(f"between needs two values for {info.name!r}, got {len(values)}")
        low, high = sorted(values, key=lambda value: (isinstance(value, str), value))
        return within(info.name, gte=low, lte=high)
    return within(info.name, **{wish.op: values[0]})


def _values(info: FieldInfo, value: object) -> list[float | str]:
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
    originals = info.values.get(key)
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
