"""Reading what a model replied: its words without its thoughts, JSON however it wrote it, choices among named options.

A choice is read by name, never by number: from JSON with such a key, then lines with such a label, which decide if
there are any, then a name alone, then prose that names just one option. The first answer that is an option counts.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Final, TypeAlias

from agentic_retriever.errors import LLMOutputError

MAX_REPLY_CHARS: Final = 20_000  # so much of a reply is read, once its thoughts are taken out
MAX_SCANNED_CHARS: Final = 400_000  # so much of it is searched for the end of its thoughts
_MAX_TAGS: Final = 2_000
_MAX_VALUES: Final = 100
# Characters behind the openings of broken values, each counted anew: a short text may have hundreds of them.
_MAX_RESCANNED: Final = 600_000
_MAX_STEPS: Final = 20_000
_MAX_DEPTH: Final = 24

_TAG: Final = re.compile(r"<(/?)(?:think|thinking|thoughts?|reasoning)>|\[(/?)THINK\]", re.IGNORECASE)
# Some models write their channels out; what comes after the last of these marks is the answer.
_FINAL: Final = "<|channel|>final<|message|>"
_TURN_END: Final = re.compile(r"<\|(?:return|end|im_end|eot_id)\|>")
# Whatever changes what of a text is thought; none is longer than 16 characters.
THOUGHT_MARK: Final = re.compile(rf"{_TAG.pattern}|<\|[a-z_]{{1,12}}\|>", re.IGNORECASE)

OPEN_TAG: Final = re.compile(r"<[^<>\n]{0,40}\Z")
_SPOKEN: Final = "\0"

_OPENING: Final = re.compile(r"[{\[]")
_SKIP: Final = re.compile(r"\s+|//[^\n]*|/\*.*?\*/", re.DOTALL)
_STRINGS: Final = {
    '"': re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"', re.DOTALL),
    # An apostrophe within is no end: one ends before a separator, a closing sign or a colon.
    "'": re.compile(r"'([^'\\]*(?:(?:\\.|'(?!\s{0,40}[,:}\]]))[^'\\]*)*)'", re.DOTALL),
    "“": re.compile(r"“([^”]*)”"),
}
_WORD: Final = re.compile(r"[^\s{}\[\],:\"'“”]{1,200}")
_NUMBER: Final = re.compile(r"[+-]?(?:\d{1,30}(\.\d{0,30})?|(\.\d{1,30}))([eE][+-]?\d{1,3})?")
_LITERALS: Final[dict[str, bool | None]] = {"true": True, "false": False, "null": None, "none": None}
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def without_thoughts(text: str) -> str:
    """Take out what a model thought aloud.

    Thoughts stand between tags such as ``<think>`` and ``</think>``, may be nested, and go on to the end where the tag
    is never closed. A closing tag without an opening one before it ends thoughts that the prompt template opened. The
    first 400,000 characters are looked at; the rest, without white space around it, is cut to 20,000.
    """
    text = text[:MAX_SCANNED_CHARS]
    final = text.rfind(_FINAL)
    if final >= 0:
        text = _TURN_END.split(text[final + len(_FINAL) :], maxsplit=1)[0]
    kept: list[str] = []
    depth = at = tags = 0
    for tags, tag in enumerate(_TAG.finditer(text), start=1):
        if tags > _MAX_TAGS:
            return "\n".join(kept)[:MAX_REPLY_CHARS].strip()
        closing = bool(tag[1] or tag[2])
        if depth == 0 and not (closing and tags == 1):
            kept.append(text[at : tag.start()])
        depth = max(0, depth - 1) if closing else depth + 1
        at = tag.end()
    if depth == 0:
        kept.append(text[at:])
    return "\n".join(kept).strip()[:MAX_REPLY_CHARS].strip()


def says_something(text: str) -> bool:
    """Tell whether there is more in a text than thoughts, white space and characters without a form."""
    return any(char.isprintable() and not char.isspace() for char in without_thoughts(text))


class SpokenText:
    """What a model says beside its thoughts, as it comes: only what marks thoughts has all of the text read again."""

    def __init__(self) -> None:
        self.text = ""
        self.begun = False  # whether there is something in it
        self._raw = ""
        self._speaks = True  # whether what comes next is no thought

    def feed(self, piece: str) -> None:
        known = len(self._raw)
        self._raw += piece
        if THOUGHT_MARK.search(self._raw, max(0, known - 16)):
            text = without_thoughts(self._raw + _SPOKEN)
            self._speaks = text.endswith(_SPOKEN)
            self.text = piece = text.removesuffix(_SPOKEN)
        elif self._speaks:
            self.text += piece
        if self._speaks and not self.begun and not OPEN_TAG.search(self.text[-50:]):  # which may become a thought
            self.begun = says_something(piece)


def json_values(text: str) -> list[object]:
    """Find the JSON objects and lists in a text, as models write them.

    Fences and prose do not matter. Trailing and doubled commas, single or typographic quotes, comments, ``True`` and
    ``None``, keys and single words without quotes are forgiven; of a key that comes twice the first value counts. Of
    what is broken the inside is looked at. Of the first 20,000 characters the outermost 100 values are returned.
    """
    reader = _Reader(text[:MAX_REPLY_CHARS])
    found: list[object] = []
    rescanned = at = 0
    while rescanned < _MAX_RESCANNED and len(found) < _MAX_VALUES:
        opening = _OPENING.search(reader.text, at)
        if opening is None:
            break
        reader.at = opening.start()
        try:
            found.append(reader.value(0))
            at = reader.at
        except _BrokenError:
            rescanned += len(reader.text) - opening.start()
            at = opening.end()
        except _SpentError:
            break
    return found


def containers(values: list[object]) -> Iterator[dict[str, object] | list[object]]:
    """Yield every dictionary and list among values and in them, outer before inner, in order of the text."""
    waiting = list(reversed(values))
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting.extend(reversed(list(value.values())))
        elif isinstance(value, list):
            yield value
            waiting.extend(reversed(value))


class _BrokenError(ValueError):
    """No JSON value begins here."""


class _SpentError(Exception):
    """The steps that one text may take are used up."""


class _Reader:
    """Reads one value after another; ``at`` is where it stands."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self._steps = 0

    def value(self, depth: int, *, bare: bool = False) -> object:
        sign = self._next()
        if depth > _MAX_DEPTH:
            raise _BrokenError
        if sign == "{":
            return self._object(depth)
        if sign == "[":
            return [self.value(depth + 1) for _ in self._entries("]")]
        return self._string(sign) if sign in _STRINGS else self._word(bare=bare)

    def _object(self, depth: int) -> dict[str, object]:
        found: dict[str, object] = {}
        for sign in self._entries("}"):
            key = self._string(sign) if sign in _STRINGS else self._match(_WORD)
            if self._next() != ":":
                raise _BrokenError
            self.at += 1
            found.setdefault(key, self.value(depth + 1, bare=True))
        return found

    def _entries(self, closing: str) -> Iterator[str]:
        """Stop at every entry and yield the sign it begins with; commas without an entry are passed over."""
        self.at += 1
        while (sign := self._next()) != closing:
            if sign == ",":
                self.at += 1
                continue
            yield sign
            if self._next() not in {",", closing}:
                raise _BrokenError
        self.at += 1

    def _next(self) -> str:
        """Skip white space and comments; return the sign that follows."""
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise _SpentError
        while skipped := _SKIP.match(self.text, self.at):
            self._steps += 1
            self.at = skipped.end()
        sign = self.text[self.at : self.at + 1]
        if not sign:
            raise _BrokenError
        return sign

    def _match(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise _BrokenError
        self.at = match.end()
        return match[match.lastindex or 0]

    def _string(self, quote: str) -> str:
        raw = self._match(_STRINGS[quote])
        if "\\" not in raw:
            return raw
        plain = _ESCAPE.sub(_unescaped, raw)
        # Two halves of one character stand in two escapes.
        return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")

    def _word(self, *, bare: bool) -> object:
        word = self._match(_WORD)
        number = _NUMBER.fullmatch(word)
        if number is not None:
            return float(word) if number[1] or number[2] or number[3] else int(word)
        if word.casefold() in _LITERALS:
            return _LITERALS[word.casefold()]
        if not bare:
            raise _BrokenError
        return word


def _unescaped(escape: re.Match[str]) -> str:
    code = escape[1]
    return chr(int(code[1:], 16)) if len(code) == 5 else _ESCAPED.get(code, code)


# Choices among named options.

MAX_REASON_CHARS: Final = 200
MAX_PROSE_CHARS: Final = 4_000  # longer prose is no choice
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
_ACCENTS: Final = re.compile("[\u0300-\u036f]+")
_SEPARATORS: Final = re.compile(r"[\s_-]+")
_AROUND: Final = " \t\r\n\"'`*_#>~.,:;!?()[]{}<>“”‘’«»|\\/-–—•"
_AROUND_NUMBER: Final = " \t\r\n\"'`*_#>,:;!()[]{}<>“”‘’«»|"
_BULLET: Final = re.compile(r"^\s*(?:[-*•–]|\(?\d{1,3}[.):])\s+")
_MAX_NAME_CHARS: Final = 300
# A name ends where a word ends; "cisi." ends a sentence, "cisi-2" and "cisi.old" are other names.
_BEFORE: Final = r"(?<!\w)(?<!\w[-.])"
_AFTER: Final = r"(?!\w|[-.]\w)"

_Answer: TypeAlias = "tuple[object, dict[str, object] | str]"  # what is chosen, and what stands around it


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a model chose."""

    name: str  # an option, spelled as it was offered
    confidence: float | None = None  # what the model said of its certainty, in [0, 1], if anything usable
    reason: str = ""  # on one line of at most 200 characters


def read_choice(reply: str, names: Sequence[str]) -> Choice:
    """Read the one option that a reply chooses, by the rules of the module.

    A reply that cannot be read is an ``LLMOutputError`` whose message has at most 200 characters and none of the reply.
    """
    options = _OptionNames(names)
    text = without_thoughts(reply)
    values = json_values(text)
    answers = [answer for container in containers(values) for answer in _answers(container)]
    answers += [(item, {}) for value in values if isinstance(value, list) for item in value if isinstance(item, str)]
    answers = answers or _labelled(text, options)
    for value, context in answers[:_MAX_ANSWERS]:
        choice = _choice(value, context, options)
        if choice is not None:
            return choice
    if answers:
        raise _unreadable(f"what it chooses is none of the {len(names)} options", text)
    if _BEGUN.search(text):
        raise _unreadable("its JSON is cut off, broken or holds no choice", text)
    return Choice(name=_from_prose(text, options))


def _labelled(text: str, options: _OptionNames) -> list[_Answer]:
    """Return what labelled lines choose, each with the text that follows."""
    found: list[_Answer] = []
    for label in islice(_LABEL.finditer(text), _MAX_ANSWERS):
        context = text[label.start("value") : label.start("value") + _MAX_CONTEXT]
        value = label["value"]
        if not value.strip("*_`~ \t"):
            # The name may stand on the next line; other words there belong to no label.
            value = context.lstrip().split("\n", 1)[0]
            if options.find_line(value) is None:
                continue
        found.append((value, context))
    return found


def _answers(container: dict[str, object] | list[object]) -> list[_Answer]:
    """Return what the keys of an object choose, the most telling key first."""
    if isinstance(container, list):
        return []
    keyed = {" ".join(re.split(r"[\s_-]+", key.casefold())).strip(): v for key, v in reversed(container.items())}
    found: list[_Answer] = []
    for value in (keyed[key] for key in _CHOICE_KEYS if key in keyed):
        items = value if isinstance(value, list) else [value]
        found += [(item, keyed) for item in items if not isinstance(item, (dict, list))]  # looked at by themselves
    return found


def _choice(value: object, context: dict[str, object] | str, options: _OptionNames) -> Choice | None:
    name = None
    if isinstance(value, str):  # it is an option, or begins with one before a remark, or names one alone
        said = _NEXT_LABEL.split(value[:_MAX_CONTEXT], maxsplit=1)[0]
        head = _REMARK.split(said, maxsplit=1)[0]
        name = options.find_line(said) or options.find_line(head) or _only_mention([said], options)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        name = options.find(str(value))  # only where that is what the option is called
    if name is None:
        return None
    if isinstance(context, dict):
        confidence, reason = _first(context, _CONFIDENCE_KEYS), _first(context, _REASON_KEYS)
    else:
        stated, why = _CONFIDENCE.search(context), _REASON.search(context)
        confidence, reason = stated and stated[1], why and why[1]
    words = _CONTROL.sub(" ", reason[: 4 * MAX_REASON_CHARS]).split() if isinstance(reason, str) else []
    line = " ".join(words).strip("*_` ")[:MAX_REASON_CHARS]
    return Choice(name=name, confidence=_share(confidence), reason=line)


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


def _from_prose(text: str, options: _OptionNames) -> str:
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


def _only_mention(sentences: Sequence[str], options: _OptionNames) -> str | None:
    """Return the option that sentences name, if they name one only and no sentence that names it denies or asks."""
    naming = [(sentence, options.mentioned(sentence)) for sentence in sentences]
    named = {name for _, names in naming for name in names}
    denied = any(_DENIAL.search(sentence) for sentence, names in naming if names)
    return named.pop() if len(named) == 1 and not denied else None


def _unreadable(why: str, text: str) -> LLMOutputError:
    return LLMOutputError(f"the model's choice cannot be read: {why} ({len(text):,} characters)")


def _plain(text: str) -> str:
    """Take off case and the accents of Latin, Greek and Cyrillic letters; the marks of other scripts stay."""
    decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text).casefold())
    return unicodedata.normalize("NFC", _ACCENTS.sub("", decomposed))


class _OptionNames:
    """The names that can be chosen: a text is the one that it is most alike, but for case, accents and separators."""

    def __init__(self, names: Sequence[str]) -> None:
        # For each way of likeness the forms of the names, with the option or, where two share a form, None.
        self._tiers: list[dict[str, str | None]] = []
        for form in _FORMS:
            forms: dict[str, str | None] = {}
            for name, key in ((name, form(name)) for name in names if form(name)):
                forms[key] = name if forms.get(key, name) == name else None
            self._tiers.append(forms)

    def find(self, text: str) -> str | None:
        """Return the option that a text is, or ``None``."""
        stripped = text.strip(_AROUND)
        worded = any(char.isalpha() for char in stripped)
        # "-1" is not "1", nor ".5" "5": what has no letter counts as it stands, but for quotes and the like.
        bare = stripped if worded else text.strip(_AROUND_NUMBER).rstrip(".")
        for candidate in dict.fromkeys((text.strip(), bare)):
            if not 0 < len(candidate) <= _MAX_NAME_CHARS:
                continue
            for form, tier in zip(_FORMS if worded else _FORMS[:1], self._tiers, strict=False):
                found = tier.get(form(candidate))
                if found is not None:
                    return found
        return None

    def find_line(self, line: str) -> str | None:
        """Return the option that a line is, alone but for a bullet, a number before it and signs around it."""
        if len(line) > _MAX_NAME_CHARS:
            return None
        return self.find(line) or self.find(_BULLET.sub("", line))

    def mentioned(self, text: str) -> list[str]:
        """Return the options with a letter that occur in a text as words of their own, in order, each once."""
        found = (self.find(match[0]) for match in self._mention.finditer(_plain(text)))
        return list(dict.fromkeys(name for name in found if name is not None))

    @cached_property
    def _mention(self) -> re.Pattern[str]:
        """Matches the options that are told apart by their plain form, the longest first."""
        forms = self._tiers[_FORMS.index(_plain)].items()
        worded = [form for form, name in forms if name is not None and any(char.isalpha() for char in form)]
        longest_first = sorted(worded, key=lambda form: (-len(form), form))
        parts = [r"[\s_-]{1,3}".join(map(re.escape, _SEPARATORS.split(form))) for form in longest_first]
        return re.compile(f"{_BEFORE}(?:{'|'.join(parts) or '(?!)'}){_AFTER}")


# The ways in which a text may be like a name, the nearest first.
_FORMS: Final[tuple[Callable[[str], str], ...]] = (
    lambda text: unicodedata.normalize("NFC", text),
    lambda text: unicodedata.normalize("NFC", text).casefold(),
    _plain,
    lambda text: _SEPARATORS.sub(" ", _plain(text)).strip(),
    lambda text: _SEPARATORS.sub("", _plain(text)),
)
