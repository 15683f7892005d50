"""What the history keeps of one query."""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import re
import unicodedata
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy.types import TypeDecorator

from agentic_retriever.schema import Degradation, Record, Tier, TierUsage, frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sqlalchemy.engine import Dialect

    from agentic_retriever.schema import Answer, RouteDecision


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry(Record):
    """One query as the history keeps it; made by :func:`entry_of`, read back by ``QueryLog.recent``."""

    query: str = field(default="", repr=False)
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "timings_ms", frozen(self.timings_ms))

    @property
    def llm_calls(self) -> int:
        """Model calls of all tiers."""
        return sum(used.calls for used in self.spent)

    @property
    def cloud_calls(self) -> int:
        """Model calls of the cloud tier; at least 1 when it wrote the answer."""
        counted = sum(used.calls for used in self.spent if used.tier is Tier.CLOUD)
        return max(counted, int(self.tier == Tier.CLOUD.value and not self.cached))

    @property
    def prompt_tokens(self) -> int:
        """Tokens sent to models."""
        return sum(used.prompt_tokens for used in self.spent)

    @property
    def completion_tokens(self) -> int:
        """Tokens that models wrote."""
        return sum(used.completion_tokens for used in self.spent)

    @property
    def usd(self) -> float:
        """Money spent on models."""
        return math.fsum(used.usd for used in self.spent)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            **self.fields_to_dict(),
            "recorded_at": None if self.recorded_at is None else self.recorded_at.isoformat(),
            "llm_calls": self.llm_calls,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "usd": self.usd,
        }


def entry_of(
    answer: Answer | None,
    *,
    error: BaseException | None = None,
    query: str = "",
    query_id: str = "",
    route: RouteDecision | None = None,
    timings_ms: Mapping[str, float] | None = None,
    cloud_only_usd: float | None = None,
) -> LogEntry:
    """Make the entry of one query."""
    route = answer.route if route is None and answer is not None else route
    timings = (answer.timings_ms if answer is not None else {}) if timings_ms is None else timings_ms
    return LogEntry(
        query=query or ("" if route is None else route.query),
        query_id=query_id or ("" if answer is None else answer.query_id),
        timings_ms={step: float(ms) for step, ms in timings.items() if math.isfinite(ms)},
        cloud_only_usd=_finite(cloud_only_usd),
        error="" if error is None else type(error).__name__,
        **_of_route(route),
        **_of_answer(answer, () if route is None else route.degraded),
    )


def _of_route(route: RouteDecision | None) -> dict[str, Any]:
    if route is None:
        return {}
    return {
        "complexity": route.complexity.value,
        "complexity_score": _finite(route.complexity_score),
        "index": route.index.name,
        "indexes": tuple(route.index.names),
        "index_mode": route.index.mode,
        "index_confidence": _finite(route.index.confidence),
        "strategy": route.strategy.name,
        "strategy_mode": route.strategy.mode,
        "strategy_confidence": _finite(route.strategy.confidence),
    }


def _of_answer(answer: Answer | None, lost_in_routing: Iterable[Degradation]) -> dict[str, Any]:
    if answer is None:
        return {"degraded": tuple(lost_in_routing)}
    return {
        "tier": answer.tier.value,
        "cached": answer.cached,
        # A cached answer still carries what its first computation cost; this query paid nothing.
        "spent": () if answer.cached else tuple(answer.usage.tiers),
        "citations": len(answer.citations),
        "confidence": _finite(answer.confidence.score),
        "confidence_level": answer.confidence.level.value,
        "degraded": tuple(answer.degraded),
    }


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


# The tables of the history, and how an entry becomes a row and a row an entry.

#: Raised by one whenever a column changes its meaning; columns are never reused.
SCHEMA_VERSION: Final = 1
#: Longer questions are cut to this many characters, so that one cannot fill the disk.
MAX_TEXT_CHARS: Final = 4_000
_MAX_NAME_CHARS: Final = 400
#: The steps that every version times have a column each; any other is kept in ``other_ms``.
STEPS: Final = ("total", "routing", "embedding", "retrieval", "rerank", "synthesis", "llm")
# What PostgreSQL refuses in a text: NUL, and halves of surrogate pairs, which SQLite's driver refuses as well.
_UNSTORABLE_RE: Final = re.compile("[\x00\ud800-\udfff]")


