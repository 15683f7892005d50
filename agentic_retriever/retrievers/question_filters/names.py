"""Names of people as bibliographies write them, and as questions do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from agentic_retriever.retrievers.question_filters.folding import folded

_SUFFIX: Final = re.compile(r"[ ,]+(?:jr|sr|ii|iii|iv)\.?$")
_WORD: Final = re.compile(r"[^\W\d_]+(?:['-][^\W\d_]+)*")
# Both can read a text in one way only: any value of an index is held against them, such as "j. ae. scs. 25, 1958".
_LISTED: Final = re.compile(r"[^\W\d_][^,\d]{0,60}, ?[^\W\d_]\.?(?:-?[^\W\d_][\w.'-]*)?(?: [^\W\d_][\w.'-]*)*\.?")
_PLAIN: Final = re.compile(r"(?:[^\W\d_](?:\.{1,2} ?|[\w'-]+(?:\. ?| ))){1,3}[^\W\d_][\w'-]+")
_PARTICLES: Final = frozenset({"de", "del", "der", "den", "van", "von", "la", "le", "di", "da", "du", "ter", "dos"})


@dataclass(frozen=True, slots=True)
class PersonName:
    """A name taken apart.

    Attributes:
        family: Family name, folded.
        given: Given names or their initials, folded, in order; ``()`` where none are known.
    """

    family: str
    given: tuple[str, ...]


def parse_listed(name: str) -> PersonName | None:
    """Take apart ``Last, F. M.`` or ``First Last``.

    Args:
        name: A stored value.

    Returns:
        Its parts, or ``None`` for what does not look like a person's name.
    """
    if len(name) > 80 or not name[:1].isalpha():
        return None
    if _LISTED.fullmatch(name):
        family, _, given = name.partition(",")
        if len(family.split()) > 4:
            return None
        return PersonName(_SUFFIX.sub("", folded(family)), tuple(_WORD.findall(folded(given))))
    if name.isascii() is False and not name[0].isupper():  # scripts without capitals
        return None
    if _PLAIN.fullmatch(name) and all(word[0].isupper() or word in _PARTICLES for word in name.split()):
        words = _WORD.findall(_SUFFIX.sub("", folded(name)))
        return _first_last(words) if len(words) >= 2 else None
    return None


def _first_last(words: list[str]) -> PersonName:
    at = len(words) - 1
    while at > 1 and words[at - 1] in _PARTICLES:
        at -= 1
    return PersonName(" ".join(words[at:]), tuple(words[:at]))


def is_listed_form(name: str) -> bool:
    """Tell whether a value is written ``Last, F.``, which hardly anything but a name is."""
    return bool(_LISTED.fullmatch(name)) and len(name.partition(",")[0].split()) <= 4


def compatible(given: tuple[str, ...], stored: tuple[str, ...]) -> bool:
    """Tell whether given names of a question can be those of a stored name.

    Names are compared in order, initials by their letter, so ``udo`` fits ``u w`` and ``uwe`` does not fit ``udo``.
    """
    for asked, known in zip(given, stored, strict=False):
        shorter = min(len(asked), len(known))
        if asked[0] != known[0] or (shorter > 1 and asked != known):
            return False
    return True
