"""Whether a query asks for what certain people wrote or own, and the index knows these people."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Final

from agentic_retriever.indices.people import name_words
from agentic_retriever.routing.tables import read_query, shown_form
from agentic_retriever.text import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentic_retriever.indices.profile import IndexProfile

SIGNAL: Final = "authorship"

_MAX_CUES: Final = 8
_NAME_WORDS: Final = 5
_WINDOW: Final = 60
_COMMON_SHARE: Final = 0.02
_FEW_NODES: Final = 2
_MIN_RUN, _MAX_RUN = 4, 30
_JOINTS: Final = frozenset(
    ["or", "and", "&", "y", "e", "o", "u", "the", "de", "del", "van", "von", "der", "mr", "ms", "dr"]
)
# The words behind "by" as far as they may be names: "Prieve or Udo W. Pooch, Knuth".
_WORD_BEHIND: Final = re.compile(r"[\w.'’-]{1,40}|&")


def names_people(query: str, profile: IndexProfile) -> bool:
    """Tell whether a query names people as authors or owners whom the index has as such.

    Words that say so must stand before a name of which a word is among ``profile.people`` and not common in the text of
    the index. The name needs a capital where its script has them. A query without any capital may do without behind the
    cues that are words of the table (*written by*), though not behind its patterns, such as a mere *by*, and then the
    text must hardly have the word.

    Args:
        query: Any text; of a long one, the first and last 1,000 characters are examined.
        profile: The index.
    """
    if not profile.people:
        return False
    read, shown = read_query(query), shown_form(query)
    # Where positions do not agree, since a capital has two small letters, all letters count as small.
    shown = shown if len(shown) == len(read.text) else read.text
    small = not any(map(str.isupper, shown))
    for table in read.tables:
        cues = (table.words[SIGNAL],) if small and table.spaced else (table.words[SIGNAL], *table.patterns[SIGNAL])
        found = (match.end() for pattern in cues for match in pattern.finditer(read.text))
        for end in islice(found, _MAX_CUES):
            behind = shown[end : end + _WINDOW]
            words = _name_words(behind, small=small) if table.spaced else _runs(behind)
            if any(_is_known(word, profile, limit=_FEW_NODES if small else None) for word in words):
                return True
    return False


def _name_words(behind: str, *, small: bool) -> Iterator[str]:
    """The words that may be of names, up to the first that cannot; of a text without capitals, the first two."""
    words = _WORD_BEHIND.findall(behind)
    for word in words[: 2 if small else _NAME_WORDS]:
        if word[0].isupper() or word[0].lower() == word[0].upper() or small:
            yield from name_words(word)
        elif word.casefold().rstrip(".") not in _JOINTS:
            return


def _runs(behind: str) -> Iterator[str]:
    """Every run of letters that may be a word of a name, for scripts without spaces between words."""
    for word in name_words(behind):
        for start in range(len(word)):
            yield from (word[start:end] for end in range(start + _MIN_RUN, min(start + _MAX_RUN, len(word)) + 1))


def _is_known(word: str, profile: IndexProfile, *, limit: int | None) -> bool:
    if not any(word in names for names in profile.people.values()):
        return False
    most = max(_FEW_NODES, int(_COMMON_SHARE * profile.nodes)) if limit is None else limit
    terms = Tokenizer(language=profile.language).query_tokens(word)
    # A word without terms is a stop word.
    return bool(terms) and all(profile.document_frequency.get(term, 0) <= most for term in terms)
