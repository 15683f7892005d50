"""The frozen values that pass from hop to hop of one query, on one page.

``query: str`` goes in; routing yields a :class:`RouteDecision` (two :class:`Selection` values and a complexity),
retrieval a :class:`Retrieval`, synthesis an :class:`Answer` with :class:`Citation` values. Every mapping held here is
read-only, every sequence a tuple; every value turns into plain JSON types with ``to_dict()`` and is read, checked by
pydantic, with ``from_dict()``. They are plain dataclasses, as a query makes dozens of them from checked parts and the
answer cache copies one for each caller: pydantic's own classes would check all of that again.
"""

import copyreg
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from pydantic import BeforeValidator, TypeAdapter, ValidationError
from typing_extensions import Self

from agentic_retriever.errors import ConfigError, InvalidQueryError, RoutingError
from agentic_retriever.show import drawn_by

if TYPE_CHECKING:
    from llama_index.core.schema import NodeWithScore
else:
    NodeWithScore = Any  # this page is to load without LlamaIndex

V = TypeVar("V")

FORMAT = 1  # of decision records; changes when those of before can no longer be read
_TOLERANCE = 1e-6
_READERS: dict[type, TypeAdapter[Any]] = {}
_ATOMS = frozenset({str, float, int, bool, type(None)})


def frozen(mapping: Mapping[str, V]) -> MappingProxyType[str, V]:
    """Copy a mapping into a read-only view, so that a frozen value stays frozen."""
    return MappingProxyType(dict(mapping))


copyreg.pickle(MappingProxyType, lambda view: (frozen, (dict(view),)))  # so that values pickle and copy


