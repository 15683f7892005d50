"""How a value lies on the server: JSON with a format number, a checksum and the time until which it holds."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

FORMAT = 1
"""Changes when values of before can no longer be read."""

_SUM_BYTES = 16
_HEAD = re.compile(rb'\{"v":(\d{1,6}),"sum":"([0-9a-f]{32})",')
_UNTIL = re.compile(rb'"until":(\d{1,15}),"value":')


@dataclass(frozen=True, slots=True)
class Stored:
    """A value from a store.

    Attributes:
        data: The value as it was written, JSON in UTF-8.
        ttl_s: Seconds that it still holds, above 0.
    """

    data: bytes
    ttl_s: float


def sealed(data: bytes, until_s: float) -> bytes:
    """Put a value into its envelope.

    Args:
        data: JSON in UTF-8.
        until_s: When it stops to hold, in seconds since 1970.

    Returns:
        One JSON object in UTF-8.
    """
    payload = b'"until":%d,"value":%s}' % (max(0, int(until_s * 1000)), data)
    return b'{"v":%d,"sum":"%s",%s' % (FORMAT, _checksum(payload), payload)


def opened(raw: bytes, now_s: float) -> Stored | None:
    """Take a value out of its envelope.

    Args:
        raw: What the server holds.
        now_s: Seconds since 1970.

    Returns:
        The value, or ``None`` when its time is over.

    Raises:
        ValueError: If this is no envelope, one of another format, or a damaged one.
    """
    head = _HEAD.match(raw)
    if head is None or int(head[1]) != FORMAT:
        message = "not a value of this format"
        raise ValueError(message)
    payload = raw[head.end() :]
    until = _UNTIL.match(payload)
    if until is None or _checksum(payload) != head[2]:
        message = "the value is damaged"
        raise ValueError(message)
    ttl_s = int(until[1]) / 1000 - now_s
    return Stored(payload[until.end() : -1], ttl_s) if ttl_s > 0 else None


def _checksum(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=_SUM_BYTES).hexdigest().encode("ascii")
