"""Nodes as points of the engine and back.

The payload is what LlamaIndex's ``QdrantVectorStore`` writes, so a collection can move between the two. Metadata is
stored plain: what JSON has no word for is turned into what it stands for, or refused before anything is written.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from itertools import repeat
from json import JSONDecodeError, JSONDecoder
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

from agentic_retriever.errors import EmbeddingError, EmbeddingMismatchError, IndexingError
from agentic_retriever.filters import plain_scalar

SOURCE_FIELD: Final = "doc_id"
ID_FIELDS: Final = frozenset({SOURCE_FIELD, "document_id", "ref_doc_id"})
PRIVATE_FIELDS: Final = frozenset({"_node_content", "_node_type"})
RESERVED_FIELDS: Final = PRIVATE_FIELDS | ID_FIELDS
NO_SOURCE: Final = "None"  # what LlamaIndex writes in the id fields of a node without a source
MAX_FIELD_LENGTH: Final = 256
MAX_NESTING: Final = 16

_NAMESPACE: Final = uuid.UUID("5f8f3d7e-52c5-4b0e-9f0a-6d1c1f3a2b94")
_UUID_LENGTH: Final = 36
_ID_PREFIX: Final = '{"id_": '
_INT64: Final = 2**63
_read_string: Final = JSONDecoder().raw_decode


def embedded_text(node: BaseNode) -> str:
    """Return what is embedded and searched of a node: its title, section and text."""
    return node.get_content(metadata_mode=MetadataMode.EMBED)


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
        raise IndexingError(
            f"node {node.node_id!r} cannot be written as JSON ({type(err).__name__}); its text must be valid Unicode"
        ) from err
    return payload


def plain_metadata(metadata: Mapping[Any, object], node_id: str) -> dict[str, object]:
    """Turn metadata into what JSON can hold.

    Dates become ISO 8601 strings, ``Decimal`` and numpy numbers become numbers, sets become sorted lists, NaN becomes
    ``None``.
    """
    plain: dict[str, object] = {}
    for field, value in metadata.items():
        if field in RESERVED_FIELDS:
            raise IndexingError(
                f"node {node_id!r} has the metadata field {field!r}, a name that LlamaIndex uses itself; rename it"
            )
        if not isinstance(field, str) or not 0 < len(field) <= MAX_FIELD_LENGTH:
            raise IndexingError(
                f"node {node_id!r} has the metadata field {str(field)[:60]!r}; names are strings of 1 to "
                f"{MAX_FIELD_LENGTH} characters"
            )
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


def unit_vectors(nodes: Sequence[BaseNode]) -> npt.NDArray[np.float32]:
    """Read the nodes' embeddings and bring them to length 1, as the cosine needs them."""
    rows: list[Any] = []
    for node in nodes:
        vector = node.embedding
        if vector is None or len(vector) == 0:
            raise EmbeddingError(f"node {node.node_id!r} has no embedding; embed the nodes before adding them")
        if len(vector) != len(rows[0] if rows else vector):
            raise EmbeddingMismatchError(
                f"node {node.node_id!r} has an embedding of {len(vector)} dimensions, the nodes before it have "
                f"{len(rows[0])}; embed all with one model"
            )
        rows.append(vector)
    return _to_unit(rows, [node.node_id for node in nodes])


def unit_vector(vector: Sequence[float], dimension: int | None = None) -> npt.NDArray[np.float32]:
    """Bring a query's embedding to length 1."""
    if len(vector) == 0:
        raise EmbeddingError("the query's embedding is empty")
    if dimension is not None and len(vector) != dimension:
        raise EmbeddingMismatchError(
            f"the query's embedding has {len(vector)} dimensions, the index holds {dimension}; embed the query with "
            "the model that the index was built with"
        )
    unit: npt.NDArray[np.float32] = _to_unit([vector], None)[0]
    return unit


def _to_unit(rows: list[Any], node_ids: list[str] | None) -> npt.NDArray[np.float32]:
    names = repeat("the query's embedding") if node_ids is None else (f"the embedding of {name!r}" for name in node_ids)
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
