"""Nodes as points and back, with payloads as LlamaIndex's ``QdrantVectorStore`` has them, which can read ours."""

import datetime as dt
import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from json import JSONDecodeError, JSONDecoder
from typing import Any, Final, Generic, Literal, Protocol, TypeAlias, TypeVar, cast, get_args

import numpy as np
import numpy.typing as npt
import qdrant_edge as edge
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQueryResult,
)
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

from agentic_retriever.errors import EmbeddingError, EmbeddingMismatchError, IndexingError
from agentic_retriever.filters import (
    LIST_OPERATORS,
    RANGE_OPERATORS,
    Predicate,
    Scalar,
    as_boolean,
    filled_parts,
    is_empty,
    parse_moment,
    plain_scalar,
    predicate,
    walk_clauses,
)
from agentic_retriever.ingestion.chunking import MAPPED_SECTION

logger = logging.getLogger(__name__)

SOURCE_FIELD: Final = "doc_id"
ID_FIELDS: Final = frozenset({SOURCE_FIELD, "document_id", "ref_doc_id"})
PRIVATE_FIELDS: Final = frozenset({"_node_content", "_node_type"})
RESERVED_FIELDS: Final = PRIVATE_FIELDS | ID_FIELDS
NO_SOURCE: Final = "None"  # what LlamaIndex writes in the id fields of a node without a source
MAX_FIELD_LENGTH: Final = 256
MAX_NESTING: Final = 16
_NAMESPACE: Final = uuid.UUID("5f8f3d7e-52c5-4b0e-9f0a-6d1c1f3a2b94")
_ID_PREFIX: Final = '{"id_": '
_INT64: Final = 2**63
_read_string: Final = JSONDecoder().raw_decode


# Nodes as payloads.


def embedded_text(node: BaseNode) -> str:
    """Return what is embedded of a node: its title, section and text."""
    return node.get_content(metadata_mode=MetadataMode.EMBED)


def searched_text(node: BaseNode) -> str:
    """Return what words are looked for in and rerankers read: what is embedded, behind titles that only a map knows."""
    mapped = node.metadata.get(MAPPED_SECTION)
    titles = mapped if isinstance(mapped, list) else [mapped]
    return "\n".join([*(title for title in titles if isinstance(title, str)), embedded_text(node)])


def point_id(node_id: str) -> str:
    """Map a node id to the engine's id, always the same way."""
    with suppress(ValueError):
        if str(uuid.UUID(node_id)) == node_id:
            return node_id
    return str(uuid.uuid5(_NAMESPACE, node_id.encode("utf-8", "backslashreplace").decode()))


def node_payload(node: BaseNode) -> dict[str, Any]:
    """Write a node as a payload; the node stays as it is."""
    if not node.node_id:
        raise IndexingError("a node has an empty id; give every node an id of its own")
    if node.ref_doc_id == NO_SOURCE:
        raise IndexingError(
            f"node {node.node_id!r} has the source id 'None', which stands for no source; use another id"
        )
    metadata = plain_metadata(node.metadata, node.node_id)
    try:
        payload = node_to_metadata_dict(node.model_copy(update={"metadata": metadata, "embedding": None}))
        payload["_node_content"].encode()
    except (ValueError, TypeError, AttributeError, RecursionError) as err:
        what = f"node {node.node_id!r} cannot be written as JSON ({type(err).__name__})"
        raise IndexingError(f"{what}; its text must be valid Unicode") from err
    return payload


def plain_metadata(metadata: Mapping[Any, object], node_id: str) -> dict[str, object]:
    """Turn metadata into what JSON can hold: dates into ISO 8601 strings, sets into sorted lists, NaN into ``None``."""
    plain: dict[str, object] = {}
    for field, value in metadata.items():
        if field in RESERVED_FIELDS:
            raise IndexingError(
                f"node {node_id!r} has the metadata field {field!r}, a name that LlamaIndex uses itself; rename it"
            )
        if not isinstance(field, str) or not 0 < len(field) <= MAX_FIELD_LENGTH:
            allowed = f"names are strings of 1 to {MAX_FIELD_LENGTH} characters"
            raise IndexingError(f"node {node_id!r} has the metadata field {str(field)[:60]!r}; {allowed}")
        try:
            field.encode()
            plain[field] = _plain(value, 0)
        except (TypeError, ValueError) as err:
            raise IndexingError(f"the metadata field {field!a} of node {node_id!r} cannot be stored: {err}") from err
    return plain


