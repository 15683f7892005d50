"""When a failed request is sent once more, and after how long."""

from __future__ import annotations

import email.utils
import math
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentic_retriever.schema import FailureKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_RETRIES = 2
"""One call sends at most three requests to an endpoint."""

MIN_REQUEST_S = 0.25
"""Seconds that a request needs to have left after the wait; with less, the failure that was seen says more."""

RETRIED = frozenset({FailureKind.UNREACHABLE, FailureKind.RATE_LIMITED, FailureKind.SERVER})
"""Failures that may pass by themselves.

A refused key, model or request (400, 401, 402, 404) stays refused; after a timeout no time is left; and at temperature
0 the same prompt brings the same unusable reply.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """One retry loop for all providers, whose own retries are off.

    The waits double from ``base_s`` up to ``cap_s``; each is drawn between half of that and all of it, so that callers
    who failed together do not come back together. A server's ``Retry-After`` takes the place of the drawn wait.

    Attributes:
        retries: Requests after the first one, from 0 to 2.
        base_s: Longest wait before the first retry, in seconds.
        cap_s: Longest wait at all, in seconds; a ``Retry-After`` may exceed it.
        draw: Random numbers in [0, 1).

    Raises:
        ValueError: If ``retries`` is out of range.
    """

    retries: int = MAX_RETRIES
    base_s: float = 0.25
    cap_s: float = 2.0
    draw: Callable[[], float] = random.random

    def __post_init__(self) -> None:
        if not 0 <= self.retries <= MAX_RETRIES:
            message = f"retries must be from 0 to {MAX_RETRIES}, got {self.retries}"
            raise ValueError(message)

    def wait_s(
        self, failed: int, kind: FailureKind, *, left_s: float, retry_after_s: float | None = None
    ) -> float | None:
        """Say how long to wait before the next request.

        Args:
            failed: Requests of this call that failed so far, from 1.
            kind: How the last one failed.
            left_s: Seconds that the call still has.
            retry_after_s: Seconds that the server asked to wait, or ``None``.

        Returns:
            Seconds from 0; ``None`` when there is no point in another request, or after the wait no time for it.
        """
        if failed > self.retries or kind not in RETRIED:
            return None
        wait = retry_after_s
        if wait is None:
            wait = min(self.cap_s, self.base_s * 2 ** (failed - 1)) * (0.5 + self.draw() / 2)
        return wait if wait + MIN_REQUEST_S < left_s else None


def retry_after_s(headers: Mapping[str, str], now: Callable[[], float] = time.time) -> float | None:
    """Read the header ``Retry-After`` (RFC 9110, section 10.2.3): seconds, or a date.

    Args:
        headers: The headers of a reply; names in lower case, or of a mapping that ignores case.
        now: Seconds since 1970, for a date.

    Returns:
        Seconds from 0, or ``None`` when there is no such header or it cannot be read.
    """
    value = str(headers.get("retry-after") or "").strip()
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - now()
        except (TypeError, ValueError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
