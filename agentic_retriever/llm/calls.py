"""The values around one model call: what it needs, what was tried, what came back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from agentic_retriever.schema import Attempt, Complexity, Tier, TierUsage, Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentic_retriever.llm.streaming import ReplyStream


@dataclass(frozen=True, slots=True, kw_only=True)
class TierNeeds:
    """What decides which tier is asked first, and which may be asked at all.

    Attributes:
        complexity: A complex question goes to the cloud tier first.
        context_chars: Characters of source text in the prompt; a long context goes to the cloud tier first.
        force_cloud: Whether the caller wants the cloud tier first.
        max_usd: Most that the call may cost in USD, prompt and longest answer; ``None`` for no limit. A model whose
            price is not known is not asked under a limit.
        max_calls: Most models that may be asked one after another; ``None`` for no limit.
    """

    complexity: Complexity = Complexity.SIMPLE
    context_chars: int = 0
    force_cloud: bool = False
    max_usd: float | None = None
    max_calls: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMReply:
    """What a model answered.

    Attributes:
        text: The answer; never blank.
        model: Name of the model.
        tier: The tier it serves.
        prompt_tokens: Tokens of the prompt as the provider counted them, else estimated by :func:`estimate_tokens`.
        completion_tokens: Tokens of the answer, likewise.
        truncated: Whether the answer is cut: by the model's output limit, by a filter, or by a stream that ended
            without saying that it was done.
        seconds: Wall-clock time of the call.
        usd: Cost in USD; 0 when the model's price is not known.
        priced: Whether the price is known.
        prompt_cut: Whether the provider read so many tokens that it must have cut the prompt to its window.
        attempts: What was tried, in order; the last one gave this answer.
    """

    text: str
    model: str
    tier: Tier
    prompt_tokens: int
    completion_tokens: int
    truncated: bool
    seconds: float
    usd: float = 0.0
    priced: bool = True
    prompt_cut: bool = False
    attempts: tuple[Attempt, ...] = ()


@runtime_checkable
class StreamsReplies(Protocol):
    """A client that can also answer piece by piece."""

    def stream(self, prompt: str, *, timeout_s: float | None = None, needs: TierNeeds | None = None) -> ReplyStream:
        """Answer a prompt piece by piece."""


class ModelClient(Protocol):
    """Anything that completes a prompt: one model, or several tiers behind one face."""

    @property
    def tier(self) -> Tier:
        """The tier that is asked first."""

    @property
    def model(self) -> str:
        """Name of the model that is asked first."""

    @property
    def context_tokens(self) -> int:
        """Tokens of prompt and answer together that every model behind this face can hold."""

    def complete(self, prompt: str, *, timeout_s: float | None = None, needs: TierNeeds | None = None) -> LLMReply:
        """Answer a prompt within a total time, or raise ``LLMError`` or ``DeadlineExceededError``."""


def spent_on(attempts: Sequence[Attempt]) -> tuple[TierUsage, ...]:
    """Return the accounts of what was tried: one entry for each model that got a request, failed ones included."""
    return Usage.of(
        [
            TierUsage(
                tier=one.tier,
                model=one.model,
                calls=1,
                prompt_tokens=one.prompt_tokens,
                completion_tokens=one.completion_tokens,
                usd=one.usd or 0.0,
            )
            for one in attempts
            if one.requests
        ]
    ).tiers


def estimate_tokens(text: str) -> int:
    """Estimate how many tokens a model counts in a text.

    A rough rule that errs on the high side: four ASCII characters a token, and one token for every other character,
    which fits Thai, Chinese or Hindi under today's vocabularies within a factor of two.

    Args:
        text: Any text.

    Returns:
        A count of tokens, at least 1 for text that is not empty.
    """
    plain = sum(1 for char in text if char < "\x80")
    return (plain + 3) // 4 + len(text) - plain
