"""Whether a question asks about something that must be found first: the cues of questions in several steps.

"When was the director of Solaris born?" names nobody whose birth could be looked up. Questions of this kind (multi-hop;
Yang et al., HotpotQA, EMNLP 2018) tend to describe things instead of naming them, to join clauses, to hold two things
against each other, and to name several things. Each such trait is weak evidence and adds a small weight; the weights of
wording stand in the language tables, those of writing (names, quotations) here.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Final

from agentic_retriever.routing.values import examined

if TYPE_CHECKING:
    from agentic_retriever.routing.tables import ReadQuery, SignalTable

SECOND_NAME: Final = 0.17
THIRD_NAME: Final = 0.07
QUOTATION: Final = 0.1

_NAMES_OF_TWO: Final = 2
_NAMES_OF_THREE: Final = 3
_QUOTED: Final = re.compile(r"\"[^\"\s][^\"]{0,100}\"|«[^»]{1,100}»|“[^”]{1,100}”|「[^」]{1,100}」")
_WORD: Final = re.compile(r"[^\W\d_](?:[\w'’&-]|\.(?=\w))*")
_WITHIN_NAMES: Final = frozenset({"of", "the", "de", "del", "la", "las", "los", "von", "van", "da", "di"})
_SENTENCE_EDGES: Final = frozenset(".?!¿¡\n")
_MAX_ABBREVIATED: Final = 3
_PRONOUN_I: Final = frozenset({"I", "I'm", "I'd", "I'll", "I've", "I’m", "I’d", "I’ll", "I’ve"})


def hop_cues(query: str, read: ReadQuery) -> dict[str, float]:
    """Find the cues of a question in several steps.

    Args:
        query: As it was asked; capitals tell names in the scripts that have them.
        read: The same query as the tables see it. Of several tables, that with the strongest cues counts; they mean a
            language without table, in which capitals may tell any noun, as in German, and so no names are sought.

    Returns:
        The weight of each cue that occurs, by its name, in the order of the table; empty for none.
    """
    by_table = [_worded(table, read.text) for table in read.tables]
    return max(by_table, key=lambda cues: sum(cues.values()), default={}) | _written(query, names=len(read.tables) == 1)


def _worded(table: SignalTable, text: str) -> dict[str, float]:
    found = ((cue, sum(pattern.search(text) is not None for pattern in cue.patterns)) for cue in table.hops)
    return {cue.name: cue.weight * count for cue, count in found if count}


def _written(query: str, *, names: bool) -> dict[str, float]:
    raw = unicodedata.normalize("NFC", examined(query))
    quoted = _QUOTED.findall(raw)
    count = len(_names(_QUOTED.sub(" , ", raw)) | set(quoted)) if names and not raw.isupper() else 0
    cues = {
        "several_names": SECOND_NAME * (count >= _NAMES_OF_TWO) + THIRD_NAME * (count >= _NAMES_OF_THREE),
        "quotation": QUOTATION * bool(quoted),
    }
    return {name: weight for name, weight in cues.items() if weight}


def _names(raw: str) -> set[str]:
    """Runs of words with a capital; not the word that opens a sentence, which has one anyway."""
    names: list[str] = []
    last, end = "", 0
    for match in _WORD.finditer(raw):
        word, between = match[0], raw[end : match.start()]
        # Behind an initial or a title ("E.", "St.") no sentence ends.
        abbreviated = between == ". " and 0 < len(last) <= _MAX_ABBREVIATED
        opens = not end or (not abbreviated and not _SENTENCE_EDGES.isdisjoint(between))
        if not opens and _is_name(word):
            if last and (abbreviated or between == " "):
                names[-1] += f" {word}"
            else:
                names.append(word)
            last = word
        elif word not in _WITHIN_NAMES or between != " ":
            last = ""
        end = match.end()
    return set(names)


def _is_name(word: str) -> bool:
    """Tell words with a capital; a code ("N1", "NS-3") names no more than one would ask for anyway."""
    return word[0].isupper() and word not in _PRONOUN_I and not any(char.isdigit() for char in word)
