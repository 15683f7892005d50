"""Manual pages as they are installed, in roff with the macros of man(7) or mdoc(7), to text with Markdown's headings.

How a page is to look is passed over: fonts, indents, macros of its own, and conditions but whether a terminal shows it.
"""

import re
import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise, takewhile
from typing import Any, Final

from agentic_retriever.ingestion.documents import TERM, clean_text, markdown_table
from agentic_retriever.text.language_files import packaged_json

_IS_MANUAL: Final = re.compile(r"^[.'][ \t]*(?:TH|SH|Dd|Dt|Sh)\b", re.MULTILINE)
_NAME: Final = r"\(..|\[[^\]\n]{0,60}\]"
_ESCAPE: Final = re.compile(
    rf"""\\(?:["#].*|[fFmMgkVYn][+-]?(?:{_NAME}|.)|s(?:[+-]?\(?\d{{1,2}}|[+-]?\[\d{{0,4}}\])"""
    rf"|[hvwlLDbxSHXZAR]'[^'\n]{{0,99}}'"
    rf"|\*(?P<string>{_NAME}|.)|N'(?P<code>\d{{1,6}})'|o'(?P<over>.)[^'\n]{{0,9}}'|(?P<glyph>{_NAME})|(?P<char>.))"
)
_ARGUMENT: Final = re.compile(r'"((?:[^"]|"")*)"?|((?:\\.|[^\s\\])+)')
_REQUEST: Final = re.compile(r"[.'][ \t]*((?:\\[^\"#]|[^\s\\])*)[ \t]*(.*)")
_GLUE: Final = re.compile(" ?\ue000 ?")  # where words stand without a space
_CJK: Final = re.compile("[\u3000-\u9fff\uff00-\uffef]")  # has no spaces between words, unlike Korean
_BREAKS: Final = ("PP", "P", "LP", "sp", "Sp", "SP", "HP", "RS", "RE", "INDENT", "UNINDENT", "Pp", "YS")
_FONTS: Final = ("B", "I", "R", "SM", "SB", "CW", "SY")
_MIXED: Final = ("BR", "RB", "BI", "IB", "IR", "RI")
_SILENT: Final = (
    "PD", "DT", "IX", "UC", "AT", "Dd", "Os", "Bk", "Ek", "TE", "Sm", "Rs", "Re", "Rv", "Ex", "Lb", "EQ", "EN", "Hf",
)  # fmt: skip
_AS_IS: Final = {"nf": True, "EX": True, "Vb": True, "Bd": True, "fi": False, "EE": False, "Ve": False, "Ed": False}
_TITLES: Final = {"SH": "# ", "SS": "## ", "Sh": "# ", "Ss": "## "}
_DEFINES: Final = {"de": 1, "de1": 1, "am": 1, "ig": 0}  # and which of its words says where it ends
_CLOSING: Final = (".", ",", ";", ":", "?", "!", ")", "]")
_BULLETS: Final = ("•", "*", "-", "+", "o", "○", "□", "·")
_NUMBERED: Final = re.compile(r"\(?\d{1,3}[.)]?")
_MAX_TAG: Final = 120  # characters of what an item is called, to be a heading
_MAX_LINE: Final = 20_000
_MAX_STRING: Final = 1_000
_MAX_STRINGS: Final = 1_000_000  # characters that strings may bring in all


def is_manual(text: str) -> bool:
    return _IS_MANUAL.search(text) is not None


def manual_to_text(source: str) -> tuple[str, str]:
    """Return the title, such as ``mke2fs - create an ext2 file system``, and the text of a manual page."""
    page = _Page()
    given = iter(re.sub(r"(?<!\\)\\\n", "", source).split("\n"))
    for line in given:
        page.read(line, given)
    text = clean_text(page.text())
    first = next((line for line in text.split("\n") if line and not line.startswith("#")), "")
    return (first if 0 < len(first) <= _MAX_TAG else page.title), text


_tables: Callable[[], dict[str, dict[str, Any]]] = cache(lambda: packaged_json("ingestion/roff.json"))


