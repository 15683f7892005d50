"""Words (``*`` stands for any ending) and patterns, which must take linear time, that tell what a question asks for."""

import math
import re
import unicodedata
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any, Final, NamedTuple, TypeVar

from cachetools import LRUCache, cached

from agentic_retriever.errors import ConfigError, unknown_name
from agentic_retriever.indices.profile import IndexProfile
from agentic_retriever.schema import Complexity, examined
from agentic_retriever.text import Tokenizer, detect_language, language_files

H = TypeVar("H", bound="Hashable")


@lru_cache(16)
def query_terms(query: str, language: str) -> tuple[str, ...]:
    """Cut a query into terms; remembered for the steps that ask for the same query."""
    return tuple(Tokenizer(language=language).query_tokens(examined(query)))


class Runs(dict[str, list[tuple[tuple[str, ...], H]]]):
    """Things by the terms that name them, by the first term of each; those of stop words alone are never found."""

    source: object = None

    def add(self, run: Sequence[str], named: H) -> None:
        if run:
            self.setdefault(run[0], []).append((tuple(run), named))

    def found(self, terms: Sequence[str]) -> list[H]:
        """Find what the terms of a query name, once each, in their order."""
        starts = ((at, run, named) for at, term in enumerate(terms) for run, named in self.get(term, ()))
        return list(dict.fromkeys(named for at, run, named in starts if tuple(terms[at : at + len(run)]) == run))


class ValueHit(NamedTuple):
    field: str
    value: str


@cached(LRUCache(128), key=lambda values, language: (id(values), language), lock=Lock())
def value_table(field_values: Mapping[str, frozenset[str]], language: str) -> Runs[ValueHit]:
    """The values of one index: the same words in the same order name one, whatever their endings."""
    tokenizer = Tokenizer(language=language)
    table: Runs[ValueHit] = Runs()
    table.source = field_values  # so that its id stays taken
    for field, values in sorted(field_values.items()):
        for value in sorted(values):
            is_year = value.isdigit() and len(value) == 4
            # A lone letter or a number that is no year cannot be recognised in a sentence.
            if is_year or (len(value.strip()) > 1 and any(map(str.isalpha, value))):
                table.add(tokenizer.query_tokens(value), ValueHit(field, value))
    return table


def value_hits(profile: IndexProfile, terms: Sequence[str]) -> list[ValueHit]:
    return value_table(profile.field_values, profile.language).found(terms) if profile.field_values else []


# Signals that are strong where a word or pattern of them occurs, and all that every language describes.
WORDED: Final = (
    "comparison", "analysis", "overview", "documents", "procedure", "whole", "detail", "listing", "references",
)  # fmt: skip
SIGNALS: Final = (*WORDED, "range")

_PATTERN_LISTS: Final = ("complex_patterns", "simple_patterns")
_WORD_LISTS: Final = ("strong_keywords", "medium_keywords", "conjunctions", "question_words")
COMPLEXITY_LISTS: Final = (*_PATTERN_LISTS, *_WORD_LISTS)
HOPS: Final = "hops"  # key of the cues about questions in several steps, beside the lists about complexity
_ACCENTS: Final = re.compile("[\u0300-\u036f]+")


class HopCue(NamedTuple):
    """A trait of wording that questions in several steps have more often than others."""

    name: str
    weight: float  # What each of its patterns adds when it occurs, in (0, 1]
    patterns: tuple[re.Pattern[str], ...]


@dataclass(frozen=True, slots=True)
class SignalTable:
    language: str  # ISO 639-1 code
    spaced: bool
    words: Mapping[str, re.Pattern[str]]
    hops: tuple[HopCue, ...]
    cues: language_files.PatternTable  # words, patterns and hops

    def matches(self, name: str, text: str) -> bool:
        """Tell whether a word or pattern of a list or signal occurs in a text in ``matching_form``."""
        likely = self.cues.likely(text)
        return any(pattern.search(text) for key in (f"words {name}", name) for pattern in likely.get(key, ()))

    def found_words(self, name: str, text: str) -> list[str]:
        """Return the words of a list that occur in a text, in order, with repetitions."""
        return [found[0] for words in self.cues.likely(text).get(f"words {name}", ()) for found in words.finditer(text)]


class ReadQuery(NamedTuple):
    """A query as the tables see it."""

    text: str
    tables: tuple[SignalTable, ...]
    questions: int  # how many it asks


@lru_cache(16)
def read_query(query: str) -> ReadQuery:
    """Bring a query into matching form and find its tables; remembered for the steps that ask for the same query."""
    language = detect_language(query)
    known = table_languages()
    tables = [load_table(code) for code in ([language] if language in known else known)]
    # Nothing that is written in ASCII can hold a word of a script without spaces.
    fitting = [table for table in tables if table.spaced or not query.isascii()]
    text, found = matching_form(query), tuple(fitting or tables)
    return ReadQuery(text, found, question_count(text, found))