def _plain(value: object, depth: int) -> object:
    if depth > MAX_NESTING:
        raise ValueError(f"nested deeper than {MAX_NESTING}")
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("an object in it has a name that is no string")
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
        raise ValueError(f"{value} is no finite number")
    elif isinstance(value, int) and not -_INT64 <= value < _INT64:
        raise ValueError("an integer beyond 64 bits; store it as text")
    return value


def payload_fields(payload: Mapping[str, Any]) -> dict[str, object]:
    """Give what a filter sees of a payload."""
    return {
        key: value
        for key, value in payload.items()
        if key not in PRIVATE_FIELDS and not (value == NO_SOURCE and key in ID_FIELDS)
    }


def stored_node_id(payload: Mapping[str, Any] | None) -> str | None:
    """Read a node's id from its payload without reading the node, where it stands at the beginning."""
    content = payload.get("_node_content") if payload else None
    if isinstance(content, str) and content.startswith(_ID_PREFIX):
        with suppress(JSONDecodeError):
            found, _ = _read_string(content, len(_ID_PREFIX))
            return found if isinstance(found, str) else None
    node = stored_node(payload)
    return node.node_id if node is not None else None


def stored_node(payload: Mapping[str, Any] | None) -> BaseNode | None:
    """Read a node from its payload."""
    try:
        return metadata_dict_to_node(dict(payload or {}))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


# Embeddings as unit vectors.


def unit_vectors(nodes: Sequence[BaseNode]) -> npt.NDArray[np.float32]:
    """Read the nodes' embeddings and bring them to length 1, as the cosine needs them."""
    rows: list[Any] = []
    for node in nodes:
        vector = node.embedding
        if vector is None or len(vector) == 0:
            raise EmbeddingError(f"node {node.node_id!r} has no embedding; embed the nodes before adding them")
        if rows and len(vector) != len(rows[0]):
            raise EmbeddingMismatchError(
                f"node {node.node_id!r} has an embedding of {len(vector)} dimensions, the nodes before it have "
                f"{len(rows[0])}; embed all with one model"
            )
        rows.append(vector)
    return _to_unit(rows, (f"the embedding of {node.node_id!r}" for node in nodes))


def unit_vector(vector: Sequence[float], dimension: int | None = None) -> npt.NDArray[np.float32]:
    """Bring a query's embedding to length 1."""
    if len(vector) == 0:
        raise EmbeddingError("the query's embedding is empty")
    if dimension is not None and len(vector) != dimension:
        raise EmbeddingMismatchError(
            f"the query's embedding has {len(vector)} dimensions, the index holds {dimension}; embed the query with "
            "the model that the index was built with"
        )
    unit: npt.NDArray[np.float32] = _to_unit([vector], repeat("the query's embedding"))[0]
    return unit


def _to_unit(rows: list[Any], names: Iterable[str]) -> npt.NDArray[np.float32]:
    try:
        matrix = np.asarray(rows, dtype=np.float64)
    except (TypeError, ValueError) as err:
        raise EmbeddingError("an embedding holds something that is no number") from err
    # Scaled first, so that neither huge nor tiny numbers are lost when they are squared.
    peaks = np.abs(matrix).max(axis=1, keepdims=True)
    for name, peak in zip(names, peaks[:, 0], strict=False):
        if not np.isfinite(peak):
            raise EmbeddingError(f"{name} holds NaN or an infinity; the embedding model returned an unusable vector")
        if peak == 0:
            raise EmbeddingError(f"{name} is zero in every dimension, so no angle to it exists; is the text empty?")
    matrix /= peaks
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    return matrix.astype(np.float32)


# Metadata filters as conditions of Qdrant, and which metadata field gets which payload index.
# What the engine is told always lets through every node that the evaluator of :mod:`agentic_retriever.filters` accepts.
# Where it lets through exactly those the translation is *exact*; elsewhere the evaluator sorts out the rest.
# A kind of index is never wrong for what it answers, but an index of numbers or of dates answers *only* for these: on a
# field that holds both, the engine would overlook the rest. So filters are translated with the kinds at hand.

FieldKind = Literal["keyword", "float", "bool", "datetime"]
FIELD_KINDS: Final[tuple[str, ...]] = get_args(FieldKind)
MAX_INDEXED_FIELDS: Final = 64
MAX_INDEXED_LENGTH: Final = 128  # characters; longer texts are read, not filtered on

Condition: TypeAlias = edge.FieldCondition | edge.IsEmptyCondition | edge.HasIdCondition | edge.Filter

_UNQUOTABLE: Final = frozenset('"\\')
_EQUALITY: Final = frozenset({FilterOperator.EQ, FilterOperator.CONTAINS, FilterOperator.IN, FilterOperator.ANY})
_INEQUALITY: Final = frozenset({FilterOperator.NE, FilterOperator.NIN})
_SAFE_INTEGER: Final = 2**53  # beyond it the engine, which compares as float64, cannot tell neighbours apart
_MAX_NUMBERS: Final = 64  # longer lists of numbers are narrowed by their ends only


