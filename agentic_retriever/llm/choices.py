"""The one reader of every choice that a model makes among named options.

A choice is read by name alone; a number is no position. What is looked at, in this order:

1. JSON objects with a key such as ``choice``, ``index`` or ``strategy``, and JSON lists of strings;
2. lines with such a label, ``STRATEGY: hybrid``, where a remark may follow behind a comma or in brackets;
3. a reply that is one name, or whose last line is one name and no other line is another;
4. prose that names exactly one option, in sentences that neither deny nor ask.

Where one of the first two is there, it decides: when none of the answers in it is an option the reply cannot be read,
whatever the words around it say. Of several answers the first that is an option counts. Broken JSON and prose that
names several options ("not cacm but cisi", "cacm or cisi?") cannot be read either. The caller then falls back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from agentic_retriever.errors import LLMOutputError
from agentic_retriever.llm.names import OptionNames
from agentic_retriever.llm.replies import containers, json_values, without_thoughts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MAX_REASON_CHARS: Final = 200
MAX_PROSE_CHARS: Final = 4_000
"""Longer prose is no choice."""

_MAX_ANSWERS: Final = 50
_MAX_CONTEXT: Final = 1_000

_CHOICE_KEYS: Final = (
    "choice", "choices", "selection", "selected", "decision", "answer", "answers", "pick",
    "index", "index name", "indexes", "indices", "collection", "strategy", "strategy name", "strategies",
    "option", "tool", "name", "result",
)  # fmt: skip
_CONFIDENCE_KEYS: Final = ("confidence", "probability", "certainty", "score")
_REASON_KEYS: Final = ("reasoning", "reason", "explanation", "rationale", "why")

_DECORATION: Final = r"[*_`~ \t]{0,6}"
# Not "name" and the like, which stand before every option where a model repeats the prompt.
_LABELS: Final = _CHOICE_KEYS[:-4]
_CHOICE_WORDS: Final = "|".join(key.replace(" ", "[ _]") for key in sorted(_LABELS, key=len, reverse=True))
_LABEL: Final = re.compile(
    r"^[\s>#*_`~|-]{0,12}(?:\d{1,2}[.)][\s*_`]{0,4})?"
    rf"(?:(?:the|my|final|best|chosen|selected)[ _]){{0,2}}(?:{_CHOICE_WORDS})(?:[ ]is)?"
    rf"{_DECORATION}[:=：](?P<value>[^\n]*)$",
    re.IGNORECASE | re.MULTILINE,
)
_NEXT_LABEL: Final = re.compile(
    rf"\b(?:{'|'.join((*_CONFIDENCE_KEYS, *_REASON_KEYS))}){_DECORATION}[:=]", re.IGNORECASE
)
_REMARK: Final = re.compile(r"[,;(]|\s[-–—]\s")
_CONFIDENCE: Final = re.compile(
    rf"\b(?:{'|'.join(_CONFIDENCE_KEYS)}){_DECORATION}[:=]{_DECORATION}([\d.,%/ ]{{1,12}})", re.IGNORECASE
)
_REASON: Final = re.compile(rf"\b(?:{'|'.join(_REASON_KEYS)}){_DECORATION}[:=]([^\n]{{1,400}})", re.IGNORECASE)
_STATED: Final = re.compile(r"(\d{1,4}(?:[.,]\d{1,20})?|[.,]\d{1,20})\s*(%|/\s*10{1,2}\b)?")
# JSON that was begun but could not be read.
_BEGUN: Final = re.compile(r"[{\[]\s*[\"'“{\[]|\{\s*[\w-]+\s*:")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?。！？])\s+|\n")
_DENIAL: Final = re.compile(
    r"\b(?:not?|nor|never|none|neither|cannot|without|except|exclud\w*|avoid\w*|unlike|instead|rather than|wrong|"
    r"unsuitable|irrelevant|unrelated|unclear|unsure|doubt\w*|ni|nunca|ning[uú]n\w*|tampoco|sin|nicht|kein\w*|ne|pas|"
    r"aucun\w*|não)\b|n['’]t\b|ไม่|不|没|ない|не\b|[?？]",
    re.IGNORECASE,
)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a model chose.

    Attributes:
        name: An option, spelled as it was offered.
        confidence: What the model said of its certainty, in [0, 1]; ``None`` when it said nothing usable.
        reason: Its reason on one line of at most 200 characters, or ``""``.
    """

    name: str
    confidence: float | None = None
    reason: str = ""


