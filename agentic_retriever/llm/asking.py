"""Asking a model for something other than an answer: a choice, a plan, an order of passages, restrictions."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from agentic_retriever.errors import (
    AgenticRetrieverError,
    AllModelsFailedError,
    BudgetExceededError,
    LLMError,
    ModelPausedError,
    OverloadedError,
    SynthesisError,
)
from agentic_retriever.llm.calls import spent_on
from agentic_retriever.llm.replies import without_thoughts
from agentic_retriever.schema import TierUsage

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentic_retriever.llm.calls import LLMReply, ModelClient, TierNeeds

_DRAWS: Final = 4
_NOT_SENT: Final = (BudgetExceededError, ModelPausedError, OverloadedError)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedReply:
    """What a model said to a framed prompt.

    Attributes:
        text: Its reply without its thoughts, at most 20,000 characters, perhaps none.
        reply: The reply as it came, with its tokens.
    """

    text: str
    reply: LLMReply

    @property
    def spent(self) -> tuple[TierUsage, ...]:
        """What it took: one entry for each model that was asked."""
        reply = self.reply
        whole = TierUsage(
            tier=reply.tier,
            model=reply.model,
            calls=1,
            prompt_tokens=reply.prompt_tokens,
            completion_tokens=reply.completion_tokens,
            usd=reply.usd,
        )
        return spent_on(reply.attempts) or (whole,)


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
) -> AskedReply:
    """Ask a model, and return what it says without its thoughts.

    Args:
        client: The model.
        prompt: Writes the prompt with a boundary, and raises ``SynthesisError`` for one that occurs in the texts.
        timeout_s: Total seconds, or ``None`` for the client's own limit.
        needs: What the call may cost, or ``None`` for no limit.
        boundary: Draws boundaries.

    Returns:
        The text and what was used.

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
        return AskedReply(text=without_thoughts(reply.text), reply=reply)
    raise LLMError(f"{_DRAWS} boundaries in a row occur in the texts; pass a better source of randomness") from refused


def spent_on_failure(client: ModelClient, failure: AgenticRetrieverError) -> tuple[TierUsage, ...]:
    """Account for a call of :func:`ask` that failed; tokens are not known and count 0.

    Args:
        client: The model.
        failure: What :func:`ask` raised.

    Returns:
        One call for each model that was asked; nothing when none was.
    """
    if isinstance(failure, AllModelsFailedError):
        return spent_on(failure.attempts)
    if isinstance(failure, _NOT_SENT) or isinstance(failure.__cause__, SynthesisError):
        return ()
    return (TierUsage(tier=client.tier, model=client.model, calls=1, prompt_tokens=0, completion_tokens=0),)
