"""What was tried to get an answer from a model, and why it failed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from agentic_retriever.schema.usage import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping


class FailureKind(str, Enum):
    """Why a model call gave nothing usable; the value is what messages say."""

    TIMEOUT = "no answer in time"
    UNREACHABLE = "the server cannot be reached"
    AUTHENTICATION = "the key was refused"
    PAYMENT = "the account has no credit"
    NOT_FOUND = "the server does not have this model"
    BAD_REQUEST = "the request was refused"
    RATE_LIMITED = "too many requests"
    SERVER = "the server failed"
    OUTPUT = "the reply cannot be used"
    OVERLOADED = "too many calls under way"
    PAUSED = "left alone after failures"
    BUDGET = "not within the budget"
    TOO_LONG = "the prompt is too long for it"
    OTHER = "the call failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One model that was tried for an answer.

    Attributes:
        tier: Its tier.
        model: Its name.
        failure: Why it gave no answer, or ``None`` if it gave one.
        seconds: Wall-clock time, waits between requests included.
        requests: Requests that were sent; 0 when it was left alone.
        prompt_tokens: Tokens of the prompt; 0 when they are not known, as after a failure.
        completion_tokens: Tokens of the answer, likewise.
        usd: Cost in USD; ``None`` when the model's price is not known.
    """

    tier: Tier
    model: str
    failure: FailureKind | None = None
    seconds: float = 0.0
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float | None = 0.0

    def __str__(self) -> str:
        said = "answered" if self.failure is None else self.failure.value
        asked = f"{self.seconds:.1f} s, {self.requests} request{'s' * (self.requests != 1)}"
        return f"{self.tier.value} model {self.model}: {said} ({asked})"

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Attempt:
        """Read what :meth:`to_dict` wrote.

        Raises:
            KeyError: If a key is missing, or the failure is none.
            TypeError: If a value has another type.
            ValueError: If the tier is none.
        """
        usd = data["usd"]
        return cls(
            tier=Tier(data["tier"]),
            model=str(data["model"]),
            failure=None if data["failure"] is None else FailureKind[str(data["failure"]).upper()],
            seconds=float(data["seconds"]),
            requests=int(data["requests"]),
            prompt_tokens=int(data["prompt_tokens"]),
            completion_tokens=int(data["completion_tokens"]),
            usd=None if usd is None else float(usd),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types; ``failure`` is a name such as ``"timeout"`` or ``None``."""
        failure = None if self.failure is None else self.failure.name.lower()
        return {**{name: getattr(self, name) for name in self.__slots__}, "tier": self.tier.value, "failure": failure}
