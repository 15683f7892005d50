"""Checking thresholds that are probabilities."""

from __future__ import annotations

from agentic_retriever.errors import ConfigError


def checked_share(name: str, value: object) -> float:
    """Return a number from 0 to 1.

    Args:
        name: Of the setting, for the message.
        value: What was given.

    Raises:
        ConfigError: If it is anything else.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ConfigError(f"{name} must be a number from 0 to 1, got {str(value)[:40]!r}")
    return float(value)
