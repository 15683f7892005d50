"""What is known of documents and nodes, kept of a question and measured of these; nothing here loads SQLAlchemy."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from types import MappingProxyType
from typing import Any

from typing_extensions import Self

from agentic_retriever.schema import Answer, Citation, Degradation, Record, Tier, TierUsage, Usage, frozen
from agentic_retriever.show import Cell, Section, render, short_text


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


class DocumentStatus(str, Enum):
    """Where a document is in its life."""

    PENDING = "pending"  # waits for a worker
    PROCESSING = "processing"  # is read, cut and embedded
    INDEXED = "indexed"  # can be found
    FAILED = "failed"  # could not be processed; ``error_message`` says why
    INACTIVE = "inactive"  # was switched off, and is in no result


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentRecord(Record):
    """One document: what it is, where it is in its life, and what was found in it."""

    id: str  # UUID, 36 characters
    index: str  # Name of the index that it is in
    doc_id: str = ""  # What nodes and citations call it
    title: str  # Its title; the caller's, the document's own, or made of the file name
    document_type: str = ""  # Such as "circular"
    document_number: str = ""  # Such as "12/2024"
    filename: str = ""  # As the caller named it, without folders
    stored_filename: str = ""  # Of its bytes in the storage folder; empty for what was read where it lies
    file_hash: str = ""  # SHA-256 of the bytes, hexadecimal
    status: DocumentStatus  # Where it is in its life
    processing_progress: int = 0  # 0 to 100
    total_pages: int = 0  # Pages, where it has some
    total_chunks: int = 0  # Nodes in the index
    extraction_method: str = ""  # How its text was read
    tags: tuple[str, ...] = ()  # Words that it can be listed by
    metadata: Mapping[str, Any] = field(default_factory=dict)  # _origins tells where each comes from
    section_mappings: Mapping[str, str] = field(default_factory=dict)  # Titles of its main sections by their numbers
    version: int = 1  # Grows with each change of its nodes
    is_active: bool = True  # Whether it may be found
    error_message: str = ""  # Why it failed, or what of it could not be read
    created_at: datetime  # When it came, in UTC
    updated_at: datetime  # When it was last changed, in UTC

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON types, times in ISO 8601."""
        times = {name: getattr(self, name).isoformat() for name in ("created_at", "updated_at")}
        return Record.to_dict(self) | times


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord(Record):
    """One node of a document, at its ``position`` in it."""

    document_id: str
    position: int
    node_id: str
    content: str
    content_hash: str
    page_numbers: tuple[int, ...] = ()
    section_title: str = ""
    article_number: str = ""
    heading_hierarchy: tuple[str, ...] = ()
    char_count: int = 0
    token_count: int = 0
    chunk_type: str = ""


# The history of queries.


@dataclass(frozen=True, slots=True, kw_only=True)
class CitedNode(Record):
    """One citation of an answer as the history keeps it; ``scores`` is what retrieval gave the node."""

    number: int
    index: str
    doc_id: str
    node_id: str
    title: str
    section: str
    score: float
    scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback(Record):
    """What somebody thought of an answer: from 1 to 5, thumbs are 1 and 5."""

    rating: int
    comment: str
    user_id: str
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry(Record):
    """One query as the history keeps it; made by :func:`make_entry`, read back by ``QueryLog.list`` and ``get``."""

    query: str = field(default="", repr=False)
    understood_as: str = field(default="", repr=False)  # What a follow-up meant, where it was one
    query_id: str = ""
    entry_id: str = ""
    recorded_at: datetime | None = None  # When it was recorded, in UTC; None until then
    query_hash: str = ""
    complexity: str = ""
    complexity_score: float | None = None  # In [0, 1]
    index: str = ""
    indexes: tuple[str, ...] = ()
    index_mode: str = ""
    index_confidence: float | None = None  # In [0, 1]
    strategy: str = ""
    strategy_mode: str = ""
    strategy_confidence: float | None = None  # In [0, 1]
    tier: str = ""
    cached: bool = False
    timings_ms: Mapping[str, float] = field(default_factory=dict)  # Milliseconds by step, with total
    spent: tuple[TierUsage, ...] = ()
    cloud_only_usd: float | None = None
    citations: int = 0
    confidence: float | None = None  # In [0, 1]; None when there was no answer
    confidence_level: str = ""
    degraded: tuple[Degradation, ...] = ()
    error: str = ""
    user_id: str = ""
    conversation_id: str = ""
    answer_text: str | None = field(default=None, repr=False)  # None where no text is kept
    cited: tuple[CitedNode | Citation, ...] = ()  # Of one that is read back, cited nodes alone
    feedback: tuple[Feedback, ...] = ()  # The newest last

    def __post_init__(self) -> None:
        object.__setattr__(self, "timings_ms", frozen(self.timings_ms))

    @property
    def cloud_calls(self) -> int:
        """Model calls of the cloud tier; at least 1 when it wrote the answer."""
        counted = sum(used.calls for used in self.spent if used.tier is Tier.CLOUD)
        return max(counted, int(self.tier == Tier.CLOUD.value and not self.cached))

    def totals(self) -> dict[str, float]:
        """Model calls, tokens and money of all tiers."""
        return {name: total for name, total in Usage(self.spent).to_dict().items() if name != "tiers"}


