"""Reading what a LlamaIndex model says of itself and of its replies, whatever the provider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llama_index.core.llms import LLM

_CUT = frozenset({"length", "max_tokens", "model_length", "content_filter"})
_DEFAULT_WINDOW = 4_096


def model_name(llm: LLM) -> str:
    """Return a model's name without asking its server."""
    # Not llm.metadata: for Ollama without a context window that is a network call.
    for name in ("model", "model_name"):
        value = getattr(llm, name, None)
        if isinstance(value, str) and value.strip():
            return value
    return type(llm).__name__


def is_ollama(llm: LLM) -> bool:
    """Tell whether a model runs on an Ollama server."""
    return any(cls.__name__ == "Ollama" and "ollama" in cls.__module__ for cls in type(llm).__mro__)


def model_window(llm: LLM) -> int:
    """Return the tokens that a model's context holds, without asking its server; 4,096 if it does not say."""
    own = getattr(llm, "context_window", None)
    if isinstance(own, int) and own > 0:
        return own
    if is_ollama(llm):
        return _DEFAULT_WINDOW
    try:
        window = llm.metadata.context_window
    except Exception:  # noqa: BLE001 - the seam to foreign code: models raise whatever they like for unknown names
        return _DEFAULT_WINDOW
    return window if window > 0 else _DEFAULT_WINDOW


def field(raw: object, name: str) -> object:
    """Read a field of a provider's response, which is a mapping or an object."""
    return raw.get(name) if isinstance(raw, Mapping) else getattr(raw, name, None)


def _count(raw: object, name: str) -> int:
    value = field(raw, name)
    return value if isinstance(value, int) and value > 0 else 0


@dataclass(slots=True)
class Ending:
    """What a provider's raw responses say about their end: the one of a whole reply, or those of a stream in turn.

    Attributes:
        prompt_tokens: As the provider counted them; 0 if it did not.
        completion_tokens: Likewise.
        read_tokens: Tokens of the prompt that an Ollama server read; it cuts a prompt to its window without a word.
        reason: Why the answer ended, such as ``"stop"`` or ``"length"``; ``""`` if it was not said.
        announced: Whether this is a protocol that says when an answer is done.
        done: Whether it said so.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    read_tokens: int = 0
    reason: str = ""
    announced: bool = False
    done: bool = False

    def see(self, raw: object) -> None:
        """Read one raw response."""
        usage = field(raw, "usage")
        self.read_tokens = _count(raw, "prompt_eval_count") or self.read_tokens
        self.prompt_tokens = _count(usage, "prompt_tokens") or self.read_tokens or self.prompt_tokens
        self.completion_tokens = (
            _count(usage, "completion_tokens") or _count(raw, "eval_count") or self.completion_tokens
        )
        choices = field(raw, "choices")
        first = choices[0] if isinstance(choices, (list, tuple)) and choices else None
        reason = field(first, "finish_reason") or field(raw, "done_reason")
        if isinstance(reason, str) and reason:
            self.reason = reason
        done = field(raw, "done")
        self.announced = self.announced or isinstance(done, bool) or first is not None
        self.done = self.done or done is True or bool(field(first, "finish_reason"))

    @property
    def cut(self) -> bool:
        """Whether the answer stopped short, or stopped without saying that it was done."""
        return self.reason in _CUT or (self.announced and not self.done)

    @property
    def failed(self) -> bool:
        """Whether the provider says that it failed within the answer, as OpenRouter does with ``"error"``."""
        return self.reason == "error"
