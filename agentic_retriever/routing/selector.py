"""Stage two: which strategy to search with."""

from __future__ import annotations

import math
import re
import threading
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ValidationError
from typing_extensions import override

from agentic_retriever.errors import ConfigError, NoEligibleStrategyError
from agentic_retriever.indices.profile import IndexProfile
from agentic_retriever.routing import signals
from agentic_retriever.routing.signals import Runs, query_terms, softmax, value_hits
from agentic_retriever.schema import NO_LIMITS, Budget, Selection, Strategy, StrategyCard, examined
from agentic_retriever.text import Tokenizer, detect_language
from agentic_retriever.text.language_files import packaged_json
from agentic_retriever.understanding.references import asked_parts

# Signals in a query that tell which strategy suits it, each in [0, 1], in the order in which they are returned.

FEATURES: Final = (
    "metadata_values", "codes", "quoted", "references", "numbered", "titled", "acronyms", "rare_terms", "range",
    "comparison", "analysis", "several_questions", "overview", "documents", "procedure", "whole", "detail", "listing",
    "domain_terms", "length", "complexity",
)  # fmt: skip

# One field named may be chance ("policy" in a question about policies), two hardly are.
_BY_FIELDS: Final = (0.0, 0.35, 0.8, 1.0)
_BY_QUESTIONS: Final = (0.0, 0.0, 0.7, 1.0)
_BY_CODES: Final = (0.0, 0.9, 1.0)
_FULL_LENGTH: Final = 300
_RARE_SHARE: Final = 0.02
_MIN_RARE: Final = 2

_QUOTED: Final = re.compile(r"\"[^\"\s][^\"]{0,200}\"|«[^»]{1,200}»|“[^”]{1,200}”|„[^“”]{1,200}[“”]|「[^」]{1,200}」")
_TOKEN: Final = re.compile(r"[^\s\"'«»“”„()\[\]¿?¡!,;:<>]{2,40}")
_EDGES: Final = ".-_/…"
# E42, NS-3, 3A-20000, RD-750/2010; letters of other scripts need a separator, for their words touch numbers freely.
_LATIN_CODE: Final = re.compile(r"[A-Za-z]{1,12}[-./]?[0-9][\w./-]*|[0-9]{1,12}[A-Za-z]{1,6}[-./][0-9][\w./-]*")
_OTHER_CODE: Final = re.compile(r"(?:[^\W\d_]{1,5}[-.]){1,6}[0-9][\w./-]*")
_DOTTED: Final = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,4}){2,6}")
_LONG_NUMBER: Final = re.compile(r"[0-9]{5,18}")
_IDENTIFIER: Final = re.compile(r"[A-Za-z]\w*_\w+|[a-z]+[A-Z]\w*|[A-Za-z]{1,12}(?:\+\+|#)|[A-Z]{2,8}/[A-Z]{2,8}")
_ACRONYM: Final = re.compile(r"(?<![\w])[A-Z]{2,6}(?![\w])")
_YEAR: Final = re.compile(r"(?<![\w.,])[12][0-9]{3}(?![\w]|[.,][0-9])")
_FIRST_YEAR, _LAST_YEAR = 1000, 2999


