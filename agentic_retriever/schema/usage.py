"""What a query may spend, and what it spent: time, money and model calls."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from agentic_retriever.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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

    def plus(self, other: TierUsage) -> TierUsage:
        """Add the counts of another usage of the same tier and model."""
        return replace(
            self,
            calls=self.calls + other.calls,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            usd=self.usd + other.usd,
        )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TierUsage:
        """Read what :meth:`to_dict` wrote.

        Raises:
            KeyError: If a key is missing.
            TypeError: If a value has another type.
            ValueError: If the tier is none.
        """
        return cls(
            tier=Tier(data["tier"]),
            model=str(data["model"]),
            calls=int(data["calls"]),
            prompt_tokens=int(data["prompt_tokens"]),
            completion_tokens=int(data["completion_tokens"]),
            usd=float(data["usd"]),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {**{name: getattr(self, name) for name in self.__slots__}, "tier": self.tier.value}


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and money of one answer, per tier."""

    tiers: tuple[TierUsage, ...] = ()

    @classmethod
    def of(cls, spent: Sequence[TierUsage]) -> Usage:
        """Add up several usages, those of one tier and model together, in order of first use."""
        sums: dict[tuple[Tier, str], TierUsage] = {}
        for one in spent:
            known = sums.get((one.tier, one.model))
            sums[one.tier, one.model] = one if known is None else known.plus(one)
        return cls(tuple(sums.values()))

    @property
    def llm_calls(self) -> int:
        """Model calls in all."""
        return sum(one.calls for one in self.tiers)

    @property
    def usd(self) -> float:
        """Money in all, in USD."""
        return sum(one.usd for one in self.tiers)

    def to_dict(self) -> dict[str, Any]:
        """Return totals, and the tiers below ``tiers``."""
        return {
            "llm_calls": self.llm_calls,
            "prompt_tokens": sum(t.prompt_tokens for t in self.tiers),
            "completion_tokens": sum(t.completion_tokens for t in self.tiers),
            "usd": self.usd,
            "tiers": {one.tier.value: one.to_dict() for one in self.tiers},
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