def matching_form(query: str) -> str:
    """Bring a query to the form that tables match: no accents or capitals, single spaces, both ends of a long one."""
    return " ".join(_unaccented(examined(query)).casefold().split())


_added: Final[dict[str, SignalTable]] = {}  # by a program, for the whole process


def table_languages() -> tuple[str, ...]:
    return tuple(sorted({*packaged_languages(), *_added}))


def packaged_languages() -> tuple[str, ...]:
    return language_files.languages_with("signals")


@lru_cache(64)
def load_table(language: str) -> SignalTable:
    return _added.get(language) or parse_table(
        language_files.language_files()[language], file=f"languages/{language}.json"
    )


def parse_table(data: Mapping[str, Any], *, file: str) -> SignalTable:
    language_files.check_keys(data["complexity"], (*COMPLEXITY_LISTS, HOPS), where=f"{file}: complexity")
    language_files.check_keys(data["signals"], SIGNALS, where=f"{file}: signals")
    lists, spaced, where = data["complexity"], data["spaced"], f"{file}: complexity"
    patterns = {name: _compiled(lists[name], where=f"{where}.{name}") for name in _PATTERN_LISTS}
    words = {name: _word_pattern(lists[name], spaced=spaced, where=f"{where}.{name}") for name in _WORD_LISTS}
    for name, entry in data["signals"].items():
        of_signal = f"{file}: signals.{name}"
        language_files.check_keys(entry, ("words", "patterns"), where=of_signal)
        words[name] = _word_pattern(entry["words"], spaced=spaced, where=f"{of_signal}.words")
        patterns[name] = _compiled(entry["patterns"], where=f"{of_signal}.patterns")
    if not isinstance(lists[HOPS], dict):
        raise ConfigError(f"{where}.{HOPS} must be an object of cues by their names")
    cues = []
    for name, entry in lists[HOPS].items():  # a language may name its own
        of_cue = f"{where}.{HOPS}.{name}"
        weight = language_files.check_keys(entry, ("weight", "patterns"), where=of_cue)["weight"]
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0.0 < weight <= 1.0:
            raise ConfigError(f"{of_cue}.weight must be a number above 0 and at most 1, not {weight!r}")
        cues.append(HopCue(name, float(weight), _compiled(entry["patterns"], where=f"{of_cue}.patterns")))
    by_name = {f"words {name}": (pattern,) for name, pattern in words.items()} | patterns
    finder = language_files.PatternTable({**by_name, **{f"{HOPS} {cue.name}": cue.patterns for cue in cues}})
    return SignalTable(data["language"], spaced, words, tuple(cues), finder)


def _compiled(entries: object, *, where: str) -> tuple[re.Pattern[str], ...]:
    patterns = []
    for at, pattern in enumerate(language_files.check_strings(entries, where=where)):
        try:
            patterns.append(re.compile(_unaccented(pattern), re.IGNORECASE))
        except re.error as err:  # noqa: PERF203 - tells which one
            raise ConfigError(f"{where}[{at}] is no regular expression: {err}") from err
    return tuple(patterns)


def _word_pattern(entries: object, *, spaced: bool, where: str) -> re.Pattern[str]:
    """One pattern for all words, longest first, so that the longest that fits is the one found."""
    words = sorted(language_files.check_strings(entries, where=where), key=len, reverse=True)
    if not words:
        return language_files.NEVER
    ending = r"\w{0,20}" if spaced else ""
    options = "|".join(
        re.escape(_unaccented(word.removesuffix("*")).casefold()) + (ending if word.endswith("*") else "")
        for word in words
    )
    return re.compile(rf"(?<!\w)(?:{options})(?!\w)" if spaced else options)


def _unaccented(text: str) -> str:
    return _ACCENTS.sub("", unicodedata.normalize("NFKD", text))