class UtcTime(TypeDecorator[datetime]):
    """A moment in UTC, aware in Python on every database."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Bring an aware moment to UTC; SQLite keeps it without its zone."""
        if value is None:
            return None
        utc = value.astimezone(timezone.utc)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - SQLAlchemy's signature
        """Return an aware moment in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value.astimezone(timezone.utc)


METADATA: Final = sa.MetaData()

META: Final = sa.Table(
    "agentic_retriever_meta",
    METADATA,
    sa.Column("name", sa.String(40), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)

QUERIES: Final = sa.Table(
    "agentic_retriever_queries",
    METADATA,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    # Given before the row is written, so that writing it again after a lost confirmation is noticed.
    sa.Column("entry_id", sa.String(32), nullable=False, unique=True),
    sa.Column("query_id", sa.Text, nullable=False),
    sa.Column("recorded_at", UtcTime, nullable=False, index=True),
    sa.Column("query_text", sa.Text),
    sa.Column("query_hash", sa.String(64)),
    sa.Column("complexity", sa.Text, nullable=False),
    sa.Column("complexity_score", sa.Double),
    sa.Column("index_name", sa.Text, nullable=False),
    sa.Column("index_names", sa.Text, nullable=False),
    sa.Column("index_mode", sa.Text, nullable=False),
    sa.Column("index_confidence", sa.Double),
    sa.Column("strategy", sa.Text, nullable=False),
    sa.Column("strategy_mode", sa.Text, nullable=False),
    sa.Column("strategy_confidence", sa.Double),
    sa.Column("tier", sa.Text, nullable=False),
    sa.Column("cached", sa.Boolean, nullable=False),
    sa.Column("llm_calls", sa.BigInteger, nullable=False),
    sa.Column("cloud_calls", sa.BigInteger, nullable=False),
    sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
    sa.Column("completion_tokens", sa.BigInteger, nullable=False),
    sa.Column("usd", sa.Double, nullable=False),
    sa.Column("cloud_only_usd", sa.Double),
    sa.Column("spent", sa.Text),
    sa.Column("citations", sa.BigInteger, nullable=False),
    sa.Column("confidence", sa.Double),
    sa.Column("confidence_level", sa.Text, nullable=False),
    # The steps alone, so that the database can count equal ones; and each with its reason and fallback.
    sa.Column("degraded_steps", sa.Text),
    sa.Column("degraded", sa.Text),
    sa.Column("error", sa.Text, nullable=False),
    *(sa.Column(f"{step}_ms", sa.Double) for step in STEPS),
    sa.Column("other_ms", sa.Text),
)


def hash_of(query: str, salt: bytes) -> str:
    """Return what stands for a question: 64 hexadecimal digits, alike for spellings that differ in case or spaces.

    The hash is keyed (HMAC-SHA-256, RFC 2104), so the same question has another hash in every database.
    """
    plain = " ".join(unicodedata.normalize("NFKC", query).casefold().split())
    return hmac.new(salt, plain.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def row_of(entry: LogEntry, *, text: str, salt: bytes) -> dict[str, Any]:
    """Return the columns of an entry."""
    row: dict[str, Any] = {
        "entry_id": entry.entry_id,
        "query_id": _storable(entry.query_id, _MAX_NAME_CHARS),
        "recorded_at": entry.recorded_at,
        "query_text": _storable(entry.query, MAX_TEXT_CHARS) if text == "plain" else None,
        "query_hash": hash_of(entry.query, salt) if text == "hashed" and entry.query else None,
        "index_name": _storable(entry.index, _MAX_NAME_CHARS),
        "index_names": _json([_storable(name, _MAX_NAME_CHARS) for name in entry.indexes]),
        "spent": _json([used.to_dict() for used in entry.spent]) if entry.spent else None,
        **_degraded_columns(entry.degraded, with_reasons=text == "plain"),
    }
    row |= {f"{step}_ms": entry.timings_ms.get(step) for step in STEPS}
    other = {step: ms for step, ms in entry.timings_ms.items() if step not in STEPS}
    row["other_ms"] = _json(other) if other else None
    for name in ("complexity", "index_mode", "strategy", "strategy_mode", "tier", "confidence_level", "error"):
        row[name] = _storable(getattr(entry, name), _MAX_NAME_CHARS)
    for name in _AS_THEY_ARE:
        row[name] = getattr(entry, name)
    return row


_AS_THEY_ARE: Final = (
    "complexity_score", "index_confidence", "strategy_confidence", "cached", "llm_calls", "cloud_calls",
    "prompt_tokens", "completion_tokens", "usd", "cloud_only_usd", "citations", "confidence",
)  # fmt: skip


def _degraded_columns(degraded: tuple[Degradation, ...], *, with_reasons: bool) -> dict[str, str | None]:
    if not degraded:
        return {"degraded_steps": None, "degraded": None}
    shown = [lost if with_reasons else Degradation(step=lost.step, reason="", fallback="") for lost in degraded]
    cleaned = [{name: _storable(text, _MAX_NAME_CHARS) for name, text in lost.to_dict().items()} for lost in shown]
    return {"degraded_steps": _json(sorted({lost["step"] for lost in cleaned})), "degraded": _json(cleaned)}


def entry_from(row: Mapping[str, Any]) -> LogEntry:
    """Return the entry that a row was made of, as far as it was kept."""
    timings = {step: row[f"{step}_ms"] for step in STEPS if row[f"{step}_ms"] is not None}
    return LogEntry(
        query=row["query_text"] or "",
        query_hash=row["query_hash"] or "",
        index=row["index_name"],
        indexes=tuple(json.loads(row["index_names"])),
        timings_ms={**timings, **json.loads(row["other_ms"] or "{}")},
        spent=tuple(TierUsage(**{**used, "tier": Tier(used["tier"])}) for used in json.loads(row["spent"] or "[]")),
        degraded=tuple(Degradation(**lost) for lost in json.loads(row["degraded"] or "[]")),
        **{name: row[name] for name in _SAME},
    )


_SAME: Final = (
    "entry_id", "query_id", "recorded_at", "complexity", "complexity_score", "index_mode", "index_confidence",
    "strategy", "strategy_mode", "strategy_confidence", "tier", "cached", "cloud_only_usd", "citations", "confidence",
    "confidence_level", "error",
)  # fmt: skip


def _storable(text: str, limit: int) -> str:
    return _UNSTORABLE_RE.sub("\ufffd", text[:limit])


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))
