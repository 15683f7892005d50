"""YAML front matter of Markdown files: the simple ``key: value`` form that people write."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_BLOCK = re.compile(r"---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_ENTRY = re.compile(r"([^\s:#\-\[\]{}][^:\n]*?)[ \t]*:(?:[ \t]+(.*))?$")
_INTEGER = re.compile(r"[-+]?(?:0|[1-9]\d{0,17})")
_DECIMAL = re.compile(r"[-+]?\d{1,30}\.\d{1,30}(?:[eE][-+]?\d{1,3})?")
_LIST_ITEM = re.compile(r"\s*(\"(?:[^\"\\]|\\.)*\"|'(?:[^']|'')*'|[^,\s\"'][^,]*)")
_ESCAPES = {"n": "\n", "t": "\t"}
_WORDS: dict[str, object] = {"true": True, "false": False, "null": None, "~": None, "": None}
_LOOK_AHEAD = 65_536


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """Front matter that was found at the beginning of a text.

    Attributes:
        values: Key to string, number, boolean, ``None`` or list of those.
        end: Where the body begins, in characters.
    """

    values: Mapping[str, object]
    end: int


def parse_front_matter(text: str) -> FrontMatter | None:
    """Read the front matter between ``---`` lines at the very beginning of a text.

    Understood are ``key: value`` with plain or quoted scalars, lists in brackets or as ``- item`` lines, and comments.
    The lines below a key that hold anything else (nested mappings, block scalars) become one string, so nothing is
    lost. Dates stay strings. No part of YAML that runs code or multiplies text is implemented.

    Args:
        text: A whole document.

    Returns:
        The front matter, or ``None`` when there is none: no closing line within 65,536 characters, or a first line
        that is no ``key: value``.
    """
    found = _BLOCK.match(text, 0, _LOOK_AHEAD) if text.startswith("---") else None
    if found is None:
        return None
    lines = [line for line in found[1].split("\n") if line.strip() and not line.lstrip().startswith("#")]
    if not lines or not _ENTRY.match(lines[0]):
        return None
    values: dict[str, object] = {}
    key, inline, below = "", "", list[str]()
    for line in lines:
        entry = _ENTRY.match(line)
        if entry is None:
            below.append(line)
            continue
        if key:
            values[key] = _value(inline, below)
        key, inline, below = _unquote(entry[1]), (entry[2] or "").strip(), []
    values[key] = _value(inline, below)
    return FrontMatter(values, found.end())


def _value(inline: str, below: list[str]) -> object:
    if not below:
        return _inline(inline)
    items = [line.strip() for line in below]
    if not inline and all(item == "-" or item.startswith("- ") for item in items):
        return [_scalar(item[1:].strip()) for item in items]
    lead = "" if inline in {"|", ">", "|-", ">-", "|+", ">+"} else inline
    return "\n".join(part for part in (lead, *items) if part)


def _inline(value: str) -> object:
    if value.startswith("[") and value.endswith("]"):
        return [_scalar(item.strip()) for item in _LIST_ITEM.findall(value[1:-1]) if item.strip()]
    return _scalar(value)


def _scalar(value: str) -> object:
    if value[:1] in {'"', "'"}:
        return _unquote(value)
    value = re.split(r"\s#", value, maxsplit=1)[0].rstrip()
    if value.lower() in _WORDS:
        return _WORDS[value.lower()]
    if _INTEGER.fullmatch(value):
        return int(value)
    return float(value) if _DECIMAL.fullmatch(value) else value


def _unquote(value: str) -> str:
    quote = value[:1]
    closing = value.rfind(quote) if quote in {'"', "'"} else 0
    if closing <= 0:
        return value
    inner = value[1:closing]
    if quote == "'":
        return inner.replace("''", "'")
    return re.sub(r"\\(.)", lambda hit: _ESCAPES.get(hit[1], hit[1]), inner)
