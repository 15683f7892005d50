"""Waiting in tests for what comes about in another thread."""

from __future__ import annotations

import time


def wait_until(condition, seconds: float = 5.0) -> None:
    """Wait for something that comes about in the background."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it did not come about in time"
        time.sleep(0.01)