def checked_share(name: str, value: object) -> float:
    """Return a number from 0 to 1, such as a threshold that is a probability."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ConfigError(f"{name} must be a number from 0 to 1, got {str(value)[:40]!r}")
    return float(value)


def softmax(logits: Sequence[float]) -> list[float]:
    """Turn logarithms of odds into probabilities."""
    top = max(logits)
    if top == -math.inf:
        return [1.0 / len(logits)] * len(logits)
    powers = [math.exp(logit - top) for logit in logits]
    total = math.fsum(powers)
    return [power / total for power in powers]


# Cues of questions that ask about something that must be found first.
# "When was the director of Solaris born?" describes things instead of naming them (multi-hop; Yang et al., HotpotQA,
# EMNLP 2018). Each trait adds a small weight: those of wording stand in the language files, those of writing here.

SECOND_NAME: Final = 0.17
THIRD_NAME: Final = 0.07
QUOTATION: Final = 0.1
_QUOTED: Final = re.compile(r"\"[^\"\s][^\"]{0,100}\"|«[^»]{1,100}»|“[^”]{1,100}”|「[^」]{1,100}」")
_WORD: Final = re.compile(r"[^\W\d_](?:[\w'’&-]|\.(?=\w))*")
_WITHIN_NAMES: Final = frozenset({"of", "the", "de", "del", "la", "las", "los", "von", "van", "da", "di"})
_SENTENCE_EDGES: Final = frozenset(".?!¿¡\n")
_PRONOUN_I: Final = frozenset({"I", "I'm", "I'd", "I'll", "I've", "I’m", "I’d", "I’ll", "I’ve"})


def hop_cues(query: str, read: ReadQuery) -> dict[str, float]:
    worded = []
    for table in read.tables:
        counts = ((cue, len(table.cues.found(f"{HOPS} {cue.name}", read.text))) for cue in table.hops)
        worded.append({cue.name: cue.weight * count for cue, count in counts if count})
    raw = unicodedata.normalize("NFC", examined(query))
    quoted = _QUOTED.findall(raw)
    # German nouns have capitals.
    has_names = len(read.tables) == 1 and read.tables[0].language != "de" and not raw.isupper()
    count = len(_names(_QUOTED.sub(" , ", raw)) | set(quoted)) if has_names else 0
    written = {
        "several_names": SECOND_NAME * (count >= 2) + THIRD_NAME * (count >= 3),
        "quotation": QUOTATION * bool(quoted),
    }
    best = max(worded, key=lambda cues: sum(cues.values()), default={})
    return best | {name: weight for name, weight in written.items() if weight}


def _names(raw: str) -> set[str]:
    """Runs of words with a capital; not the word that opens a sentence, which has one anyway."""
    names: list[str] = []
    last, end = "", 0
    for match in _WORD.finditer(raw):
        word, between = match[0], raw[end : match.start()]
        # Behind an initial or a title ("E.", "St.") no sentence ends.
        abbreviated = between == ". " and 0 < len(last) <= 3
        opens = not end or (not abbreviated and not _SENTENCE_EDGES.isdisjoint(between))
        # A code ("N1", "NS-3") names no more than one would ask for anyway.
        is_name = word[0].isupper() and word not in _PRONOUN_I and not any(map(str.isdigit, word))
        if not opens and is_name:
            if last and (abbreviated or between == " "):
                names[-1] += f" {word}"
            else:
                names.append(word)
            last = word
        elif word not in _WITHIN_NAMES or between != " ":
            last = ""
        end = match.end()
    return set(names)


MAX_CONJUNCTIONS: Final = 3
MAX_HOPS: Final = 0.3  # the most that cues of several steps add; from there on they decide like a complex pattern
MAX_LENGTH_SCORE: Final = 0.2
FULL_LENGTH: Final = 300  # characters from which on the length counts in full
LONG: Final = 150  # characters beyond which a question that is no list counts as complex
_MAX_SHOWN: Final = 40
_QUESTION_MARK: Final = re.compile("[?？؟]")
_CLAUSE_END: Final = re.compile(r"[,;:.?？؟¿!]")
_ITEM_END: Final = re.compile(r"[\n,;•]")
# A preposition or two may stand before the question word that opens a clause.
_OPENING: Final = re.compile(r"\W*(?:\w{1,4} ){0,2}")


def assess_complexity(query: str) -> tuple[Complexity, float]:
    """Judge a question by the patterns and keywords of its language.

    The score adds up over patterns, keywords, cues of several steps (``hop_cues``), length, questions and conjunctions.
    The verdict is that of the first check that applies: complex patterns, strong keywords, cues that weigh 0.3, a
    simple pattern at the beginning, 150 characters that are no list, several questions, three conjunctions.
    """
    return _assessment(query)[:2]


def complexity_reasons(query: str) -> tuple[str, ...]:
    """Name what was found in a question, for explanations."""
    return _assessment(query)[2]


@lru_cache(16)
def _assessment(query: str) -> tuple[Complexity, float, tuple[str, ...]]:
    """Verdict, score and reasons."""
    read = read_query(query)
    text, tables, chars = read.text, read.tables, len(query.strip())
    patterns = [match[0] for table in tables for match in table.cues.found("complex_patterns", text)]
    strong, medium = (
        dict.fromkeys(word for table in tables for word in table.found_words(name, text))
        for name in ("strong_keywords", "medium_keywords")
    )
    hops = hop_cues(query, read)
    # Rounded, for sums of hundredths must reach their limit exactly.
    hop_score = round(min(sum(hops.values()), MAX_HOPS), 6)
    simple = {match[0].strip(): match.start() == 0 for t in tables for match in t.cues.found("simple_patterns", text)}
    questions = read.questions
    conjunctions = max(len(table.found_words("conjunctions", text)) for table in tables)
    items = [item.strip() for item in _ITEM_END.split(examined(query)) if item.strip()]
    is_list = len(items) >= 4 and all(len(item) <= 40 for item in items)
    too_long = chars > LONG and not is_list
    score = (
        0.3 * len(patterns)
        + 0.15 * len(strong)
        + 0.08 * len(medium)
        + hop_score
        + MAX_LENGTH_SCORE * min(1.0, chars / FULL_LENGTH)
        + 0.15 * (questions > 1)
        + 0.05 * min(conjunctions, MAX_CONJUNCTIONS)
        - 0.1 * len(simple)
    )
    much = too_long or questions > 1 or conjunctions >= MAX_CONJUNCTIONS
    is_complex = patterns or strong or hop_score >= MAX_HOPS or (much and not any(simple.values()))
    reasons = [f"complex_pattern: {_cut(words)}" for words in patterns]
    reasons += [*(f"strong_keyword: {word}" for word in strong), *hops, *(f"medium_keyword: {word}" for word in medium)]
    tellings = {
        "simple_pattern" if len(simple) == 1 else f"simple_patterns: {len(simple)}": bool(simple),
        f"more_than_{LONG}_characters": too_long,
        f"several_questions: {questions}": questions > 1,
        f"conjunctions: {conjunctions}": conjunctions,
    }
    reasons += [telling for telling, holds in tellings.items() if holds]
    return Complexity.COMPLEX if is_complex else Complexity.SIMPLE, min(1.0, max(0.0, score)), tuple(reasons)


def question_count(text: str, tables: Sequence[SignalTable]) -> int:
    """Count the questions in a text: by question marks, or by clauses that a question word opens."""
    marks = sum(any(char.isalpha() for char in part) for part in _QUESTION_MARK.split(text)[:-1])
    clauses = max(_asking_clauses(text, table) for table in tables)
    return max(1, marks, clauses if clauses >= 3 else 0)


def _asking_clauses(text: str, table: SignalTable) -> int:
    words = table.words["question_words"]
    if not table.spaced:
        return len(words.findall(text))
    parts = (part for clause in _CLAUSE_END.split(text) for part in table.words["conjunctions"].split(clause))
    count = 0
    for part in parts:  # its question word stands at its start, or behind two short words at most
        opening = _OPENING.match(part)
        end = opening.end() if opening else 0
        found = words.search(part, 0, end)
        count += words.match(part, found.start() if found else end) is not None
    return count


def _cut(words: str) -> str:
    return words if len(words) <= _MAX_SHOWN else f"{words[: _MAX_SHOWN - 1]}…"


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
    if not re.fullmatch("[a-z]{2,3}", language):
        raise ConfigError(f"a language must be a code of two or three small letters, such as fr, not {language[:40]!r}")
    if language in packaged_languages():
        raise ConfigError(f"the package has a table of {language!r}; only languages without one can be added")
    lists: dict[str, Any] = {**dict.fromkeys(COMPLEXITY_LISTS, ()), HOPS: {}}
    for kind, given, known in (("list of complexity", complexity or {}, lists), ("signal", signals, SIGNALS)):
        for name in given:
            if name not in known:
                raise ConfigError(unknown_name(kind, name, known))
    table = {
        "language": language,
        "spaced": spaced,
        "complexity": {**lists, **(complexity or {})},
        "signals": {name: _entry(signals.get(name, ())) for name in SIGNALS},
    }
    _added[language] = parse_table(table, file=f"the table of {language!r}")
    _forget_queries()


def unregister_language(language: str) -> None:
    """Take away the table of a language that was added."""
    if language not in _added:
        raise ConfigError(f"no table was added for {language[:40]!r}; added: {', '.join(sorted(_added)) or 'none'}")
    del _added[language]
    _forget_queries()


def _forget_queries() -> None:
    load_table.cache_clear()
    read_query.cache_clear()
    _assessment.cache_clear()


def _entry(words: Sequence[str] | Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Write a signal's words as the packaged tables do."""
    if isinstance(words, str):
        raise ConfigError(f"words of a signal must be a list, got the text {words[:40]!r}")
    parts = dict(words) if isinstance(words, Mapping) else {"words": words}
    return {"words": (), "patterns": (), **parts}