def make_entry(
    answer: Answer | None,
    *,
    error: BaseException | None = None,
    query: str = "",
    query_id: str = "",
    timings_ms: Mapping[str, float] = MappingProxyType({}),
    cloud_only_usd: float | None = None,
    asker: Mapping[str, str] = MappingProxyType({}),
) -> LogEntry:
    """Make the entry of one query: of its answer, or of what is known where it failed."""
    timings_ms = timings_ms if answer is None else answer.timings_ms
    given: dict[str, Any] = {
        "timings_ms": {step: float(ms) for step, ms in timings_ms.items() if math.isfinite(ms)},
        "cloud_only_usd": _finite(cloud_only_usd),
        "user_id": asker.get("user_id", ""),
        "conversation_id": asker.get("conversation_id", ""),
    }
    if answer is None:
        return LogEntry(query=query, query_id=query_id, error="" if error is None else type(error).__name__, **given)
    route, index, strategy = answer.route, answer.route.index, answer.route.strategy
    return LogEntry(
        **given,
        query=route.query,
        understood_as=route.understood_as,
        query_id=answer.query_id,
        complexity=route.complexity.value,
        complexity_score=_finite(route.complexity_score),
        index=index.name,
        indexes=tuple(index.names),
        index_mode=f"{index.mode} of {', '.join(route.among)}" if route.among else index.mode,
        index_confidence=_finite(index.confidence),
        strategy=strategy.name,
        strategy_mode=strategy.mode,
        strategy_confidence=_finite(strategy.confidence),
        tier=answer.tier.value,
        cached=answer.cached,
        # A cached answer still carries what its first computation cost; this query paid nothing.
        spent=() if answer.cached else tuple(answer.usage.tiers),
        citations=len(answer.citations),
        confidence=_finite(answer.confidence.score),
        confidence_level=answer.confidence.level.value,
        degraded=tuple(answer.degraded),
        answer_text=answer.text,
        cited=answer.citations,
    )


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency(Record):
    """How long one step took, in milliseconds; percentiles are nearest-rank."""

    count: int
    mean_ms: float
    p50_ms: float
    p95_ms: float
    max_ms: float

    @classmethod
    def of(cls, ordered_ms: Sequence[float]) -> Self:
        """Measure times in ascending order; there must be one at least."""
        count = len(ordered_ms)
        return cls(
            count=count,
            mean_ms=math.fsum(ordered_ms) / count,
            p50_ms=nearest_rank(ordered_ms, 50),
            p95_ms=nearest_rank(ordered_ms, 95),
            max_ms=ordered_ms[-1],
        )