class Record:
    """Base of values that become JSON and are read from it; what is not written is no field."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON types."""
        names: tuple[str, ...] = self.__slots__
        given = ((name, getattr(self, name)) for name in names)
        return {name: found if type(found) in _ATOMS else _plain(found) for name, found in given}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote; ``ValueError`` if it is something else."""
        return _read(cls, data)


def _read(kind: type[V], data: Mapping[str, Any]) -> V:
    reader: TypeAdapter[V] = _READERS.get(kind) or _READERS.setdefault(kind, TypeAdapter(kind))
    return reader.validate_python(data)


def _plain(value: Any) -> Any:  # noqa: ANN401 - any field
    """Turn a field into JSON types by hand: pydantic refuses a lone surrogate, which questions may hold."""
    if isinstance(value, (MappingProxyType, dict)):
        return {key: inner if type(inner) in _ATOMS else _plain(inner) for key, inner in value.items()}
    if isinstance(value, (tuple, list)):
        return [inner if type(inner) in _ATOMS else _plain(inner) for inner in value]
    if isinstance(value, Enum):
        return value.value
    return value.to_dict() if isinstance(value, Record) else value


# What may be asked

MAX_QUERY_CHARS = 20_000
MAX_TOP_K = 10_000


def check_query(query: object) -> str:
    """Return the question if it can be searched for."""
    if not isinstance(query, str):
        raise InvalidQueryError(f"the question must be a str, got {type(query).__name__}")
    if not query.strip():
        raise InvalidQueryError("the question is blank; pass some text")
    if len(query) > MAX_QUERY_CHARS:
        raise InvalidQueryError(
            f"the question has {len(query):,} characters, at most {MAX_QUERY_CHARS:,} are allowed; shorten it"
        )
    return query


MAX_EXAMINED: Final = 2_000  # characters of a question that routing looks at and that are embedded


def examined(query: str) -> str:
    """Return the telling part of a question: all of it, or both ends of a long one, where what is asked stands."""
    half = MAX_EXAMINED // 2
    return query if len(query) <= MAX_EXAMINED else f"{query[:half]}\n{query[-half:]}"


def check_top_k(top_k: object, *, maximum: int = MAX_TOP_K) -> int:
    """Return ``top_k`` if it is a usable number of nodes."""
    if isinstance(top_k, bool) or not isinstance(top_k, int):
        raise InvalidQueryError(
            f"top_k must be an int from 1 to {maximum:,}, got {type(top_k).__name__} {str(top_k)[:40]!r}"
        )
    if not 1 <= top_k <= maximum:
        raise InvalidQueryError(f"top_k must be from 1 to {maximum:,}, got {str(top_k)[:40]}")
    return top_k


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn(Record):
    """A question of a conversation, and what was answered."""

    query: str
    answer: str = ""
    understood_as: str = ""  # the question written out, where it was a follow-up and this is known


# What a query may spend, and what it spent


class Tier(str, Enum):
    """Who wrote an answer: a model tier by its role, the extractor, or nobody since nothing was found."""

    PRIMARY = "primary"
    CLOUD = "cloud"
    SMALL = "small"
    EXTRACTIVE = "extractive"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class TierUsage(Record):
    """What one model tier was asked for one answer; tokens are counts, money is USD."""

    tier: Tier
    model: str
    calls: int
    prompt_tokens: int
    completion_tokens: int
    usd: float = 0.0


def _usage_rows(tiers: object) -> object:
    """Take the rows of what :meth:`Usage.to_dict` wrote, by tier."""
    return list(tiers.values()) if isinstance(tiers, Mapping) else tiers


@dataclass(frozen=True, slots=True)
class Usage(Record):
    """Tokens and money of one answer, per tier."""

    tiers: Annotated[tuple[TierUsage, ...], BeforeValidator(_usage_rows)] = ()

    @classmethod
    def of(cls, spent: Sequence[TierUsage]) -> "Usage":
        """Add up several usages, those of one tier and model together, in order of first use."""
        sums: dict[tuple[Tier, str], TierUsage] = {}
        for one in spent:
            known = sums.get((one.tier, one.model))
            counts = () if known is None else ("calls", "prompt_tokens", "completion_tokens", "usd")
            added = {name: getattr(known, name) + getattr(one, name) for name in counts}
            sums[one.tier, one.model] = replace(one, **added)
        return cls(tuple(sums.values()))

    @property
    def llm_calls(self) -> int:
        """Model calls in all."""
        return sum(one.calls for one in self.tiers)

    @property
    def usd(self) -> float:
        """Money in all, in USD."""
        return sum(one.usd for one in self.tiers)

    def to_dict(self) -> dict[str, Any]:
        """Return totals, and the tiers below ``tiers``."""
        return {
            "llm_calls": self.llm_calls,
            "prompt_tokens": sum(one.prompt_tokens for one in self.tiers),
            "completion_tokens": sum(one.completion_tokens for one in self.tiers),
            "usd": self.usd,
            "tiers": {one.tier.value: one.to_dict() for one in self.tiers},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What one query may spend, or a step of it with what is left; what is ``None`` has no limit of its own.

    Attributes:
        max_ms: Milliseconds for the whole query, above 0; the configured deadline holds besides.
        max_usd: Money for model calls, from 0, in USD; 0 means that only models without a price are asked.
        max_llm_calls: Model calls, routing and answer together; 0 means the extractive answer.

    Raises:
        ConfigError: If a limit is no number in its range.
    """

    max_ms: float | None = None
    max_usd: float | None = None
    max_llm_calls: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("max_ms", "above 0"), ("max_usd", "from 0"), ("max_llm_calls", "from 0")):
            value = getattr(self, name)
            if value is None:
                continue
            whole = name != "max_llm_calls" or isinstance(value, int)
            usable = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and whole
            if not usable or value < 0 or (least == "above 0" and value == 0):
                kind = "a whole number" if name == "max_llm_calls" else "a number"
                raise ConfigError(f"budget {name} must be {kind} {least}, or None, got {str(value)[:40]!r}")

    def __str__(self) -> str:
        limits = [(name, getattr(self, name)) for name in ("max_llm_calls", "max_usd", "max_ms")]
        return ", ".join(f"{name}={value:g}" for name, value in limits if value is not None) or "no limit"

    @property
    def may_ask(self) -> bool:
        """Tell whether a model may be asked at all."""
        return self.max_llm_calls != 0

    @property
    def timeout_s(self) -> float | None:
        """Seconds, or ``None`` for the model's own limit."""
        return None if self.max_ms is None else self.max_ms / 1000

    def left(self, spent: Usage, left_ms: float) -> "Budget":
        """Return what remains after some use.

        Args:
            spent: What was used.
            left_ms: Milliseconds that are left.
        """
        calls, usd = self.max_llm_calls, self.max_usd
        return Budget(
            max_ms=left_ms,
            max_usd=None if usd is None else max(0.0, usd - spent.usd),
            max_llm_calls=None if calls is None else max(0, calls - spent.llm_calls),
        )

    def within(self, other: "Budget") -> "Budget":
        """Return the tighter of both limits, each for itself."""
        tighter = {}
        for name in self.__slots__:
            limits = [limit for one in (self, other) if (limit := getattr(one, name)) is not None]
            tighter[name] = min(limits, default=None)
        return Budget(**tighter)


