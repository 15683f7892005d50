"""What a query may spend, and what it spent: time, money and model calls."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

from agentic_retriever.errors import ConfigError


class Tier(str, Enum):
    """Who wrote an answer: a model tier by its role, the extractor, or nobody since nothing was found."""

    PRIMARY = "primary"
    CLOUD = "cloud"
    SMALL = "small"
    EXTRACTIVE = "extractive"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class TierUsage:
    """What one model tier was asked for one answer; tokens are counts, money is USD."""

    tier: Tier
    model: str
    calls: int
    prompt_tokens: int
    completion_tokens: int
    usd: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {**{name: getattr(self, name) for name in self.__slots__}, "tier": self.tier.value}


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and money of one answer, per tier."""

    tiers: tuple[TierUsage, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return totals, and the tiers below ``tiers``."""
        return {
            "llm_calls": sum(t.calls for t in self.tiers),
            "prompt_tokens": sum(t.prompt_tokens for t in self.tiers),
            "completion_tokens": sum(t.completion_tokens for t in self.tiers),
            "usd": sum(t.usd for t in self.tiers),
            "tiers": {t.tier.value: {n: getattr(t, n) for n in t.__slots__ if n != "tier"} for t in self.tiers},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What one query may spend; what is ``None`` has no limit of its own.

    Attributes:
        max_ms: Milliseconds for the whole query, above 0; the configured deadline holds besides.
        max_usd: Money for model calls, from 0, in USD; 0 means that only models without a price are asked.
        max_llm_calls: Model calls, routing and answer together; 0 means the extractive answer.

    Raises:
        ConfigError: If a limit is no number in its range.
    """

    max_ms: float | None = None
    max_usd: float | None = None
    max_llm_calls: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("max_ms", "above 0"), ("max_usd", "from 0"), ("max_llm_calls", "from 0")):
            value = getattr(self, name)
            if value is None:
                continue
            whole = name != "max_llm_calls" or isinstance(value, int)
            usable = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and whole
            if not usable or value < 0 or (least == "above 0" and value == 0):
                kind = "a whole number" if name == "max_llm_calls" else "a number"
                raise ConfigError(f"budget {name} must be {kind} {least}, or None, got {str(value)[:40]!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What one step of a query may still spend on models.

    Attributes:
        timeout_s: Total seconds, or ``None`` for the model's own limit.
        llm_calls: Model calls; 0 forbids them, ``None`` sets no limit.
        usd: Money in USD; ``None`` sets no limit.
    """

    timeout_s: float | None = None
    llm_calls: int | None = None
    usd: float | None = None

    @property
    def may_ask(self) -> bool:
        """Tell whether a model may be asked at all."""
        return self.llm_calls != 0 and (self.timeout_s is None or self.timeout_s > 0)


NO_LIMITS = Allowance()
"""Nothing is limited."""
