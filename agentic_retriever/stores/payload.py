"""Nodes as points of the engine and back.

The payload is what LlamaIndex's ``QdrantVectorStore`` writes, so a collection can move between the two. Metadata is
stored plain: what JSON has no word for is turned into what it stands for, or refused before anything is written.
"""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass
from itertools import repeat
from json import JSONDecodeError, JSONDecoder
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast, get_args

import numpy as np
from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict
from qdrant_edge import (
    FieldCondition,
    Filter,
    HasIdCondition,
    IsEmptyCondition,
    MatchAny,
    MatchSubstring,
    MatchValue,
    PayloadSchemaType,
    RangeDateTime,
    RangeFloat,
)

from agentic_retriever.errors import EmbeddingError, EmbeddingMismatchError, IndexingError
from agentic_retriever.filters import (
    LIST_OPERATORS,
    RANGE_OPERATORS,
    Scalar,
    as_boolean,
    is_empty,
    parse_moment,
    plain_scalar,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy.typing as npt
    from llama_index.core.schema import BaseNode
    from qdrant_edge import ShardInfo


# Payload indexes: which metadata field gets which kind.
#
# A kind is never wrong for what it answers, but an index of numbers or of dates answers *only* for these: on a field
# that holds both, the engine would overlook the rest. Filters are translated with the kinds at hand, so that this
# cannot
# happen.

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
    """Write a field's literal name as the engine's path."""
    return None if not field or _UNQUOTABLE.intersection(field) else f'"{field}"'


def path_field(path: str) -> str:
    """Read a field's literal name from the engine's path."""
    return path[1:-1] if path.startswith('"') else path


def schema_type(kind: FieldKind) -> PayloadSchemaType:
    """Give the engine's name of a kind of index."""
    return _SCHEMA[kind]


def indexed_kinds(info: ShardInfo) -> dict[str, str]:
    """Read which fields are indexed."""
    names = {str(schema): kind for kind, schema in _SCHEMA.items()}
    return {path_field(path): names.get(str(index.data_type), "other") for path, index in info.payload_schema.items()}


def infer_kinds(rows: Sequence[Mapping[str, object]], skip: Collection[str]) -> dict[str, FieldKind | None]:
    """Choose a kind of index for each field from its values."""
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


# Metadata filters as conditions of Qdrant Edge.
#
# What the engine is told always lets through every node that the evaluator of :mod:`agentic_retriever.filters`
# accepts.
# Where it lets through exactly those the translation is *exact*; elsewhere the evaluator sorts out the rest.

Condition: TypeAlias = FieldCondition | IsEmptyCondition | HasIdCondition | Filter

ID_FIELDS: Final = frozenset({"doc_id", "document_id", "ref_doc_id"})
PRIVATE_FIELDS: Final = frozenset({"_node_content", "_node_type"})
NO_SOURCE: Final = "None"  # what LlamaIndex writes in the id fields of a node without a source

_EQUALITY: Final = frozenset({FilterOperator.EQ, FilterOperator.CONTAINS, FilterOperator.IN, FilterOperator.ANY})
_INEQUALITY: Final = frozenset({FilterOperator.NE, FilterOperator.NIN})
_SAFE_INTEGER: Final = 2**53  # beyond it the engine, which compares as float64, cannot tell neighbours apart
_MAX_NUMBERS: Final = 64  # longer lists of numbers are narrowed by their ends only
_DAY: Final = dt.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Pushed:
    """A filter as the engine understands it."""

    condition: Condition | None  # What the engine checks; None lets everything through
    exact: bool


_EVERYTHING: Final = Pushed(None, exact=False)


def push_down(filters: MetadataFilters | None, kinds: Mapping[str, str]) -> Pushed:
    """Translate filters as far as the engine's meaning is ours."""
    if filters is None or is_empty(filters):
        return Pushed(None, exact=True)
    return _group(filters, kinds, negated=False)


def nothing() -> Condition:
    """Give a condition that no node satisfies."""
    return HasIdCondition(set())


def _group(group: MetadataFilters, kinds: Mapping[str, str], *, negated: bool) -> Pushed:
    is_or, is_not = group.condition is FilterCondition.OR, group.condition is FilterCondition.NOT
    # "not" means none of its parts, so it is an AND of negated parts. Negation is carried down to the clauses, because
    # the negation of a condition that lets too much through would let too little through.
    parts = [
        _part(child, kinds, negated=negated != is_not)
        for child in group.filters
        if isinstance(child, MetadataFilter) or not is_empty(child)
    ]
    return _any(parts) if is_or != negated else _all(parts)


def _part(item: MetadataFilter | MetadataFilters, kinds: Mapping[str, str], *, negated: bool) -> Pushed:
    if isinstance(item, MetadataFilters):
        return _group(item, kinds, negated=negated)
    pushed = _clause(item, kinds)
    if not negated:
        return pushed
    if not pushed.exact or pushed.condition is None:
        return _EVERYTHING
    return Pushed(Filter(must_not=[pushed.condition]), exact=True)


def _all(parts: list[Pushed]) -> Pushed:
    conditions = [part.condition for part in parts if part.condition is not None]
    exact = all(part.exact for part in parts)
    if len(conditions) < 2:
        return Pushed(conditions[0] if conditions else None, exact)
    return Pushed(Filter(must=cast("Any", conditions)), exact)


def _any(parts: list[Pushed]) -> Pushed:
    conditions = [part.condition for part in parts if part.condition is not None]
    if len(conditions) < len(parts):
        return _EVERYTHING
    exact = all(part.exact for part in parts)
    return Pushed(conditions[0] if len(conditions) == 1 else Filter(should=cast("Any", conditions)), exact)


def _clause(clause: MetadataFilter, kinds: Mapping[str, str]) -> Pushed:
    path = payload_path(clause.key)
    if path is None or clause.key in PRIVATE_FIELDS:
        return _EVERYTHING
    kind = kinds.get(clause.key, "")
    if clause.key in ID_FIELDS:
        return _source_clause(clause, path)
    if clause.operator is FilterOperator.IS_EMPTY:
        return Pushed(IsEmptyCondition(path), exact=True)
    if kind == "other":
        return _present(path)
    return _value_clause(clause, path, kind)


def _source_clause(clause: MetadataFilter, path: str) -> Pushed:
    if clause.operator not in _EQUALITY:
        return _EVERYTHING
    values = [value for value in _values(clause) if isinstance(value, str) and value != NO_SOURCE]
    return Pushed(_match_texts(path, values) if values else nothing(), exact=True)


def _value_clause(clause: MetadataFilter, path: str, kind: str) -> Pushed:
    operator = clause.operator
    if operator in _EQUALITY or operator in _INEQUALITY:
        compare = _equal if operator in _EQUALITY else _not_equal
        return compare(path, _values(clause), kind)
    if operator is FilterOperator.ALL:
        return _all([Pushed(_present(path).condition, exact=True), *(_equal(path, [v], kind) for v in _values(clause))])
    if operator in RANGE_OPERATORS:
        return _range(path, operator, _values(clause)[0], kind)
    if operator is FilterOperator.TEXT_MATCH:
        return Pushed(FieldCondition(path, match=MatchSubstring(str(clause.value))), exact=True)
    return _present(path)


def _not_equal(path: str, values: list[Scalar], kind: str) -> Pushed:
    equal = _equal(path, values, kind)
    if equal.condition is None or not equal.exact:
        return _present(path)
    return Pushed(Filter(must_not=cast("Any", [IsEmptyCondition(path), equal.condition])), exact=True)


def _present(path: str) -> Pushed:
    return Pushed(Filter(must_not=[IsEmptyCondition(path)]), exact=False)


def _values(clause: MetadataFilter) -> list[Scalar]:
    listed = clause.value if clause.operator in LIST_OPERATORS else [clause.value]
    return [str(value).lower() if isinstance(value, bool) else value for value in cast("list[Scalar]", listed)]


def _equal(path: str, values: list[Scalar], kind: str) -> Pushed:
    texts = [value for value in values if isinstance(value, str)]
    numbers = sorted({value for value in values if not isinstance(value, str)})
    if numbers and (kind == "datetime" or max(abs(number) for number in numbers) >= _SAFE_INTEGER):
        return _present(path)
    parts = [Pushed(_match_texts(path, texts), exact=True)] if texts else []
    booleans = {truth for truth in map(as_boolean, texts) if truth is not None}
    # A Python bool is an int to the engine's binding, which would look for 1 or 0; numpy's is a boolean to it.
    parts.extend(
        Pushed(FieldCondition(path, match=MatchValue(cast("bool", np.bool_(truth)))), exact=True) for truth in booleans
    )
    if len(numbers) > _MAX_NUMBERS:
        parts.append(Pushed(_between(path, numbers[0], numbers[-1]), exact=False))
    else:
        parts.extend(Pushed(_between(path, number, number), exact=True) for number in numbers)
    return _any(parts) if parts else Pushed(nothing(), exact=True)


def _match_texts(path: str, texts: list[str]) -> Condition:
    return FieldCondition(path, match=MatchValue(texts[0]) if len(texts) == 1 else MatchAny(texts))


def _between(path: str, low: float, high: float) -> Condition:
    return FieldCondition(path, range=RangeFloat(gte=float(low), lte=float(high)))


def _range(path: str, operator: FilterOperator, bound: Scalar, kind: str) -> Pushed:
    side = {FilterOperator.GT: "gt", FilterOperator.GTE: "gte", FilterOperator.LT: "lt"}.get(operator, "lte")
    if not isinstance(bound, str):
        if kind == "datetime" or abs(bound) >= _SAFE_INTEGER:
            return _present(path)
        return Pushed(FieldCondition(path, range=RangeFloat(**{side: float(bound)})), exact=True)
    moment = parse_moment(bound)
    if moment is None or kind == "float":
        return _present(path)
    limit = _moment_limit(side, *moment)
    if limit is None:
        return _present(path)
    # Never called exact: the engine takes some texts for dates that are none to the evaluator.
    return Pushed(FieldCondition(path, range=RangeDateTime(**{limit[0]: limit[1].isoformat()})), exact=False)


def _moment_limit(side: str, moment: dt.datetime, is_date: bool) -> tuple[str, dt.datetime] | None:
    """Widen a comparison by the day to one of moments, since dates are stored as their midnight."""
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    if side == "gte":
        return "gte", midnight
    if not is_date or side == "lt":
        return side, moment
    if midnight.date() == dt.date.max:
        return None
    return {"gt": "gte", "lte": "lt"}[side], midnight + _DAY


RESERVED_FIELDS: Final = PRIVATE_FIELDS | ID_FIELDS
MAX_FIELD_LENGTH: Final = 256
MAX_NESTING: Final = 16

_NAMESPACE: Final = uuid.UUID("5f8f3d7e-52c5-4b0e-9f0a-6d1c1f3a2b94")
_UUID_LENGTH: Final = 36
_ID_PREFIX: Final = '{"id_": '
_INT64: Final = 2**63
_read_string: Final = JSONDecoder().raw_decode


def point_id(node_id: str) -> str:
    """Map a node id to the engine's id, always the same way."""
    if len(node_id) == _UUID_LENGTH:
        try:
            if str(uuid.UUID(node_id)) == node_id:
                return node_id
        except ValueError:
            pass
    return str(uuid.uuid5(_NAMESPACE, node_id.encode("utf-8", "backslashreplace").decode()))


def node_payload(node: BaseNode) -> dict[str, Any]:
    """Write a node as a payload; the node stays as it is."""
    if not node.node_id:
        message = "a node has an empty id; give every node an id of its own"
        raise IndexingError(message)
    if node.ref_doc_id == NO_SOURCE:
        message = f"node {node.node_id!r} has the source id 'None', which stands for no source; use another id"
        raise IndexingError(message)
    metadata = plain_metadata(node.metadata, node.node_id)
    try:
        payload = node_to_metadata_dict(node.model_copy(update={"metadata": metadata, "embedding": None}))
        payload["_node_content"].encode()
    except (ValueError, TypeError, AttributeError, RecursionError) as err:
        message = (
            f"node {node.node_id!r} cannot be written as JSON ({type(err).__name__}); its text must be valid Unicode"
        )
        raise IndexingError(message) from err
    return payload


def plain_metadata(metadata: Mapping[Any, object], node_id: str) -> dict[str, object]:
    """Turn metadata into what JSON can hold.

    Dates become ISO 8601 strings, ``Decimal`` and numpy numbers become numbers, sets become sorted lists, NaN becomes
    ``None``.
    """
    plain: dict[str, object] = {}
    for field, value in metadata.items():
        if field in RESERVED_FIELDS:
            message = (
                f"node {node_id!r} has the metadata field {field!r}, a name that LlamaIndex uses itself; rename it"
            )
            raise IndexingError(message)
        if not isinstance(field, str) or not 0 < len(field) <= MAX_FIELD_LENGTH:
            message = (
                f"node {node_id!r} has the metadata field {str(field)[:60]!r}; names are strings of 1 to "
                f"{MAX_FIELD_LENGTH} characters"
            )
            raise IndexingError(message)
        try:
            field.encode()
            plain[field] = _plain(value, 0)
        except (TypeError, ValueError) as err:
            message = f"the metadata field {field!a} of node {node_id!r} cannot be stored: {err}"
            raise IndexingError(message) from err
    return plain


def _plain(value: object, depth: int) -> object:
    if depth > MAX_NESTING:
        message = f"nested deeper than {MAX_NESTING}"
        raise ValueError(message)
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            message = "an object in it has a name that is no string"
            raise TypeError(message)
        return {key: _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(item, depth + 1) for item in value), key=lambda item: (type(item).__name__, str(item)))
    if isinstance(value, (list, tuple)):
        return [_plain(item, depth + 1) for item in value]
    return _storable(plain_scalar(value))