def query_features(
    query: str, profile: IndexProfile | None, complexity_score: float, *, domain_terms: DomainTerms | None = None
) -> Mapping[str, float]:
    raw, read = unicodedata.normalize("NFKC", examined(query)), signals.read_query(query)
    text, tables = read.text, read.tables
    found = {name: float(any(table.matches(name, text) for table in tables)) for name in signals.WORDED}
    stated = (match.groupdict() for table in tables for match in table.cues.found("range", text))
    bounds = ((_number(groups.get("low")), _number(groups.get("high"))) for groups in stated)
    ranges = [[end for end in ends if end is not None] for ends in bounds]
    # Codes, versions, section numbers and identifiers; not words, amounts and measures.
    of_codes = (_LATIN_CODE, _OTHER_CODE, _DOTTED, _LONG_NUMBER, _IDENTIFIER)
    tokens = {match[0].strip(_EDGES) for match in _TOKEN.finditer(raw)}
    codes = [token for token in tokens if any(pattern.fullmatch(token) for pattern in of_codes)]
    language = profile.language if profile else detect_language(query)
    terms = query_terms(query, language) if profile or domain_terms else ()
    found |= {
        "metadata_values": _graded(_BY_FIELDS, _fields_named(profile, terms, raw, ranges) if profile else 0),
        "codes": _graded(_BY_CODES, len(codes)),
        "quoted": float(_QUOTED.search(raw) is not None),
        "numbered": float(bool(asked_parts(query))),
        "titled": 0.0,  # which only the index can tell
        "acronyms": float(not raw.isupper() and _ACRONYM.search(raw) is not None),
        "rare_terms": _rare_share(profile, terms) if profile else 0.0,
        "range": float(bool(ranges)),
        "domain_terms": domain_terms.strength(terms, language) if domain_terms else 0.0,
        "several_questions": _graded(_BY_QUESTIONS, read.questions),
        "length": min(1.0, len(query.strip()) / _FULL_LENGTH),
        "complexity": min(1.0, max(0.0, complexity_score)),
    }
    return {name: found[name] for name in FEATURES}


def _graded(grades: Sequence[float], count: int) -> float:
    return grades[min(count, len(grades) - 1)]


def _number(digits: str | None) -> float | None:
    """Read a number whose separators may mean either; only its magnitude matters here."""
    if not digits:
        return None
    whole = re.split(r"[.,](?![0-9]{3}(?![0-9]))", digits, maxsplit=1)[0]
    plain = re.sub(r"[^0-9]", "", whole)
    return float(plain) if plain.isascii() and plain else None


def _fields_named(profile: IndexProfile, terms: Sequence[str], raw: str, ranges: Sequence[Sequence[float]]) -> int:
    """Count the metadata fields that the query restricts: by a value, by a year, by a numeric range."""
    fields = {hit.field for hit in value_hits(profile, terms)}
    years = [float(year) for year in _YEAR.findall(raw)]
    measures = []
    for name, (low, high) in profile.number_ranges.items():
        if low >= _FIRST_YEAR and high <= _LAST_YEAR and low == int(low):
            if any(low <= year <= high for year in years):
                fields.add(name)
        else:
            measures.append((low, high))
    # A range restricts a field whose values it cuts through. Which one cannot be told from its numbers: it counts once.
    return len(fields) + any(low <= end <= high for bounds in ranges for end in bounds for low, high in measures)


def _rare_share(profile: IndexProfile, terms: Sequence[str]) -> float:
    """Share of the query's terms that the index has, but in few of its nodes: its names and technical terms."""
    distinct = set(terms)
    limit = max(_MIN_RARE, int(_RARE_SHARE * profile.nodes))
    rare = sum(1 for term in distinct if 0 < profile.document_frequency.get(term, 0) <= limit)
    return rare / len(distinct) if distinct else 0.0


# Terms of the field that a configuration names: a question with one of them wants its exact words found.

MAX_DOMAIN_TERMS: Final = 500
_MAX_FORM_CHARS: Final = 200
_BY_COUNT: Final = (0.0, 0.8, 1.0)


class _TermFile(BaseModel, extra="forbid"):
    expand: dict[str, str | list[str]] = {}
    boost: dict[str, str | list[str]] = {}


