"""A question in the light of the one before it; patterns (``follow_ups`` of a language) must take linear time."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

from agentic_retriever.text import detect_language, stopwords
from agentic_retriever.text.language_files import any_of, check_keys, language_files, languages_with
from agentic_retriever.text.scripts import lowered

Nearness = Callable[[str, Sequence[str]], Sequence[float]]  # how near texts are to one; nothing where none can tell

MAX_CHARS: Final = 300  # what is longer says what it is about
_MAX_FRAGMENT: Final = 6  # words that are still no sentence of their own
_MAX_BARE: Final = 1  # the same without a word before them that joins them to the last question: "trailers?"
_MAX_UNSPACED: Final = 28  # characters of a fragment where words have no spaces between them
_MIN_ANTECEDENT: Final = 10  # characters before a pronoun in which something may be named, without spaces
_MIN_SHARED: Final = 3  # characters with which two words without spaces around them begin alike
_EDGES: Final = " \t\r\n¿?？¡!.,;:…\"'"
_SIGNS: Final = ("?", "？")
_WORD: Final = re.compile(r"\w(?:[\w.\-/’']*\w)?")
_LABEL: Final = re.compile("[A-HJ-Z]")  # "tier A" has no article
_DIGITS: Final = re.compile(r"\d+")
_LETTERS: Final = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True, slots=True)
class Table:
    """The section of one language, compiled."""

    spaced: bool
    language: str
    openers: re.Pattern[str]  # what joins a question to the last one, at its beginning
    closers: re.Pattern[str]  # the same at its end
    clause: re.Pattern[str]  # words that only whole questions have
    links: re.Pattern[str]  # what stands before a phrase: prepositions
    determiners: re.Pattern[str]
    breaks: re.Pattern[str]  # what stands between phrases besides; spaced languages have their stop words
    belongs: re.Pattern[str]  # what joins a phrase to the one before it
    alone: re.Pattern[str]  # what looks as if it leaned on something and does not
    leans: tuple[tuple[re.Pattern[str], str], ...]  # what leans, and how it reads with ``{topic}`` or ``{last}`` in it
    topics: tuple[re.Pattern[str], ...]  # where a question names its ``topic``, the surest first


_LISTS: Final = ("openers", "closers", "clause", "links", "determiners", "breaks", "belongs", "alone")


@lru_cache(16)
def load_table(language: str) -> Table:
    return parse_table(language_files()[language], file=f"languages/{language}.json")


def parse_table(data: Any, *, file: str) -> Table:  # noqa: ANN401 - checked here
    where = f"{file}: follow_ups"
    lists, spaced = check_keys(data["follow_ups"], (*_LISTS, "leans", "topics"), where=where), data["spaced"]
    made = {name: any_of(lists[name], spaced=spaced, where=f"{where}.{name}") for name in _LISTS}
    patterns = {name: re.compile(pattern.pattern, re.IGNORECASE) for name, pattern in made.items()}
    return Table(
        spaced=spaced,
        language=data["language"],
        leans=tuple((re.compile(pattern, re.IGNORECASE), reading) for pattern, reading in lists["leans"]),
        topics=tuple(re.compile(pattern, re.IGNORECASE) for pattern in lists["topics"]),
        **patterns,
    )


class Phrase(NamedTuple):
    """A stretch of a question between words of grammar."""

    lead: int  # where its determiner begins, or itself
    start: int
    end: int
    link: str  # the preposition before it, or ""


@lru_cache(64)
def leans(asked: str, last: str = "") -> bool:
    """Tell whether a question names no subject of its own, so that without another one it says too little."""
    text = asked.strip(_EDGES)
    return any(_fragment(text, asked, table, last) or _leaning(text, table) for table in _tables(asked, last))


def stand_alone(asked: str, last: str, *, near: Nearness | None = None) -> str:
    """Return the question that was meant right after another one; the same where it needs no other."""
    text, before = asked.strip(_EDGES), " ".join(last.split()).strip(_EDGES)
    frames = _tables(last)
    for table in _tables(asked, last) if before else ():
        frame = frames[0] if frames else table
        fragment = _fragment(text, asked, table, last)
        if fragment:
            body = _resolved(fragment, before, table, frame, bare=True)
            return _asking(_replaced(before, body, table, frame, near), last)
        if _leaning(text, table):
            opened = table.openers.match(text)
            return _asking(_resolved(text[opened.end() if opened else 0 :].strip(_EDGES), before, table, frame), asked)
    return asked


def _tables(*texts: str) -> list[Table]:
    known = languages_with("follow_ups")
    found = [detect_language(text) for text in texts if len(text) <= MAX_CHARS]
    return [load_table(language) for language in dict.fromkeys(found) if language in known]


def _asking(said: str, like: str) -> str:
    """Put the signs of a question around what is one, as another one has them."""
    first, last = like.strip()[:1], like.strip()[-1:]
    return f"{first if first == '¿' else ''}{said[:1].upper()}{said[1:]}{last if last in _SIGNS else ''}"


def _fragment(text: str, asked: str, table: Table, last: str) -> str:
    """Return what stands in for a part of the last question, or ``""``, as for bare words without a last question."""
    opened, closed = table.openers.match(text), table.closers.search(text)
    body = text[opened.end() if opened else 0 : closed.start() if closed else None].strip(_EDGES)
    linked = table.links.match(body) is not None
    most = _MAX_FRAGMENT if opened or closed or linked else _MAX_BARE
    short = len(body.split()) <= most if table.spaced else len(body) <= _MAX_UNSPACED
    joined = opened or closed or (table.spaced and asked.strip()[-1:] in _SIGNS and (linked or last))
    return body if joined and short and body and not table.clause.search(body) else ""


def _leaning(text: str, table: Table) -> bool:
    return table.alone.search(text) is None and any(_lean(text, table))


def _lean(text: str, table: Table) -> Iterator[tuple[re.Match[str], str]]:
    opened = table.openers.match(text)
    text = text[opened.end() if opened else 0 :].strip(_EDGES)
    for pattern, reading in table.leans:
        match = pattern.search(text)
        if match and not _antecedent(text[: match.start()], table):
            yield match, reading


def _antecedent(before: str, table: Table) -> bool:
    """Tell whether something stands before a pronoun that it may mean."""
    if not table.spaced:
        return len(before) >= _MIN_ANTECEDENT
    words = _WORD.findall(before)[1:]
    named = any((word[0].isupper() and word[1:]) or _DIGITS.search(word) for word in words)
    return named or any(one.lead < one.start or one.link for one in _phrases(before, table))


def _resolved(text: str, last: str, table: Table, frame: Table, *, bare: bool = False) -> str:
    """Put the topic of the last question, or the whole of it, where a question leans on it."""
    for match, reading in _lean(text, table):
        topic = topic_of(last, frame)
        topic = _without(topic, frame.determiners) if bare else topic
        groups = match.groupdict()
        said = reading.format(topic=topic, last=last, asked=match[0], word=groups.get("word"))
        start, end = match.span("lean" if "lean" in groups else 0)
        return f"{text[:start]}{said}{text[end:]}"
    return text


def _without(text: str, lead: re.Pattern[str]) -> str:
    found = lead.match(text)
    return text[found.end() :].lstrip() if found else text


def topic_of(question: str, table: Table) -> str:
    """Return what a question is about, in its words."""
    for pattern in table.topics:
        match = pattern.search(question)
        if match:
            return match["topic"].strip(_EDGES)
    chains = _chains(question, _phrases(question, table), table)
    best = max(chains, key=lambda one: (one.lead < one.start, one.end - one.start), default=None)
    return question if best is None else question[best.lead : best.end]


def _phrases(text: str, table: Table) -> list[Phrase]:
    """Cut a question into its phrases, with the words before each that belong to it."""
    found: list[Phrase] = []
    at, gap = 0, 0
    for start, end in [*_breaks(text, table), (len(text), len(text))]:
        inner = text[at:start]
        body = inner.strip(_EDGES)
        if body:
            first = at + inner.index(body)
            before = text[gap:first]
            lead = [one for one in table.determiners.finditer(before) if not before[one.end() :].strip()]
            links = list(table.links.finditer(before[: lead[-1].start()] if lead else before))
            link = (
                links[-1][0]
                if links and not before[links[-1].end() : lead[-1].start() if lead else None].strip()
                else ""
            )
            found.append(Phrase(gap + lead[-1].start() if lead else first, first, first + len(body), link))
            gap = first + len(body)
        at = end
    return found


def _breaks(text: str, table: Table) -> list[tuple[int, int]]:
    if not table.spaced:
        return [match.span() for match in re.finditer(f"{table.breaks.pattern}|{table.clause.pattern}", text)]
    words = stopwords(table.language)
    read = [m for m in _WORD.finditer(text) if not (m.start() and _LABEL.fullmatch(m[0]))]
    stops = [m.span() for m in read if lowered(m[0]) in words or table.breaks.fullmatch(m[0])]
    end = _topic_end(text, table)
    ends = [] if end is None else [(end, end)]  # a verb may follow
    return sorted([*stops, *ends, *(m.span() for m in re.finditer(r"[,;:()]|\s[-–]\s", text))])


def _chains(text: str, phrases: Sequence[Phrase], table: Table) -> list[Phrase]:
    """Join phrases with those that belong to them: "the warranty" "of the NS-3"."""
    chains = list(phrases[:1])
    for before, one in pairwise(phrases):
        between = text[before.end : one.lead].strip()
        if table.belongs.fullmatch(between):
            chains[-1] = chains[-1]._replace(end=one.end)
        else:
            chains.append(one)
    return chains


def _replaced(last: str, body: str, table: Table, frame: Table, near: Nearness | None) -> str:
    """Put a new phrase in the place of what it stands for in the last question."""
    link = table.links.match(body)
    led = body[link.end() if link else 0 :].strip()
    core = _without(led, table.determiners)
    phrases = _phrases(last, frame)
    place = _like_code(last, core) or _like_head(last, core, phrases, frame) or _like_name(last, core)
    if place is not None:
        return f"{last[: place[0]]}{core}{last[place[1] :]}"
    if not phrases:
        return f"{last} {body}"
    chosen = _place(last, core, link[0] if link else "", phrases, frame, near)
    at, end = phrases.index(chosen), chosen.end
    for one in phrases[at + 1 :] if at else ():  # what describes a thing goes with it: "of two axles"
        if one.lead < one.start or not frame.belongs.fullmatch(last[end : one.lead].strip()):
            break
        end = one.end
    return f"{last[: chosen.lead]}{led}{last[end:]}"


def _place(last: str, core: str, link: str, phrases: Sequence[Phrase], table: Table, near: Nearness | None) -> Phrase:
    """Return the phrase that another one most probably stands for."""
    linked = [one for one in phrases if link and one.link.casefold() == link.casefold()]
    if linked:
        return linked[-1]
    end = _topic_end(last, table)
    things = [one for at, one in enumerate(phrases) if one.link or one.lead < one.start or not at or one.end == end]
    if link:  # "for trailers" is no other "length"
        things = things[1:] or things
    scores = near(core, [last[one.start : one.end] for one in things]) if near is not None and len(things) > 1 else ()
    if scores:
        return things[max(range(len(things)), key=lambda at: scores[at])]
    named = [one for one in things if one.end == end] or [one for one in things if one.link] or things
    return named[-1]


def _topic_end(question: str, table: Table) -> int | None:
    """Return where a topic ends that words of another kind follow, such as a verb."""
    found = next((match for topic in table.topics if (match := topic.search(question))), None)
    return found.end("topic") if found and found.end("topic") < len(question) else None


def _like_code(last: str, core: str) -> tuple[int, int] | None:
    """Find the number or code that another one stands for: E42 for E17, 2024 for 2025."""
    if not _DIGITS.search(core) or len(core.split()) > 1:
        return None
    codes = [match for match in _WORD.finditer(last) if _DIGITS.search(match[0])]
    alike = [match for match in codes if _shape(match[0]) == _shape(core)] or (codes if len(codes) == 1 else [])
    return alike[-1].span() if alike else None


def _shape(code: str) -> str:
    return _DIGITS.sub("0", _LETTERS.sub("a", code))


def _like_head(last: str, core: str, phrases: Sequence[Phrase], table: Table) -> tuple[int, int] | None:
    """Find the phrase that begins or ends with the same word: "tier A" for "tier C"."""
    for one in reversed(phrases):
        text = last[one.start : one.end]
        if not table.spaced:
            at = next((at for at in range(len(text)) if _shared(text[at:], core) >= _MIN_SHARED), None)
            if at is not None and text[at:] != core:
                return one.start + at, one.end
            continue
        words, mine = list(_WORD.finditer(text)), [lowered(word) for word in _WORD.findall(core)]
        for word in words if len(mine) > 1 else ():
            if lowered(word[0]) == mine[0]:
                return one.start + word.start(), one.end
            if lowered(word[0]) == mine[-1]:
                return one.start, one.start + word.end()
    return None


def _shared(text: str, other: str) -> int:
    return next((at for at, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))


def _like_name(last: str, core: str) -> tuple[int, int] | None:
    """Find the one name that another one stands for: "Plus" for "Premier"."""
    if not core[:1].isupper() or len(core.split()) > 1:
        return None
    names = [match for match in _WORD.finditer(last) if match.start() and match[0][0].isupper() and len(match[0]) > 1]
    return names[0].span() if len(names) == 1 else None
