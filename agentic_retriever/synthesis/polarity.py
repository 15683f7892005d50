"""Whether two sentences say the opposite: one is negated where the other is not, or one has the other's antonym.

Rules for English, Spanish and Thai, and the plain negations of a few languages more. A sentence is turned round by a
negation or by an antonym; by both at once it says the same again ("not below 10" and "at least 10").
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_SCOPE_WORDS: Final = 4
_SCOPE_CHARS: Final = 12
_IN_SCOPE: Final = 0.6
_BEFORE_CHARS: Final = 30
_AROUND_CHARS: Final = 50
_SHORT_CLAUSE: Final = 4
_MAX_CUES: Final = 12

_WORDS: Final = (
    r"\b(?:not|never|no|nor|neither|none|nobody|nothing|cannot|\w+n['’]t"
    r"|ni|nunca|jamás|ningun[oa]?s?|ningún|nadie|nada|tampoco"
    r"|nicht|kein\w*|nie|niemals|ne|pas|jamais|aucune?|non|mai|não|niet|geen)\b"
)
_THAI: Final = "ไม่(?!้)|มิ(?=ได้|ใช่|อาจ|ให้|ต้อง)|ห้าม|ไร้|ยังไม่"
_STRONG: Final = re.compile(f"{_WORDS}|{_THAI}|[不没沒未無无]", re.IGNORECASE)
# What excuses the lack of a negation, without asking for one.
_LEXICAL: Final = re.compile(
    r"\b(?:without|unless|except\w*|exclu\w+|prohibit\w*|forbid\w*|forbidden|ban(?:s|ned)?|refus\w*|den(?:y|ies|ied)"
    r"|lack\w*|exempt\w*|fail\w*|outside|un\w{4,}|in(?:valid|eligible|sufficient)\w*|only|instead|rather|remains?"
    r"|unchanged|stops?|few(?:er)?|hardly|reject\w*|lapse\w*|los[et]s?|free\b|zero|"
    r"sin|salvo|excepto|prohib\w+|prohíb\w+|exclu\w+|exent\w+|deneg\w*|denieg\w*|rechaz\w*|car[eé]c\w+|impid\w+"
    r"|impos\w+|falta\w*|únicamente|solo|sólo|desestim\w*|ausen\w+|tacit\w*|silencio)\b"
    "|เว้น|ปราศจาก|ยกเว้น|ยกเลิก|งด|ปลอด|ขาด|เฉพาะ|เท่านั้น|เพียง|หมด|สิ้น|ต้องห้าม",
    re.IGNORECASE,
)
# Negations that set a bound, and what says the same without one.
_BOUND: Final = re.compile(
    r"\b(?:not?|never) (?:more|less|fewer|later|earlier|longer|higher|lower|only|exceed\w*|above|below|under|over)\b"
    r"|\b(?:must|may|can|does|do|should) (?:not|never) (?:exceed|be (?:more|less|lower|higher|longer|above|below))\b"
    r"|\bcannot (?:exceed|be (?:more|less|lower|higher))\b"
    r"|\bno (?:más|menos|solo|sólo|supera\w*|supere\w*|excede\w*|exceda\w*|rebas\w+|pasa\w* de)\b"
    r"|\bno (?:es|sea) (?:super|infer)ior\b"
    r"|\bnot just\b|ไม่(?:เกิน|น้อยกว่า|ต่ำกว่า|มากกว่า|ถึง|เพียง|ครบ|ใช่เพียง)",
    re.IGNORECASE,
)
# What follows these is said of the rest.
_EXCEPT: Final = re.compile(r"\b(?:except|unless|only if|salvo|excepto|a menos que|sino)\b|เว้นแต่|ยกเว้น", re.IGNORECASE)
_LIMIT: Final = re.compile(
    r"\b(?:at (?:most|least)|up to|maximum|minimum|max|min|within|limit\w*|cap(?:ped|s)?|until|or (?:more|less|fewer)"
    r"|como (?:máximo|mínimo)|hasta|máxim[oa]s?|mínim[oa]s?|límite\w*|dentro|o (?:más|menos)|al menos|inferior|superior"
    r"|menor|mayor|less than|fewer than|under|below|above|over|exceed\w*|more than|from|least)\b"
    "|สูงสุด|อย่างมาก|อย่างน้อย|ภายใน|จนถึง|เพดาน|ขั้นต่ำ|ขึ้นไป|ต่ำกว่า|เกิน|มากกว่า|น้อยกว่า|จำกัด",
    re.IGNORECASE,
)
_PAIRS: Final = tuple(
    (re.compile(one, re.IGNORECASE), re.compile(other, re.IGNORECASE))
    for one, other in (
        (
            r"\b(?:rose|rises?|rising|risen|increas\w+|gr[eo]w\w*|climb\w+|went up|go(?:es)? up|higher|improv\w+)\b",
            (
                r"\b(?:fell|falls?|falling|fallen|decreas\w+|declin\w+|shr[aiu]nk\w*|drop\w*|went down|go(?:es)? down"
                r"|lower\w*)\b"
            ),
        ),
        (r"\b(?:above|over|more than|exceed\w*)\b", r"\b(?:below|under|less than|fewer than)\b"),
        (r"\b(?:minimum|at least|no less)\b", r"\b(?:maximum|at most|up to|no more)\b"),
        (r"\bbefore\b", r"\bafter\b"),
        (r"\b(?:required|mandatory|obligatory|compulsory|must|needs?|needed)\b", r"\b(?:optional|voluntary)\b"),
        (r"\b(?:allowed|permitted|accepted)\b", r"\b(?:prohibited|forbidden|banned|rejected|refused)\b"),
        (r"\b(?:con|incluye\w*)\b", r"\b(?:sin|excluye\w*)\b"),
        (r"\b(?:mínim[oa]s?|al menos)\b", r"\b(?:máxim[oa]s?|hasta|a lo sumo)\b"),
        (r"\b(?:superior\w*|mayor\w*|por encima|supera\w*)\b", r"\b(?:inferior\w*|menor\w*|por debajo)\b"),
        (r"\b(?:sub[ei]\w*|aument\w+|crec\w+)\b", r"\b(?:baj[aóe]\w*|disminu\w+|reduc\w+)\b"),
        (r"\bantes\b", r"\bdespués\b"),
        (r"\bobligatori\w+\b", r"\b(?:opcional\w*|voluntari\w+|facultativ\w+)\b"),
        (r"\b(?:admit\w+|permit\w+|autoriz\w+)\b", r"\b(?:prohíb\w+|prohib\w+|deneg\w+|denieg\w+)\b"),
        ("มากกว่า|สูงกว่า|เกิน", "น้อยกว่า|ต่ำกว่า"),
        ("อย่างน้อย|ขั้นต่ำ", "อย่างมาก|สูงสุด|ไม่เกิน"),
        ("เพิ่มขึ้น|สูงขึ้น", "ลดลง|ต่ำลง"),
        ("ก่อน", "หลัง(?!เขา|ว|เรือน|เล็ก|ๆ| )"),
    )
)


def opposed(sentence: str, source: str, words_of: Callable[[str], frozenset[str]]) -> bool:
    """Tell whether a sentence says the opposite of a source that speaks of the same.

    Args:
        sentence: The sentence.
        source: The stretch of the source that is nearest to it.
        words_of: The terms of a text.

    Returns:
        Whether one of both is negated, or has the antonym of a word of the other, and not both.
    """
    if _antonym(sentence, source):
        return (_STRONG.search(sentence) is None) is (_STRONG.search(source) is None)
    return _lacks(sentence, source, words_of) or _lacks(source, sentence, words_of)


def negated_before(text: str, start: int) -> bool:
    """Tell whether a negation stands shortly before a place, in the same clause."""
    before = re.split(r"[.!?,;:\n|]", text[max(0, start - _BEFORE_CHARS) : start])[-1]
    return _STRONG.search(before) is not None


def _lacks(negated: str, other: str, words_of: Callable[[str], frozenset[str]]) -> bool:
    """Tell whether a text is negated where another one says the same without a negation.

    Each negation needs one in the other text: one with words of its scope, or else one that is left over nearby.
    """
    if _EXCEPT.search(negated):
        return False
    said = words_of(other)
    # What both have excuses nothing.
    bounded = _new(_LIMIT, other, negated)
    partners = [(cue, _scope(other, cue, words_of)) for cue in islice(_STRONG.finditer(other), _MAX_CUES)]
    alone: list[frozenset[str]] = []
    for cue in islice(_STRONG.finditer(negated), _MAX_CUES):
        scope = _scope(negated, cue, words_of)
        partner = next((pair for pair in partners if scope & pair[1]), None)
        if partner is not None:
            partners.remove(partner)
        elif not (bounded and _BOUND.search(negated, max(0, cue.start() - 12), cue.end() + 24)):
            alone.append(_demanded(negated, cue, scope, said, words_of))
    excuses = [cue.span() for cue, _ in partners] + _new(_LEXICAL, other, negated)
    around = [words_of(other[max(0, start - _AROUND_CHARS) : end + _AROUND_CHARS]) for start, end in excuses]
    return any(scope and not any(2 * len(scope & words) >= len(scope & said) for words in around) for scope in alone)


def _demanded(
    text: str,
    cue: re.Match[str],
    scope: frozenset[str],
    said: frozenset[str],
    words_of: Callable[[str], frozenset[str]],
) -> frozenset[str]:
    """The terms that a negation is about if another text speaks of them, or else nothing."""
    if scope and len(scope & said) >= _IN_SCOPE * len(scope):
        return scope
    clause = words_of(re.split(r"[,;:.()]", text[: cue.start()])[-1]) | scope
    short = 2 <= len(clause) <= _SHORT_CLAUSE and len(clause & said) >= _IN_SCOPE * len(clause)
    return clause if short else frozenset()


def _new(pattern: re.Pattern[str], text: str, other: str) -> list[tuple[int, int]]:
    """Where a pattern matches in a text with words that it does not match in another one."""
    old = {found[0].casefold() for found in pattern.finditer(other)}
    spans = (found.span() for found in pattern.finditer(text) if found[0].casefold() not in old)
    return list(islice(spans, _MAX_CUES))


def _scope(text: str, cue: re.Match[str], words_of: Callable[[str], frozenset[str]]) -> frozenset[str]:
    """The terms behind a negation, up to a comma, or those before it at the end of a clause."""
    if cue[0][0] >= "\u0e00":
        return words_of(text[cue.end() : cue.end() + _SCOPE_CHARS])
    behind = re.split(r"[,;:.()]", text[cue.end() : cue.end() + 120], maxsplit=1)[0].split()
    scope: frozenset[str] = frozenset()
    for word in behind[: 2 * _SCOPE_WORDS]:
        scope |= words_of(word)
        if len(scope) >= _SCOPE_WORDS:
            break
    return scope or words_of(text[max(0, cue.start() - 40) : cue.start()])


def _antonym(sentence: str, source: str) -> bool:
    for one, other in _PAIRS:
        for here, there in ((one, other), (other, one)):
            if here.search(sentence) and there.search(source) and not (there.search(sentence) or here.search(source)):
                return True
    return False