@dataclass(frozen=True, slots=True)
class DomainTerms:
    """Terms of the field, each with its other forms, and what lifts passages; equal ones share their tables."""

    terms: tuple[tuple[str, ...], ...] = ()
    boosts: tuple[tuple[str, ...], ...] = ()  # a trigger, and the words that lift passages where a question has it

    @classmethod
    def parse(cls, text: str) -> DomainTerms:
        """Read ``TERM | ALIAS; TERM``, a JSON object with ``expand`` and ``boost``, or the ``.json`` file of one."""
        text = text.strip()
        try:
            if text.endswith(".json"):
                text = Path(text).read_text(encoding="utf-8")
            read = _TermFile.model_validate_json(text) if text.lstrip().startswith("{") else None
        except (OSError, UnicodeDecodeError, ValidationError) as err:
            what = (
                err.errors(include_url=False)[0] if isinstance(err, ValidationError) else {"loc": (), "msg": str(err)}
            )
            where = ".".join(map(str, what["loc"][:2]))
            form = '{"expand": {"ISR": "Impuesto Sobre la Renta"}, "boost": {"brakes": ["ABS", "disc"]}}'
            raise ConfigError(
                f"domain_terms: {where + ': ' if where else ''}{what['msg']}; write it as {form}"
            ) from err
        if read is None:
            entries = [entry.strip() for line in text.splitlines() for entry in line.split(";") if entry.strip()]
            return cls(_checked([entry.split("|") for entry in entries]))
        lists = ([[key, *([forms] if isinstance(forms, str) else forms)] for key, forms in part.items()]
                 for part in (read.expand, read.boost))  # fmt: skip
        return cls(*map(_checked, lists))

    def expanded(self, query: str) -> dict[str, tuple[str, ...]]:
        """Return the terms of the field that a query has, each as it stands there, with their other forms."""
        if not self.terms:
            return {}
        has = _form_finder(query)
        split = ([[form for form in forms if has(form) is wanted] for wanted in (True, False)] for forms in self.terms)
        return {seen[0]: tuple(others) for seen, others in split if seen and others}

    def lifting(self, query: str) -> tuple[str, ...]:
        """Return the words that lift passages for this query."""
        if not self.boosts:
            return ()
        has = _form_finder(query)
        return tuple(dict.fromkeys(word for trigger, *words in self.boosts if has(trigger) for word in words))

    def found(self, query_terms: Sequence[str], language: str) -> list[str]:
        return [self.terms[at][0] for at in sorted(_table(self, language).found(query_terms))]

    def strength(self, query_terms: Sequence[str], language: str) -> float:
        """Return how much the terms of a query speak, in [0, 1]: 0 for none, 0.8 for one, 1 for two and more."""
        return _graded(_BY_COUNT, len(self.found(query_terms, language)))