NO_LIMITS = Budget()


class FailureKind(str, Enum):
    """Why a model call gave nothing usable; the value is what messages say."""

    TIMEOUT = "no answer in time"
    UNREACHABLE = "the server cannot be reached"
    AUTHENTICATION = "the key was refused"
    PAYMENT = "the account has no credit"
    NOT_FOUND = "the server does not have this model"
    BAD_REQUEST = "the request was refused"
    RATE_LIMITED = "too many requests"
    SERVER = "the server failed"
    OUTPUT = "the reply cannot be used"
    OVERLOADED = "too many calls under way"
    PAUSED = "left alone after failures"
    BUDGET = "not within the budget"
    TOO_LONG = "the prompt is too long for it"
    OTHER = "the call failed"


def _failure_named(name: object) -> object:
    """Find the kind of a failure by the name that is written for it; anything else is left to be refused."""
    return FailureKind.__members__.get(name.upper(), name) if type(name) is str else name


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt(Record):
    """One model that was tried for an answer."""

    tier: Tier
    model: str
    failure: Annotated[FailureKind | None, BeforeValidator(_failure_named)] = None  # ``None`` if it gave an answer
    seconds: float = 0.0  # wall-clock time, waits between requests included
    requests: int = 0  # 0 when it was left alone
    prompt_tokens: int = 0  # 0 when they are not known, as after a failure
    completion_tokens: int = 0  # likewise
    usd: float | None = 0.0  # ``None`` when the model's price is not known

    def __str__(self) -> str:
        said = "answered" if self.failure is None else self.failure.value
        asked = f"{self.seconds:.1f} s, {self.requests} request{'s' * (self.requests != 1)}"
        return f"{self.tier.value} model {self.model}: {said} ({asked})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types; ``failure`` is a name such as ``"timeout"`` or ``None``."""
        return {**Record.to_dict(self), "failure": None if self.failure is None else self.failure.name.lower()}


# What routing chooses among, and what it chose


class Strategy(str, Enum):
    """The seven ways to retrieve, in declared order of reliability, and those that a program adds.

    A strategy that :func:`strategy_named` added is found by its name, ``Strategy("recent")``, and has no place in the
    declared order: iteration gives the seven alone.
    """

    VECTOR = "vector"
    HYBRID = "hybrid"
    RECURSIVE = "recursive"
    CHUNK_DECOUPLING = "chunk_decoupling"
    PLANNER = "planner"
    METADATA = "metadata"
    SUMMARY = "summary"

    @classmethod
    def _missing_(cls, value: object) -> "Strategy | None":
        return _ADDED.get(value) if isinstance(value, str) else None

    @property
    def reliability(self) -> int:
        """Place in the declared order, from 0; strategies that were added stand behind the seven."""
        return _RELIABILITY.get(self.value, len(_RELIABILITY))


_ADDED: dict[str, Strategy] = {}
_RELIABILITY: dict[str, int] = {strategy.value: at for at, strategy in enumerate(Strategy)}


def strategy_named(name: str) -> Strategy:
    """Return the strategy of a name, adding it when there is none.

    Names only grow, so that a decision that names a strategy can be read as long as the process lives.
    """
    if name not in _RELIABILITY and name not in _ADDED:
        added = str.__new__(Strategy, name)
        added._name_, added._value_ = name.upper(), name
        _ADDED.setdefault(name, added)
    return Strategy(name)


class View(str, Enum):
    """A view of an index that strategies may need."""

    CHUNKS = "chunks"
    KEYWORD = "keyword"
    SUMMARY = "summary"
    HIERARCHY = "hierarchy"
    METADATA = "metadata"


class Complexity(str, Enum):
    """How hard a question is: one look-up, or several facts to combine."""

    SIMPLE = "simple"
    COMPLEX = "complex"


