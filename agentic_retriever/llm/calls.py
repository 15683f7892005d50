"""The values around one model call: what it needs, what came back, what it took; and how to ask for anything else."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import email.utils
import math
import queue
import secrets
import socket
import threading
import time
import weakref
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, runtime_checkable

from llama_index.core.base.llms.types import CompletionResponse
from llama_index.core.llms import LLM
from typing_extensions import Self

from agentic_retriever import errors
from agentic_retriever.llm.replies import MAX_SCANNED_CHARS, SpokenText, says_something, without_thoughts
from agentic_retriever.schema import NO_LIMITS, Attempt, Budget, Complexity, FailureKind, Tier, TierUsage, Usage
from agentic_retriever.threads import DeadlineCaller

if TYPE_CHECKING:
    import httpx

_DRAWS: Final = 4
_NOT_SENT: Final = (errors.BudgetExceededError, errors.ModelPausedError, errors.OverloadedError)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierNeeds:
    """What decides which tier is asked first, and which may be asked at all.

    Of ``budget``, ``max_usd`` is the most that the call may cost, prompt and longest answer (a model whose price is not
    known is not asked under a limit), and ``max_llm_calls`` the most models that may be asked one after another. Its
    time is not looked at, as the call has a timeout of its own.
    """

    complexity: Complexity = Complexity.SIMPLE  # a complex question goes to the cloud tier first
    context_chars: int = 0  # of source text in the prompt; a long context goes to the cloud tier first
    force_cloud: bool = False  # whether the caller wants the cloud tier first
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
    prompt_cut: bool = False  # the provider read so many tokens that it must have cut the prompt to its window
    attempts: tuple[Attempt, ...] = ()  # what was tried, in order; the last one gave this answer

    @property
    def spent(self) -> tuple[TierUsage, ...]:
        """What it took: one entry for each model that was asked."""
        return spent_on(self.attempts) or (_usage(self),)


class ModelClient(Protocol):
    """Anything that completes a prompt: one model, or several tiers behind one face."""

    @property
    def tier(self) -> Tier: ...  # that is asked first
    @property
    def model(self) -> str: ...  # likewise
    @property
    def context_tokens(self) -> int:
        """Tokens of prompt and answer together that every model behind this face can hold."""

    def complete(self, prompt: str, *, timeout_s: float | None = None, needs: TierNeeds | None = None) -> LLMReply:
        """Answer a prompt within a total time, or raise ``LLMError`` or ``DeadlineExceededError``."""


@runtime_checkable
class StreamsReplies(Protocol):
    """A client that can also answer piece by piece."""

    def stream(self, prompt: str, *, timeout_s: float | None = None, needs: TierNeeds | None = None) -> ReplyStream: ...


def estimate_tokens(text: str) -> int:
    """Estimate a model's tokens in a text, rather too many: for Thai, Chinese or Hindi within a factor of two."""
    plain = sum(1 for char in text if char < "\x80")
    return (plain + 3) // 4 + len(text) - plain


def spent_on(attempts: Sequence[Attempt]) -> tuple[TierUsage, ...]:
    """Return the accounts of what was tried: one entry for each model that got a request, failed ones included."""
    return Usage.of([_usage(one) for one in attempts if one.requests]).tiers


def _usage(one: Attempt | LLMReply) -> TierUsage:
    tokens = {"prompt_tokens": one.prompt_tokens, "completion_tokens": one.completion_tokens}
    return TierUsage(tier=one.tier, model=one.model, calls=1, usd=one.usd or 0.0, **tokens)


def random_boundary() -> str:
    """Draw what marks the frame of a prompt: 16 hexadecimal digits that nobody can guess."""
    return secrets.token_hex(8)


def framed(prompt: Callable[[str], str], boundary: Callable[[], str]) -> str:
    """Write a prompt with a boundary; ``SynthesisError`` when several in a row occur in the texts."""
    for _ in range(_DRAWS):
        with contextlib.suppress(errors.SynthesisError):
            return prompt(boundary())
    raise errors.SynthesisError(f"{_DRAWS} boundaries in a row occur in the texts; pass better randomness")


