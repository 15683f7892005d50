"""What retrieval finds and synthesis answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from agentic_retriever.schema.draw_answer import draw_answer, draw_retrieval
from agentic_retriever.schema.markup import short_text
from agentic_retriever.schema.routing import Degradation, Strategy, frozen
from agentic_retriever.schema.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_index.core.schema import NodeWithScore

    from agentic_retriever.schema.attempts import Attempt
    from agentic_retriever.schema.checks_made import SentenceCheck
    from agentic_retriever.schema.decision import RouteDecision
    from agentic_retriever.schema.usage import Tier


class ConfidenceLevel(str, Enum):
    """What a confidence score means for the reader."""

    HIGH = "high"
    NEEDS_REVIEW = "needs_review"
    NOT_FOUND = "not_found"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One strategy that was run for a query.

    Attributes:
        strategy: Which one.
        confidence: How well its nodes fit the question, in [0, 1]; ``None`` when no node was found by its vector.
        nodes: How many it found.
        ms: How long it took, in milliseconds.
    """

    strategy: Strategy
    confidence: float | None
    nodes: int
    ms: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {"strategy": self.strategy.value, "confidence": self.confidence, "nodes": self.nodes, "ms": self.ms}


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrieval:
    """Nodes in order, and how they came about.

    Attributes:
        nodes: Best first, unique by node id, finite scores.
        strategy: The strategy that found them.
        indexes: The indexes that were searched.
        route: The decision behind it.
        degraded: Steps that fell back.
        understood: What the strategy read in the question, one line each, such as a filter.
        timings_ms: Milliseconds by step (``routing``, ``embedding``, ``retrieval``, ``total``).
        tried: The strategies that were run, in order: more than one where the first found nothing near.
        usage: What routing and retrieval spent on models.
    """

    nodes: tuple[NodeWithScore, ...]
    strategy: Strategy
    indexes: tuple[str, ...]
    route: RouteDecision
    degraded: tuple[Degradation, ...] = ()
    understood: tuple[str, ...] = ()
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    tried: tuple[Tried, ...] = ()
    usage: Usage = field(default_factory=Usage)

    def __post_init__(self) -> None:
        object.__setattr__(self, "timings_ms", frozen(self.timings_ms))

    def _repr_html_(self) -> str:
        """Draw the nodes in Jupyter: escaped, no assets, colours of the theme."""
        return draw_retrieval(self)

    _repr_pretty_ = short_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Citation:
    """A numbered piece of evidence.

    Attributes:
        number: The ``n`` of the ``[n]`` in the answer, from 1.
        doc_id: The source document.
        node_id: The node that was retrieved.
        start: First character of the quote in the source text.
        end: One past the last character of the quote in the source text.
        quote: Exactly the source text between ``start`` and ``end``.
        score: How well the quote supports its sentence, in [0, 1]; 1 for a verbatim sentence.
        index: The index that the node came from.
        title: Title of the document, or ``""``.
        section: Heading path, or ``""``.
        page: Page number from 1, or ``None``.
    """

    number: int
    doc_id: str
    node_id: str
    start: int
    end: int
    quote: str
    score: float
    index: str = ""
    title: str = ""
    section: str = ""
    page: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Confidence:
    """How far an answer can be trusted.

    Attributes:
        score: In [0, 1].
        level: ``high`` from 0.75, ``needs_review`` from 0.50, else ``not_found``.
    """

    score: float
    level: ConfidenceLevel

    @classmethod
    def of(cls, score: float) -> Confidence:
        """Make one from a score, clipped to [0, 1]; a score that is not finite counts as 0."""
        clipped = min(1.0, max(0.0, score)) if score == score else 0.0  # noqa: PLR0124 - NaN is the one value unequal to itself
        if clipped >= 0.75:
            return cls(clipped, ConfidenceLevel.HIGH)
        return cls(clipped, ConfidenceLevel.NEEDS_REVIEW if clipped >= 0.5 else ConfidenceLevel.NOT_FOUND)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to one query; ``str(answer)`` is its text.

    Attributes:
        text: The answer with inline ``[n]`` markers.
        citations: One for each number used, in order.
        confidence: Score and level.
        route: The decision record.
        nodes: What was retrieved, best first.
        usage: Tokens and money per tier.
        timings_ms: Milliseconds by step: ``routing``, ``embedding``, ``retrieval``, ``rerank``, ``synthesis`` (of
            which ``llm``), ``total``.
        tier: Who wrote it.
        cached: Whether it came from the answer cache.
        degraded: What fell back, and why.
        query_id: Unique for this call.
        understood: What the strategy read in the question, one line each, such as a filter.
        tried: The strategies that were run, in order: more than one where the first found nothing near.
        checks: How each sentence stands against what it cites; empty when nothing was found.
        attempts: The models that were asked for the text, in order, with what became of each.
        nodes_left_out: How many of the nodes a model did not get to read, for want of room in its prompt or since they
            say what a better one says.
    """

    text: str
    citations: tuple[Citation, ...]
    confidence: Confidence
    route: RouteDecision
    nodes: tuple[NodeWithScore, ...]
    usage: Usage
    timings_ms: Mapping[str, float]
    tier: Tier
    cached: bool
    degraded: tuple[Degradation, ...]
    query_id: str
    understood: tuple[str, ...] = ()
    tried: tuple[Tried, ...] = ()
    checks: tuple[SentenceCheck, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    nodes_left_out: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "timings_ms", frozen(self.timings_ms))

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "text": self.text,
            "citations": [c.to_dict() for c in self.citations],
            "confidence": {"score": self.confidence.score, "level": self.confidence.level.value},
            "route": self.route.to_dict(),
            "nodes": [{"node_id": n.node.node_id, "doc_id": n.node.ref_doc_id, "score": n.score} for n in self.nodes],
            "tier": self.tier.value,
            "usage": self.usage.to_dict(),
            "timings_ms": dict(self.timings_ms),
            "cached": self.cached,
            "degraded": [d.to_dict() for d in self.degraded],
            "query_id": self.query_id,
            "understood": list(self.understood),
            "tried": [one.to_dict() for one in self.tried],
            "checks": [check.to_dict() for check in self.checks],
            "attempts": [attempt.to_dict() for attempt in self.attempts],
            "nodes_left_out": self.nodes_left_out,
        }

    def _repr_html_(self) -> str:
        """Draw the answer in Jupyter: escaped, no assets, colours of the theme."""
        return draw_answer(self)

    _repr_pretty_ = short_text