def nearest_rank(ordered: Sequence[float], percent: int) -> float:
    """Return the smallest value that at least ``percent`` of the values do not exceed."""
    # In whole numbers: 0.95 * 20 is a little more than 19.
    return ordered[(len(ordered) * percent + 99) // 100 - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteCount(Record):
    """How many queries went one way; index and strategy are ``""`` for those that failed before routing."""

    index: str
    strategy: str
    queries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Analytics(Record):
    """Counts, times and money over a period."""

    since: datetime | None = None  # Start of the period, included; None for the beginning of the history
    until: datetime | None = None  # End of the period, excluded; None for now
    first_at: datetime | None = None
    last_at: datetime | None = None
    queries: int = 0
    answered: int = 0
    simple: int = 0
    complex: int = 0
    cached: int = 0
    degraded: int = 0
    llm_calls: int = 0
    prompt_tokens: int = 0  # Tokens sent to models
    completion_tokens: int = 0  # Tokens that models wrote
    usd: float = 0.0
    cloud_only_usd: float | None = None
    compared_usd: float | None = None
    local: int = 0
    mean_confidence: float | None = None  # Mean confidence of the answers in [0, 1], None without any
    confidence_levels: Mapping[str, int] = field(default_factory=dict)
    latency_ms: Mapping[str, Latency] = field(default_factory=dict)
    timed: int = 0
    routes: tuple[RouteCount, ...] = ()
    tiers: Mapping[str, int] = field(default_factory=dict)
    fallbacks: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("confidence_levels", "latency_ms", "tiers", "fallbacks", "errors"):
            object.__setattr__(self, name, frozen(getattr(self, name)))

    @property
    def failed(self) -> int:
        return sum(self.errors.values())

    @property
    def cache_hit_rate(self) -> float | None:
        """Share of the queries without error that came from the cache, in [0, 1]; ``None`` without any."""
        return self.cached / (self.queries - self.failed) if self.queries > self.failed else None

    @property
    def local_share(self) -> float | None:
        """Share of the answered queries for which no cloud model was asked, in [0, 1]; ``None`` without any."""
        return self.local / self.answered if self.answered else None

    @property
    def saved_usd(self) -> float | None:
        """What was saved against sending every model call to the cloud; ``None`` if that is known for no query."""
        if self.cloud_only_usd is None or self.compared_usd is None:
            return None
        return self.cloud_only_usd - self.compared_usd

    def to_dict(self) -> dict[str, Any]:
        derived = ("failed", "cache_hit_rate", "local_share", "saved_usd")
        fields = Record.to_dict(self) | {name: getattr(self, name) for name in derived}
        return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in fields.items()}

    def tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        """Return what there is to show: title, headers and rows of each table that is not empty."""
        latency = [
            [step, f"{t.count:,}", *(f"{ms:,.1f}" for ms in (t.mean_ms, t.p50_ms, t.p95_ms, t.max_ms))]
            for step, t in self.latency_ms.items()
        ]
        routes = [[r.index or "none", r.strategy or "none", f"{r.queries:,}"] for r in self.routes]
        found = [
            ("queries", ["what", "value"], self._totals()),
            ("latency", ["step", "queries", "mean ms", "p50 ms", "p95 ms", "max ms"], latency),
            ("routes", ["index", "strategy", "queries"], routes),
            ("tiers", ["tier", "answers"], _counts(self.tiers)),
            ("confidence", ["level", "answers"], _counts(self.confidence_levels)),
            ("fallbacks", ["step", "queries"], _counts(self.fallbacks)),
            ("errors", ["kind", "queries"], _counts(self.errors)),
        ]
        return [table for table in found if table[2]]

    def _totals(self) -> list[list[str]]:
        rows = [
            ["period", f"{_day(self.since or self.first_at)} to {_day(self.until or self.last_at)}"],
            *([name, f"{getattr(self, name):,}"] for name in ("queries", "answered", "simple", "complex")),
            ["cache hit rate", _percent(self.cache_hit_rate)],
            *([name, f"{getattr(self, name):,}"] for name in ("degraded", "failed")),
            ["mean confidence", "none" if self.mean_confidence is None else f"{self.mean_confidence:.2f}"],
            ["model calls", f"{self.llm_calls:,}"],
            ["tokens in, out", f"{self.prompt_tokens:,}, {self.completion_tokens:,}"],
            ["usd", f"{self.usd:.4f}"],
            ["local share", _percent(self.local_share)],
        ]
        if self.saved_usd is not None:
            rows.append(["saved usd against cloud only", f"{self.saved_usd:.4f} of {self.cloud_only_usd:.4f}"])
        return rows

    def _repr_html_(self) -> str:
        return render("tables.html", tables=[self._table(*one) for one in self.tables()])

    _repr_pretty_ = short_text

    def _table(self, title: str, headers: list[str], rows: list[list[str]]) -> Section:
        """Return one table as it is drawn; counts by name get a bar each."""
        names = 2 if title == "routes" else 1
        if title in {"queries", "latency"}:
            return Section(title, headers, rows, names)
        most = max(self.queries, 1)
        shares = [int(row[-1].replace(",", "")) / most for row in rows]
        barred = [[*row, Cell(f"{share:.0%}", share=share)] for row, share in zip(rows, shares, strict=True)]
        return Section(title, [*headers, ""], barred, names)


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{share:.1%}"


def _day(moment: datetime | None) -> str:
    return "now" if moment is None else f"{moment:%Y-%m-%d %H:%M}"


def _counts(counts: Mapping[str, int]) -> list[list[str]]:
    return [[name, f"{count:,}"] for name, count in counts.items()]