def ask(
    client: ModelClient,
    prompt: Callable[[str], str],
    *,
    timeout_s: float | None = None,
    needs: TierNeeds | None = None,
    boundary: Callable[[], str] = random_boundary,
) -> LLMReply:
    """Ask a model for something other than an answer, such as a choice; its reply comes without its thoughts, and cut.

    ``prompt`` writes the prompt with a boundary, and raises ``SynthesisError`` for one that occurs in the texts; when
    several in a row do, that is an ``LLMError`` like a failure of the model.
    """
    try:
        text = framed(prompt, boundary)
    except errors.SynthesisError as err:
        raise errors.LLMError(str(err)) from err
    reply = client.complete(text, timeout_s=timeout_s, needs=needs)
    return replace(reply, text=without_thoughts(reply.text))


def spent_on_failure(tier: Tier, model: str, failure: errors.AgenticRetrieverError) -> tuple[TierUsage, ...]:
    """Account for a call that failed: one call for each model that was asked; tokens are not known, and 0."""
    if isinstance(failure, errors.AllModelsFailedError):
        return spent_on(failure.attempts)
    if isinstance(failure, _NOT_SENT) or isinstance(failure.__cause__, errors.SynthesisError):
        return ()
    return (_usage(Attempt(tier=tier, model=model)),)


# What can go wrong with a model call, told apart without importing any provider's package.