def payload_path(field: str) -> str | None:
    """Write a field's literal name as the engine's path; ``None`` for a name that has none."""
    return None if not field or _UNQUOTABLE.intersection(field) else f'"{field}"'


def path_field(path: str) -> str:
    """Read a field's literal name from the engine's path."""
    return path[1:-1] if path.startswith('"') else path


def infer_kinds(rows: Sequence[Mapping[str, object]], skip: Collection[str]) -> dict[str, FieldKind | None]:
    """Choose a kind of index for each field from its values; ``None`` where no kind suits all of them."""
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
    if kinds == {"keyword", "datetime"}:
        return "keyword"
    [kind] = kinds if len(kinds) == 1 else ["other"]
    return None if kind == "other" else cast("FieldKind", kind)


@dataclass(frozen=True, slots=True)
class Pushed:
    """A filter as the engine understands it."""

    condition: Condition | None  # what the engine checks; None lets everything through
    exact: bool = True


_NOTHING: Final = edge.HasIdCondition(set())
_EVERYTHING: Final = Pushed(None, exact=False)


def push_down(filters: MetadataFilters | None, kinds: Mapping[str, str], *, substrings: bool = True) -> Pushed:
    """Translate filters as far as the engine's meaning is ours; ``substrings`` tells whether it finds these itself."""
    if filters is None or is_empty(filters):
        return Pushed(None)
    return _Translator(kinds, substrings).part(filters, negated=False)


@dataclass(frozen=True, slots=True)
class _Translator:
    kinds: Mapping[str, str]
    substrings: bool

    def part(self, item: MetadataFilter | MetadataFilters, *, negated: bool) -> Pushed:
        if isinstance(item, MetadataFilter):
            pushed = self._clause(item)
            if not negated:
                return pushed
            if not pushed.exact or pushed.condition is None:
                return _EVERYTHING
            return Pushed(edge.Filter(must_not=[pushed.condition]))
        is_or, is_not = item.condition is FilterCondition.OR, item.condition is FilterCondition.NOT
        # "not" means none of its parts, so it is an AND of negated parts. Negation is carried down to the clauses,
        # because the negation of a condition that lets too much through would let too little through.
        parts = [self.part(child, negated=negated != is_not) for child in filled_parts(item)]
        return _any(parts) if is_or != negated else _all(parts)

    def _clause(self, clause: MetadataFilter) -> Pushed:
        path = payload_path(clause.key)
        is_source = clause.key in ID_FIELDS
        if path is None or clause.key in PRIVATE_FIELDS or (is_source and clause.operator not in _EQUALITY):
            return _EVERYTHING
        if is_source:
            values = [value for value in _values(clause) if isinstance(value, str) and value != NO_SOURCE]
            return Pushed(_match_texts(path, values) if values else _NOTHING)
        if clause.operator is FilterOperator.IS_EMPTY:
            return Pushed(edge.IsEmptyCondition(path))
        kind = self.kinds.get(clause.key, "")
        if kind == "other":
            return _present(path)
        if clause.operator is FilterOperator.TEXT_MATCH and self.substrings:
            return Pushed(edge.FieldCondition(path, match=edge.MatchSubstring(str(clause.value))))
        return _value_clause(clause, path, kind)


def _all(parts: list[Pushed]) -> Pushed:
    conditions = [part.condition for part in parts if part.condition is not None]
    exact = all(part.exact for part in parts)
    if len(conditions) < 2:
        return Pushed(conditions[0] if conditions else None, exact)
    return Pushed(edge.Filter(must=cast("Any", conditions)), exact)


def _any(parts: list[Pushed]) -> Pushed:
    conditions = [part.condition for part in parts if part.condition is not None]
    if len(conditions) < len(parts):
        return _EVERYTHING
    exact = all(part.exact for part in parts)
    return Pushed(conditions[0] if len(conditions) == 1 else edge.Filter(should=cast("Any", conditions)), exact)


def _value_clause(clause: MetadataFilter, path: str, kind: str) -> Pushed:
    operator, values = clause.operator, _values(clause)
    if operator in _EQUALITY:
        return _equal(path, values, kind)
    if operator in _INEQUALITY:
        equal = _equal(path, values, kind)
        if equal.condition is None or not equal.exact:
            return _present(path)
        return Pushed(edge.Filter(must_not=cast("Any", [edge.IsEmptyCondition(path), equal.condition])))
    if operator is FilterOperator.ALL:
        return _all([Pushed(_present(path).condition), *(_equal(path, [value], kind) for value in values)])
    return _range(path, operator, values[0], kind) if operator in RANGE_OPERATORS else _present(path)