@dataclass(frozen=True, slots=True, kw_only=True)
class Degradation(Record):
    """One step that fell back to something lesser, and why."""

    step: str  # such as ``"hybrid.keyword"`` or ``"synthesis.llm"``
    reason: str  # what went wrong, one line without secrets
    fallback: str  # what was used instead


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection(Record):
    """What one routing stage chose, and how sure it is.

    Attributes:
        name: The first choice.
        names: All that were chosen, best first; several when the margin was small. Starts with ``name``.
        confidence: Probability of the first choice, in [0, 1].
        scores: A score for every candidate, best first; probabilities that sum to 1 unless the mode says otherwise.
        margin: Score of the first choice less that of the second, in [0, 1]; 1 with a single candidate.
        reason: One line for a person.
        mode: How it was chosen in the end, such as ``"profile"``, ``"heuristic"``, ``"llm"`` or ``"pinned"``.
        abstained: Whether no candidate is probable enough; ``name`` is then the nearest one all the same.
        escalated: Whether a model was asked because the evidence alone was not clear.
        evidence: What spoke for each candidate, by candidate and kind of evidence.
        degraded: What fell back on the way to the choice.
        spent: Model calls that it took.
    """

    name: str
    names: tuple[str, ...] = ()
    confidence: float
    scores: Mapping[str, float]
    margin: float
    reason: str
    mode: str
    abstained: bool = False
    escalated: bool = False
    evidence: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    degraded: tuple[Degradation, ...] = ()
    spent: tuple[TierUsage, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "scores", frozen(self.scores))
        object.__setattr__(self, "evidence", frozen({name: frozen(kinds) for name, kinds in self.evidence.items()}))
        object.__setattr__(self, "names", self.names or (self.name,))

    _repr_html_, _repr_pretty_ = drawn_by("selection.html", "selection")


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyCard:
    """What stage two knows about one strategy that an index can serve."""

    strategy: Strategy
    description: str  # when to use it, one line
    needs: tuple[View, ...]  # the views of the index that it reads
    cost: float  # relative work of one query; ``vector`` is 1
    typical_ms: float  # milliseconds: measured on this index, else on a small one
    quality: float | None = None  # measured mean nDCG@10 on this index, ``None`` when nothing was measured yet
    measured: bool = False  # whether ``typical_ms`` was measured on this index
    #: How much each signal of a query speaks for it, as logarithm of odds times the signal's strength; added to what
    #: the selector's own table says.
    signals: Mapping[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Difference(Record):
    """One value that differs between two decisions."""

    path: str  # such as ``"index.scores.handbook"``
    before: object  # ``None`` where it is not there
    after: object  # likewise

    def __str__(self) -> str:
        before, after = (
            "none" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
            for value in (self.before, self.after)
        )
        return f"{self.path}: {before} -> {after}"


@dataclass(frozen=True, slots=True)
class RouteDiff:
    """What changed between two decisions; false when nothing did."""

    differences: tuple[Difference, ...] = ()  # in the order of the record, the choices themselves first

    def __bool__(self) -> bool:
        return bool(self.differences)

    def __str__(self) -> str:
        return "\n".join(str(one) for one in self.differences) or "no difference"

    @property
    def same_choice(self) -> bool:
        """Whether indexes, strategy and complexity are the same, whatever the figures behind them."""
        choices = {"index.names", "index.abstained", "strategy.name", "complexity"}
        return not any(one.path in choices for one in self.differences)

    def to_dict(self) -> list[dict[str, object]]:
        """Return plain JSON types."""
        return [one.to_dict() for one in self.differences]

    _repr_html_, _repr_pretty_ = drawn_by("diff.html", "diff")


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteDecision(Record):
    """Which index and strategy a query goes to, with everything that was weighed.

    Attributes:
        query: The question as it was asked.
        understood_as: The question written out, where it was a follow-up in a conversation; else ``""``.
        index: Stage one.
        strategy: Stage two.
        complexity: Simple or complex.
        complexity_score: In [0, 1].
        complexity_reasons: What spoke for it, one short name each.
        features: The signals that stage two saw, by name; none where the caller named the strategy.
        timings_ms: Milliseconds by step (``embedding``, ``routing``, ``total``).
        degraded: Steps of routing that fell back, those of both stages included.
        withheld: Strategies that were not offered, and why.
        versions: Version of each index that stage one saw, by its name.
        among: The indexes that the caller named, where that were several.
    """

    query: str
    index: Selection
    strategy: Selection
    complexity: Complexity
    complexity_score: float
    complexity_reasons: tuple[str, ...] = ()
    features: Mapping[str, float] = field(default_factory=dict)
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    degraded: tuple[Degradation, ...] = ()
    withheld: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)
    among: tuple[str, ...] = ()
    understood_as: str = ""

    def __post_init__(self) -> None:
        for name in ("features", "timings_ms", "withheld", "versions"):
            object.__setattr__(self, name, frozen(getattr(self, name)))

    @property
    def usage(self) -> Usage:
        """What routing spent on models."""
        return Usage.of((*self.index.spent, *self.strategy.spent))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types: the choices flat, the whole of both stages below ``stages``."""
        record = Record.to_dict(self)
        stages = {name: record.pop(name) for name in ("index", "strategy")}
        flat = {"format": FORMAT, "query": self.query}
        for name, stage in stages.items():
            flat[name] = stage["name"]
            if name == "index":
                flat["indexes"] = list(stage["names"])
            flat[f"{name}_scores"], flat[f"{name}_confidence"] = dict(stage["scores"]), stage["confidence"]
        for name in ("complexity", "complexity_score", "complexity_reasons"):
            flat[name] = record.pop(name)
        return {**flat, "stages": stages, **record, "usage": self.usage.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read a record that :meth:`to_dict` wrote; ``RoutingError`` if it is no such record."""
        try:
            if data["format"] != FORMAT:
                raise RoutingError(f"the decision record has format {data['format']!r}, this version reads {FORMAT}")
            stages = {name: data["stages"][name] for name in ("index", "strategy")}
            return _read(cls, {**data, **stages})
        except ValidationError as err:
            first = err.errors(include_url=False)[0]
            raise _no_record(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from err
        except (KeyError, TypeError, AttributeError) as err:
            raise _no_record(f"{type(err).__name__}: {err}") from err

    def diff(self, other: "RouteDecision") -> RouteDiff:
        """Tell in what another, later decision differs from this one; times and money are left out."""
        return RouteDiff(tuple(_differences(_comparable(self), _comparable(other), "")))

    _repr_html_, _repr_pretty_ = drawn_by("decision.html", "decision")


def _no_record(problem: str) -> RoutingError:
    return RoutingError(f"this is no decision record ({problem[:100]}); pass what RouteDecision.to_dict() returned")


def _comparable(decision: RouteDecision) -> dict[str, Any]:
    kept = {name: value for name, value in Record.to_dict(decision).items() if name != "timings_ms"}
    for stage in ("index", "strategy"):
        kept[stage].pop("spent")
    first = ("query", "index", "strategy", "complexity", "complexity_score", "complexity_reasons", "features")
    return {name: kept[name] for name in (*first, "withheld", "versions", "degraded")}


def _differences(before: object, after: object, path: str) -> Iterator[Difference]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys((*before, *after)):
            yield from _differences(before.get(key), after.get(key), f"{path}.{key}" if path else str(key))
    elif isinstance(before, (int, float)) and isinstance(after, (int, float)):
        if not math.isclose(before, after, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
            yield Difference(path, before, after)
    elif before != after:
        yield Difference(path, before, after)


# What retrieval finds and synthesis answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried(Record):
    """One strategy that was run for a query."""

    strategy: Strategy
    confidence: float | None  # how well its nodes fit, in [0, 1]; ``None`` when no node was found by its vector
    nodes: int  # how many it found
    ms: float  # milliseconds


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

    _repr_html_, _repr_pretty_ = drawn_by("retrieval.html", "found")


_REFERENCE_CHARS: Final = 160


def pages_text(pages: Sequence[int]) -> str:
    if not pages:
        return ""
    return f"p. {pages[0]}" if len(pages) == 1 else f"p. {pages[0]}-{pages[-1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Citation(Record):
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
        page: Number of the page that the quote begins on, from 1, or ``None``.
        pages: The numbers of all pages that the quote stands on, in order.
        article: Number of the article of a law, or ``""``.
        source: Address or file that the document was read from, or ``""``.
        scores: What retrieval gave the node: ``final``, by which nodes are ordered, and what came before it where it is
            known, such as ``dense``, ``bm25`` and ``fused``; ``retrieved`` where a reranker's is the final one.
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
    pages: tuple[int, ...] = ()
    article: str = ""
    source: str = ""
    scores: Mapping[str, float] = field(default_factory=lambda: frozen({}))

    def __post_init__(self) -> None:
        object.__setattr__(self, "scores", frozen(self.scores))

    @property
    def place(self) -> str:
        """The pages as a reference list has them: ``"p. 3"``, ``"p. 3-4"``, or ``""``."""
        return pages_text(self.pages or ((self.page,) if self.page is not None else ()))

    @property
    def reference(self) -> str:
        """The citation as one line of a reference list, with the first 160 characters of the quote."""
        where = " › ".join(part for part in (self.title or self.doc_id, self.section) if part)
        page = f", {self.place}" if self.place else ""
        quote = " ".join(self.quote.split())
        short = quote if len(quote) <= _REFERENCE_CHARS else quote[: _REFERENCE_CHARS - 1].rstrip() + "…"
        return f"[{self.number}] {where}{page} ({self.doc_id}:{self.start}-{self.end}) “{short}”"


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceCheck(Record):
    """How one sentence of an answer stands against the passages that it cites.

    Attributes:
        start: Offset of its first character in the answer's text.
        end: Offset behind its last character, before its markers; equal to ``start`` for a sentence that was left out,
            which then is the place where it would stand.
        text: The sentence without markers: the answer's text between ``start`` and ``end`` unless it was left out.
        supported: Whether the cited passages say it.
        score: How well they support it, in [0, 1]; 1 for a verbatim sentence.
        citations: The numbers of its citations, in order of first use.
        problems: Why it is not supported, and what was put right, one short line in English each.
    """

    start: int
    end: int
    text: str
    supported: bool
    score: float
    citations: tuple[int, ...] = ()
    problems: tuple[str, ...] = ()


class ConfidenceLevel(str, Enum):
    """What a confidence score means for the reader."""

    HIGH = "high"
    NEEDS_REVIEW = "needs_review"
    NOT_FOUND = "not_found"


@dataclass(frozen=True, slots=True)
class Confidence(Record):
    """How far an answer can be trusted."""

    score: float  # in [0, 1]
    level: ConfidenceLevel  # ``not_found`` where nothing is answered, else ``high`` or ``needs_review``

    @classmethod
    def of(cls, score: float, *, answered: bool = True, high_from: float = 0.75) -> "Confidence":
        """Make one from a score, clipped to [0, 1]; a score that is not finite counts as 0."""
        clipped = min(1.0, max(0.0, score)) if not math.isnan(score) else 0.0
        if not answered:
            return cls(clipped, ConfidenceLevel.NOT_FOUND)
        return cls(clipped, ConfidenceLevel.HIGH if clipped >= high_from else ConfidenceLevel.NEEDS_REVIEW)

    def at_most(self, score: float) -> "Confidence":
        """Return it with a score that is no higher than another one, which is not ``high``."""
        if self.level is not ConfidenceLevel.HIGH and self.score <= score:
            return self
        level = ConfidenceLevel.NEEDS_REVIEW if self.level is ConfidenceLevel.HIGH else self.level
        return Confidence(min(self.score, score), level)


def _route_read(record: object) -> object:
    return RouteDecision.from_dict(record) if isinstance(record, Mapping) else record


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Record):
    """The answer to one query; ``str(answer)`` is its text.

    Attributes:
        text: The answer with inline ``[n]`` markers.
        citations: One for each number used, in order.
        confidence: Score and level.
        route: The decision record.
        nodes: What was retrieved, best first.
        tier: Who wrote it.
        usage: Tokens and money per tier.
        timings_ms: Milliseconds by step: ``routing``, ``embedding``, ``retrieval``, ``rerank``, ``synthesis`` (of
            which ``llm``), ``total``.
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
    route: Annotated[RouteDecision, BeforeValidator(_route_read)]
    nodes: tuple[NodeWithScore, ...]
    tier: Tier
    usage: Usage
    timings_ms: Mapping[str, float]
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

    @property
    def understood_as(self) -> str:
        """The question written out, where it was a follow-up in a conversation; else ``""``."""
        return self.route.understood_as

    @property
    def references(self) -> str:
        """The list of references, a line for each citation."""
        return "\n".join(citation.reference for citation in self.citations)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types; of the nodes their ids and scores."""
        nodes = [{"node_id": n.node.node_id, "doc_id": n.node.ref_doc_id, "score": n.score} for n in self.nodes]
        return {**Record.to_dict(self), "nodes": nodes}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote, without its nodes; ``ValueError`` if it is something else."""
        return _read(cls, {**data, "nodes": ()})

    _repr_html_, _repr_pretty_ = drawn_by("answer.html", "answer")
