"""The titles of a document's main sections by their numbers: from a model, or from its headings and contents."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from llama_index.core.schema import TextNode

from agentic_retriever import errors
from agentic_retriever.ingestion.chunking import MAPPED_SECTION
from agentic_retriever.ingestion.documents import clean_text
from agentic_retriever.llm import ModelClient, TierNeeds, ask, containers, json_values
from agentic_retriever.llm.prompts import sections_prompt

FIRST_CHUNKS: Final = 50
MAX_SECTIONS: Final = 20  # chunks with a heading that a model is shown
SHOWN_CHARS: Final = 200
_MAX_TITLE: Final = 110
_CONTENTS: Final = 60_000  # characters in which a table of contents is looked for

_MAIN: Final = re.compile(r"(?:\d{1,3}|[A-Z])(?:\.\d{1,3})?")
_NUMBERED: Final = re.compile(r"((?:\d{1,3}|[A-Z](?=\.\d))(?:\.\d{1,3}){0,5})\.?\s+(\S.*)")
# A line of a table of contents: number and title, and perhaps dots or space before the page.
_LINE: Final = re.compile(rf"[ \t]{{0,8}}(?:[-*•|][ \t]{{1,4}})?{_NUMBERED.pattern}")
_PAGE: Final = re.compile(r"[ \t]*(?:(?:\.[ \t]?){3,}|…+|[ \t]{2,}|\|)[ \t]*\d{1,4}[ \t|]*$")
_MIN_LINES: Final = 3  # that follow each other, where no pages tell that it is a table of contents


def map_sections(text: str, nodes: Sequence[TextNode], model: ModelClient | None) -> dict[str, str]:
    """Return the titles of the main sections (6 and 6.1, not 6.1.2) by number; none where a model was asked in vain."""
    if model is None:
        return _from_headings(text, nodes)
    shown = [_shown(node) for node in nodes[:FIRST_CHUNKS] if _path(node) or node.metadata.get("section_number")]
    for needs in (TierNeeds(), TierNeeds(force_cloud=True)) if shown else ():
        try:
            reply = ask(model, lambda boundary: sections_prompt(shown[:MAX_SECTIONS], boundary), needs=needs)
        except (errors.LLMError, errors.DeadlineExceededError):
            break  # the tiers stand in for each other, so none answered
        found = read_sections(reply.text)
        if found:
            return found
    return {}


def read_sections(reply: str) -> dict[str, str]:
    """Read numbers and titles from the JSON in a reply: an object of them, or a list of objects with both."""
    found: dict[str, str] = {}
    for container in containers(json_values(reply)):
        for number, title in _pairs(container):
            label, name = number.strip().strip(".§ "), " ".join(clean_text(title).split())
            is_title = 1 < len(name) <= _MAX_TITLE and any(map(str.isalpha, name))
            if _MAIN.fullmatch(label) and is_title:
                found.setdefault(label, name)
    return found


def _pairs(container: dict[str, Any] | list[Any]) -> Iterator[tuple[str, str]]:
    if isinstance(container, dict):
        number, title = (container.get(key) for key in ("number", "title"))
        items = [(number, title)] if number is not None else list(container.items())
        yield from ((str(key), value) for key, value in items if isinstance(value, str))


def _path(node: TextNode) -> list[str]:
    path = node.metadata.get("heading_hierarchy")
    return [str(one) for one in path] if isinstance(path, (list, tuple)) else []


def _shown(node: TextNode) -> tuple[str, str, str]:
    """What a model sees of a chunk: its hierarchy, its section, and the beginning of its text."""
    hierarchy, number = _path(node), node.metadata.get("section_number") or ""
    section = str(node.metadata.get("section") or "").rpartition(" > ")[2]
    numbers = ", ".join(map(str, number)) if isinstance(number, (list, tuple)) else str(number)
    return " > ".join(hierarchy), section or numbers, node.text[:SHOWN_CHARS]


def _from_headings(text: str, nodes: Sequence[TextNode]) -> dict[str, str]:
    found: dict[str, str] = {}
    starts = [path for node in nodes for _, path in node.metadata.get("section_starts") or ()]
    headings = [title for node in nodes for title in _path(node)]
    for heading in (*headings, *(part for path in starts for part in str(path).split(" > "))):
        match = _NUMBERED.match(heading)
        if match and _MAIN.fullmatch(match[1]):
            found.setdefault(match[1], match[2].strip()[:_MAX_TITLE])
    for number, title in _contents(text[:_CONTENTS]):
        found.setdefault(number, title)
    return found


def _contents(text: str) -> Iterator[tuple[str, str]]:
    lines = ((line, _LINE.fullmatch(line)) for line in text.split("\n") if line.strip())
    for is_numbered, run in groupby(lines, key=lambda pair: pair[1] is not None):
        members = [(line, match[1], match[2]) for line, match in run if match] if is_numbered else []
        is_list = len(members) >= _MIN_LINES and any("." in number for _, number, _ in members)
        for line, number, rest in members:
            title = " ".join(_PAGE.sub("", rest).split())
            is_title = len(title) <= _MAX_TITLE and title[:1].isalpha() and not title.endswith((".", ",", ";", ":"))
            if _MAIN.fullmatch(number) and is_title and (is_list or _PAGE.search(line)):
                yield number, title


def title_sections(nodes: Sequence[TextNode], titles: Mapping[str, str]) -> None:
    """Give nodes the mapped titles of their sections, for words alone, where neither headings nor title say them."""
    for node in nodes if titles else ():
        told = node.metadata.get("section_number") or ()
        numbers = told if isinstance(told, (list, tuple)) else [told]
        said = " ".join(str(node.metadata.get(key, "")) for key in ("title", "section", "section_starts")).casefold()
        names = dict.fromkeys(filter(None, (_title_of(str(number), titles) for number in numbers)))
        own = [name for name in names if name.casefold() not in said]
        if own:
            node.metadata[MAPPED_SECTION] = own if len(own) > 1 else own[0]
            node.excluded_embed_metadata_keys = [*node.excluded_embed_metadata_keys, MAPPED_SECTION]


def _title_of(number: str, titles: Mapping[str, str]) -> str:
    """Return the title of the nearest main section that a number is of: of 6.1.2 that of 6.1, else that of 6."""
    parts = number.split(".")
    return next((titles[label] for depth in (2, 1) if (label := ".".join(parts[:depth])) in titles), "")