def _present(path: str) -> Pushed:
    return Pushed(edge.Filter(must_not=[edge.IsEmptyCondition(path)]), exact=False)


def _values(clause: MetadataFilter) -> list[Scalar]:
    listed = clause.value if clause.operator in LIST_OPERATORS else [clause.value]
    return [str(value).lower() if isinstance(value, bool) else value for value in cast("list[Scalar]", listed)]


def _equal(path: str, values: list[Scalar], kind: str) -> Pushed:
    texts = [value for value in values if isinstance(value, str)]
    numbers = sorted({value for value in values if not isinstance(value, str)})
    if numbers and (kind == "datetime" or max(abs(number) for number in numbers) >= _SAFE_INTEGER):
        return _present(path)
    parts = [Pushed(_match_texts(path, texts))] if texts else []
    booleans = {truth for truth in map(as_boolean, texts) if truth is not None}
    # A Python bool is an int to the engine's binding, which would look for 1 or 0; numpy's is a boolean to it.
    parts.extend(
        Pushed(edge.FieldCondition(path, match=edge.MatchValue(cast("bool", np.bool_(truth))))) for truth in booleans
    )
    if len(numbers) > _MAX_NUMBERS:
        parts.append(Pushed(_between(path, numbers[0], numbers[-1]), exact=False))
    else:
        parts.extend(Pushed(_between(path, number, number)) for number in numbers)
    return _any(parts) if parts else Pushed(_NOTHING)


def _match_texts(path: str, texts: list[str]) -> Condition:
    return edge.FieldCondition(path, match=edge.MatchValue(texts[0]) if len(texts) == 1 else edge.MatchAny(texts))


def _between(path: str, low: float, high: float) -> Condition:
    return edge.FieldCondition(path, range=edge.RangeFloat(gte=float(low), lte=float(high)))


def _range(path: str, operator: FilterOperator, bound: Scalar, kind: str) -> Pushed:
    side = {FilterOperator.GT: "gt", FilterOperator.GTE: "gte", FilterOperator.LT: "lt"}.get(operator, "lte")
    if not isinstance(bound, str):
        if kind == "datetime" or abs(bound) >= _SAFE_INTEGER:
            return _present(path)
        return Pushed(edge.FieldCondition(path, range=edge.RangeFloat(**{side: float(bound)})))
    moment = parse_moment(bound)
    limit = None if moment is None or kind == "float" else _moment_limit(side, *moment)
    if limit is None:
        return _present(path)
    # Never called exact: the engine takes some texts for dates that are none to the evaluator.
    return Pushed(edge.FieldCondition(path, range=edge.RangeDateTime(**{limit[0]: limit[1].isoformat()})), exact=False)


def _moment_limit(side: str, moment: dt.datetime, is_date: bool) -> tuple[str, dt.datetime] | None:
    """Widen a comparison by the day to one of moments, since dates are stored as their midnight."""
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    if side == "gte":
        return "gte", midnight
    if not is_date or side == "lt":
        return side, moment
    if midnight.date() == dt.date.max:
        return None
    return {"gt": "gte", "lte": "lt"}[side], midnight + dt.timedelta(days=1)


# Points as hits in order.

FactT = TypeVar("FactT")
PointT = TypeVar("PointT", bound="Point")
Payload: TypeAlias = bool | list[str]  # what of a payload is read: nothing, all of it, or fields by the engine's paths

MAX_KNOWN: Final = 20_000  # points that are remembered at a time, 10 MB at most; beyond, remembering begins anew


class Point(Protocol):
    """A point as it was stored, in either engine's type."""

    @property
    def id(self) -> Any: ...  # noqa: ANN401 - a number, a text or a UUID

    @property
    def payload(self) -> dict[str, Any] | None: ...


