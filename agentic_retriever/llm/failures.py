"""What can go wrong with a model call, told apart without importing any provider's package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentic_retriever.errors import (
    AgenticRetrieverError,
    BudgetExceededError,
    DeadlineExceededError,
    LLMError,
    LLMOutputError,
    ModelPausedError,
    OverloadedError,
)
from agentic_retriever.schema.attempts import FailureKind

if TYPE_CHECKING:
    from collections.abc import Sequence


_HINTS = {
    FailureKind.TIMEOUT: "allow more time with llm_timeout_s, or take a faster model",
    FailureKind.UNREACHABLE: "check that it runs and that its address is right",
    FailureKind.AUTHENTICATION: "check the key, for OpenRouter OPENROUTER_API_KEY",
    FailureKind.PAYMENT: "add credit, or take another model",
    FailureKind.NOT_FOUND: "check the model's name, for Ollama run `ollama pull`",
    FailureKind.BAD_REQUEST: "check the model's name and that the prompt fits its context",
    FailureKind.RATE_LIMITED: "wait, or take another model",
    FailureKind.SERVER: "try again, or take another model",
    FailureKind.OUTPUT: "try again, or take another model",
    FailureKind.OVERLOADED: "ask less at once, or allow more llm_workers",
    FailureKind.PAUSED: "wait for the cooldown to end",
    FailureKind.BUDGET: "allow more",
    FailureKind.TOO_LONG: "send less, or take a model with a larger context",
    FailureKind.OTHER: "see the cause",
}

_BY_STATUS = {
    400: FailureKind.BAD_REQUEST,
    401: FailureKind.AUTHENTICATION,
    402: FailureKind.PAYMENT,
    403: FailureKind.AUTHENTICATION,
    404: FailureKind.NOT_FOUND,
    408: FailureKind.TIMEOUT,
    413: FailureKind.BAD_REQUEST,
    422: FailureKind.BAD_REQUEST,
    429: FailureKind.RATE_LIMITED,
    504: FailureKind.TIMEOUT,
}

_OWN: tuple[tuple[type[AgenticRetrieverError], FailureKind], ...] = (
    (LLMOutputError, FailureKind.OUTPUT),
    (ModelPausedError, FailureKind.PAUSED),
    (BudgetExceededError, FailureKind.BUDGET),
    (OverloadedError, FailureKind.OVERLOADED),
    (DeadlineExceededError, FailureKind.TIMEOUT),
)
# A body that is HTML, empty, cut, an error object with status 200 or lacks its choices shows as one of these, raised
# deep inside the provider's client.
_UNUSABLE = (ValueError, TypeError, AttributeError, LookupError)


class WithheldError(Exception):
    """Stands for a foreign error whose text holds a secret.

    Attributes:
        kind: What went wrong.
    """

    def __init__(self, err: BaseException) -> None:
        super().__init__(f"{type(err).__name__}, whose text is withheld since it holds a secret")
        self.kind = failure_kind(err)


def safe_cause(err: BaseException, secrets: Sequence[str]) -> BaseException:
    """Return a foreign error as the cause of one of ours, or a stand-in when its text holds a secret.

    Args:
        err: What a model's client raised.
        secrets: Texts that must never be shown, such as a key.
    """
    seen: BaseException | None = err
    for _ in range(8):
        if seen is None:
            return err
        if any(secret and secret in f"{seen!s} {seen!r}" for secret in secrets):
            return WithheldError(err)
        seen = seen.__cause__ or seen.__context__
    return err


def failure_kind(err: BaseException) -> FailureKind:
    """Tell why a model call failed.

    Providers' errors are known by their HTTP status and by the names of their classes, so that any LlamaIndex model is
    covered and none has to be installed.

    Args:
        err: What the call raised; one of our own errors is judged by its cause.

    Returns:
        The kind; ``OTHER`` for an error never seen before.
    """
    own = next((kind for cls, kind in _OWN if isinstance(err, cls)), None)
    if own is not None:
        return own
    if isinstance(err, WithheldError):
        return err.kind
    if isinstance(err, LLMError) and err.__cause__ is not None:
        return failure_kind(err.__cause__)
    status = getattr(err, "status_code", None)
    if isinstance(status, int) and status >= 400:
        return _BY_STATUS.get(status, FailureKind.SERVER if status >= 500 else FailureKind.BAD_REQUEST)
    return _kind_by_class(err)


def _kind_by_class(err: BaseException) -> FailureKind:
    names = [cls.__name__ for cls in type(err).__mro__]
    if any("Timeout" in name for name in names):
        return FailureKind.TIMEOUT
    if any(name.endswith(("ConnectionError", "ConnectError", "TransportError")) for name in names):
        return FailureKind.UNREACHABLE
    # Before OSError, which covers the rest of what sockets raise: a ValidationError is a ValueError.
    if isinstance(err, _UNUSABLE):
        return FailureKind.OUTPUT
    if isinstance(err, OSError):
        return FailureKind.UNREACHABLE
    return FailureKind.SERVER if any(name in {"ResponseError", "APIError"} for name in names) else FailureKind.OTHER


def translated(err: BaseException, *, who: str, timeout_s: float) -> AgenticRetrieverError:
    """Turn a foreign error into one of ours; the caller raises it ``from err``.

    The text of ``err`` is left out: it may hold the provider's raw body, the prompt or a key.

    Args:
        err: What the model's client raised.
        who: The model, such as ``"primary model llama3:8b"``.
        timeout_s: The time that the call had, in seconds.

    Returns:
        ``DeadlineExceededError``, ``LLMOutputError`` or ``LLMError``, with the kind of failure and what to do.
    """
    kind = failure_kind(err)
    status = getattr(err, "status_code", None)
    detail = f"HTTP {status}" if isinstance(status, int) and status > 0 else type(err).__name__
    text = f"{who}: {kind.value} ({detail}); {_HINTS[kind]}"
    if kind is FailureKind.TIMEOUT:
        return DeadlineExceededError(f"{who}: {kind.value} ({detail}, {timeout_s:.1f} s); {_HINTS[kind]}")
    return LLMOutputError(text) if kind is FailureKind.OUTPUT else LLMError(text)
