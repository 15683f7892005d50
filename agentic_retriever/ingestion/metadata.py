"""Metadata as a flat dictionary that filters and stores can work with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date, time
from typing import cast

from agentic_retriever.errors import SourceError

RESERVED_KEYS = frozenset({"_node_content", "_node_type", "doc_id", "document_id", "ref_doc_id"})
"""Keys that LlamaIndex's vector stores write themselves: metadata of these names would be overwritten silently."""

_MAX_DEPTH = 4


def clean_text(text: str) -> str:
    """Replace lone surrogates and NULs by U+FFFD, one for one, so that offsets stay.

    Args:
        text: Any text.

    Returns:
        Text that can be encoded and stored; the same object when nothing had to change.
    """
    if "\0" not in text and text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        text = "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in text)
    return text.replace("\0", "\ufffd")


def flat_metadata(given: Mapping[str, object], *, doc_id: str) -> dict[str, object]:
    """Return metadata as a flat dictionary.

    Strings, numbers and booleans stay as they are, and so do lists of them. ``None`` is left out: absent and null mean
    the same to a filter. A nested mapping is flattened, ``{"author": {"name": "x"}}`` to ``author_name``; where that
    name is taken, or four levels down, the mapping is kept as a JSON string. Dates become ISO 8601 strings,
    anything else its ``str``. An empty mapping disappears.

    Args:
        given: Metadata as it was read.
        doc_id: Id of the document. A reserved key whose value is just this id says nothing new and is dropped.

    Returns:
        A new dictionary, flattened mappings last.

    Raises:
        SourceError: If a key is reserved (see ``RESERVED_KEYS``) or empty.
    """
    flat: dict[str, object] = {}
    for key, value in given.items():
        name = clean_text(str(key))
        if name in RESERVED_KEYS:
            if str(value) == doc_id:
                continue
            raise SourceError(f"the metadata key {name!r} is reserved for the store; rename it")
        if not name.strip():
            raise SourceError("a metadata key is empty; give it a name")
        if not isinstance(value, Mapping):
            flat.update(_leaf(name, value))
    for key, value in given.items():
        if isinstance(value, Mapping):
            _flatten(clean_text(str(key)), cast("Mapping[str, object]", value), flat, 1)
    return flat


def _flatten(name: str, nested: Mapping[str, object], flat: dict[str, object], depth: int) -> None:
    names = [f"{name}_{key}" for key in nested]
    if depth >= _MAX_DEPTH or any(child in flat or child in RESERVED_KEYS for child in names):
        flat[name] = _json(nested)
        return
    for child, value in zip(names, nested.values(), strict=True):
        if isinstance(value, Mapping):
            _flatten(clean_text(child), cast("Mapping[str, object]", value), flat, depth + 1)
        else:
            flat.update(_leaf(clean_text(child), value))


def _leaf(name: str, value: object) -> dict[str, object]:
    if value is None:
        return {}
    if isinstance(value, (Sequence, set, frozenset)) and not isinstance(value, (str, bytes)):
        items = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
        return {name: [_scalar(item) for item in items if item is not None]}
    return {name: _scalar(value)}


def _scalar(value: object) -> object:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, (Mapping, list, tuple)):
        return _json(value)
    return clean_text(str(value))


def _json(value: object) -> str:
    return clean_text(json.dumps(value, ensure_ascii=False, sort_keys=True, default=str))
