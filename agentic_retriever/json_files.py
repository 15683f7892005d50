"""Files that are replaced as a whole, and fitted models kept in them as JSON, every part checked when read."""

import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass as checked_dataclass
from pydantic_core import ArgsKwargs
from typing_extensions import Self

from agentic_retriever.errors import StoreDamagedError, StoreError

M = TypeVar("M")

# Fields of what is kept in such files: a text or a truth value is no number.
Count: TypeAlias = Annotated[int, Field(strict=True, ge=0)]
Number: TypeAlias = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Share: TypeAlias = Annotated[Number, Field(ge=0, le=1)]
NotNegative: TypeAlias = Annotated[Number, Field(ge=0)]


@checked_dataclass(frozen=True, slots=True)
class FileTable:
    """Base of what is read from an object in such a file, which has exactly its fields, those with a default too."""

    @classmethod
    def from_dict(cls, data: object) -> Self:
        """Read what was decoded from JSON; ``ValueError`` for anything else."""
        return TypeAdapter(cls).validate_python(data)

    @model_validator(mode="before")
    @classmethod
    def _has_its_keys(cls, data: object) -> object:
        if isinstance(data, (ArgsKwargs, cls)):  # made by a call
            return data
        wanted = [one.name for one in fields(cls)]
        if isinstance(data, dict) and set(data) == set(wanted):
            return data
        odd = ", ".join(sorted(map(str, set(data) ^ set(wanted))))[:200] if isinstance(data, dict) else "no object"
        raise ValueError(f"must be an object with the keys {', '.join(wanted)}; missing or unknown: {odd}")


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


def last_change(path: str | Path) -> tuple[int, int]:
    """When a file was last changed, in nanoseconds, and its size in bytes; zeros when it is not there."""
    try:
        found = os.stat(path)  # noqa: PTH116 - asked by every query, with a text, which is faster than a path
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def load_model(path: Path, read: Callable[[object], M], *, advice: str) -> M | None:
    """Read the file of a model, ``None`` when there is none; a ``StoreDamagedError`` ends with the advice."""
    try:
        return read(json.loads(path.read_bytes().decode("utf-8", "surrogatepass")))
    except FileNotFoundError:
        return None
    except ValidationError as err:  # before ValueError, of which it is one with lines of its own
        wrong = err.errors(include_url=False)[0]
        where = ".".join(str(key) for key in wrong["loc"] if key != "[key]") or "it"
        told = wrong["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
        got = "" if wrong["type"] == "value_error" else f", got {str(wrong['input'])[:40]!r}"
        raise StoreDamagedError(f"{path} cannot be used: {where} {told}{got}; {advice}") from err
    except (OSError, ValueError, OverflowError, RecursionError) as err:
        raise StoreDamagedError(f"{path} cannot be used: {err}; {advice}") from err


def model_bytes(table: Mapping[str, Any]) -> bytes:
    """Return the content of a model's file, which :func:`load_model` reads; ``ValueError`` for NaN or infinity."""
    return json.dumps(table, ensure_ascii=False, indent=1, allow_nan=False).encode("utf-8", "surrogatepass")


def is_finite(value: object) -> bool:
    """Tell whether a value is a number that a float can hold; ``True`` and ``False`` are none."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False
