"""Restrictions to values: several of one field are "one of", ``not`` and its like turn them round.

Values of one field are joined to "one of" wherever they stand, also behind ``and``: a question for "deeds in Chiang Mai
and Lamphun" wants either. ``X or Y`` with values of different fields becomes one restriction that either satisfies. A
value whose words belong to several fields counts for any of them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from agentic_retriever.understanding.clauses import SURE, Part, Restriction, all_part, any_part, surest, values_part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentic_retriever.understanding.question import Stream, ValueHit


TOPIC: Final = 0.5
"""Factor for a value that a question is about, as in ``what is a freehold`` and ``compare Berlin and Madrid``."""

_NEGATED: Final = re.compile(r"K[IGFJYA]{0,4}V(?:(?:,?[AC][IGFJ]{0,3}|,[FJ]{0,2})V){0,30}")
_WITH_OTHERS: Final = re.compile(r"V(?:(?:,?[AC]|,)[IGFJ]{0,3}V){0,30},?L")
_LISTED: Final = re.compile(r"V(?:(?:,?[AC]|,)[IGFJ]{0,3}V){1,30}")
_EITHER: Final = re.compile(r"V(?:,?C[IGFJ]{0,3}V){1,30}")
_TOPIC: Final = re.compile(r"\?[IGFJAB]{0,3}V(?:(?:,?[AC]|,)?[IGFJ]{0,3}V){0,30}|V(?:(?:,?[AC]|,)[IGFJ]{0,3}V){0,30}\?")
_NEGATED_FLAG: Final = "false"


def find_values(hits: Sequence[ValueHit], stream: Stream) -> list[Restriction]:
    """Turn the values that a question names into restrictions."""
    open_lists = _covered(_WITH_OTHERS, stream)
    negated = _covered(_NEGATED, stream)
    places = [at for at, symbol in enumerate(stream.symbols) if symbol == "V"]
    hit_at = _weighed(dict(zip(places, hits, strict=True)), stream)
    alone = [at for at in places if at not in open_lists]
    found: list[Restriction] = []
    for group in _eithers(stream, hit_at, negated | open_lists):
        found.append(_either([hit_at[at] for at in group]))
        alone = [at for at in alone if at not in group]
    groups: dict[tuple[tuple[str, ...], bool], list[int]] = {}
    for at in alone:
        fields = tuple(sorted({ref.field for ref in hit_at[at].refs}))
        groups.setdefault((fields, at in negated), []).append(at)
    for (_, is_negated), members in groups.items():
        found.append(_restriction([hit_at[at] for at in members], negated=is_negated))
    return found


def _weighed(hit_at: dict[int, ValueHit], stream: Stream) -> dict[int, ValueHit]:
    """Weigh each value by what stands around it, and give a negated one the word that negates it."""
    weighed = dict(hit_at)
    for match in _LISTED.finditer(stream.symbols):
        # One sure value vouches for the others of its list: "memo or text".
        members = [at for at in range(match.start(), match.end()) if stream.symbols[at] == "V"]
        best = min(SURE, max(hit_at[at].certainty for at in members))
        weighed.update((at, replace(hit_at[at], certainty=max(best, hit_at[at].certainty))) for at in members)
    for match in _NEGATED.finditer(stream.symbols):
        at = stream.symbols.index("V", match.start())
        weighed[at] = replace(weighed[at], span=(stream.items[match.start()].start, weighed[at].span[1]))
    for at in _covered(_TOPIC, stream):
        weighed[at] = replace(weighed[at], certainty=weighed[at].certainty * TOPIC)
    return weighed


def _covered(pattern: re.Pattern[str], stream: Stream) -> set[int]:
    """Numbers of the values that a pattern covers."""
    return {
        at
        for match in pattern.finditer(stream.symbols)
        for at in range(match.start(), match.end())
        if stream.symbols[at] == "V"
    }


def _eithers(stream: Stream, hit_at: dict[int, ValueHit], taken: set[int]) -> list[list[int]]:
    """Lists of values joined by "or" that belong to different fields."""
    groups: list[list[int]] = []
    for match in _EITHER.finditer(stream.symbols):
        members = [at for at in range(match.start(), match.end()) if stream.symbols[at] == "V" and at not in taken]
        if len({ref.field for at in members for ref in hit_at[at].refs}) > 1 and len(members) > 1:
            groups.append(members)
    return groups


def _either(hits: Sequence[ValueHit]) -> Restriction:
    values: dict[str, list[str]] = {}
    for hit in hits:
        for ref in hit.refs:
            values.setdefault(ref.field, []).extend(ref.originals)
    part = any_part([values_part(field, originals) for field, originals in values.items()])
    spans = tuple(hit.span for hit in hits)
    return Restriction(part=part, certainty=min(hit.certainty for hit in hits), spans=spans)


def _restriction(members: Sequence[ValueHit], *, negated: bool) -> Restriction:
    hits = surest(members)
    values: dict[str, list[str]] = {}
    for hit in hits:
        for ref in hit.refs:
            flag = ref.how == "flag" and negated
            values.setdefault(ref.field, []).extend((_NEGATED_FLAG,) if flag else ref.originals)
    flags = {ref.field for hit in hits for ref in hit.refs if ref.how == "flag"}
    parts: list[Part] = [
        values_part(field, originals, negated=negated and field not in flags) for field, originals in values.items()
    ]
    part = all_part(parts) if negated else any_part(parts)
    spans = tuple(hit.span for hit in hits)
    return Restriction(part=part, certainty=min(hit.certainty for hit in hits), spans=spans)
