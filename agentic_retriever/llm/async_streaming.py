"""Answers word by word for ``async for``: read in a thread, so that the event loop is never blocked."""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Protocol

from typing_extensions import Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from agentic_retriever.llm.calls import LLMReply
    from agentic_retriever.llm.streaming import ReplyStream
    from agentic_retriever.threads import DeadlineCaller

_END = object()


class Pieces(Protocol):
    """Text that comes piece by piece and can be given up from another thread."""

    def __iter__(self) -> Iterator[str]: ...

    def close(self) -> None:
        """Give the rest up."""


class AsyncPieces:
    """Reads pieces in a thread for ``async for``; the event loop is never blocked.

    Args:
        stream: The pieces.
        caller: Starts the thread.

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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
    """Return what reads a stream in a thread and hands its pieces to an event loop."""

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
