"""What the history keeps of one query, and where: values alone, so that nothing here loads SQLAlchemy."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from typing_extensions import Self

from agentic_retriever.config import Secret, host_and_port
from agentic_retriever.errors import ConfigError
from agentic_retriever.schema import Answer, Degradation, Record, RouteDecision, Tier, TierUsage, frozen


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


_POSTGRES = ("postgresql", "postgres", "postgresql+psycopg")
_ALLOWED = "use a file, sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a history is kept: a SQLite file, or a PostgreSQL database by its URL; shown without its secrets."""

    path: Path | None = None  # None for a server
    url: Secret = field(default_factory=Secret)
    secrets: tuple[Secret, ...] = ()  # the longest first, so that one that is part of another does not spoil it

    @classmethod
    def of(cls, place: str | Path | Secret) -> Self:
        """Read where a history is to be kept."""
        if isinstance(place, Path):
            return cls(path=place)
        text = place.reveal() if isinstance(place, Secret) else place
        scheme, separator, rest = text.partition("://")
        scheme = scheme.lower()
        if not separator:
            if not text.strip() or ":" in text or "@" in text:
                raise ConfigError(f"the place of the query history is neither a file nor a URL; {_ALLOWED}")
            return cls(path=Path(text))
        if scheme == "sqlite":
            if not rest.startswith("/") or rest in {"/", "/:memory:"} or "?" in rest:
                raise ConfigError("the query history needs a SQLite file, without options; write sqlite:///FILE")
            return cls(path=Path(rest[1:]))
        if scheme not in _POSTGRES:
            kind = scheme if scheme.replace("+", "").isalnum() and len(scheme) <= 30 else "of this kind"
            raise ConfigError(f"the query history cannot be kept in a database {kind}; {_ALLOWED}")
        url = f"postgresql+psycopg://{rest}"
        return cls(url=Secret(url), secrets=_secrets_in(url))

    def __str__(self) -> str:
        if self.path is not None:
            return str(self.path)
        parts = urlsplit(self.url.reveal())
        return f"postgresql://{host_and_port(parts.hostname or 'localhost', parts.port)}{parts.path}"

    def redacted(self, text: str) -> str:
        """Return a text with every secret of the URL starred out."""
        for secret in self.secrets:
            text = text.replace(secret.reveal(), "********")
        return text


def _secrets_in(url: str) -> tuple[Secret, ...]:
    """Find the passwords in a URL, as they are written and as they are meant; one that may be misread is refused."""
    try:
        parts = urlsplit(url)
        # An unescaped @, / or : of a password would end up in the host, the port or the database, which are shown.
        misread = "@" in parts.path or "@" in parts.query or "@" in parts.netloc.rpartition("@")[0] or parts.port == 0
    except ValueError:
        misread = True
    if misread or "#" in url:
        # No cause: what urlsplit says repeats parts of the URL.
        raise ConfigError(
            "the URL of the query history cannot be read; percent-encode special characters of the password, "
            "such as %40 for @ and %2F for /"
        ) from None
    options = [pair.partition("=") for pair in parts.query.split("&")]
    raw = [parts.password or "", *(value for name, _, value in options if "pass" in name.lower())]
    spellings = {spelling for text in raw for spelling in (text, unquote(text)) if spelling}
    return tuple(Secret(text) for text in sorted(spellings, key=lambda text: (-len(text), text)))