def read_choice(reply: str, names: Sequence[str], *, aliases: Mapping[str, str] | None = None) -> Choice:
    """Read the one option that a reply chooses; see the module for the rules.

    Args:
        reply: Any text.
        names: The options.
        aliases: Other spellings of options, each with the option that it means.

    Returns:
        The choice; its name is one of ``names``.

    Raises:
        LLMOutputError: If the reply cannot be read as a choice; the message is at most 200 characters, without the
            reply.
    """
    options = OptionNames(names, aliases)
    text = without_thoughts(reply)
    given = _structured(text, options)
    if given is None:
        return Choice(name=_from_prose(text, options))
    if not given:
        raise _unreadable(f"what it chooses is none of the {len(names)} options", text)
    return given[0]


def read_choices(
    reply: str, names: Sequence[str], *, most: int | None = None, aliases: Mapping[str, str] | None = None
) -> list[Choice]:
    """Read the options that a reply chooses, best first.

    As :func:`read_choice`, but of several answers each counts once, and a list of names alone, one a line or with
    commas between them, is an answer too.

    Args:
        reply: Any text.
        names: The options.
        most: Most choices; those behind are left out.
        aliases: Other spellings of options, each with the option that it means.

    Returns:
        At least one choice, each with a name of its own.

    Raises:
        LLMOutputError: As :func:`read_choice`.
    """
    options = OptionNames(names, aliases)
    text = without_thoughts(reply)
    given = _structured(text, options, several=True)
    if given is None:
        given = [Choice(name=name) for name in _listed(text, options) or [_from_prose(text, options)]]
    if not given:
        raise _unreadable(f"what it chooses is none of the {len(names)} options", text)
    return list({choice.name: choice for choice in reversed(given)}.values())[::-1][:most]


def _structured(text: str, options: OptionNames, *, several: bool = False) -> list[Choice] | None:
    """Return the answers in JSON or labelled lines that are options; ``None`` where there is neither.

    Raises:
        LLMOutputError: If JSON was begun and is broken or answers something else.
    """
    values = json_values(text)
    answers = [answer for container in containers(values) for answer in _answers(container)]
    answers += [(item, {}) for value in values if isinstance(value, list) for item in value if isinstance(item, str)]
    if not answers:
        answers = _labelled(text, options, several=several)
    if answers:
        read = (_choice(value, context, options) for value, context in answers[:_MAX_ANSWERS])
        return [choice for choice in read if choice is not None]
    if _BEGUN.search(text):
        raise _unreadable("its JSON is cut off, broken or holds no choice", text)
    return None


def _labelled(text: str, options: OptionNames, *, several: bool) -> list[tuple[object, dict[str, object] | str]]:
    """Return what labelled lines choose, each with the text that follows."""
    found: list[tuple[object, dict[str, object] | str]] = []
    for label, _ in zip(_LABEL.finditer(text), range(_MAX_ANSWERS), strict=False):
        context = text[label.start("value") : label.start("value") + _MAX_CONTEXT]
        value = label["value"]
        if not value.strip("*_`~ \t"):
            # The name may stand on the next line; other words there belong to no label.
            value = context.lstrip().split("\n", 1)[0]
            if options.find_line(value) is None:
                continue
        found += [(part, context) for part in (value.split(",") if several else [value])]
    return found


