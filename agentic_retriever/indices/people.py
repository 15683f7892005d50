"""Words of the names of people that an index holds in its metadata, such as the authors of articles."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentic_retriever.indices.profile import ProfiledNode

MAX_NAME_WORDS: Final = 5_000
"""Most words that are kept of one field; a few thousand authors have fewer."""

_MAX_NAME_CHARS: Final = 80
_MIN_WORD_CHARS: Final = 3
_MIN_VALUES: Final = 3
_LISTED_SHARE: Final = 0.6
_EXAMINED_VALUES: Final = 200

_FIELD_WORDS: Final = frozenset(
    ["author", "authors", "owner", "owners", "writer", "writers", "editor", "editors", "creator", "creators", "speaker",
     "speakers", "inventor", "inventors", "translator", "person", "contributor", "contributors", "autor", "autora",
     "autores", "propietario", "propietarios", "titular"]
)  # fmt: skip
_PARTICLES: Final = frozenset({"and", "van", "von", "der", "den", "del", "dos", "ter"})
_FIELD_PARTS: Final = re.compile(r"[A-Z]?[^\W_A-Z]+")
_ACCENTS: Final = re.compile("[\u0300-\u036f]+")
# Thai vowel and tone signs are marks, which Python does not count among the letters.
_LETTER: Final = r"(?:[^\W\d_]|[\u0e31\u0e34-\u0e3a\u0e47-\u0e4e])"
_WORD: Final = re.compile(rf"{_LETTER}+(?:['-]{_LETTER}+)*")
# Family name, then initials or given names: "Pooch, U. W.", "wells, w.r.".
_LISTED: Final = re.compile(r"[^\W\d_][^,\d]{0,60}, ?[^\W\d_](?:\.|[^\W\d_.]{0,30}\.?)[^\d]{0,60}")


def collect_people(nodes: Iterable[ProfiledNode]) -> dict[str, frozenset[str]]:
    """Collect the words of names in the fields that hold names of people.

    A field holds names when its own name says so (``authors``, ``autor``), or when of its first 200 different values
    six in ten are written ``Family, G.``.
    """
    values: dict[str, dict[str, None]] = {}
    for node in nodes:
        for name, value in node.metadata.items():
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, str) and 0 < len(item) <= _MAX_NAME_CHARS:
                    values.setdefault(name, {})[item] = None
    return {name: _words(found) for name, found in sorted(values.items()) if _holds_people(name, list(found))}


def name_words(name: str) -> list[str]:
    """Cut a name into its words of three letters or more, without letter case and accents, in order."""
    plain = _ACCENTS.sub("", unicodedata.normalize("NFKD", name)).casefold()
    return [word for word in _WORD.findall(plain) if len(word) >= _MIN_WORD_CHARS]


def _holds_people(field: str, values: list[str]) -> bool:
    parts = {part.casefold() for part in _FIELD_PARTS.findall(field)}
    if not _FIELD_WORDS.isdisjoint(parts):
        return True
    examined = values[:_EXAMINED_VALUES]
    return len(examined) >= _MIN_VALUES and sum(map(_is_listed, examined)) >= _LISTED_SHARE * len(examined)


def _is_listed(value: str) -> bool:
    return _LISTED.fullmatch(value) is not None and len(value.partition(",")[0].split()) <= 4


def _words(values: Iterable[str]) -> frozenset[str]:
    words: dict[str, None] = {}
    for value in values:
        words.update(dict.fromkeys(word for word in name_words(value) if word not in _PARTICLES))
        if len(words) >= MAX_NAME_WORDS:
            break
    return frozenset(list(words)[:MAX_NAME_WORDS])
