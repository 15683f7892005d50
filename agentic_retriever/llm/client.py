"""One model behind one call that ends in time and fails in one way."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agentic_retriever.deadlines import DeadlineCaller
from agentic_retriever.errors import DeadlineExceededError, LLMError, LLMOutputError
from agentic_retriever.llm.failures import translated

if TYPE_CHECKING:
    from collections.abc import Callable

    from llama_index.core.base.llms.types import CompletionResponse
    from llama_index.core.llms import LLM

    from agentic_retriever.schema import Tier

_CUT = frozenset({"length", "max_tokens", "model_length"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMReply:
    """What a model answered.

    Attributes:
        text: The answer; never blank.
        model: Name of the model.
        tier: The tier it serves.
        prompt_tokens: Tokens of the prompt as the provider counted them, else estimated by :func:`estimate_tokens`.
        completion_tokens: Tokens of the answer, likewise.
        truncated: Whether the answer stopped at the model's output limit.
        seconds: Wall-clock time of the call.
    """

    text: str
    model: str
    tier: Tier
    prompt_tokens: int
    completion_tokens: int
    truncated: bool
    seconds: float


class ModelClient(Protocol):
    """Anything that completes a prompt: one model, or several tiers behind one face."""

    @property
    def tier(self) -> Tier:
        """The tier that is asked first."""

    @property
    def model(self) -> str:
        """Name of the model that is asked first."""

    def complete(self, prompt: str, *, timeout_s: float | None = None) -> LLMReply:
        """Answer a prompt within a total time, or raise ``LLMError`` or ``DeadlineExceededError``."""


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


class LLMClient:
    """Completes prompts with one LlamaIndex model, within a total time.

    The model runs in a thread of its own, so a call that hangs or drips is abandoned when its time is up, and the model
    can be used from any thread and below a running event loop. Nothing is retried here.

    Attributes:
        tier: The tier that the model serves.
        model: Its name.
        timeout_s: Total time for one call, in seconds.
    """

    def __init__(
        self, llm: LLM, *, tier: Tier, timeout_s: float, clock: Callable[[], float] = time.monotonic, max_calls: int = 8
    ) -> None:
        self.tier = tier
        self.model = _model_name(llm)
        self.timeout_s = timeout_s
        self._llm = llm
        self._clock = clock
        self._who = f"{tier.value} model {self.model}"
        self._caller = DeadlineCaller(self._who, max_calls=max_calls)

    def __repr__(self) -> str:
        # Never the model object: its repr shows the key.
        return f"LLMClient({self._who!r}, timeout_s={self.timeout_s})"

    def complete(self, prompt: str, *, timeout_s: float | None = None) -> LLMReply:
        """Answer a prompt.

        Args:
            prompt: The whole prompt; a chat model gets it as one user message.
            timeout_s: Total seconds for this call; the client's own limit if that is lower.

        Returns:
            The answer with its token counts.

        Raises:
            DeadlineExceededError: If there was no answer in time.
            LLMOutputError: If the reply was blank or not what the provider promises.
            LLMError: If the model could not be reached or refused.
        """
        limit = self.timeout_s if timeout_s is None else min(timeout_s, self.timeout_s)
        if limit <= 0:
            raise DeadlineExceededError(f"{self._who}: no time is left to ask it; allow the query more time")
        started = self._clock()
        try:
            response = self._caller.call(lambda: self._llm.complete(prompt), limit)
        except (DeadlineExceededError, LLMError):
            raise
        except Exception as err:  # the seam to foreign code: providers raise whatever they like
            raise translated(err, who=self._who, timeout_s=limit) from err
        return self._reply(prompt, response, self._clock() - started)

    def _reply(self, prompt: str, response: CompletionResponse, seconds: float) -> LLMReply:
        text = getattr(response, "text", None)
        if not isinstance(text, str) or not text.strip():
            raise LLMOutputError(f"{self._who}: the reply is blank; try again, or take another model")
        raw = getattr(response, "raw", None)
        usage = _field(raw, "usage")
        return LLMReply(
            text=text,
            model=self.model,
            tier=self.tier,
            prompt_tokens=_count(usage, "prompt_tokens") or _count(raw, "prompt_eval_count") or estimate_tokens(prompt),
            completion_tokens=_count(usage, "completion_tokens") or _count(raw, "eval_count") or estimate_tokens(text),
            truncated=_truncated(raw),
            seconds=seconds,
        )


def _model_name(llm: LLM) -> str:
    # Not llm.metadata: for Ollama without a context window that is a network call.
    for name in ("model", "model_name"):
        value = getattr(llm, name, None)
        if isinstance(value, str) and value.strip():
            return value
    return type(llm).__name__


def _field(raw: object, name: str) -> object:
    """Read a field of a provider's response, which is a mapping or an object."""
    return raw.get(name) if isinstance(raw, Mapping) else getattr(raw, name, None)


def _count(raw: object, name: str) -> int:
    value = _field(raw, name)
    return value if isinstance(value, int) and value > 0 else 0


def _truncated(raw: object) -> bool:
    if _field(raw, "done_reason") in _CUT or _field(raw, "done") is False:
        return True
    choices = _field(raw, "choices")
    first = choices[0] if isinstance(choices, (list, tuple)) and choices else None
    return _field(first, "finish_reason") in _CUT