class EnginePoint(Point, Protocol):
    """A point that was found."""

    @property
    def score(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Hit:
    """A node that was found; the higher its score, the better."""

    node: BaseNode
    score: float


def read_nodes(records: Iterable[Point]) -> list[BaseNode]:
    """Read the nodes of points; those that are broken or not ours are left out with one warning."""
    found = [stored_node(record.payload) for record in records]
    nodes = [node for node in found if node is not None]
    warn_of_foreign(len(found) - len(nodes))
    return nodes


def rank_points(points: Sequence[EnginePoint], whole: bool, *, accepts: Predicate, top_k: int) -> tuple[list[Hit], int]:
    """Read the best ``top_k`` of points, by falling score and then by id, and count those that are not ours.

    Unless these are the whole list, points with the lowest score are left out: others with it may be missing.
    """
    floor = float("-inf") if whole or not points else points[-1].score
    ranked: list[tuple[float, str, dict[str, Any]]] = []
    foreign = 0
    for point in points:
        if point.score <= floor:
            break
        payload = point.payload or {}
        node_id = stored_node_id(payload)
        if node_id is None:
            foreign += 1
        elif accepts(payload_fields(payload)):
            ranked.append((point.score, node_id, payload))
    ranked.sort(key=lambda item: (-item[0], item[1]))
    hits: list[Hit] = []
    for score, _, payload in ranked:
        if len(hits) == top_k:
            break
        node = stored_node(payload)
        if node is None:
            foreign += 1
        else:
            hits.append(Hit(node, score))
    return hits, foreign


def warn_of_foreign(number: int) -> None:
    """Log that so many points were skipped, if any were."""
    if number:
        logger.warning("skipped %d stored points that are broken or were not written by LlamaIndex", number)


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedPoints:
    """What the engine checks of points, and what is left to check of those that it lets through."""

    filter: edge.Filter | None
    exact: bool  # whether the engine lets through nothing else
    accepts: Predicate
    keys: tuple[str, ...]  # metadata fields that the filters look at

    def among(self, records: Sequence[PointT]) -> list[PointT]:
        """Return those that are wanted of points that the engine let through, in the same order."""
        return [record for record in records if self.exact or self.accepts(payload_fields(record.payload or {}))]

    @property
    def payload(self) -> Payload:
        """What of a payload decides."""
        if self.exact:
            return False
        paths = [payload_path(key) for key in self.keys]
        return True if None in paths else [path for path in paths if path is not None]


def wanted_points(
    filters: MetadataFilters | None,
    kinds: Mapping[str, str],
    node_ids: Sequence[str] | None = None,
    doc_ids: Sequence[str] | None = None,
    *,
    substrings: bool = True,
) -> WantedPoints:
    """Say which points are wanted; every restriction narrows the others."""
    accepts = predicate(filters)
    pushed = push_down(filters, kinds, substrings=substrings)
    must: list[Any] = []
    if node_ids is not None:
        must.append(edge.HasIdCondition({point_id(node_id) for node_id in node_ids}))
    if doc_ids is not None:
        sources = sorted({doc_id for doc_id in doc_ids if doc_id != NO_SOURCE})
        must.append(edge.FieldCondition(SOURCE_FIELD, match=edge.MatchAny(sources)) if sources else _NOTHING)
    if pushed.condition is not None:
        must.append(pushed.condition)
    keys = tuple(sorted({clause.key for clause in walk_clauses(filters)}))
    return WantedPoints(filter=edge.Filter(must=must) if must else None, exact=pushed.exact, accepts=accepts, keys=keys)


class KnownPoints(Generic[FactT]):
    """Facts about the nodes of one version of a collection, by point. Safe to use from many threads.

    Making a node of a point takes ten times as long as finding the point, so facts that stay as they are are read once.
    """

    def __init__(self, read: Callable[[BaseNode], FactT | None]) -> None:
        self._read = read
        self._known: dict[str, tuple[str, FactT] | None] = {}

    def of(
        self, point_ids: Sequence[str], retrieve: Callable[[list[str]], Iterable[Point]]
    ) -> dict[str, tuple[str, FactT]]:
        """Return node id and fact of points, by point id, once those that are not known were retrieved."""
        known = self._known
        found = {point_id: known[point_id] for point_id in point_ids if point_id in known}
        missing = [point_id for point_id in point_ids if point_id not in found]
        if missing:
            fresh: dict[str, tuple[str, FactT] | None] = {}
            for record in retrieve(missing):
                node = stored_node(record.payload)
                fact = None if node is None else self._read(node)
                fresh[str(record.id)] = None if node is None or fact is None else (node.node_id, fact)
            if len(known) + len(fresh) > MAX_KNOWN:
                known = self._known = {}
            known.update(fresh)
            found |= fresh
        return {point_id: fact for point_id, fact in found.items() if fact is not None}

    def in_result(self, result: VectorStoreQueryResult) -> list[tuple[FactT, float]]:
        """Read the facts of nodes that any store found, with their scores."""
        # Some stores leave scores out, whatever the type says.
        scored: Iterable[tuple[BaseNode, Any]] = zip(result.nodes or (), result.similarities or (), strict=False)
        facts = [(self._read(node), score) for node, score in scored]
        return [(fact, float(score)) for fact, score in facts if fact is not None and score is not None]
