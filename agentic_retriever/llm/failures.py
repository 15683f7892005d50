"""What can go wrong with a model call, told apart without importing any provider's package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agentic_retriever.errors import (
    AgenticRetrieverError,
    BudgetExceededError,
    DeadlineExceededError,
    LLMError,
    LLMOutputError,
    ModelPausedError,
    OverloadedError,
)
from agentic_retriever.schema import FailureKind

if TYPE_CHECKING:
    from collections.abc import Sequence

FAILURES: Final = (LLMError, DeadlineExceededError)
"""How a model call fails; anything else is a defect or an interrupt."""

_HINTS: Final = {
    FailureKind.TIMEOUT: "allow more time with llm_timeout_s, or take a faster model",
    FailureKind.UNREACHABLE: "check that it runs and that its address is right",
    FailureKind.AUTHENTICATION: "check the key, for OpenRouter OPENROUTER_API_KEY",
    FailureKind.PAYMENT: "add credit, or take another model",
    FailureKind.NOT_FOUND: "check the model's name, for Ollama run `ollama pull`",
    FailureKind.BAD_REQUEST: "check the model's name and that the prompt fits its context",
    FailureKind.RATE_LIMITED: "wait, or take another model",
    FailureKind.SERVER: "try again, or take another model",
    FailureKind.OUTPUT: "try again, or take another model",
}

_BY_STATUS: Final = {
    401: FailureKind.AUTHENTICATION,
    402: FailureKind.PAYMENT,
    403: FailureKind.AUTHENTICATION,
    404: FailureKind.NOT_FOUND,
    408: FailureKind.TIMEOUT,
    429: FailureKind.RATE_LIMITED,
    504: FailureKind.TIMEOUT,
}

_OWN: Final[tuple[tuple[type[AgenticRetrieverError], FailureKind], ...]] = (
    (LLMOutputError, FailureKind.OUTPUT),
    (ModelPausedError, FailureKind.PAUSED),
    (BudgetExceededError, FailureKind.BUDGET),
    (OverloadedError, FailureKind.OVERLOADED),
    (DeadlineExceededError, FailureKind.TIMEOUT),
)
# A body that is HTML, empty, cut, an error object with status 200 or lacks its choices shows as one of these, raised
# deep inside the provider's client.
_UNUSABLE: Final = (ValueError, TypeError, AttributeError, LookupError)


class WithheldError(Exception):
    """Stands for a foreign error whose text holds a secret."""

    def __init__(self, err: BaseException) -> None:
        super().__init__(f"{type(err).__name__}, whose text is withheld since it holds a secret")
        self.kind = failure_kind(err)


def failure_kind(err: BaseException) -> FailureKind:
    """Tell why a model call failed; one of our own errors is judged by its cause.

    Providers' errors are known by their HTTP status and by the names of their classes, so that any LlamaIndex model is
    covered and none has to be installed. An error never seen before is ``OTHER``.
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


def own_error(err: BaseException, *, who: str, timeout_s: float, secrets: Sequence[str]) -> AgenticRetrieverError:
    """Turn a foreign error into one of ours with its cause, to be raised out of the handler.

    The text of ``err`` is left out: it may hold the provider's raw body, the prompt or a key. Where it holds one of the
    secrets, a stand-in takes its place as the cause too.
    """
    kind = failure_kind(err)
    status = getattr(err, "status_code", None)
    detail = f"HTTP {status}" if isinstance(status, int) and status > 0 else type(err).__name__
    if kind is FailureKind.TIMEOUT:
        detail += f", {timeout_s:.1f} s"
    text = f"{who}: {kind.value} ({detail}); {_HINTS.get(kind, 'see the cause')}"
    kinds: dict[FailureKind, type[AgenticRetrieverError]] = {
        FailureKind.TIMEOUT: DeadlineExceededError,
        FailureKind.OUTPUT: LLMOutputError,
    }
    error = kinds.get(kind, LLMError)(text)
    error.__cause__ = WithheldError(err) if _holds_secret(err, secrets) else err
    return error


def _holds_secret(err: BaseException, secrets: Sequence[str]) -> bool:
    seen: BaseException | None = err
    for _ in range(8):
        if seen is None:
            return False
        if any(secret and secret in f"{seen!s} {seen!r}" for secret in secrets):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