FAILURES: Final = (errors.LLMError, errors.DeadlineExceededError)  # anything else is a defect or an interrupt
_HINTS: Final = {
    FailureKind.TIMEOUT: "allow more time with llm_timeout_s, or take a faster model",
    FailureKind.UNREACHABLE: "check that it runs and that its address is right",
    FailureKind.AUTHENTICATION: "check the key, for OpenRouter OPENROUTER_API_KEY, for OpenAI OPENAI_API_KEY",
    FailureKind.PAYMENT: "add credit, or take another model",
    FailureKind.NOT_FOUND: "check the address and the model's name, for Ollama run `ollama pull`",
    FailureKind.BAD_REQUEST: "check the model's name and that the prompt fits its context",
    FailureKind.RATE_LIMITED: "wait, or take another model",
    FailureKind.SERVER: "try again, or take another model",
    FailureKind.OUTPUT: "try again, or take another model",
}
_BY_STATUS: Final = {
    401: FailureKind.AUTHENTICATION, 402: FailureKind.PAYMENT, 403: FailureKind.AUTHENTICATION,
    404: FailureKind.NOT_FOUND, 408: FailureKind.TIMEOUT, 429: FailureKind.RATE_LIMITED, 504: FailureKind.TIMEOUT,
}  # fmt: skip
_OWN: Final[tuple[tuple[type[errors.AgenticRetrieverError], FailureKind], ...]] = (
    (errors.LLMOutputError, FailureKind.OUTPUT),
    (errors.ModelPausedError, FailureKind.PAUSED),
    (errors.BudgetExceededError, FailureKind.BUDGET),
    (errors.OverloadedError, FailureKind.OVERLOADED),
    (errors.DeadlineExceededError, FailureKind.TIMEOUT),
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
    """Tell why a model call failed, by HTTP status and class names, so that no provider's package need be installed."""
    for own, kind in _OWN:
        if isinstance(err, own):
            return kind
    if isinstance(err, WithheldError):
        return err.kind
    if isinstance(err, errors.LLMError) and err.__cause__ is not None:
        return failure_kind(err.__cause__)
    status = getattr(err, "status_code", None)
    if isinstance(status, int) and 300 <= status < 400:
        return FailureKind.NOT_FOUND
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


def own_error(
    err: BaseException, *, who: str, timeout_s: float, secrets: Sequence[str]
) -> errors.AgenticRetrieverError:
    """Turn a foreign error into one of ours, without its text, which may hold a reply, the prompt or a key."""
    kind = failure_kind(err)
    status = getattr(err, "status_code", None)
    detail = f"HTTP {status}" if isinstance(status, int) and status > 0 else type(err).__name__
    if kind is FailureKind.TIMEOUT:
        detail += f", {timeout_s:.1f} s"
    ours = {FailureKind.TIMEOUT: errors.DeadlineExceededError, FailureKind.OUTPUT: errors.LLMOutputError}
    error = ours.get(kind, errors.LLMError)(f"{who}: {kind.value} ({detail}); {_HINTS.get(kind, 'see the cause')}")
    error.__cause__ = WithheldError(err) if _holds_secret(err, secrets) else err
    return error


def _holds_secret(err: BaseException, secrets: Sequence[str]) -> bool:
    seen: BaseException | None = err
    for _ in range(8):
        if seen is not None and any(secret and secret in f"{seen!s} {seen!r}" for secret in secrets):
            return True
        seen = seen and (seen.__cause__ or seen.__context__)
    return False


# What models and raw responses say of themselves.

T = TypeVar("T")

_CUT: Final = frozenset({"length", "max_tokens", "model_length", "content_filter"})
_DEFAULT_WINDOW: Final = 4_096


def model_name(llm: LLM) -> str:
    """Return a model's name without asking its server, which ``llm.metadata`` of Ollama may do."""
    names = (getattr(llm, "model", None), getattr(llm, "model_name", None))
    return next((name for name in names if isinstance(name, str) and name.strip()), type(llm).__name__)


def is_ollama(llm: LLM) -> bool:
    return any(cls.__name__ == "Ollama" and "ollama" in cls.__module__ for cls in type(llm).__mro__)


def model_window(llm: LLM) -> int:
    """Return the tokens that a model's context holds, without asking its server; 4,096 if it does not say."""
    window = getattr(llm, "context_window", None)
    if not (isinstance(window, int) and window > 0) and not is_ollama(llm):
        try:
            window = llm.metadata.context_window
        except Exception:  # noqa: BLE001 - the seam to foreign code: models raise whatever they like for unknown names
            return _DEFAULT_WINDOW
    return window if isinstance(window, int) and window > 0 else _DEFAULT_WINDOW


@dataclass(slots=True)
class Ending:
    """What a provider's raw responses say about their end: the one of a whole reply, or those of a stream in turn."""

    prompt_tokens: int = 0  # as the provider counted them; 0 if it did not
    completion_tokens: int = 0
    read_tokens: int = 0  # of the prompt, by an Ollama server, which cuts a prompt to its window without a word
    reason: str = ""  # such as "stop" or "length"
    announced: bool = False  # whether this is a protocol that says when an answer is done
    done: bool = False

    def see(self, raw: object) -> None:
        """Read one raw response."""
        usage = _field(raw, "usage")
        self.read_tokens = _count(raw, "prompt_eval_count") or self.read_tokens
        self.prompt_tokens = _count(usage, "prompt_tokens") or self.read_tokens or self.prompt_tokens
        completion = _count(usage, "completion_tokens") or _count(raw, "eval_count")
        self.completion_tokens = completion or self.completion_tokens
        choices, done = _field(raw, "choices"), _field(raw, "done")
        first = choices[0] if isinstance(choices, (list, tuple)) and choices else None
        reason = _field(first, "finish_reason") or _field(raw, "done_reason")
        self.reason = reason if isinstance(reason, str) and reason else self.reason
        self.announced |= isinstance(done, bool) or first is not None
        self.done |= done is True or bool(_field(first, "finish_reason"))

    @property
    def cut(self) -> bool:
        """Whether the answer stopped short, or stopped without saying that it was done."""
        return self.reason in _CUT or (self.announced and not self.done)


def _field(raw: object, name: str) -> object:
    return raw.get(name) if isinstance(raw, Mapping) else getattr(raw, name, None)


def _count(raw: object, name: str) -> int:
    value = _field(raw, name)
    return value if isinstance(value, int) and value > 0 else 0


# One call to a provider, whole or word by word: through threads, under one total deadline, leaving nothing behind.
# A provider's client limits each read and knows no total time. The hooks made here give each request what its call has
# left, and keep hold of its connection, so that a call that was given up ends at once, with its thread and socket.

_CURRENT: contextvars.ContextVar[ProviderCall | None] = contextvars.ContextVar("agentic_retriever_call", default=None)
_END = object()
_STOP = object()
_LATE = object()
_MAX_WAITING: Final = 64  # pieces that were read and not yet shown


class StreamStopped(BaseException):
    """The reader closed the stream, which is no error."""


class ProviderCall:
    """One request to a provider with all that its client sends below; safe to use from several threads."""

    def __init__(self, who: str, limit_s: float) -> None:
        self.limit_s = limit_s
        self.text = ""  # what was handed out so far
        self.enough = False  # set to end a streamed reply with what was handed out
        self.ending = Ending()
        self.retry_after_s: float | None = None  # what the server asked to wait before the next request
        self._who = who
        self._deadline = time.monotonic() + limit_s
        self._lock = threading.RLock()
        self._connection: Any = None
        self._responses: list[httpx.Response] = []
        self._queue: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._room = threading.Semaphore(_MAX_WAITING)
        self._over = False
        self._stopped = False

    def run(self, function: Callable[[], T]) -> T:
        """Run the call in this thread, with its requests in sight."""
        token = _CURRENT.set(self)
        try:
            return function()
        finally:
            _CURRENT.reset(token)
            self._finish()

    def fill(self, open_stream: Callable[[], Iterator[CompletionResponse]]) -> None:
        """Read a streamed reply to its end, or until nobody wants it any more; runs in a thread of its own."""
        try:
            self.run(lambda: self._read(open_stream()))
        except BaseException as err:  # noqa: BLE001 - handed to the reader, who raises it
            self._queue.put(err)
        else:
            self._queue.put(_END if time.monotonic() < self._deadline else _LATE)

    def _read(self, chunks: Iterator[CompletionResponse]) -> None:
        try:
            for chunk in chunks:
                left = self._deadline - time.monotonic()
                if left <= 0 or not self._room.acquire(timeout=left) or self._stopped:
                    return
                self._queue.put(chunk)
        finally:
            self._finish()
            close = getattr(chunks, "close", None)
            if close is not None:
                close()

    def _finish(self) -> None:
        """Close the responses in the thread that reads them: the collector may run where the pool's lock is held."""
        with self._lock:
            self._over, self._connection = True, None
        for response in self._responses:
            response.close()

    def stop(self) -> None:
        """End the reader's wait and cut the connection, unless the call is over; harmless more than once."""
        with self._lock:
            self._stopped = True
            connection, self._connection = self._connection, None
            if connection is not None and not self._over:
                _cut(connection)
        self._queue.put(_STOP)
        self._room.release()

    def starts(self, request: httpx.Request) -> None:
        """Limit a request to the time that is left; ``DeadlineExceededError`` if the call was given up."""
        left = self._deadline - time.monotonic()
        if self._stopped or left <= 0:
            raise errors.DeadlineExceededError("the call was given up before its request was sent")
        limits = request.extensions.get("timeout") or {}
        kinds = ("connect", "read", "write", "pool")
        request.extensions["timeout"] = {kind: min(left, limits.get(kind) or left) for kind in kinds}

    def answered(self, response: httpx.Response) -> None:
        """Note what a response's head says."""
        self.retry_after_s = retry_after_s(response.headers)
        self._responses.append(response)
        with self._lock:
            self._connection = response.extensions.get("network_stream")
            if self._stopped and self._connection is not None:
                _cut(self._connection)

    def tokens(self) -> Generator[str, None, None]:
        """Yield the pieces as they come, thoughts before the first word along with it; raise what the client raised."""
        seen = held = ""
        spoken = SpokenText()
        while not self.enough and len(seen) < MAX_SCANNED_CHARS:
            item = self._next()
            if item is _END:
                if says_something(held):
                    self.text += held
                    yield held
                return
            self.ending.see(getattr(item, "raw", None))
            delta, text = getattr(item, "delta", None), getattr(item, "text", None)
            if not isinstance(delta, str):
                # Some models give the whole text so far and no delta.
                delta = text[len(seen) :] if isinstance(text, str) and text.startswith(seen) else ""
            seen += delta
            held += delta
            if not spoken.begun:
                spoken.feed(delta)
            if held and spoken.begun:
                self.text += held
                piece, held = held, ""
                yield piece
        self.ending.reason = "length"

    def _next(self) -> object:
        left = self._deadline - time.monotonic()
        item: object = _LATE
        if left > 0:
            with contextlib.suppress(queue.Empty):
                item = self._queue.get(timeout=left)
        self._room.release()
        # What the cut connection raises comes after the reader went away and is no failure.
        if item is _STOP or self._stopped:
            raise StreamStopped
        if item is _LATE:
            late = f"{self._who} did not end its answer within {self.limit_s:.1f} s"
            raise errors.DeadlineExceededError(f"{late}; allow more time")
        if isinstance(item, BaseException):
            raise item
        return item


def event_hooks() -> dict[str, list[Callable[..., Any]]]:
    """Return the hooks for an ``httpx.Client`` whose calls are to be seen."""

    def tell_call(see: Callable[[ProviderCall, Any], None], event: object) -> None:
        call = _CURRENT.get()
        if call is not None:
            see(call, event)

    return {
        "request": [partial(tell_call, ProviderCall.starts)],
        "response": [partial(tell_call, ProviderCall.answered)],
    }


def _cut(connection: Any) -> None:  # noqa: ANN401 - httpcore.NetworkStream, which has no public type in httpx
    sock = connection.get_extra_info("socket")
    if isinstance(sock, socket.socket):
        # The plain socket's method: that of an SSL socket takes its state away below the thread that reads from it.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)


def retry_after_s(headers: Mapping[str, str], now: Callable[[], float] = time.time) -> float | None:
    """Read the seconds, from 0, of a ``Retry-After`` (RFC 9110, section 10.2.3), which may be a date."""
    value = str(headers.get("retry-after") or "").strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - now()
        except (TypeError, ValueError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


# Answers word by word.


def result_of(pieces: Generator[str, None, T]) -> T:
    """Run a generator to its end and return its result."""
    try:
        while True:
            next(pieces)
    except StopIteration as end:
        result: T = end.value
        return result


class Canceller:
    """Lets another thread end a stream while its reader waits."""

    def __init__(self) -> None:
        # Reentrant, since a finalizer may cancel in the middle of anything.
        self._lock = threading.RLock()
        self._event = threading.Event()
        self._call: ProviderCall | None = None

    def watch(self, call: ProviderCall | None) -> None:
        """Set the call that the reader waits for; stopped at once if the stream is closed already."""
        with self._lock:
            self._call = call
            if self._event.is_set():
                self.cancel()

    def cancel(self) -> None:
        with self._lock:
            self._event.set()
            if self._call is not None:
                self._call.stop()

    def cut(self) -> None:
        with self._lock:
            if self._call is not None:
                self._call.enough = True

    def sleep(self, seconds: float) -> None:
        """Wait; ``StreamStopped`` if the stream is closed, or gets so."""
        if self._event.wait(seconds):
            raise StreamStopped


class Pieces(Iterator[str]):
    """Text that comes piece by piece; who leaves it by ``with`` gives it up."""

    text = ""  # what came so far

    @abstractmethod
    def close(self) -> None:
        """Give the rest up; harmless at any time, more than once and from any thread."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class ReplyStream(Pieces):
    """The pieces of an answer as they come, asked for with the first one; afterwards ``reply`` holds the whole."""

    def __init__(self, run: Callable[[Canceller], Generator[str, None, LLMReply]]) -> None:
        self.reply: LLMReply | None = None  # once the stream has ended by itself
        self._canceller = Canceller()
        self._pieces = run(self._canceller)

    def __next__(self) -> str:
        try:
            piece = next(self._pieces)
        except (StopIteration, StreamStopped) as end:
            self.reply = getattr(end, "value", None) or self.reply
            raise StopIteration from None
        self.text += piece
        return piece

    def cut(self) -> None:
        """Let the answer end here: what came so far is the reply, as one that was cut."""
        self._canceller.cut()

    def close(self) -> None:
        self._canceller.cancel()
        with contextlib.suppress(ValueError):  # another thread waits in it, and has just been woken
            self._pieces.close()


class AsyncPieces(AsyncIterator[str]):
    """Reads pieces for ``async for`` in a thread that ``caller`` starts; the event loop is never blocked."""

    def __init__(self, stream: Pieces, caller: DeadlineCaller) -> None:
        self._stream = stream
        self._caller = caller
        self._queue: asyncio.Queue[object] | None = None
        self._ended = False
        self.text = ""  # what came so far
        weakref.finalize(self, stream.close)

    async def __anext__(self) -> str:
        if self._ended:
            raise StopAsyncIteration
        if self._queue is None:
            self._queue = asyncio.Queue()
            await self._caller.astart(_pump(self._stream, asyncio.get_running_loop(), self._queue), 0.0)
        item = await self._queue.get()
        if isinstance(item, str):
            self.text += item
            return item
        self._ended = True
        if isinstance(item, Exception):
            raise item
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Give the answer up; harmless at any time and more than once."""
        self._ended = True
        self._stream.close()
        if self._queue is not None:
            self._queue.put_nowait(_END)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


class AsyncReplyStream(AsyncPieces):
    """The twin of :class:`ReplyStream` for ``async for``."""

    _stream: ReplyStream

    @property
    def reply(self) -> LLMReply | None:
        return self._stream.reply


def _pump(stream: Pieces, loop: asyncio.AbstractEventLoop, pieces: asyncio.Queue[object]) -> Callable[[], None]:
    """Return what reads a stream in a thread and hands its pieces to an event loop, without holding its reader."""

    def post(item: object) -> None:
        try:
            loop.call_soon_threadsafe(pieces.put_nowait, item)
        except RuntimeError:  # the loop is closed, so nobody listens
            stream.close()

    def run() -> None:
        try:
            for piece in stream:
                post(piece)
        except Exception as err:  # noqa: BLE001 - handed to the reader, who raises it
            post(err)
        else:
            post(_END)

    return run