class _Page:
    """What has been read of a page: paragraphs, and those that have begun."""

    def __init__(self) -> None:
        self.title = self._name = self._link = ""
        self._written: list[str] = []
        self._words: list[str] = []  # of the paragraph that has begun
        self._tags: list[str] = []  # what the item is called that begins with the next paragraph
        self._as_is: list[str] | None = None  # lines that stay lines
        self._take: Callable[[str], None] | None = None  # what takes the next line
        self._shown = True  # what the last condition with an alternative said
        self._strings = {"lq": "“", "rq": "”", "Tm": "™", "R": "®", "Aq": "'"}
        self._room = _MAX_STRINGS
        self._own: set[str] = set()  # macros that the page defines
        self._lists: list[str] = []
        self._requests: dict[str, Callable[[str, list[str]], object]] = {
            **dict.fromkeys(_BREAKS, lambda *_: self._end()),
            "br": lambda *_: self._words.append("\n") if self._words else None,
            **dict.fromkeys(_FONTS, lambda _, args: self._say(" ".join(args)) if args else None),
            **dict.fromkeys(_MIXED, lambda _, args: self._say("".join(args))),
            **dict.fromkeys(_SILENT, lambda *_: None),
            **dict.fromkeys(_AS_IS, self._keep_lines),
            **dict.fromkeys(_TITLES, self._head),
            **dict.fromkeys(("TH", "Dt"), self._entitle),
            **dict.fromkeys(("TP", "TQ"), lambda *_: self._await(self._tags.append)),
            **dict.fromkeys(("UR", "MT"), lambda _, args: setattr(self, "_link", "".join(args[:1]))),
            **dict.fromkeys(("UE", "ME"), lambda _, args: self._say(f"<{self._link}>{''.join(args)}")),
            "IP": lambda _, args: self._item(args[:1]),
            "Bl": lambda _, args: self._lists.append("".join(args[:1])),
            "El": lambda *_: self._lists and self._lists.pop(),
            "It": lambda _, args: self._mdoc_item(args),
            "Nd": lambda _, args: self._say(f"- {self._inline(args)}"),
        }

    def text(self) -> str:
        self._keep_lines("fi", [])
        return "\n\n".join(self._written)

    # --- lines ---

    def read(self, line: str, given: Iterator[str]) -> None:
        """Read one line, and those of ``given`` that belong to it."""
        request = _REQUEST.fullmatch(line) if len(line) <= _MAX_LINE else None
        while request is not None and request[1] in {"if", "ie", "el"}:
            line = self._held_back(request[1], request[2], given)
            request = _REQUEST.fullmatch(line)
        if request is None:
            self._say(self._plain(line))
            return
        name, rest = request.groups()
        if name in _DEFINES:
            end = "".join(rest.split()[_DEFINES[name] :][:1]) or "."
            self._own.update(rest.split()[:1])
            next((one for one in given if one.replace(" ", "").startswith((f".{end}", f"'{end}"))), None)
        elif name in {"ds", "as"}:
            key, _, value = rest.partition(" ")
            before = self._strings.get(key, "") if name == "as" else ""
            self._strings[key] = (before + self._plain(value.lstrip().removeprefix('"')))[:_MAX_STRING]
        elif name == "TS":
            self._tabulate(list(takewhile(lambda one: not one.startswith((".TE", "'TE")), given)))
        else:
            self._obey(name, self._arguments(rest))

    def _held_back(self, name: str, rest: str, given: Iterator[str]) -> str:
        """Return the line that a condition holds back if a terminal shows it, else a comment."""
        condition, _, body = ("", "", rest) if name == "el" else rest.partition(" ")
        self._shown = not self._shown if name == "el" else condition in {"n", "!t"}
        if self._shown:
            return body.strip().removeprefix(r"\{").removeprefix("\\").strip() or r".\""
        depth = body.count(r"\{") - body.count(r"\}")
        while depth > 0 and (line := next(given, None)) is not None:
            depth += line.count(r"\{") - line.count(r"\}")
        return r".\""

    def _arguments(self, rest: str) -> list[str]:
        rest = re.sub(r'(?:^|(?<=\s))\\".*', "", rest)
        return [self._plain(quoted.replace('""', '"') or bare) for quoted, bare in _ARGUMENT.findall(rest)]

    def _obey(self, name: str, args: list[str]) -> None:
        if name in self._requests:
            self._requests[name](name, args)
        elif name in _tables()["mdoc"] or name in _tables()["brackets"] or name == "Xr":
            self._say(self._inline([name, *args]))
        elif (name[:1].isupper() or name[:1] == "%" or name in self._own) and args:
            self._say(" ".join(args))

    def _plain(self, text: str) -> str:
        """Write escapes as what they show."""
        return _ESCAPE.sub(self._shows, text)

    def _shows(self, found: re.Match[str]) -> str:
        if found["string"]:
            value = self._strings.get(found["string"].strip("([]"), "")
            self._room -= len(value)
            return value if self._room > 0 else ""
        if found["code"]:
            return chr(min(int(found["code"]), sys.maxunicode))
        if found["glyph"]:
            return _glyph(found["glyph"].removeprefix("(").removeprefix("[").removesuffix("]"))
        return found["over"] or str(_tables()["escapes"].get(found["char"], ""))

    # --- paragraphs ---

    def _say(self, text: str) -> None:
        if self._take is not None and text.strip():
            take, self._take = self._take, None
            take(_joined([text]).strip())
        elif self._as_is is not None:
            self._as_is.append(_GLUE.sub("", text).rstrip())
        elif text.strip():
            self._words.append(text.strip())
        else:
            self._end()

    def _end(self) -> None:
        """End the paragraph that has begun."""
        if self._as_is is not None:
            self._as_is.append("")
        elif self._words:
            said, self._words = _joined(self._words), []
            self._written.append(self._begin_item() + said)

    def _begin_item(self) -> str:
        """Write what an item is called as a heading, or return what its paragraph begins with."""
        tags = ", ".join(self._tags)
        self._tags.clear()
        if tags in _BULLETS or _NUMBERED.fullmatch(tags):
            return f"{'-' if tags in _BULLETS else tags} "
        if tags and len(tags) <= _MAX_TAG:
            self._written.append(TERM + tags)
        return f"{tags} " if len(tags) > _MAX_TAG else ""

    def _await(self, take: Callable[[str], None]) -> None:
        self._end()
        self._take = take

    def _item(self, tags: Sequence[str]) -> None:
        self._end()
        self._tags += filter(None, map(str.strip, tags))

    def _mdoc_item(self, args: Sequence[str]) -> None:
        kind = self._lists[-1] if self._lists else ""
        if kind != "-column":
            self._item([_joined([self._inline(args)]) if args else "•"])
            return
        self._end()
        self._say(self._inline(args))

    def _head(self, name: str, args: Sequence[str]) -> None:
        self._keep_lines("fi", [])
        if self._tags:  # of which nothing is said
            self._words = [", ".join(self._tags)]
            self._tags.clear()
            self._end()
        self._await(lambda title: self._written.append(_TITLES[name] + title))
        self._say(" ".join(args))

    def _entitle(self, _: str, args: Sequence[str]) -> None:
        self.title = f"{args[0]}({args[1]})" if len(args) > 1 else "".join(args)

    def _keep_lines(self, name: str, args: Sequence[str]) -> None:
        """Begin or end lines that stay as they are."""
        lines, self._as_is = "\n".join(self._as_is or []).strip("\n"), None
        if lines.strip():
            begun = self._begin_item()
            self._written.append(f"{begun}\n\n```\n{lines}\n```".lstrip())
        self._end()
        if _AS_IS[name] and (name != "Bd" or not {"-literal", "-unfilled"}.isdisjoint(args)):
            self._as_is = []

    def _inline(self, words: Sequence[str]) -> str:
        """Write a line of mdoc, whose words may be macros."""
        if list(words[:1]) == ["Nm"]:
            self._name = self._name or "".join(words[1:2])
            words = words if len(words) > 1 else [self._name]
        puts, brackets = _tables()["mdoc"], _tables()["brackets"]
        last = next((at for at in range(len(words), 0, -1) if words[at - 1] not in _CLOSING), 0)
        given, pieces, closing = iter(words[:last]), list[str](), list[str]()
        for word in given:
            if word in brackets:
                opens, closes = brackets[word]
                pieces.append(opens or closes)
                closing.append(closes if opens else "")
            elif word == "Xr":
                pieces.append(f"{next(given, '')}({next(given, '')})")
            else:
                pieces.append(str(puts.get(word, f"\ue000{word}" if word in _CLOSING else word)))
        tail = [f"\ue000{one}" for one in words[last:]]
        return " ".join(filter(None, [*pieces, *closing[::-1], *tail]))

    def _tabulate(self, lines: Sequence[str]) -> None:
        """Write a table of tbl(1), the first row as its head."""
        options = lines[0] if lines and lines[0].rstrip().endswith(";") else ""
        tab = found[1] if (found := re.search(r"tab ?\((.)\)", options)) else "\t"
        formats = next((at for at, line in enumerate(lines) if line.rstrip().endswith(".")), -1)
        text = _with_cells_in_line("\n".join(lines[formats + 1 :]))
        rows = [line.split(tab) for line in text.split("\n") if line.strip(" _=") and line[0] not in ".'"]
        cells = [[" ".join(self._plain(cell).split()) for cell in row] for row in rows]
        self._end()
        if cells:
            self._written.append(f"{self._begin_item()}\n\n{markdown_table(cells)}".lstrip())


