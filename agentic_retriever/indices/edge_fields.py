"""Payload indexes: which metadata field gets which kind.

A kind is never wrong for what it answers, but an index of numbers or of dates answers *only* for these: on a field
that holds both, the engine would overlook the rest. Filters are translated with the kinds at hand, so that this cannot
happen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, get_args

from qdrant_edge import PayloadSchemaType

from agentic_retriever.filters.values import parse_moment

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from qdrant_edge import ShardInfo

FieldKind = Literal["keyword", "float", "bool", "datetime"]
FIELD_KINDS: Final[tuple[str, ...]] = get_args(FieldKind)
MAX_INDEXED_FIELDS: Final = 64
MAX_INDEXED_LENGTH: Final = 128  # characters; longer texts are read, not filtered on

_SCHEMA: Final = {
    "keyword": PayloadSchemaType.Keyword,
    "float": PayloadSchemaType.Float,
    "bool": PayloadSchemaType.Bool,
    "datetime": PayloadSchemaType.Datetime,
}
_UNQUOTABLE: Final = frozenset('"\\')


def payload_path(field: str) -> str | None:
    """Write a field's literal name as the engine's path.

    Args:
        field: A metadata key, which may hold dots and brackets.

    Returns:
        The path, or ``None`` where the engine has no way to write the name.
    """
    return None if not field or _UNQUOTABLE.intersection(field) else f'"{field}"'


def path_field(path: str) -> str:
    """Read a field's literal name from the engine's path."""
    return path[1:-1] if path.startswith('"') else path


def schema_type(kind: FieldKind) -> PayloadSchemaType:
    """Give the engine's name of a kind of index.

    Args:
        kind: One of ``keyword``, ``float``, ``bool`` and ``datetime``.

    Returns:
        The engine's name.
    """
    return _SCHEMA[kind]


def indexed_kinds(info: ShardInfo) -> dict[str, str]:
    """Read which fields are indexed.

    Args:
        info: What the engine says of itself.

    Returns:
        Field to kind; ``other`` for a kind that is not made here.
    """
    names = {str(schema): kind for kind, schema in _SCHEMA.items()}
    return {path_field(path): names.get(str(index.data_type), "other") for path, index in info.payload_schema.items()}


def infer_kinds(rows: Sequence[Mapping[str, object]], skip: Collection[str]) -> dict[str, FieldKind | None]:
    """Choose a kind of index for each field from its values.

    Args:
        rows: Plain metadata of some nodes.
        skip: Fields that were decided before.

    Returns:
        Field to kind; ``None`` for a field whose values are of several types, long texts or objects. Fields that have
        no value yet are left out.
    """
    seen: dict[str, set[str]] = {}
    for row in rows:
        for field, value in row.items():
            if field in skip:
                continue
            for item in value if isinstance(value, list) else [value]:
                if item is not None:
                    seen.setdefault(field, set()).add(_kind(item))
    return {field: _joined(kinds) for field, kinds in seen.items() if payload_path(field) is not None}


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float)):
        return "float"
    if not isinstance(value, str) or len(value) > MAX_INDEXED_LENGTH:
        return "other"
    return "keyword" if parse_moment(value) is None else "datetime"


def _joined(kinds: set[str]) -> FieldKind | None:
    if kinds in ({"keyword"}, {"keyword", "datetime"}):
        return "keyword"
    if kinds == {"float"}:
        return "float"
    if kinds == {"bool"}:
        return "bool"
    return "datetime" if kinds == {"datetime"} else None