def _answers(container: dict[str, object] | list[object]) -> list[tuple[object, dict[str, object] | str]]:
    """Return what the keys of an object choose, the most telling key first."""
    if isinstance(container, list):
        return []
    keyed = {_key(key): value for key, value in reversed(container.items())}
    found: list[tuple[object, dict[str, object] | str]] = []
    for key in _CHOICE_KEYS:
        if key in keyed:
            value = keyed[key]
            # Objects within are looked at by themselves.
            items = value if isinstance(value, list) else [value]
            found += [(item, keyed) for item in items if not isinstance(item, (dict, list))]
    return found


def _key(key: str) -> str:
    return " ".join(key.casefold().replace("_", " ").replace("-", " ").split())


def _choice(value: object, context: dict[str, object] | str, options: OptionNames) -> Choice | None:
    """Turn one answer into a choice, or ``None`` when it is no option."""
    name = _named(value, options)
    if name is None:
        return None
    if isinstance(context, dict):
        confidence, reason = _first(context, _CONFIDENCE_KEYS), _first(context, _REASON_KEYS)
    else:
        stated, why = _CONFIDENCE.search(context), _REASON.search(context)
        confidence, reason = stated and stated[1], why and why[1]
    return Choice(name=name, confidence=_share(confidence), reason=_one_line(reason))


def _named(value: object, options: OptionNames) -> str | None:
    """Return the option that an answer is, or begins with before a remark, or alone names."""
    if isinstance(value, str):
        said = _NEXT_LABEL.split(value[:_MAX_CONTEXT], maxsplit=1)[0]
        head = _REMARK.split(said, maxsplit=1)[0]
        return options.find_line(said) or options.find_line(head) or _only_mention([said], options)
    # A number names an option only where that is what the option is called.
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return options.find(str(value)) if is_number else None


def _first(context: Mapping[str, object], keys: Iterable[str]) -> object:
    return next((context[key] for key in keys if key in context), None)


def _share(value: object) -> float | None:
    """Read a certainty: 0.8, "0.8", "80%", 80 or "8/10"; ``None`` for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    match = _STATED.match(str(value)[:40].strip())
    if match is None:
        return None
    number, unit = float(match[1].replace(",", ".")), (match[2] or "").replace(" ", "")
    scale = {"": 100.0 if number > 1 else 1.0, "%": 100.0, "/10": 10.0, "/100": 100.0}[unit]
    return number / scale if number <= scale else None


def _one_line(reason: object) -> str:
    if not isinstance(reason, str):
        return ""
    return " ".join(_CONTROL.sub(" ", reason[: 4 * MAX_REASON_CHARS]).split()).strip("*_` ")[:MAX_REASON_CHARS]


def _from_prose(text: str, options: OptionNames) -> str:
    """Read a choice without structure: a line of its own, else the one option that is named."""
    if len(text) > MAX_PROSE_CHARS:
        raise _unreadable("it is long and has no structure", text)
    lines = [line for line in text.splitlines() if line.strip()]
    alone = [options.find_line(line) for line in lines]
    if len(set(alone) - {None}) > 1:
        raise _unreadable("several lines name an option each", text)
    name = (alone[-1] if alone else None) or _only_mention(_SENTENCE_END.split(text), options)
    if name is None:
        raise _unreadable("it names no option, or several, or denies one", text)
    return name


def _listed(text: str, options: OptionNames) -> list[str]:
    """Return the options of a list of names alone, else those that stand on lines of their own."""
    if len(text) > MAX_PROSE_CHARS:
        return []
    named = [options.find_line(part) for part in re.split("[\n,;]", text) if part.strip()]
    if None in named:
        named = [options.find_line(line) for line in text.splitlines()]
    return [name for name in named if name is not None]


def _only_mention(sentences: Sequence[str], options: OptionNames) -> str | None:
    """Return the option that sentences name, if they name one only and no sentence that names it denies or asks."""
    naming = [(sentence, options.mentioned(sentence)) for sentence in sentences]
    named = {name for _, names in naming for name in names}
    denied = any(_DENIAL.search(sentence) for sentence, names in naming if names)
    return named.pop() if len(named) == 1 and not denied else None


def _unreadable(why: str, text: str) -> LLMOutputError:
    return LLMOutputError(f"the model's choice cannot be read: {why} ({len(text):,} characters)")
