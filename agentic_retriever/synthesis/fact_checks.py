"""What speaks against a sentence: a number, date or name that its source lacks, or the source says the opposite."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from rapidfuzz import fuzz

from agentic_retriever.synthesis.dates import agrees
from agentic_retriever.synthesis.names import find_names, foreign_thai_names
from agentic_retriever.synthesis.polarity import opposed
from agentic_retriever.synthesis.segment_facts import words_only

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentic_retriever.synthesis.dates import Date
    from agentic_retriever.synthesis.evidence import Evidence
    from agentic_retriever.synthesis.numbers import Number
    from agentic_retriever.synthesis.segment_facts import Facts

_MAX_PROBLEMS: Final = 5
_UNIT: Final = re.compile(r"[\s-]*([^\W\d_]{1,20})")
_ENUMERATION: Final = re.compile(r"^\s*(?:[-*•]\s*)?\(?\d{1,2}[.)]\s+")
_MARK: Final = re.compile("[%％٪]|percent|por ciento|ร้อยละ|เปอร์เซ็นต์", re.IGNORECASE)


def problems_of(said: Facts, evidence: Evidence) -> list[str]:
    """Name what speaks against a sentence.

    Args:
        said: The sentence.
        evidence: What it is held against.

    Returns:
        Short lines in English, at most five; ``[]`` when nothing does.
    """
    found = [f"date {date.text} is not in the source" for date in _foreign_dates(said, evidence)]
    found += [f"number {number.text} is not in the source" for number in _foreign_numbers(said, evidence)]
    found += [f"name {name} is not in the source" for name in _foreign_names(said, evidence)]
    if opposed(said.text, evidence.core[0].text, lambda text: words_only(said.tokenizer.tokens(text))):
        found.append("says the opposite")
    return list(dict.fromkeys(found))[:_MAX_PROBLEMS]


def _foreign_dates(said: Facts, evidence: Evidence) -> Iterator[Date]:
    if not said.dates:
        return
    close = (*evidence.core, *evidence.headers)
    years = frozenset().union(*(part.values for part in (*close, *evidence.whole)))
    for date in said.dates:
        if any(agrees(date, other, years) for part in close for other in part.dates):
            continue
        # With a date of its own in the nearest segment, that one was meant.
        rivals = [o for o in evidence.core[0].dates if o.complete and not any(agrees(d, o, years) for d in said.dates)]
        if not rivals and any(agrees(date, other, years) for part in evidence.near for other in part.dates):
            continue
        yield date


def _foreign_numbers(said: Facts, evidence: Evidence) -> Iterator[Number]:
    skip = _ENUMERATION.match(said.text)
    begin = skip.end() if skip else 0
    in_dates = [(date.start, date.end) for date in said.dates if date.complete]
    for number in said.numbers:
        dated = any(start <= number.start < end for start, end in in_dates)
        if number.start < begin or dated or (number.word and number.value in ("0", "1")):
            continue
        if not _has_number(number, said, evidence):
            yield number


def _has_number(number: Number, said: Facts, evidence: Evidence) -> bool:
    if any(_in_part(number, part) for part in evidence.core):
        return True
    if _is_year(number):
        rivals = [n for n in evidence.core[0].numbers if _is_year(n) and n.value not in said.values]
        return not rivals and any(_in_part(number, part) for part in (*evidence.whole, *evidence.headers))
    if any(_rival(number, other, said, evidence.core[0]) for other in evidence.core[0].numbers):
        return False
    if any(number.value in part.loose for part in evidence.core):
        return True
    return any(_in_part(number, part) for part in (*evidence.near, *evidence.headers))


def _in_part(number: Number, part: Facts) -> bool:
    wanted = {number.value, number.scaled}
    if _is_year(number):
        wanted |= {str(int(number.value) + 543), str(int(number.value) - 543)}
    for other in part.numbers:
        if number.power and other.power:
            same = number.scaled == other.scaled
        else:
            same = other.value in wanted or other.scaled in wanted
        if same and _same_kind(number, other, part):
            return True
    return False


def _same_kind(number: Number, other: Number, part: Facts) -> bool:
    """A percentage is no count, unless the sign stands elsewhere, as in the head of a table."""
    if number.percent == other.percent:
        return True
    return number.percent and (_MARK.search(part.text) is not None or part.text.startswith("|"))


def _rival(number: Number, other: Number, said: Facts, source: Facts) -> bool:
    """Tell whether another number stands in the source where this one stands in the sentence."""
    if {other.value, other.scaled} & said.values or number.percent != other.percent:
        return False
    return _unit(number, said) == _unit(other, source) or number.percent


def _unit(number: Number, facts: Facts) -> str:
    found = _UNIT.match(facts.text, number.end)
    word = found[1].casefold() if found else ""
    terms = facts.tokenizer.tokens(word)
    return (terms[0] if terms else word)[:6]


def _is_year(number: Number) -> bool:
    return (
        not number.percent and len(number.value) == 4 and number.value.isdecimal() and "1800" <= number.value <= "2700"
    )


def _foreign_names(said: Facts, evidence: Evidence) -> Iterator[str]:
    close = (*evidence.core, *evidence.headers)
    near = frozenset().union(*(part.keys for part in close))
    terms = frozenset().union(*(part.terms for part in close))
    own = said.name_keys
    dated = [(date.start, date.end) for date in said.dates]
    for name in find_names(said.text, said.tokenizer.language):
        if name.opening or any(start <= name.start < end for start, end in dated) or name.key in near:
            continue
        stems = said.tokenizer.tokens(name.text)
        if not name.code and stems and terms.issuperset(stems):
            continue
        rivals = [key for key in evidence.core[0].name_keys - own if key.startswith(str(name.code))]
        if rivals or not any(name.key in part.keys for part in evidence.whole):
            yield name.text
    yield from _swapped_opening(said, evidence)
    joined = [part.text for part in evidence.whole] + [part.text for part in evidence.headers]
    yield from foreign_thai_names(said.text, "\n".join(part.text for part in close), "\n".join(joined))


def _swapped_opening(said: Facts, evidence: Evidence) -> Iterator[str]:
    """The first word of a sentence that is otherwise the source's, where the source has a name."""
    for name in find_names(said.text, said.tokenizer.language)[:1]:
        source = evidence.core[0]
        if not name.opening or name.key in source.keys:
            continue
        rest = said.text[name.end :]
        rivals = find_names(source.text, said.tokenizer.language)[:1]
        if not rivals or not rivals[0].opening or fuzz.partial_ratio(rest, source.text) < 95:
            continue
        names = frozenset().union(*(part.name_keys for part in evidence.whole))
        if f"False{rivals[0].key}" in names:
            yield name.text
