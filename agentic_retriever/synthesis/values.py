"""What synthesis is given besides the nodes, and what it gives back."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from agentic_retriever.schema import (
    NO_LIMITS,
    Attempt,
    Budget,
    Citation,
    Confidence,
    Degradation,
    RouteDecision,
    SentenceCheck,
    Tier,
    Usage,
)

if TYPE_CHECKING:
    from llama_index.core.schema import NodeWithScore
    from numpy.typing import NDArray


class Closable(Protocol):
    """What can be ended from another thread, such as a stream of a model."""

    def close(self) -> None:
        """End it; harmless at any time."""


class StreamControl:
    """Lets another thread end a streamed answer while its reader waits for the next piece."""

    def __init__(self) -> None:
        self.nodes: tuple[NodeWithScore, ...] = ()
        self.route: RouteDecision | None = None
        self._lock = threading.RLock()
        self._open: Closable | None = None
        self.cancelled = False

    def watch(self, stream: Closable | None) -> None:
        """Set what is to be closed; closed at once if the answer was given up already."""
        with self._lock:
            self._open = stream
            if self.cancelled and stream is not None:
                stream.close()

    def found(self, nodes: tuple[NodeWithScore, ...], route: RouteDecision) -> None:
        """Set what was retrieved, before the first piece is shown."""
        self.nodes, self.route = nodes, route

    def cancel(self) -> None:
        """Give the answer up."""
        with self._lock:
            self.cancelled = True
            if self._open is not None:
                self._open.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What retrieval knows about the question besides the nodes."""

    relevance: float | None = None
    query_vector: Sequence[float] | NDArray[Any] | None = None
    unknown_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one answer may use."""

    max_chars: int = 8_000  # Most source text in a prompt, in characters
    max_passages: int | None = None  # Most passages in a prompt, or None for 5, and 10 for a complex question
    budget: Budget = NO_LIMITS
    force_cloud: bool = False
    timeout_s: float | None = None  # Seconds left for the model, or None for its own limit
    control: StreamControl | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthesis:
    """An answer before the router puts its record around it."""

    text: str
    tier: Tier  # Who wrote it; NONE for the message that nothing was found
    confidence: Confidence
    language: str  # ISO 639-1 code of the question
    citations: tuple[Citation, ...] = ()
    usage: Usage = field(default_factory=Usage)  # Failed calls included; their tokens are not known and count 0
    degraded: tuple[Degradation, ...] = ()
    llm_ms: float = 0.0  # Milliseconds spent on the model
    nodes_left_out: int = 0
    checks: tuple[SentenceCheck, ...] = ()
    attempts: tuple[Attempt, ...] = ()