def _storable(value: object) -> object:
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, float) and not np.isfinite(value):
        message = f"{value} is no finite number"
        raise ValueError(message)
    elif isinstance(value, int) and not -_INT64 <= value < _INT64:
        message = "an integer beyond 64 bits; store it as text"
        raise ValueError(message)
    return value


def unit_vectors(nodes: Sequence[BaseNode]) -> npt.NDArray[np.float32]:
    """Read the nodes' embeddings and bring them to length 1, as the cosine needs them."""
    rows: list[Any] = []
    for node in nodes:
        vector = node.embedding
        if vector is None or len(vector) == 0:
            message = f"node {node.node_id!r} has no embedding; embed the nodes before adding them"
            raise EmbeddingError(message)
        if len(vector) != len(rows[0] if rows else vector):
            message = (
                f"node {node.node_id!r} has an embedding of {len(vector)} dimensions, the nodes before it have "
                f"{len(rows[0])}; embed all with one model"
            )
            raise EmbeddingMismatchError(message)
        rows.append(vector)
    return _to_unit(rows, [node.node_id for node in nodes])


def unit_vector(vector: Sequence[float], dimension: int | None = None) -> npt.NDArray[np.float32]:
    """Bring a query's embedding to length 1."""
    if len(vector) == 0:
        message = "the query's embedding is empty"
        raise EmbeddingError(message)
    if dimension is not None and len(vector) != dimension:
        message = (
            f"the query's embedding has {len(vector)} dimensions, the index holds {dimension}; embed the query with "
            "the model that the index was built with"
        )
        raise EmbeddingMismatchError(message)
    unit: npt.NDArray[np.float32] = _to_unit([vector], None)[0]
    return unit


