"""Whether a question is one look-up, or needs several facts to be combined."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from agentic_retriever.errors import ConfigError, unknown_name
from agentic_retriever.routing.signals import (
    COMPLEXITY_LISTS,
    HOPS,
    SIGNALS,
    add_table,
    examined,
    packaged_languages,
    parse_table,
    read_query,
    remove_table,
)
from agentic_retriever.schema import Complexity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agentic_retriever.routing.signals import ReadQuery, SignalTable


# Cues of questions that ask about something that must be found first.
#
# "When was the director of Solaris born?" names nobody whose birth could be looked up. Questions of this kind
# (multi-hop; Yang et al., HotpotQA, EMNLP 2018) tend to describe things instead of naming them, to join clauses, to
# hold two things against each other, and to name several things. Each such trait is weak evidence and adds a small
# weight; the weights of wording stand in the language files, those of writing (names, quotations) here.

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
    """Find the cues of a question in several steps."""
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


COMPLEX_PATTERN: Final = 0.3
STRONG_KEYWORD: Final = 0.15
MEDIUM_KEYWORD: Final = 0.08
SIMPLE_PATTERN: Final = -0.1
SEVERAL_QUESTIONS: Final = 0.15
CONJUNCTION: Final = 0.05
MAX_CONJUNCTIONS: Final = 3
MAX_HOPS: Final = 0.3
"""What the cues of a question in several steps add at most; from there on they decide like a complex pattern."""
MAX_LENGTH_SCORE: Final = 0.2
FULL_LENGTH: Final = 300
"""Characters from which on the length counts in full."""
LONG: Final = 150
"""Characters beyond which a question that is no list counts as complex."""

_MIN_QUESTIONS: Final = 2
_MIN_CLAUSES: Final = 3
_MIN_ITEMS: Final = 4
_MAX_ITEM_CHARS: Final = 40
_MAX_SHOWN: Final = 40
_QUESTION_MARK: Final = re.compile("[?？؟]")
_CLAUSE_END: Final = re.compile(r"[,;:.?？؟¿!]")
_ITEM_END: Final = re.compile(r"[\n,;•]")
# A preposition or two may stand before the question word that opens a clause.
_OPENING: Final = re.compile(r"\W*(?:\w{1,4} ){0,2}")


def assess_complexity(query: str) -> tuple[Complexity, float]:
    """Judge a question by the patterns and keywords of its language.

    The score adds up: 0.3 for each complex pattern, 0.15 for each strong and 0.08 for each medium keyword, up to 0.3 by
    the weights of the cues of a question in several steps (``hop_cues``), up to 0.2 for length, 0.15 for several
    questions, 0.05 for each conjunction up to 0.15, less 0.1 for a simple pattern. The verdict is that of the first
    check that applies: complex patterns, strong keywords, cues of several steps that weigh 0.3 together, simple
    patterns, more than 150 characters that are no list, several questions, three conjunctions; else it is simple.
    """
    found = _find(query)
    return _verdict(found), _score(found)


def complexity_reasons(query: str) -> tuple[str, ...]:
    """Name what was found in a question, for explanations."""
    found = _find(query)
    return (
        *(f"complex_pattern: {_cut(words)}" for words in found.complex_patterns),
        *(f"strong_keyword: {word}" for word in found.strong),
        *found.hops,
        *(f"medium_keyword: {word}" for word in found.medium),
        *(["simple_pattern"] if found.simple else []),
        *([f"more_than_{LONG}_characters"] if found.too_long else []),
        *([f"several_questions: {found.questions}"] if found.several else []),
        *([f"conjunctions: {found.conjunctions}"] if found.conjunctions else []),
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """What a question holds."""

    complex_patterns: tuple[str, ...]
    strong: tuple[str, ...]
    medium: tuple[str, ...]
    hops: Mapping[str, float]
    simple: bool
    questions: int
    conjunctions: int
    chars: int
    too_long: bool

    @property
    def several(self) -> bool:
        return self.questions >= _MIN_QUESTIONS

    @property
    def hop_score(self) -> float:
        # Rounded, for sums of hundredths must reach their limit exactly.
        return round(min(sum(self.hops.values()), MAX_HOPS), 6)


@lru_cache(16)
def _find(query: str) -> _Found:
    read = read_query(query)
    text, tables = read.text, read.tables
    length = len(query.strip())
    return _Found(
        complex_patterns=tuple(m[0] for table in tables for m in table.found_patterns("complex_patterns", text)),
        strong=_distinct(tables, "strong_keywords", text),
        medium=_distinct(tables, "medium_keywords", text),
        hops=hop_cues(query, read),
        simple=any(table.found_patterns("simple_patterns", text) for table in tables),
        questions=question_count(text, tables),
        conjunctions=max(len(table.found_words("conjunctions", text)) for table in tables),
        chars=length,
        too_long=length > LONG and not _is_list(query),
    )


def forget_assessments() -> None:
    """Forget what was found in queries, since the tables have changed."""
    _find.cache_clear()


def _score(found: _Found) -> float:
    score = (
        COMPLEX_PATTERN * len(found.complex_patterns)
        + STRONG_KEYWORD * len(found.strong)
        + MEDIUM_KEYWORD * len(found.medium)
        + found.hop_score
        + MAX_LENGTH_SCORE * min(1.0, found.chars / FULL_LENGTH)
        + SEVERAL_QUESTIONS * found.several
        + CONJUNCTION * min(found.conjunctions, MAX_CONJUNCTIONS)
        + SIMPLE_PATTERN * found.simple
    )
    return min(1.0, max(0.0, score))


def _verdict(found: _Found) -> Complexity:
    if found.complex_patterns or found.strong or found.hop_score >= MAX_HOPS:
        return Complexity.COMPLEX
    if found.simple:
        return Complexity.SIMPLE
    much = found.too_long or found.several or found.conjunctions >= MAX_CONJUNCTIONS
    return Complexity.COMPLEX if much else Complexity.SIMPLE


def question_count(text: str, tables: Sequence[SignalTable]) -> int:
    """Count the questions in a text: by question marks, or by clauses that a question word opens."""
    marks = sum(any(char.isalpha() for char in part) for part in _QUESTION_MARK.split(text)[:-1])
    clauses = max(_asking_clauses(text, table) for table in tables)
    return max(1, marks, clauses if clauses >= _MIN_CLAUSES else 0)


def _asking_clauses(text: str, table: SignalTable) -> int:
    words = table.words["question_words"]
    if not table.spaced:
        return len(words.findall(text))
    parts = (part for clause in _CLAUSE_END.split(text) for part in table.words["conjunctions"].split(clause))
    return sum(words.match(part, _opening_end(part, words)) is not None for part in parts)


def _opening_end(part: str, words: re.Pattern[str]) -> int:
    """Where the question word of a clause would stand: at its start, or behind two short words at most."""
    opening = _OPENING.match(part)
    end = opening.end() if opening else 0
    found = words.search(part, 0, end)
    return found.start() if found else end


def _distinct(tables: Sequence[SignalTable], name: str, text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word for table in tables for word in table.found_words(name, text)))


def _cut(words: str) -> str:
    return words if len(words) <= _MAX_SHOWN else f"{words[: _MAX_SHOWN - 1]}…"


def _is_list(query: str) -> bool:
    items = [item.strip() for item in _ITEM_END.split(examined(query))]
    filled = [item for item in items if item]
    return len(filled) >= _MIN_ITEMS and all(len(item) <= _MAX_ITEM_CHARS for item in filled)


# Signal tables of languages that a program adds to those of the package.

_CODE: Final = re.compile(r"[a-z]{2,3}")


def register_language(
    language: str,
    *,
    signals: Mapping[str, Sequence[str] | Mapping[str, Sequence[str]]],
    complexity: Mapping[str, Any] | None = None,
    spaced: bool = True,
) -> None:
    """Add the words by which stage two and the assessment of complexity read questions of one more language.

    Letter case and accents do not count. A word may hold spaces and end in ``*`` for any ending. What is left out
    stays empty. Register before the first question is asked; registering a language again replaces its table.

    Args:
        language: ISO 639-1 code, as ``agentic_retriever.text.detect_language`` gives it.
        signals: Words by signal (``agentic_retriever.routing.signals.SIGNALS``): a list, or an object of ``words`` and
            ``patterns``, which are regular expressions that take linear time.
        complexity: Lists by name, as in the packaged tables (``COMPLEXITY_LISTS`` and ``hops``).
        spaced: Whether words stand between spaces; without, a word is found anywhere.

    Raises:
        ConfigError: If the code is none, the package has a table of that language, a key is unknown, or a pattern is no
            regular expression.
    """
    if not _CODE.fullmatch(language):
        raise ConfigError(f"a language must be a code of two or three small letters, such as fr, not {language[:40]!r}")
    if language in packaged_languages():
        raise ConfigError(f"the package has a table of {language!r}; only languages without one can be added")
    lists: dict[str, Any] = {**dict.fromkeys(COMPLEXITY_LISTS, ()), HOPS: {}}
    _known(complexity or {}, lists, "list of complexity")
    _known(signals, SIGNALS, "signal")
    table = {
        "language": language,
        "spaced": spaced,
        "complexity": {**lists, **(complexity or {})},
        "signals": {name: _entry(signals.get(name, ())) for name in SIGNALS},
    }
    add_table(parse_table(table, file=f"the table of {language!r}"))
    forget_assessments()


def unregister_language(language: str) -> None:
    """Take away the table of a language that was added."""
    remove_table(language)
    forget_assessments()


def _entry(words: Sequence[str] | Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Write a signal's words as the packaged tables do."""
    if isinstance(words, str):
        raise ConfigError(f"words of a signal must be a list, got the text {words[:40]!r}")
    parts = dict(words) if isinstance(words, Mapping) else {"words": words}
    return {"words": (), "patterns": (), **parts}


def _known(given: Iterable[str], known: Iterable[str], kind: str) -> None:
    names = list(known)
    for name in given:
        if name not in names:
            raise ConfigError(unknown_name(kind, name, names))
