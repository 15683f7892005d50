"""Files that are replaced as a whole, and fitted models kept in them as JSON, every part checked when read.

The checks raise ``ValueError``, one kind for all that can be wrong in a file; :func:`load_model` adds which file it is
and what to do.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from agentic_retriever.errors import StoreDamagedError, StoreError

M = TypeVar("M")


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file in one step that survives a crash; a ``StoreError`` leaves the old file untouched."""
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except OSError as err:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise StoreError(
            f"cannot write {path}: {err.strerror or err}; check the permissions and the free space"
        ) from err


def load_model(path: Path, read: Callable[[object], M], *, advice: str) -> M | None:
    """Read the file of a model, ``None`` when there is none; ``read`` may raise ``ValueError`` for what was decoded.

    A file that cannot be used is a ``StoreDamagedError``, which names file and key and ends with the advice.
    """
    try:
        return read(json.loads(path.read_bytes().decode("utf-8", "surrogatepass")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, OverflowError, RecursionError) as err:
        raise StoreDamagedError(f"{path} cannot be used: {err}; {advice}") from err


def model_bytes(table: Mapping[str, Any]) -> bytes:
    """Return the content of a model's file, which :func:`load_model` reads; ``ValueError`` for NaN or infinity."""
    return json.dumps(table, ensure_ascii=False, indent=1, allow_nan=False).encode("utf-8", "surrogatepass")


def table_of(data: object, key: str, names: Iterable[str]) -> dict[str, Any]:
    """Return an object, called ``key`` in messages, that has exactly these keys."""
    wanted = list(names)
    if not isinstance(data, dict) or set(data) != set(wanted):
        odd = ", ".join(sorted(map(str, set(data) ^ set(wanted))))[:200] if isinstance(data, dict) else "no object"
        raise ValueError(f"{key} must be an object with the keys {', '.join(wanted)}; missing or unknown: {odd}")
    return data


def check_format(table: Mapping[str, Any], known: int) -> None:
    """See that a file has the format that this version reads."""
    require(table["format"] == known, "format", str(known), table["format"])


def require(right: object, key: str, allowed: str, got: object) -> None:
    """Raise a ``ValueError`` that names the key, what is allowed and what was got, unless it is right."""
    if not right:
        raise ValueError(f"{key} must be {allowed}, got {str(got)[:40]!r}")


def is_finite(value: object) -> bool:
    """Tell whether a value is a number that a float can hold; ``True`` and ``False`` are none."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False