def _to_unit(rows: list[Any], node_ids: list[str] | None) -> npt.NDArray[np.float32]:
    names = repeat("the query's embedding") if node_ids is None else (f"the embedding of {name!r}" for name in node_ids)
    try:
        matrix = np.asarray(rows, dtype=np.float64)
    except (TypeError, ValueError) as err:
        message = "an embedding holds something that is no number"
        raise EmbeddingError(message) from err
    # Scaled first, so that neither huge nor tiny numbers are lost when they are squared.
    peaks = np.abs(matrix).max(axis=1, keepdims=True)
    for name, peak in zip(names, peaks[:, 0], strict=False):
        if not np.isfinite(peak):
            message = f"{name} holds NaN or an infinity; the embedding model returned an unusable vector"
            raise EmbeddingError(message)
        if peak == 0:
            message = f"{name} is zero in every dimension, so no angle to it exists; is the text empty?"
            raise EmbeddingError(message)
    matrix /= peaks
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    return matrix.astype(np.float32)


def payload_fields(payload: Mapping[str, Any]) -> dict[str, object]:
    """Give what a filter sees of a payload."""
    fields = {key: value for key, value in payload.items() if key not in PRIVATE_FIELDS}
    for key in ID_FIELDS:
        if fields.get(key) == NO_SOURCE:
            del fields[key]
    return fields


def stored_node_id(payload: Mapping[str, Any] | None) -> str | None:
    """Read a node's id from its payload without reading the node."""
    content = payload.get("_node_content") if payload else None
    if not isinstance(content, str):
        return None
    if content.startswith(_ID_PREFIX):
        try:
            found, _ = _read_string(content, len(_ID_PREFIX))
        except JSONDecodeError:
            return None
        return found if isinstance(found, str) else None
    node = stored_node(payload)
    return node.node_id if node is not None else None


def stored_node(payload: Mapping[str, Any] | None) -> BaseNode | None:
    """Read a node from its payload."""
    try:
        return metadata_dict_to_node(dict(payload or {}))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
