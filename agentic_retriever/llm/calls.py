"""The values around one model call: what it needs, what came back, what it took; and how to ask for anything else."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from agentic_retriever.errors import (
    AgenticRetrieverError,
    AllModelsFailedError,
    BudgetExceededError,
    LLMError,
    ModelPausedError,
    OverloadedError,
    SynthesisError,
)
from agentic_retriever.llm.replies import without_thoughts
from agentic_retriever.schema import NO_LIMITS, Attempt, Budget, Complexity, Tier, TierUsage, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentic_retriever.llm.streaming import ReplyStream

_DRAWS: Final = 4
_NOT_SENT: Final = (BudgetExceededError, ModelPausedError, OverloadedError)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierNeeds:
    """What decides which tier is asked first, and which may be asked at all.

    Attributes:
        complexity: A complex question goes to the cloud tier first.
        context_chars: Characters of source text in the prompt; a long context goes to the cloud tier first.
        force_cloud: Whether the caller wants the cloud tier first.
        budget: Its ``max_usd`` is the most that the call may cost, prompt and longest answer, and a model whose price
            is not known is not asked under a limit; its ``max_llm_calls`` is the most models that may be asked one
            after another. Its time is not looked at, as the call has a timeout of its own.
    """

    complexity: Complexity = Complexity.SIMPLE
    context_chars: int = 0
    force_cloud: bool = False
    budget: Budget = NO_LIMITS


NO_NEEDS: Final = TierNeeds()


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMReply:
    """What a model answered; tokens are those that the provider counted, else estimated by :func:`estimate_tokens`."""

    text: str  # never blank, but for one that :func:`ask` rid of its thoughts
    model: str
    tier: Tier
    prompt_tokens: int
    completion_tokens: int
    truncated: bool  # cut by the output limit, by a filter, or by a stream that did not say that it was done
    seconds: float
    usd: float = 0.0  # 0 when the price is not known
    priced: bool = True
    prompt_cut: bool = False  # the provider read so many tokens that it must have cut the prompt to its window
    attempts: tuple[Attempt, ...] = ()  # what was tried, in order; the last one gave this answer

    @property
    def spent(self) -> tuple[TierUsage, ...]:
        """What it took: one entry for each model that was asked."""
        return spent_on(self.attempts) or (_usage(self),)


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


@runtime_checkable
class StreamsReplies(Protocol):
    """A client that can also answer piece by piece."""

    def stream(self, prompt: str, *, timeout_s: float | None = None, needs: TierNeeds | None = None) -> ReplyStream:
        """Answer a prompt piece by piece."""


def estimate_tokens(text: str) -> int:
    """Estimate how many tokens a model counts in a text.

    A rough rule that errs on the high side: four ASCII characters a token, and one token for every other character,
    which fits Thai, Chinese or Hindi under today's vocabularies within a factor of two.
    """
    plain = sum(1 for char in text if char < "\x80")
    return (plain + 3) // 4 + len(text) - plain


def spent_on(attempts: Sequence[Attempt]) -> tuple[TierUsage, ...]:
    """Return the accounts of what was tried: one entry for each model that got a request, failed ones included."""
    return Usage.of([_usage(one) for one in attempts if one.requests]).tiers


def _usage(one: Attempt | LLMReply) -> TierUsage:
    return TierUsage(
        tier=one.tier,
        model=one.model,
        calls=1,
        prompt_tokens=one.prompt_tokens,
        completion_tokens=one.completion_tokens,
        usd=one.usd or 0.0,
    )


def random_boundary() -> str:
    """Draw what marks the frame of a prompt: 16 hexadecimal digits that nobody can guess."""
    return secrets.token_hex(8)


def ask(
    client: ModelClient,
    prompt: Callable[[str], str],
    *,
    timeout_s: float | None = None,
    needs: TierNeeds | None = None,
    boundary: Callable[[], str] = random_boundary,
) -> LLMReply:
    """Ask a model for something other than an answer, such as a choice; its reply comes without its thoughts, and cut.

    ``prompt`` writes the prompt with a boundary, and raises ``SynthesisError`` for one that occurs in the texts.

    Raises:
        LLMError: If the model failed, or no boundary could be drawn that the texts do not contain.
        DeadlineExceededError: If it did not answer in time.
    """
    refused: SynthesisError | None = None
    for _ in range(_DRAWS):
        try:
            text = prompt(boundary())
        except SynthesisError as err:
            refused = err
            continue
        if needs is None:
            reply = client.complete(text, timeout_s=timeout_s)
        else:
            reply = client.complete(text, timeout_s=timeout_s, needs=needs)
        return replace(reply, text=without_thoughts(reply.text))
    raise LLMError(f"{_DRAWS} boundaries in a row occur in the texts; pass a better source of randomness") from refused


def spent_on_failure(client: ModelClient, failure: AgenticRetrieverError) -> tuple[TierUsage, ...]:
    """Account for a call of :func:`ask` that failed: one call for each model asked; tokens are not known, and 0."""
    if isinstance(failure, AllModelsFailedError):
        return spent_on(failure.attempts)
    if isinstance(failure, _NOT_SENT) or isinstance(failure.__cause__, SynthesisError):
        return ()
    return (_usage(Attempt(tier=client.tier, model=client.model)),)