def _joined(lines: Sequence[str]) -> str:
    pairs = pairwise(["", *lines])
    line = "".join(below if _CJK.match(above[-1:]) and _CJK.match(below) else f" {below}" for above, below in pairs)
    return re.sub(r" *(\n) *|  +", lambda gap: gap[1] or " ", _GLUE.sub("", line)).strip()


def _with_cells_in_line(text: str) -> str:
    """Put each block of text in a table, ``T{`` to ``T}``, on one line."""
    first, *others = text.split("T{\n")
    parts = [first]
    for block in others:
        cell, end, after = block.partition("T}")
        shown = " ".join(line for line in cell.split("\n") if line[:1] not in {".", "'"}) if end else cell
        parts.append(shown + after)
    return "".join(parts)


def _glyph(name: str) -> str:
    """Return the character of a name such as ``lq``, ``:u`` or ``u20AC``."""
    accent = _tables()["accents"].get(name[:1], "")
    if name in _tables()["glyphs"]:
        return str(_tables()["glyphs"][name])
    if re.fullmatch(r"u[0-9A-F]{4,6}", name) and int(name[1:], 16) <= sys.maxunicode:
        return chr(int(name[1:], 16))
    return unicodedata.normalize("NFC", name[1:] + accent) if accent and len(name) == 2 else name * (len(name) == 1)
