"""Keys made of everything that a value depends on."""

from __future__ import annotations

import hashlib
import json

_ENCODE = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode


def cache_key(**parts: object) -> str:
    """Return a key for named plain values; the order of names and of mapping keys does not matter, types do.

    Args:
        parts: JSON values, by name.

    Returns:
        64 hexadecimal characters.
    """
    return hashlib.sha256(_ENCODE(parts).encode("utf-8", "surrogatepass")).hexdigest()
