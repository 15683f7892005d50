"""Metadata filters as conditions of a Qdrant server.

The translation is that for the engine in this process (:mod:`agentic_retriever.indices.edge_filters`), which is the
same engine, written in the client's types. One operator is held back: a server without a text index finds substrings,
one with it finds tokens, so ``text_match`` is left to the evaluator.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Final

import qdrant_edge as edge
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters
from qdrant_client import models

from agentic_retriever.indices.edge_filters import push_down

if TYPE_CHECKING:
    from collections.abc import Mapping

_SIDES: Final = ("gt", "gte", "lt", "lte")


def server_filter(filters: MetadataFilters | None, kinds: Mapping[str, str]) -> tuple[models.Filter | None, bool]:
    """Translate filters as far as the server's meaning is ours.

    Args:
        filters: Filters that ``check_filters`` accepts.
        kinds: The kind of payload index of each indexed field.

    Returns:
        A filter that lets through every node that satisfies ``filters``, ``None`` for all; and whether it lets through
        nothing else.
    """
    pushed = push_down(None if filters is None else _without_substrings(filters), kinds)
    if pushed.condition is None:
        return None, pushed.exact
    condition = _condition(pushed.condition)
    return condition if isinstance(condition, models.Filter) else models.Filter(must=[condition]), pushed.exact


def _without_substrings(group: MetadataFilters) -> MetadataFilters:
    """Replace substrings by their wider kind, which is never pushed down; the evaluator has the last word anyway."""
    parts = [_without_substrings(p) if isinstance(p, MetadataFilters) else _without_substring(p) for p in group.filters]
    return MetadataFilters.model_construct(filters=parts, condition=group.condition)


def _without_substring(clause: MetadataFilter) -> MetadataFilter:
    if clause.operator is not FilterOperator.TEXT_MATCH:
        return clause
    return clause.model_copy(update={"operator": FilterOperator.TEXT_MATCH_INSENSITIVE})


def _condition(condition: Any) -> Any:  # noqa: ANN401 - one of four types there, and of four others here
    if isinstance(condition, edge.Filter):
        parts = {name: _conditions(getattr(condition, name)) for name in ("must", "should", "must_not")}
        return models.Filter(must=parts["must"], should=parts["should"], must_not=parts["must_not"])
    if isinstance(condition, edge.HasIdCondition):
        return models.HasIdCondition(has_id=sorted(str(one) for one in condition.point_ids))
    if isinstance(condition, edge.IsEmptyCondition):
        return models.IsEmptyCondition(is_empty=models.PayloadField(key=condition.key))
    if condition.match is not None:
        return models.FieldCondition(key=condition.key, match=_match(condition.match))
    return models.FieldCondition(key=condition.key, range=_range(condition.range))


def _conditions(conditions: Any) -> list[Any] | None:  # noqa: ANN401 - as above
    return [_condition(one) for one in conditions] if conditions else None


def _match(match: edge.MatchValue | edge.MatchAny) -> models.MatchValue | models.MatchAny:
    if isinstance(match, edge.MatchAny):
        return models.MatchAny(any=[str(value) for value in match.value])
    return models.MatchValue(value=match.value)


def _range(bounds: edge.RangeFloat | edge.RangeDateTime) -> models.Range | models.DatetimeRange:
    given = {side: value for side in _SIDES if (value := getattr(bounds, side)) is not None}
    if isinstance(bounds, edge.RangeDateTime):
        return models.DatetimeRange(**{side: _moment(value) for side, value in given.items()})
    return models.Range(**given)


def _moment(text: str) -> dt.datetime:
    """Read what the engine writes: ``2020-01-31 10:00:00.5 UTC``."""
    day, time, _zone = text.split(" ")
    whole, _, fraction = time.partition(".")
    moment = dt.datetime.fromisoformat(f"{day}T{whole}+00:00")
    return moment.replace(microsecond=int(fraction[:6].ljust(6, "0")) if fraction else 0)
