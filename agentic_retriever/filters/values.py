"""How metadata values and filter values are read before they are compared."""

from __future__ import annotations

import datetime as dt
import math
import re
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

Scalar: TypeAlias = str | int | float | bool
Key: TypeAlias = tuple[str, str | int | float]

_BOOLEANS: Final = {"true": True, "false": False}

# Fewer spellings than ISO 8601 has: the ones that every back-end reads alike. An offset needs the seconds before it,
# fractions stop at microseconds.
_MOMENT: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,6}))?(Z|[+-][0-9]{2}:?[0-9]{2})?)?)?"
)


def plain_scalar(value: object) -> Scalar | None:
    """Turn one value into the string, number or boolean that it stands for in JSON.

    Dates become ISO 8601 strings, ``Decimal`` and numpy scalars become numbers, enum members their value, UUIDs and
    paths strings; ``None`` and NaN are ``None``.

    Args:
        value: A metadata value that is no collection.

    Returns:
        The plain value, or ``None`` where there is none.

    Raises:
        TypeError: The value has no plain form.
    """
    if isinstance(value, Enum):
        return plain_scalar(value.value)
    if isinstance(value, np.generic) and not isinstance(value, (str, float)):
        return plain_scalar(value.item())
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, (float, Decimal)):
        return _plain_number(value)
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, (UUID, PurePath)):
        return str(value)
    message = f"{type(value).__name__} is no string, number, boolean or date"
    raise TypeError(message)


def _plain_number(value: float | Decimal) -> int | float | None:
    if math.isnan(value):
        return None
    if isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value():
        return int(value)
    return float(value)


def elements(value: object) -> Iterator[Scalar]:
    """Go through the scalars that a filter compares: the value itself, or each element of a list.

    Args:
        value: A metadata value.

    Yields:
        Plain scalars. What has no plain form, such as an object or a nested list, is left out.
    """
    for item in value if isinstance(value, (list, tuple, set, frozenset)) else (value,):
        try:
            scalar = plain_scalar(item)
        except TypeError:
            continue
        if scalar is not None:
            yield scalar


def is_missing(value: object) -> bool:
    """Tell whether a field counts as absent: ``None``, NaN or an empty list.

    Args:
        value: A metadata value, ``None`` where the key is absent.

    Returns:
        Whether it is missing.
    """
    if isinstance(value, (list, tuple, set, frozenset)):
        return not value
    if isinstance(value, (float, Decimal)):
        return math.isnan(value)
    return value is None


def field_key(value: Scalar) -> Key:
    """Give the key under which a metadata scalar equals a filter value.

    Args:
        value: A plain scalar.

    Returns:
        A hashable pair; numbers of equal worth share it, whatever their type.
    """
    if isinstance(value, bool):
        return ("bool", int(value))
    return ("text", value) if isinstance(value, str) else ("number", value)


def wanted_keys(value: Scalar) -> frozenset[Key]:
    """Give the keys that a filter value accepts.

    The texts ``true`` and ``false``, in any case, accept the boolean as well as the text, because a
    ``MetadataFilter`` cannot hold a boolean.

    Args:
        value: A string or number of a filter; a boolean is read as its text.

    Returns:
        One or two keys.
    """
    if isinstance(value, bool):
        value = str(value).lower()
    keys = {field_key(value)}
    truth = as_boolean(value)
    if truth is not None:
        keys.add(("bool", int(truth)))
    return frozenset(keys)


def as_boolean(value: Scalar) -> bool | None:
    """Read the texts ``true`` and ``false`` in any case.

    Args:
        value: A filter value.

    Returns:
        The boolean, or ``None`` for any other value.
    """
    return _BOOLEANS.get(value.lower()) if isinstance(value, str) else None


def parse_moment(text: str) -> tuple[dt.datetime, bool] | None:
    """Read an ISO 8601 date or date-time.

    Args:
        text: Such as ``2024-05-01``, ``2024-05-01T10:00``, ``2024-05-01 10:00:00.5`` or ``2024-05-01T10:00:00+07:00``.

    Returns:
        The moment in UTC (a text without an offset is taken as UTC) and whether the text is a date without a time;
        ``None`` for any other text.
    """
    found = _MOMENT.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second, fraction, offset = found.groups()
    try:
        moment = dt.datetime(
            int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0),
            int((fraction or "").ljust(6, "0")), tzinfo=_zone(offset),
        )  # fmt: skip
        return moment.astimezone(dt.timezone.utc), hour is None
    except (ValueError, OverflowError):
        return None


def _zone(offset: str | None) -> dt.timezone:
    if offset is None or offset == "Z":
        return dt.timezone.utc
    size = dt.timedelta(hours=int(offset[1:3]), minutes=int(offset[-2:]))
    return dt.timezone(-size if offset[0] == "-" else size)
