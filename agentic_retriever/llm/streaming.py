"""Answers word by word: through threads, under one total deadline, without leaving anything behind."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
import weakref
from typing import TYPE_CHECKING, Protocol, TypeVar

from typing_extensions import Self

from agentic_retriever.errors import DeadlineExceededError
from agentic_retriever.llm.watch import Ending

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from llama_index.core.base.llms.types import CompletionResponse

    from agentic_retriever.llm.calls import LLMReply
    from agentic_retriever.llm.watch import CallWatch
    from agentic_retriever.threads import DeadlineCaller

T = TypeVar("T")

_END = object()
_STOP = object()


class StreamStopped(BaseException):
    """The reader closed the stream, which is no error."""


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
        self._stop: Callable[[], None] | None = None

    def on_cancel(self, stop: Callable[[], None] | None) -> None:
        """Set what ends the wait of the reader; called at once if the stream is closed already."""
        with self._lock:
            self._stop = stop
            if stop is not None and self._event.is_set():
                stop()

    def cancel(self) -> None:
        """Close the stream."""
        with self._lock:
            self._event.set()
            if self._stop is not None:
                self._stop()

    def sleep(self, seconds: float) -> None:
        """Wait; ``StreamStopped`` if the stream is closed, or gets so."""
        if self._event.wait(seconds):
            raise StreamStopped


class TokenFeed:
    """Brings the pieces of one streamed reply from the thread that reads it to the one that shows it.

    Args:
        who: The model, for messages.
        limit_s: Seconds until the last piece.
        watch: The call behind it, to be cut when the reader goes away.
    """

    def __init__(self, who: str, limit_s: float, watch: CallWatch) -> None:
        self.text = ""  # what was handed out so far
        self.ending = Ending()
        self._who = who
        self._limit_s = limit_s
        self._deadline = time.monotonic() + limit_s
        self._watch = watch
        self._queue: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._stopped = threading.Event()

    def fill(self, open_stream: Callable[[], Iterator[CompletionResponse]]) -> None:
        """Read the reply to its end, or until nobody wants it any more; runs in a thread of its own."""
        try:
            self._watch.run(lambda: self._read(open_stream))
        except BaseException as err:  # noqa: BLE001 - handed to the reader, who raises it
            self._queue.put(err)
        else:
            self._queue.put(_END)

    def _read(self, open_stream: Callable[[], Iterator[CompletionResponse]]) -> None:
        chunks = open_stream()
        try:
            for chunk in chunks:
                if self._stopped.is_set():
                    return
                self._queue.put(chunk)
        finally:
            self._watch.finish()
            close = getattr(chunks, "close", None)
            if close is not None:
                close()

    def stop(self) -> None:
        """End the reader's wait and the call; harmless at any time and more than once."""
        self._stopped.set()
        self._queue.put(_STOP)
        self._watch.cancel()

    def tokens(self) -> Generator[str, None, None]:
        """Yield the pieces as they come; blank ones before the first word are held back.

        Raises:
            DeadlineExceededError: If the time ran out.
            StreamStopped: If the reader went away.
            BaseException: Whatever the model's client raised.
        """
        seen = held = ""
        while True:
            item = self._next()
            if item is _END:
                return
            chunk: CompletionResponse = item  # type: ignore[assignment]  # _next raises for all else
            self.ending.see(getattr(chunk, "raw", None))
            delta = _delta(chunk, seen)
            seen += delta
            held += delta
            if held and (self.text or held.strip()):
                self.text += held
                piece, held = held, ""
                yield piece

    def _next(self) -> object:
        try:
            item = self._queue.get(timeout=max(0.0, self._deadline - time.monotonic()))
        except queue.Empty:
            raise DeadlineExceededError(
                f"{self._who} did not end its answer within {self._limit_s:.1f} s; allow more time"
            ) from None
        # What the cut connection raises comes after the reader went away and is no failure.
        if item is _STOP or self._stopped.is_set():
            raise StreamStopped
        if isinstance(item, BaseException):
            raise item
        return item


def _delta(chunk: CompletionResponse, seen: str) -> str:
    delta = getattr(chunk, "delta", None)
    if isinstance(delta, str):
        return delta
    # Some models give the whole text so far and no delta.
    text = getattr(chunk, "text", None)
    return text[len(seen) :] if isinstance(text, str) and text.startswith(seen) else ""


class ReplyStream:
    """The pieces of an answer as they come; afterwards ``reply`` holds the whole.

    Nothing is asked before the first piece is wanted; the time counts from then. A stream that is closed, left by
    ``with`` or forgotten ends its call at once.

    Attributes:
        text: What came so far.
        reply: The whole reply with its accounts, once the stream has ended by itself.
    """

    def __init__(self, run: Callable[[Canceller], Generator[str, None, LLMReply]]) -> None:
        self.text = ""
        self.reply: LLMReply | None = None
        self._canceller = Canceller()
        self._pieces = run(self._canceller)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        try:
            piece = next(self._pieces)
        except StopIteration as end:
            if end.value is not None:
                self.reply = end.value
            raise StopIteration from None
        except StreamStopped:
            raise StopIteration from None
        self.text += piece
        return piece

    def close(self) -> None:
        """Give the answer up; harmless at any time, more than once and from any thread."""
        self._canceller.cancel()
        with contextlib.suppress(ValueError):  # another thread waits in it, and has just been woken
            self._pieces.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Pieces(Protocol):
    """Text that comes piece by piece and can be given up from another thread."""

    def __iter__(self) -> Iterator[str]: ...

    def close(self) -> None:
        """Give the rest up."""


class AsyncPieces:
    """Reads pieces for ``async for`` in a thread that ``caller`` starts; the event loop is never blocked.

    Attributes:
        text: What came so far.
    """

    def __init__(self, stream: Pieces, caller: DeadlineCaller) -> None:
        self._stream = stream
        self._caller = caller
        self._queue: asyncio.Queue[object] | None = None
        self._ended = False
        self.text = ""
        weakref.finalize(self, stream.close)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        if self._ended:
            raise StopAsyncIteration
        if self._queue is None:
            self._queue = asyncio.Queue()
            self._caller.start(_pump(self._stream, asyncio.get_running_loop(), self._queue), 0.0)
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

    def __init__(self, stream: ReplyStream, caller: DeadlineCaller) -> None:
        super().__init__(stream, caller)
        self._replies = stream

    @property
    def reply(self) -> LLMReply | None:
        """The whole reply with its accounts, once the stream has ended by itself."""
        return self._replies.reply


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
