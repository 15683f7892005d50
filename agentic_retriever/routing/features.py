"""Signals in a query that tell which strategy suits it, each in [0, 1]."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Final

from agentic_retriever.routing.authorship import names_people
from agentic_retriever.routing.complexity import question_count
from agentic_retriever.routing.tables import SignalTable, read_query
from agentic_retriever.routing.terms import query_terms
from agentic_retriever.routing.values import examined, value_hits
from agentic_retriever.text import detect_language

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agentic_retriever.indices.profile import IndexProfile
    from agentic_retriever.routing.domain_terms import DomainTerms

FEATURES: Final = (
    "metadata_values",
    "codes",
    "quoted",
    "references",
    "acronyms",
    "rare_terms",
    "range",
    "comparison",
    "analysis",
    "several_questions",
    "overview",
    "procedure",
    "whole",
    "detail",
    "listing",
    "people",
    "domain_terms",
    "length",
    "complexity",
)
"""Names of all signals, each of which ``query_features`` returns."""

_WORDED: Final = ("comparison", "analysis", "overview", "procedure", "whole", "detail", "listing", "references")
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
    query: str,
    profile: IndexProfile | None,
    complexity_score: float,
    *,
    domain_terms: DomainTerms | None = None,
) -> Mapping[str, float]:
    """Find the signals in a query.

    Args:
        query: Any text; of a long one, the first and last 1,000 characters are examined.
        profile: The index it goes to, for the metadata values and terms that this one has; ``None`` for none.
        complexity_score: In [0, 1], from ``assess_complexity``.
        domain_terms: Terms of the field to look for; ``None`` for none.

    Returns:
        Every name of ``FEATURES`` with its strength in [0, 1], 0.0 when absent.
    """
    raw, read = unicodedata.normalize("NFKC", examined(query)), read_query(query)
    text, tables = read.text, read.tables
    signals = {name: float(any(table.matches(name, text) for table in tables)) for name in _WORDED}
    bounds = list(_ranges(text, tables))
    codes = {token for token in _tokens(raw) if _is_code(token)}
    language = profile.language if profile else detect_language(query)
    terms = query_terms(query, language) if profile or domain_terms else ()
    signals |= {
        "metadata_values": _graded(_BY_FIELDS, _fields_named(profile, terms, raw, bounds) if profile else 0),
        "codes": _graded(_BY_CODES, len(codes)),
        "quoted": float(_QUOTED.search(raw) is not None),
        "acronyms": float(not raw.isupper() and _ACRONYM.search(raw) is not None),
        "rare_terms": _rare_share(profile, terms) if profile else 0.0,
        "range": float(bool(bounds)),
        "people": float(profile is not None and names_people(query, profile)),
        "domain_terms": domain_terms.strength(terms, language) if domain_terms else 0.0,
        "several_questions": _graded(_BY_QUESTIONS, question_count(text, tables)),
        "length": min(1.0, len(query.strip()) / _FULL_LENGTH),
        "complexity": min(1.0, max(0.0, complexity_score)),
    }
    return {name: signals[name] for name in FEATURES}


def _graded(grades: Sequence[float], count: int) -> float:
    return grades[min(count, len(grades) - 1)]


def _tokens(raw: str) -> Iterator[str]:
    for match in _TOKEN.finditer(raw):
        token = match[0].strip(_EDGES)
        if token:
            yield token


def _is_code(token: str) -> bool:
    """Tell codes, versions, section numbers and identifiers from words, amounts and measures."""
    patterns = (_LATIN_CODE, _OTHER_CODE, _DOTTED, _LONG_NUMBER, _IDENTIFIER)
    return any(pattern.fullmatch(token) for pattern in patterns)


def _ranges(text: str, tables: Sequence[SignalTable]) -> Iterator[tuple[float, float]]:
    """Numeric bounds that the query states, open ends infinite."""
    for table in tables:
        for match in table.found_patterns("range", text):
            groups = match.groupdict()
            low, high = _number(groups.get("low")), _number(groups.get("high"))
            yield (
                float("-inf") if low is None else low,
                float("inf") if high is None else high,
            )


def _number(digits: str | None) -> float | None:
    """Read a number whose separators may mean either; only its magnitude matters here."""
    if not digits:
        return None
    whole = re.split(r"[.,](?![0-9]{3}(?![0-9]))", digits, maxsplit=1)[0]
    plain = re.sub(r"[^0-9]", "", whole)
    return float(plain) if plain.isascii() and plain else None


def _fields_named(profile: IndexProfile, terms: Sequence[str], raw: str, bounds: Sequence[tuple[float, float]]) -> int:
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
    # Which measure a range is about cannot be told from its numbers, so it counts once.
    measured = any(_overlap(bound, values) for bound in bounds for values in measures)
    return len(fields) + measured


def _overlap(bound: tuple[float, float], values: tuple[float, float]) -> bool:
    """Tell whether a stated bound cuts through the values of a field."""
    ends = [end for end in bound if end not in {float("-inf"), float("inf")}]
    return any(values[0] <= end <= values[1] for end in ends)


def _rare_share(profile: IndexProfile, terms: Sequence[str]) -> float:
    """Share of the query's terms that the index has, but in few of its nodes: its names and technical terms."""
    distinct = set(terms)
    limit = max(_MIN_RARE, int(_RARE_SHARE * profile.nodes))
    rare = sum(1 for term in distinct if 0 < profile.document_frequency.get(term, 0) <= limit)
    return rare / len(distinct) if distinct else 0.0
