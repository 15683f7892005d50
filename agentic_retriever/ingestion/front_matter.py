"""YAML front matter of Markdown files, by PyYAML."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import yaml

_BLOCK = re.compile(r"---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_ENTRY = re.compile(r"([^\s:#\-\[\]{}][^:\n]*?)[ \t]*:(?=[ \t]|$)")
_LOOK_AHEAD = 65_536
# What explicit tags such as !!int raise on values that are none, besides YAML's own errors.
_UNREADABLE = (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """Front matter that was found at the beginning of a text."""

    values: Mapping[str, object]
    end: int  # Where the body begins, in characters


def parse_front_matter(text: str) -> FrontMatter | None:
    """Read the front matter between ``---`` lines at the very beginning of a text.

    Each key is read for itself: a value that is no YAML, such as ``title: Part 1: lights``, stays as it was written
    and costs no other one.
    """
    found = _BLOCK.match(text, 0, _LOOK_AHEAD) if text.startswith("---") else None
    if found is None:
        return None
    entries: list[list[str]] = []
    for line in found[1].split("\n"):
        if _ENTRY.match(line):
            entries.append([line])
        elif entries:
            entries[-1].append(line)
        elif line.strip() and not line.lstrip().startswith("#"):
            return None
    values = dict(_key_and_value("\n".join(lines)) for lines in entries)
    return FrontMatter(values, found.end()) if values else None


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML comes without types
    """Reads no aliases, which can multiply a text without bounds, and takes only plain scalars for what they are not.

    Dates, ``yes``, ``007`` and ``12:30`` stay texts.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def compose_node(self, parent: object, index: object) -> object:
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(problem="aliases are not read")
        return super().compose_node(parent, index)


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9]\d{0,17})", list("-+0123456789")),
    ("float", r"[-+]?\d{1,30}\.\d{1,30}(?:[eE][-+]?\d{1,2})?", list("-+0123456789")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), _first)


def _key_and_value(entry: str) -> tuple[str, object]:
    key, _, written = entry.partition(":")
    try:
        loaded = yaml.load(entry, _Loader)  # noqa: S506 - a SafeLoader that reads less
    except _UNREADABLE:
        loaded = None
    if not isinstance(loaded, dict) or len(loaded) != 1:
        return key.strip(), "\n".join(line.strip() for line in written.split("\n") if line.strip())
    [(loaded_key, value)] = loaded.items()
    name = loaded_key if isinstance(loaded_key, str) else key.strip()
    return name, value.rstrip("\n") if isinstance(value, str) else value
