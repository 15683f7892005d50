"""What a model really said: without its thoughts, and with JSON found wherever and however it wrote it.

Everything here is bounded, whatever the text: no ``eval``, no YAML, a fixed depth, and a fixed number of steps.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_REPLY_CHARS: Final = 20_000
"""So much of a reply is read, once its thoughts are taken out."""

MAX_SCANNED_CHARS: Final = 400_000
"""So much of a reply is searched for the end of its thoughts."""

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
    is never closed. A closing tag without an opening one before it ends thoughts that the prompt template opened.

    Args:
        text: A reply; its first 400,000 characters are looked at.

    Returns:
        The rest, at most 20,000 characters, without white space around it; ``""`` when nothing but thoughts is there.
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


def json_values(text: str) -> list[object]:
    """Find the JSON objects and lists in a text, as models write them.

    Fences and prose around them do not matter. Trailing and doubled commas, single or typographic quotes, comments,
    ``True`` and ``None``, keys without quotes and single words without quotes as the value of a key are forgiven; a key
    that comes twice keeps its first value. What is cut off or otherwise broken is left out, and what stands inside it
    is looked at by itself.

    Args:
        text: Any text; its first 20,000 characters are read.

    Returns:
        The outermost values in order, at most 100: dictionaries and lists of ``dict``, ``list``, ``str``, ``int``,
        ``float``, ``bool`` and ``None``.
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
    """Go through values and all that is in them, outer before inner, in order of the text.

    Args:
        values: As :func:`json_values` returns them.

    Yields:
        Every dictionary and list.
    """
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
            return self._list(depth)
        return self._string(sign) if sign in _STRINGS else self._word(bare=bare)

    def _object(self, depth: int) -> dict[str, object]:
        found: dict[str, object] = {}
        self.at += 1
        while True:
            sign = self._next()
            if sign == "}":
                self.at += 1
                return found
            if sign == ",":
                self.at += 1
                continue
            key = self._string(sign) if sign in _STRINGS else self._match(_WORD)
            if self._next() != ":":
                raise _BrokenError
            self.at += 1
            found.setdefault(key, self.value(depth + 1, bare=True))
            self._separator("}")

    def _list(self, depth: int) -> list[object]:
        found: list[object] = []
        self.at += 1
        while True:
            sign = self._next()
            if sign == "]":
                self.at += 1
                return found
            if sign == ",":
                self.at += 1
                continue
            found.append(self.value(depth + 1))
            self._separator("]")

    def _separator(self, closing: str) -> None:
        if self._next() not in {",", closing}:
            raise _BrokenError

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