def _checked(entries: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    if len(entries) > MAX_DOMAIN_TERMS:
        raise ConfigError(f"{len(entries):,} domain terms, at most {MAX_DOMAIN_TERMS} are allowed")
    terms = tuple(tuple(form.strip() for form in forms) for forms in entries)
    for form in (form for forms in terms for form in forms):
        if not any(map(str.isalnum, form)) or len(form) > _MAX_FORM_CHARS:
            raise ConfigError(
                f"domain_terms needs TERM or TERM | ALIAS, each with a letter or digit and at most "
                f"{_MAX_FORM_CHARS} characters, got {form[:80]!r}"
            )
    return terms


def _form_finder(query: str) -> Callable[[str], bool]:
    """Return what tells whether a query has a form, whatever its endings; one in capitals even if it is a stop word."""
    tokenizer = Tokenizer(detect_language(query))
    asked = "\0".join(("", *tokenizer.query_tokens(query), ""))

    def has(form: str) -> bool:
        if form.isupper() and re.search(rf"(?<!\w){re.escape(form)}(?!\w)", query):
            return True
        run = tokenizer.query_tokens(form)
        return bool(run) and "\0".join(("", *run, "")) in asked

    return has


@lru_cache(64)
def _table(terms: DomainTerms, language: str) -> Runs[int]:
    tokenizer = Tokenizer(language=language)
    table: Runs[int] = Runs()
    for at, forms in enumerate(terms.terms):
        for form in forms:
            table.add(tokenizer.query_tokens(form), at)
    return table


# The form of a question in a language without words of its own, by its vector; scripts/fit_forms.py fits the weights.

FORMS_FILE: Final = "question_forms.json"


def read_form(query: str, vector: npt.NDArray[np.float32] | None, embedding: str) -> dict[str, float]:
    """Tell whether a question asks for documents or an overview, where only its vector can."""
    model, threshold, forms, weights = _form_weights()
    if vector is None or embedding != model or detect_language(query) in signals.table_languages():
        return {}
    scores = weights[:, 0] + weights[:, 1:] @ vector
    best = int(scores.argmax())
    return {forms[best]: 1.0} if scores[best] > threshold else {}


@lru_cache(1)
def _form_weights() -> tuple[str, float, list[str], npt.NDArray[np.float64]]:
    table = packaged_json(f"routing/{FORMS_FILE}")
    return table["embedding"], table["threshold"], [*table["forms"]], np.array([*table["forms"].values()])


WEIGHTS_FILE: Final = "strategy_weights.json"
# How much one unit of measured nDCG@10 below the best of the strategies offered counts, as logarithm of odds: a lead of
# half a hundredth, which a hundred questions cannot tell from chance, is worth 0.2; one of 0.0225 turns the order of
# ``vector`` and ``hybrid`` round. Chosen on two collections; see docs/routing.md.
QUALITY_WEIGHT: Final = 40.0
# The most that measured quality may speak against a strategy; a clear signal in the query speaks louder.
MAX_QUALITY_SHIFT: Final = 2.0
_MAX_REASONS: Final = 3


@runtime_checkable
class StrategySelector(Protocol):
    """Picks the strategy that suits a query, among those that an index can serve."""

    @property
    def mode(self) -> str:
        """How it decides, as it is recorded in ``Selection.mode``."""

    def select(
        self, query: str, cards: Sequence[StrategyCard], *, features: Mapping[str, float], allowance: Budget = NO_LIMITS
    ) -> Selection:
        """Pick a strategy."""


@dataclass(frozen=True, slots=True)
class StrategyWeights:
    """How much each signal speaks for each strategy, as logarithms of odds."""

    base: Mapping[Strategy, float]
    signals: Mapping[str, Mapping[Strategy, float]]

    def logit(self, strategy: Strategy, strengths: Mapping[str, float]) -> float:
        """Add up what the base and the signals of a query, each in [0, 1], say of a strategy."""
        return self.base.get(strategy, 0.0) + math.fsum(self.spoken(strategy, strengths).values())

    def spoken(self, strategy: Strategy, strengths: Mapping[str, float]) -> dict[str, float]:
        return {name: strength * self.signals[name].get(strategy, 0.0) for name, strength in strengths.items()}

    def with_cards(self, cards: Sequence[StrategyCard]) -> StrategyWeights:
        """Add what the cards of strategies say of signals; the same table where they say nothing."""
        own = {card.strategy: card.signals for card in cards if card.signals}
        if not own:
            return self
        rows = {name: dict(row) for name, row in self.signals.items()}
        for strategy, said in own.items():
            for name, weight in said.items():
                row = rows.setdefault(name, {})
                row[strategy] = row.get(strategy, 0.0) + weight
        return StrategyWeights(self.base, rows)


class HeuristicSelector(StrategySelector):
    """Picks by a table of weights from signals to strategies; safe to share between threads.

    Where the cards carry measured qualities, a strategy's odds fall with the distance of its quality to the best one,
    by ``MAX_QUALITY_SHIFT`` at most; a card without a measured quality counts as the mean of those that have one.
    """

    mode = "heuristic"

    def __init__(self, weights: StrategyWeights | None = None) -> None:
        self._weights = weights or packaged_weights()

    @override
    def select(
        self, query: str, cards: Sequence[StrategyCard], *, features: Mapping[str, float], allowance: Budget = NO_LIMITS
    ) -> Selection:
        offered = offered_strategies(cards)
        weights = self._weights.with_cards(cards)
        given = {name: features.get(name, 0.0) for name in weights.signals}
        # What is not finite counts as absent.
        strengths = {name: min(1.0, x) for name, x in given.items() if x > 0.0 and math.isfinite(x)}
        shifts = quality_shifts(cards)
        shares = softmax([weights.logit(strategy, strengths) + shifts.get(strategy, 0.0) for strategy in offered])
        # A stable sort keeps the order of reliability between equals.
        ranked = sorted(zip(shares, offered, strict=True), key=lambda pair: -pair[0])
        share, best = ranked[0]
        only = len(ranked) == 1
        why = "the only strategy that the index serves" if only else _why(weights, best, offered, strengths, shifts)
        return Selection(
            name=best.value,
            confidence=share,
            scores={strategy.value: part for part, strategy in ranked},
            margin=1.0 if only else share - ranked[1][0],
            reason=why,
            mode="only" if only else self.mode,
        )


def _why(
    weights: StrategyWeights,
    best: Strategy,
    offered: Sequence[Strategy],
    strengths: Mapping[str, float],
    shifts: Mapping[Strategy, float],
) -> str:
    lead = shifts[best] - min(shifts.values()) if best in shifts else 0.0
    spoken = {**weights.spoken(best, strengths), "measured quality": lead}
    leading = sorted((name for name in spoken if spoken[name] > 0), key=lambda name: (-spoken[name], name))
    if not leading:
        why = "first in order of reliability" if best is offered[0] else "best on average where none speaks"
        return f"no signal for another strategy; {why}"
    named = (f"{name.replace('_', ' ')} {spoken[name]:+.1f}" for name in leading[:_MAX_REASONS])
    return f"signals: {', '.join(named)}"


def quality_shifts(cards: Sequence[StrategyCard]) -> dict[Strategy, float]:
    """Turn measured qualities into logarithms of odds."""
    known = {
        card.strategy: min(1.0, max(0.0, card.quality))
        for card in cards
        if card.quality is not None and math.isfinite(card.quality)
    }
    if not known:
        return {}
    best, mean = max(known.values()), math.fsum(known.values()) / len(known)
    qualities = {card.strategy: known.get(card.strategy, mean) for card in cards}
    return {
        strategy: max(-MAX_QUALITY_SHIFT, min(0.0, QUALITY_WEIGHT * (quality - best)))
        for strategy, quality in qualities.items()
    }


def offered_strategies(cards: Sequence[StrategyCard]) -> tuple[Strategy, ...]:
    """Return the strategies on the cards, once each, in declared order of reliability."""
    if not cards:
        raise NoEligibleStrategyError("no strategy is offered; allow one that the index serves, such as 'vector'")
    return tuple(sorted({card.strategy for card in cards}, key=lambda strategy: (strategy.reliability, strategy.value)))


@lru_cache(1)
def packaged_weights() -> StrategyWeights:
    """Read the packaged table of what the wording of a query asks for, once; without any signal it is ``vector``."""
    table = packaged_json(f"routing/{WEIGHTS_FILE}")
    rows = {name: {Strategy(key): weight for key, weight in row.items()} for name, row in table["signals"].items()}
    return StrategyWeights({Strategy(key): weight for key, weight in table["base"].items()}, rows)


@lru_cache(1)
def fused_weights() -> StrategyWeights:
    """Start the packaged table from ``hybrid``: it and ``vector`` change places where its fusion is calibrated."""
    table = packaged_weights()
    places = {Strategy.HYBRID: table.base[Strategy.VECTOR], Strategy.VECTOR: table.base[Strategy.HYBRID]}
    return StrategyWeights({**table.base, **places}, table.signals)


class RoundRobinSelector(StrategySelector):
    """Offers each strategy in turn, so that a benchmark sees each of them on its share of the questions.

    Over any number of threads the counts differ by one at most. Turns are counted apart for each set of strategies
    offered.
    """

    mode = "round_robin"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: Counter[tuple[Strategy, ...]] = Counter()

    @override
    def select(
        self, query: str, cards: Sequence[StrategyCard], *, features: Mapping[str, float], allowance: Budget = NO_LIMITS
    ) -> Selection:
        offered = offered_strategies(cards)
        with self._lock:
            turn = self._turns[offered] % len(offered)
            self._turns[offered] += 1
        share = 1.0 / len(offered)
        return Selection(
            name=offered[turn].value,
            confidence=share,
            scores={strategy.value: share for strategy in offered[turn:] + offered[:turn]},
            margin=1.0 if len(offered) == 1 else 0.0,
            reason=f"turn {turn + 1} of {len(offered)}",
            mode=self.mode,
        )
