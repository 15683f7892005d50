"""Answers that are shown while they are written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import Self

from agentic_retriever.llm import AsyncPieces
from agentic_retriever.synthesis import StreamControl

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from types import TracebackType

    from llama_index.core.schema import NodeWithScore

    from agentic_retriever.schema import Answer, RouteDecision
    from agentic_retriever.threads import DeadlineCaller


class AnswerStream:
    """The pieces of an answer as they come; afterwards ``answer`` holds the whole.

    Routing and retrieval happen when the first piece is wanted. The pieces carry the citations that the finished answer
    has; should the two ever differ, the finished answer counts. A stream that is closed, left by ``with`` or forgotten
    ends its model call at once.

    Attributes:
        text: What came so far.
        answer: The finished answer, once the stream has ended by itself.

    Example:
        >>> with router.stream("How many days of leave do I have?") as stream:
        ...     for piece in stream:
        ...         print(piece, end="")
        >>> print(stream.answer.citations)
    """

    def __init__(self, run: Callable[[StreamControl], Generator[str, None, Answer]]) -> None:
        self.text = ""
        self.answer: Answer | None = None
        self._control = StreamControl()
        self._pieces = run(self._control)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        if self._control.cancelled:
            raise StopIteration
        try:
            piece = next(self._pieces)
        except StopIteration as end:
            if end.value is not None:
                self.answer = end.value
            raise StopIteration from None
        self.text += piece
        return piece

    @property
    def nodes(self) -> Sequence[NodeWithScore]:
        """What was retrieved, best first; empty before the first piece."""
        return self._control.nodes

    @property
    def route(self) -> RouteDecision | None:
        """The decision; ``None`` before the first piece."""
        return self._control.route

    def finish(self) -> Answer | None:
        """Read the rest and return the finished answer; ``None`` if the stream was closed before."""
        for _ in self:
            pass
        return self.answer

    def close(self) -> None:
        """Give the answer up; harmless at any time, more than once and from any thread."""
        self._control.cancel()
        try:
            self._pieces.close()
        except ValueError:  # another thread waits in it, and has just been woken
            return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncAnswerStream(AsyncPieces):
    """The twin of :class:`AnswerStream` for ``async for`` and ``async with``; the event loop is never blocked."""

    def __init__(self, stream: AnswerStream, caller: DeadlineCaller) -> None:
        super().__init__(stream, caller)
        self._answers = stream

    @property
    def answer(self) -> Answer | None:
        """The finished answer, once the stream has ended by itself."""
        return self._answers.answer

    @property
    def nodes(self) -> Sequence[NodeWithScore]:
        """What was retrieved, best first; empty before the first piece."""
        return self._answers.nodes

    @property
    def route(self) -> RouteDecision | None:
        """The decision; ``None`` before the first piece."""
        return self._answers.route
