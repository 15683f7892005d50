"""Files and folders to source documents. A file that cannot be read is reported and left out, the rest goes on."""

import codecs
import csv
import hashlib
import json
import os
import re
import stat
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Final, Literal, NoReturn

with suppress(ImportError):  # not on Windows
    import resource

from agentic_retriever.errors import SourceError
from agentic_retriever.ingestion import documents, enrichment
from agentic_retriever.ingestion.html import html_to_text
from agentic_retriever.ingestion.manual import is_manual, manual_to_text
from agentic_retriever.ingestion.office import CONVERTERS, read_office
from agentic_retriever.ingestion.pdf import read_pdf
from agentic_retriever.ingestion.structure import scan_blocks

_Item = documents.SourceDocument | documents.SkippedSource

# Markdown, plain text and HTML

_TOP_HEADING_WITHIN = 20_000
_EMBEDDED_TABLE = re.compile(r"(?ims)^(```|~~~).*?(?:^\1|\Z)|^[ \t]*<table\b(?:(?!<table\b).)*?</table>")


def _read_markdown(file: documents.SourceFile) -> Iterator[documents.SourceDocument]:
    """Read a Markdown file; its front matter becomes metadata and stays in the text, where offsets count it."""
    text = _EMBEDDED_TABLE.sub(_markdown_of, _decoded(file))
    front = documents.parse_front_matter(text)
    metadata, body_start = (documents.flat_metadata(front.values, doc_id=file.doc_id), front.end) if front else ({}, 0)
    if not text[body_start:].strip():
        raise SourceError("has front matter but no text")
    given = metadata.get("title")
    if not isinstance(given, (str, int, float)):
        blocks = scan_blocks(text[: body_start + _TOP_HEADING_WITHIN], start=body_start)
        found = (block.heading for block in blocks if block.heading is not None)
        given = next((head.title for head in found if head.origin == "markdown" and head.level == 1), "")
    yield replace(file.document(text, kind="md", title=str(given)), metadata=metadata)


def _markdown_of(found: re.Match[str]) -> str:
    """A table that is written as HTML in Markdown; code stays, and so does a table without text."""
    with suppress(SourceError):
        if not found[1] and "<tr" in found[0].lower():
            return f"\n\n{html_to_text(found[0].encode())[1]}\n\n"
    return found[0]


def _decoded(file: documents.SourceFile) -> str:
    text = documents.decode_text(file.read())
    if not text.strip():
        raise SourceError("holds only white space")
    return text


def _read_html(file: documents.SourceFile) -> Iterator[documents.SourceDocument]:
    title, text = html_to_text(file.read())
    yield file.document(text, kind="html", title=title)


# reStructuredText, Perl's POD and AsciiDoc, whose headings become those of Markdown

_RST_HEADING = re.compile(
    r"(?<![^\n]\n)^(?:(?P<over>([!-/:-@\[-`{-~])\2{2,})[ ]*\n[ ]?)?(?P<title>\S.*)\n"
    r"(?P<under>([!-/:-@\[-`{-~])\5{2,})[ ]*$",
    re.MULTILINE,
)
_FENCED = re.compile(r"(^```\n(?:.*\n)*?```$)", re.MULTILINE)
_RST_TERM = re.compile(r"^\.\. (?:option|confval|envvar|setting)::[ \t]+(?=\S)", re.MULTILINE)
_RST_CODE = re.compile(  # below an item of a list, what is indented as its text is its text
    r"^(?P<indent>[ ]*)(?:\.\. (?:code-block|code|sourcecode|parsed-literal)::.*\n(?:[ ]+:.*\n)*"
    r"|(?P<lead>(?!\.\. |[ ])(?:(?P<item>[-*+] )|(?P<number>\w{1,2}[.)] ))?.*)::[ ]*\n)(?:[ ]*\n)+"
    r"(?P<code>(?:(?P=indent)(?(item)[ ]{3}|(?(number)[ ]{4}|[ ]))[ ]*\S.*(?:\n|\Z)|[ ]*\n)+)",
    re.MULTILINE,
)
_RST_TABLE = re.compile(  # drawn on a grid, or by rules alone
    r"(?<![^\n]\n)^(?P<indent>[ \t]*)(?:\+[-+]+\+[ ]*\n(?:(?P=indent)[|+].*(?:\n|\Z))+"
    r"|=+(?:[ ]+=+)+[ ]*\n(?:[ \t]*\S.*\n)+?(?P=indent)=+(?:[ ]+=+)+[ ]*(?:\n(?=[ \t]*(?:\n|\Z))|\Z))",
    re.MULTILINE,
)
_RST_LISTED = re.compile(
    r"^(?P<indent>[ \t]*)\.\. (?P<kind>list|flat|csv)-table::(?P<title>.*)\n(?P<options>(?:[ \t]+:.*\n)*)"
    r"(?P<body>(?:[ \t]*\n|(?P=indent)[ \t]+\S.*(?:\n|\Z))+)",
    re.MULTILINE,
)
_FIRST_HEADING = re.compile(r"^# (?:NAME\s+)?(.+)$", re.MULTILINE)  # manual pages begin with NAME
_Rule = tuple[str, str | Callable[[re.Match[str]], str]]  # a pattern, and what stands in its place
_RST_SAID: Final = {"versionadded": "Added in", "versionchanged": "Changed in", "deprecated": "Deprecated since"}
_RST_NOTES: Final = "attention|caution|danger|error|hint|important|note|seealso|tip|warning"
_RST: list[_Rule] = [
    (r"^([ \t]*)\.\. (?:raw|toctree|contents|index|meta|role)::.*\n(?:(?:\1[ \t]+\S.*|[ \t]*)(?:\n|\Z))*", ""),
    (r"^[ \t]*\.\. (?:image|figure)::.*\n(?:[ \t]+:[\w-]+:.*\n)*|^[ \t]*\.\. _[^\n:`]+:[ \t]*\n", ""),
    (r"^([ \t]*)\.\. (?:admonition|rubric|sidebar|topic)::[ \t]*", r"\1"),
    (
        rf"^([ \t]*)\.\. ({'|'.join(_RST_SAID)})::[ \t]*(\S+)((?:[ \t]+|[ \t]*\n[ \t]+)(?=\S))?",
        lambda found: f"{found[1]}{_RST_SAID[found[2]]} version {found[3]}{': ' if found[4] else ''}",
    ),
    (
        rf"^([ \t]*)\.\. (?:({_RST_NOTES})::|\[[#*\w-]+\])(?:[ \t]*\n)*([ \t]*)",
        lambda found: f"{max(found[1], found[3], key=len)}{(found[2] or 'note').capitalize()}: ",
    ),
    (
        r":(?:[\w+.-]+:)*([\w+.-]+):`[~!]?([^`<]+?)(?:\s*<[^`>]*>)?`",
        lambda found: f"{found[1].upper()} {found[2]}" if found[2].isdecimal() else found[2],
    ),
    (r"(?<!`)`([^`<>]+?)\s+<([^`<>\s]+)>`__?", r"\1 (\2)"),
    (r"(?<!`)`([^`\n]+)`__?(?![\w`])", r"\1"),
    (r"\\(?:[ \n]|(?=[*_`\\]))", ""),
]
_POD: list[_Rule] = [
    (r"^=head([1-6])[ \t]+", lambda found: "#" * int(found[1]) + " "),
    (
        r"^=item[ \t]+((?![*\d])[^\n]{1,79}[^\n.:](?:\n+=item[ \t]+[^\n]{1,79}[^\n.:])*)$",
        lambda found: documents.TERM + re.sub(r"\n+=item[ \t]+", ", ", found[1]),
    ),
    (r"^=item[ \t]*\*?[ \t]*(?:\n\s*(?=[^\s=]))?", "- "),
    (r"^=(?:pod|cut|over|back|encoding|begin|end|for)\b.*\n?", ""),
    (r"(?:^|[ \t]+)X<[^<>]*>\n?", ""),  # for the index of a book
    (r"\b[BCFILS]<<+ ((?:(?![BCFILS]<<).)*?) >>+", r"\1"),
    *[(r"\b[BCFIS]<([^<>]*)>", r"\1"), (r"\bL<(?:([^<>|]*)\|[^<>]*|([^<>|]*))>", r"\1\2")] * 2,  # one in another
    (r"\bE<(lt|gt)>", lambda found: "<" if found[1] == "lt" else ">"),
    (r"(?<![^\n]\n)(?:^[ \t]+\S.*(?:\n|\Z)(?:[ \t]*\n(?=[ \t]+\S))*)+", lambda found: _fence(found[0])),  # verbatim
]
_ADOC_CODE = re.compile(r"^(-{4,}|\.{4,}|`{3,}\w*)[ \t]*\n((?:.*\n)*?)(?:\1|```)[ \t]*$", re.MULTILINE)
_ADOC: list[_Rule] = [
    (r"^\|===+[ \t]*\n((?:.*\n)*?)\|===+[ \t]*$", lambda found: _adoc_table(found[1])),
    (r"^(?://(?!/).*|:[\w!-]+:.*|\[.*\]|(?:toc|include)::.*|'{3,}|[=_*]{4,}|-{2}|\+)[ \t]*\n", ""),
    (r"^=+(?= \S)", lambda found: "#" * min(6, len(found[0]))),
    (r"^(?!#)(\S.{0,90}?)::(?:[ \t]*\n[ \t]*|[ \t]+)(?=\S)", documents.TERM + r"\1\n"),
    (r"^[*-]+(?= \S)", "-"),
    (r"\b(?:(?:link|xref|mailto|kbd|btn):|image::?|(?=https?:))[^\s\[\]]{0,400}\[([^\],]{1,200})[^\]]{0,200}\]", r"\1"),
    (r"<<[^<>,]+,\s*([^<>]+)>>", r"\1"),
]
_ADOC_CELL = re.compile(r"(?:(?<=\s)|^)(?:[\d.]+[+*])?[<^>]*[aehlmsv]?\|(?!=)", re.MULTILINE)


def _read_marked(file: documents.SourceFile) -> Iterator[documents.SourceDocument]:
    text, suffix = _decoded(file), file.suffix
    if suffix == ".rst":
        styles: dict[tuple[str, bool], int] = {}
        text = re.sub(r"^([ ]*\.\. [\w-]+)[ ]+::", r"\1::", text.expandtabs(), flags=re.MULTILINE)
        text = _RST_CODE.sub(_fenced, _RST_HEADING.sub(lambda found: _rst_heading(found, styles), text))
        parts = _FENCED.split(_RST_LISTED.sub(_rst_listed, _RST_TABLE.sub(_rst_table, text)))  # prose and code in turns
        text = "".join(part if at % 2 else _rewritten(part, _RST) for at, part in enumerate(parts))
        text = _OPTION.sub(_option_heading, _RST_TERM.sub(documents.TERM, text))
    else:
        text = _rewritten(text, _POD) if suffix == ".pod" else _adoc_text(text)
    title = _FIRST_HEADING.search(text)
    yield file.document(text, kind=suffix[1:], title=title[1].strip() if title else "")


def _fenced(found: re.Match[str]) -> str:
    lead = (found["lead"] or "").rstrip()
    return f"{found['indent'] if lead else ''}{lead}{':' if lead else ''}\n\n{_fence(found['code'])}\n".lstrip("\n")


def _fence(code: str) -> str:
    return "```\n{}\n```\n".format(textwrap.dedent(code.expandtabs()).strip("\n"))


def _rst_table(found: re.Match[str]) -> str:
    from docutils import DataError, statemachine  # noqa: PLC0415 - few files need it
    from docutils.parsers.rst import tableparser  # noqa: PLC0415

    lines = statemachine.StringList(textwrap.dedent(found[0]).splitlines())
    parser = tableparser.GridTableParser() if lines[0][0] == "+" else tableparser.SimpleTableParser()
    head: list[Any] = []
    try:
        _, head, body = parser.parse(lines)
    except (DataError, IndexError, AssertionError):  # of lines that are too short, or rules that do not meet
        groups = (list(group) for is_rule, group in groupby(lines, lambda line: not line.strip("+-= ")) if not is_rule)
        parted = [[line.strip().removeprefix("|").removesuffix("|").split("|") for line in group] for group in groups]
        if len(sizes := {len(parts) for group in parted for parts in group}) != 1 or 1 in sizes:
            return found[0]
        body = [[(0, 0, 0, [*cell]) for cell in zip(*group, strict=True)] for group in parted]
    rows = [[" ".join(" ".join(cell[3]).split()) if cell else "" for cell in row] for row in [*head, *body]]
    return f"{documents.markdown_table(rows)}\n"


def _rst_listed(found: re.Match[str]) -> str:
    """A table that is written as a list of lists, or as CSV."""
    body = textwrap.dedent(found["body"]).strip("\n")
    if found["kind"] == "csv":
        head = re.findall(r":header:(.*)", found["options"])
        rows = list(csv.reader([*head, *body.splitlines()], skipinitialspace=True))
    else:
        gap = re.match(r"\* *", body)
        cell = rf"^ {{{gap.end() if gap else 2}}}- ?"
        rows = [re.split(cell, row, flags=re.MULTILINE) for row in re.split(r"^\* *- ?", body, flags=re.MULTILINE)[1:]]
    width = max(map(len, rows), default=0)
    rows = [[" ".join(cell.split()) for cell in row] + [""] * (width - len(row)) for row in rows]
    return f"{found['title'].strip()}\n\n{documents.markdown_table(rows)}\n\n" if width > 1 else found[0]


def _rewritten(text: str, rules: Sequence[_Rule]) -> str:
    for pattern, put in rules:
        text = re.sub(pattern, put, text, flags=re.MULTILINE)
    return text


def _adoc_text(text: str) -> str:
    named = dict(re.findall(r"^:([\w-]+):[ \t]+(\S.{0,99})$", text, re.MULTILINE))
    styles: dict[tuple[str, bool], int] = {}
    parts = _ADOC_CODE.split(text)  # prose, the line above code, and the code, in turns
    for at in range(0, len(parts), 3):
        prose = re.sub(r"\{([\w-]+)\}", lambda found: named.get(found[1], found[0]), parts[at])
        prose = _RST_HEADING.sub(lambda found: _rst_heading(found, styles), prose)
        parts[at] = _rewritten(prose, _ADOC)
    return "".join(part if at % 3 == 0 else _fence(part) for at, part in enumerate(parts) if at % 3 != 1)


def _adoc_table(body: str) -> str:
    """Write a table as Markdown; its first line holds a row, or else the first blank line ends one."""
    first, opening = (len(_ADOC_CELL.findall(body.strip().partition(end)[0])) for end in ("\n", "\n\n"))
    cells = [" ".join(cell.split()).replace(r"\|", "|") for cell in _ADOC_CELL.split(body)[1:]]
    size = first if first > 1 else max(1, opening)
    rows = [cells[at : at + size] for at in range(0, len(cells), size)]
    return documents.markdown_table([row + [""] * (size - len(row)) for row in rows]) if rows else ""


def _read_manual(file: documents.SourceFile) -> Iterator[documents.SourceDocument]:
    source = _decoded(file)
    title, text = manual_to_text(source) if is_manual(source) else ("", "")
    if not text.strip():
        raise SourceError("is no manual page with a text of its own")
    yield file.document(text, kind="man", title=title)


def _rst_heading(found: re.Match[str], styles: dict[tuple[str, bool], int]) -> str:
    """Write one heading; the level of a style of lines is the order in which styles appear."""
    title = found["title"].strip()
    if len(found["under"]) < len(title):
        return found[0]
    level = styles.setdefault((found["under"][0], bool(found["over"])), len(styles) + 1)
    return f"{'#' * min(level, 6)} {title}"


# Plain text as a terminal or a printer gets it: indented all through, with running heads, and words cut at line ends

_MOSTLY = 0.8  # of the lines of such a text are indented
_LEAST_LINES = 50
_REPEATED = 3  # a line at a page's end that is there so often, but for its numbers, belongs to no text
_WITHIN = re.compile(r"(?<=[^\s.!?:;])\n{3,}(?= *[a-z])")  # where a page ends within a sentence
_CUT = re.compile(r"(?<![^\W\d_])([^\W\d_]{1,40})([-\u2010])\n( *)([^\W\d_]{1,40})(\S*) *")
_STARRED = re.compile(r"(?<![^\n]\n)^\*{1,6} .*\n(?=\n)", re.MULTILINE)  # a paragraph of one line
_O_BULLET = re.compile(r"^( *)o(?= {2,}\S|\n)", re.MULTILINE)
_NAME = r"`{0,2}-{1,2}\w(?:(?!  )[^\n]){0,70}"
_WORD = r"[$/.~]{0,2}[^\W\d_][\w./-]{1,60}(?<!\.)"
_DEFINED = r"(?!\d+[.)])(?=(?:\S+ ){0,4}\S+\n)[^\s#•*+:.-][^\n]{0,55}(?<![.:;,{(_\\])(?=\n(?P=indent) {3,}\S)"
_OPTION = re.compile(  # in lines of its own, or of a manual page that says behind it what it does
    rf"(?<![^\n]\n)^(?P<indent> *)(?P<names>{_NAME}(?:\n(?P=indent){_NAME})*|{_WORD}(?=\n)|{_DEFINED})"
    r"(?: {2,}(?=\S[^\n]*\n(?:\n|(?P=indent) ))|\n(?P=indent) +(?=\S))",
    re.MULTILINE,
)
_TYPESET_HEADING = re.compile(
    r"(?<![^\n]\n)^(?P<indent> {0,3})(?P<title>(?P<number>(?:[0-9]+|[A-Z](?=\.))(?:\.[0-9]+)*\.? +)?"
    r"[^\W_](?:(?!  )[^\n]){1,70}(?<![.,:;-])(?: {3,}[^\n]{0,24}\b\d{4})?)\n(?P<gap>\n?)(?=(?P=indent) +\S)",
    re.MULTILINE,
)


def _reflowed(text: str) -> str:
    """Take a typeset text out of its pages, mark its headings, and put the words together; leave any other as it is."""
    lines = [line.rstrip() for line in text.expandtabs().replace("\f", "\n\n\n").split("\n")]
    # Lines of more parts than one with two empty ones on one side, as at the end of a page.
    edges = {
        at: re.sub(r"(?<!\d)(?<!\d\.)\d{1,3}(?!\.?\d)| +", " ", line)
        for at, line in enumerate(lines)
        if "   " in line.strip() and not (any(lines[max(0, at - 2) : at]) and any(lines[at + 1 : at + 3]))
    }
    often = {line for line, count in Counter(edges.values()).items() if count >= _REPEATED}
    lines = [line for at, line in enumerate(lines) if edges.get(at) not in often]
    written = sum(map(bool, lines))
    if written < _LEAST_LINES or sum(line[:2] == "  " for line in lines) < _MOSTLY * written:
        return text
    text = textwrap.dedent(re.sub(r"\n{3,}", "\n\n", _WITHIN.sub("\n", "\n".join(lines))))
    words = set(re.findall(r"[^\W\d_]+", _CUT.sub(" ", text).casefold()))
    text = _CUT.sub(lambda found: _put_together(found, words), text)
    text = _O_BULLET.sub(r"\1-", text) if len(_O_BULLET.findall(text)) >= _REPEATED else text
    text = _TYPESET_HEADING.sub(_typeset_heading, text)
    return _OPTION.sub(_option_heading, text)


def _option_heading(found: re.Match[str]) -> str:
    return documents.TERM + re.sub("\n *", ", ", found["names"]) + f"\n{found['indent']}    "


def _put_together(found: re.Match[str], words: Collection[str]) -> str:
    """Join a word that is cut at the end of a line; one of two words keeps its hyphen."""
    first, sign, indent, second, rest = found.groups()
    is_one = sign == "\u2010" or f"{first}{second}".casefold() in words
    hyphen = "-" if not is_one and first.casefold() in words and second.casefold() in words else ""
    return f"{first}{hyphen}{second}{rest}\n{indent}"


def _typeset_heading(found: re.Match[str]) -> str:
    """Mark a line as a heading that stands to the left of what follows, deeper the more it is indented."""
    is_title = found["title"].isupper() or found["gap"] or found["number"]
    level = 1 + bool(found["indent"]) + (found["number"] or "").strip(" .").count(".") if is_title else 4
    return f"{'#' * min(level, 6)} {' '.join(found['title'].split())}\n{found['gap']}"


# Records in BEIR form, one JSON object a line: ``_id``, ``text``, and optionally ``title`` and ``metadata``

_WIDE_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)
_OWN_FIELDS = frozenset({"_id", "id", "text", "title", "metadata"})


def _read_jsonl(file: documents.SourceFile) -> Iterator[_Item]:
    """Read records as they are asked for, never the whole file at once (unless it is UTF-16)."""
    if not file.size():
        raise SourceError("is empty")
    first_line: dict[str, int] = {}
    number = 0
    for number, line in json_lines(file):
        try:
            doc = _record_document(json_record(line, file.max_bytes), file)
        except SourceError as err:
            yield documents.SkippedSource(f"{file.source}:{number}", str(err))
            continue
        first = first_line.setdefault(doc.doc_id, number)
        said = f"the id {doc.doc_id[:80]!r} is that of line {first} already"
        yield doc if first == number else documents.SkippedSource(f"{file.source}:{number}", said)
    if not number:
        raise SourceError("holds only blank lines")


def json_lines(file: documents.SourceFile) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of each line that is not blank; an overlong one is cut just above the limit."""
    try:
        with file.path.open("rb") as stream:
            head = stream.read(4)
            if head.startswith(_WIDE_MARKS):
                lines: Iterator[bytes] = iter(documents.decode_bytes(file.read()).encode().split(b"\n"))
            else:
                stream.seek(len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0)
                lines = iter(lambda: stream.readline(file.max_bytes + 1), b"")
            number, inside = 1, False
            for line in lines:
                if not inside and line.strip():
                    yield number, line
                inside = len(line) > file.max_bytes and not line.endswith(b"\n")
                number += not inside
    except OSError as err:
        raise documents.unreadable(err) from err


def json_record(line: bytes, max_bytes: int) -> Mapping[str, object]:
    if len(line) > max_bytes:
        raise documents.too_large(max_bytes)
    if b"\0" in line:
        raise SourceError("the line is binary, not text (it holds NUL bytes)")
    try:
        record = json.loads(line.decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError as err:
        raise SourceError("the line is not UTF-8; save the file as UTF-8") from err
    except (ValueError, RecursionError) as err:
        raise SourceError(f"the line is not valid JSON: {str(err)[:120]}") from err
    if not isinstance(record, dict):
        raise SourceError(f"the line holds a JSON {type(record).__name__}, not an object")
    return record


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON number")


def _record_document(record: Mapping[str, object], file: documents.SourceFile) -> documents.SourceDocument:
    given_id = record.get("id") if record.get("_id") is None else record["_id"]
    if isinstance(given_id, bool) or not isinstance(given_id, (str, int, float)) or not str(given_id).strip():
        raise SourceError("the record has no _id; give it a string or a number")
    doc_id = documents.clean_text(str(given_id))
    title, text = _string(record, "title"), _string(record, "text")
    if not text.strip():
        text = title if title.strip() else ""
    given = record.get("metadata")
    if given is not None and not isinstance(given, dict):
        raise SourceError(f"metadata of the record {doc_id[:80]!r} is a {type(given).__name__}, not an object")
    fields = {key: value for key, value in record.items() if key not in _OWN_FIELDS}
    metadata = documents.flat_metadata({**fields, **(given or {})}, doc_id=doc_id)
    named = metadata.get("title")
    title = title or (named if isinstance(named, str) else "")
    return documents.SourceDocument(
        doc_id=doc_id, text=text, metadata=metadata, source=file.source, root=file.root, title=title, kind="jsonl"
    )


def _string(record: Mapping[str, object], field: str) -> str:
    value = record.get(field)
    if not isinstance(value, str | None):
        raise SourceError(f"the field {field!r} is a {type(value).__name__}, not a string")
    return documents.clean_text(value or "")


_IS_TITLE = re.compile(r"(?!.* {2}\S)[^|]+").fullmatch  # no head of a table
_COMMENT = re.compile(r"^(?=(#+)[ \t])(?:(?<=[^\n]\n)|(?=.*\n\1[ \t\n]))", re.MULTILINE)
_FILLED = re.compile(  # a heading with a rule to the end of its line
    r"(?<![^\n]\n)^(?:[=*#~-]{3,}[ \t]+)?([^\W_][^\n]{1,70}?)[ \t]+([=*#~-])\2{3,}[ \t]*$", re.MULTILINE
)
_CENTRED = re.compile(r"(?m)(?<=\n\n)^ {8,}(?![a-z\d ])((?:[^\W_]|[ &,()-](?! )){3,60})\n(?=[ \t]*\n {0,4}\S)")
_RELEASE = re.compile(  # the heading of one, or of a day, in a change log
    r"(?<![^\n]\n)^(?:(?:[^\W\d]\S* ){1,4}v?\d+\.\d[\w.-]*(?:[ ,].{0,40})?"
    r"|v?\d+(?:\.\w+)+(?:[ ,].{0,30}\d{4}.{0,9})?|- (?i:version|release) v?\d[\w.-]*(?:[ ,(]+\d.{0,20})?[^\w\n]{0,4}"
    r"|\S+ \(\S+\) .{1,60}; urgency=\S+|\d{4}-\d\d-\d\d[ \t]+\S.{0,60}<.{3,60}>):?"
    r"(?=[ \t]*\n(?:[ \t]*\n)?(?:[ \t]+\S|[-*+•] ))",
    re.MULTILINE,
)


_LISTED = 3  # lines of a list
_PARAGRAPH = re.compile(r"(?:^[ \t]*\S.*\n?)+", re.MULTILINE)


def _with_listed_headings(text: str) -> str:
    """Make headings of paragraphs that a list further up holds, as of an FAQ its questions, and take them out of it."""
    paragraphs = {one.start(): [line.strip() for line in one[0].splitlines()] for one in _PARAGRAPH.finditer(text)}
    listed = dict[str, tuple[int, int]]()  # where the list begins that a line is of, and its place there
    heads, held = dict[int, int](), dict[int, set[int]]()
    for start, lines in paragraphs.items():
        of, at = listed.get(lines[0], (-1, 0))
        if len(lines) < _LISTED and of >= 0 and paragraphs[of][at : at + len(lines)] == lines:
            heads[start] = of
            held.setdefault(of, set()).update(range(at, at + len(lines)))
        elif len(lines) >= _LISTED:
            listed.update({line: (start, place) for place, line in enumerate(lines)})
    lists = {start for start, places in held.items() if len(places) > _MOSTLY * len(paragraphs[start])}
    first = min(lists, default=0)

    def written(paragraph: re.Match[str]) -> str:
        start = paragraph.start()
        lines, of = paragraphs[start], heads.get(start)
        if start in lists:
            return "".join(f"{line}\n" for at, line in enumerate(lines) if at not in held[start])
        return f"{'##' if of == first else '###'} {' '.join(lines).lstrip('# ')}\n" if of in lists else paragraph[0]

    return _PARAGRAPH.sub(written, text) if lists else text


def _read_text(file: documents.SourceFile) -> Iterator[documents.SourceDocument]:
    text, styles = _COMMENT.sub(r"\\", _reflowed(_decoded(file))), dict[tuple[str, bool], int]()
    told = re.search(r"-\*-.{0,40}\b(?:outline|org)\b", text[:500], re.IGNORECASE)  # to its editor
    starred, apart = re.findall(r"^\*{1,6} ", text, re.MULTILINE), len(_STARRED.findall(text))
    if told or ("** " in starred and apart >= max(_REPEATED, _MOSTLY * len(starred))):
        text = re.sub(r"^\*{1,6}(?= )", lambda found: "#" * len(found[0]), text, flags=re.MULTILINE)
    elif starred.count("** ") >= _REPEATED:
        text = re.sub(r"^\*(?= .*\n\s*\*\* )", "#", text, flags=re.MULTILINE)
        text = re.sub(r"^\*\*+(?= )", "-", text, flags=re.MULTILINE)
    text = _FILLED.sub(r"## \1", _with_listed_headings(text))
    text = _RST_HEADING.sub(lambda found: _rst_heading(found, styles) if _IS_TITLE(found["title"]) else found[0], text)
    text = _RELEASE.sub(r"## \g<0>", text) if len(_RELEASE.findall(text)) >= _REPEATED else text
    if not re.search("^#", text, re.MULTILINE) and len(_CENTRED.findall(text)) >= _REPEATED:
        text = _CENTRED.sub(r"## \1\n", text)
    yield file.document(text, kind="txt")


# Which reader reads what

_READERS: dict[str, Callable[[documents.SourceFile], Iterator[_Item]]] = {
    ".md": _read_markdown,
    ".markdown": _read_markdown,
    ".txt": _read_text,
    ".html": _read_html,
    ".htm": _read_html,
    ".pdf": read_pdf,
    ".jsonl": _read_jsonl,
    ".rst": _read_marked,
    ".pod": _read_marked,
    ".adoc": _read_marked,
    ".asciidoc": _read_marked,
    **dict.fromkeys(CONVERTERS, read_office),
}
SUPPORTED_SUFFIXES: tuple[str, ...] = tuple(_READERS)  # in lower case; upper case counts the same
KINDS = f"{', '.join(SUPPORTED_SUFFIXES)}, manual pages such as .1, README and the like, and all but .jsonl as .gz"
_MANUAL = re.compile(r"\.[1-9][a-z]{0,4}")
_PLAIN = re.compile(  # names of texts that have no suffix of a kind
    r"(?:.+-)?(?:README\..+|[A-Z][A-Z\d_-]+)"
    r"|(?i:authors|change(?:log|s)|copy(?:ing|right)|licen[cs]e|news|todo)(?:[.-][A-Z]\w*)*"
)
_DIGEST_BLOCK = 1 << 20


def is_readable(path: Path) -> bool:
    """Tell whether a file is of a kind that can be read, by its name."""
    return _reader_of(path) is not None


def _reader_of(path: Path) -> Callable[[documents.SourceFile], Iterator[_Item]] | None:
    name, suffix = documents.unpacked_name(path), documents.suffix_of(path)
    if suffix == ".jsonl" and documents.is_packed(path):
        return None  # it is read line by line
    guessed = _read_manual if _MANUAL.fullmatch(suffix) else _read_text if _PLAIN.fullmatch(name) else None
    return _READERS.get(suffix, guessed)


def discover(path: Path, *, follow_links: bool = False) -> list[Path]:
    """List the files to read below a path.

    A folder is walked to the bottom. Hidden files and folders, the locks of office programs, and files of metadata
    beside others are passed over; each folder is visited once, so links in a circle end. What cannot be read is in the
    result, so that ``read_source`` reports it: files of other kinds, and folders that cannot be listed or whose link
    leads out and is not followed.
    """
    path = Path(path)
    try:
        if not path.is_dir():
            path.stat()
            return [path]
        with os.scandir(path):
            pass
    except OSError as err:
        raise SourceError(f"{path} {documents.unreadable(err)}") from err
    found: list[Path] = []
    refused: list[OSError] = []
    visited: set[tuple[int, int]] = set()
    for folder, folders, names in os.walk(path, onerror=refused.append, followlinks=True):
        here = Path(folder)
        status = here.stat()
        if (status.st_dev, status.st_ino) in visited:
            folders.clear()
            continue
        visited.add((status.st_dev, status.st_ino))
        shown = sorted(here / name for name in folders if not name.startswith("."))
        left = [] if follow_links else [one for one in shown if _leads_out(one, path)]
        found.extend(left)
        folders[:] = [one.name for one in shown if one not in left]
        seen = (name for name in names if not name.startswith((".", "~$")) and not name.endswith(enrichment.SIDECAR))
        found.extend(here / name for name in seen)
    found.extend(Path(error.filename) for error in refused)
    return sorted(found)


def _leads_out(path: Path, root: Path) -> bool:
    return not path.resolve().is_relative_to(root.resolve())


def digests_of_alike(files: Sequence[Path]) -> dict[Path, str]:
    """Return a digest of the bytes of each file that can be read and has the size of another one."""
    by_size: dict[int, list[Path]] = {}
    for file in files:
        with suppress(OSError):
            status = file.stat()
            if stat.S_ISREG(status.st_mode) and is_readable(file):
                by_size.setdefault(status.st_size, []).append(file)
    digests: dict[Path, str] = {}
    for file in chain.from_iterable(group for group in by_size.values() if len(group) > 1):
        with suppress(OSError), file.open("rb") as stream:
            digest = hashlib.sha256()
            while block := stream.read(_DIGEST_BLOCK):
                digest.update(block)
            digests[file] = digest.hexdigest()
    return digests


def read_source(
    path: Path, *, root: Path, max_bytes: int = documents.MAX_SOURCE_BYTES, follow_links: bool = False
) -> Iterator[_Item]:
    file = documents.locate(Path(path), root=Path(root), max_bytes=max_bytes)
    reader = _reader_of(file.path)
    if not follow_links and _leads_out(file.path, Path(root)):
        yield documents.SkippedSource(file.source, "is a link that leads out of the folder; allow it with follow_links")
    elif file.path.is_dir():
        yield documents.SkippedSource(file.source, "is a folder that cannot be listed; check its permissions")
    elif reader is None:
        reason = f"is of no kind that can be read; allowed are {KINDS}"
        yield documents.SkippedSource(file.source, reason, "unsupported")
    else:
        try:
            yield from reader(file) if reader is _read_jsonl else _described(file, reader(file), follow_links)
        except SourceError as err:
            kind: Literal["unread", "unsupported"] = "unread" if file.suffix in _READERS else "unsupported"
            yield documents.SkippedSource(file.source, str(err), kind)
        except MemoryError:  # the limit of a reader's process, whose end says so
            raise
        except Exception as err:  # noqa: BLE001 - the seam to parsers, which raise anything on strange files
            reason = f"broke its reader with {type(err).__name__}; save it again, or in another format"
            yield documents.SkippedSource(file.source, reason)


def _described(file: documents.SourceFile, items: Iterator[_Item], follow_links: bool) -> Iterator[_Item]:
    """Add what stands in a file beside a document."""
    given: dict[str, object] = {}
    sidecar = enrichment.sidecar_of(file.path)
    if sidecar is not None and (follow_links or not _leads_out(sidecar, Path(file.root))):
        try:
            given = enrichment.read_sidecar(sidecar)
        except SourceError as err:
            yield documents.SkippedSource(documents.printable(str(sidecar)), str(err))
    for item in items:
        if given and isinstance(item, documents.SourceDocument):
            yield enrichment.with_metadata(item, given, "sidecar")
        else:
            yield item


# What may take time and memory without bounds, inside of foreign code, is read by a process of its own.

_MAX_SECONDS: Final = 300  # of computing, for one file
_MAX_MEMORY: Final = 4_000_000_000
_PATTERN_SECONDS: Final = 10  # of computing, for the user's patterns on what one file holds
_HAS_LIMITS: Final = os.name == "posix"
_HEAVY: Final = frozenset({".pdf", *CONVERTERS}) - {".csv", ".tsv", ".eml"}
_SMALL: Final = 1_000_000  # bytes of a page of HTML that is read without another process
_CODE: Final = "import sys; sys.path[:] = {!r}; from {} import readers; readers.serve({}, {}, {!r})"


class BoundedReader(AbstractContextManager["BoundedReader"]):
    """Reads files as ``read_source`` does; one that takes too much, or breaks its reader, costs only itself."""

    def __init__(
        self,
        max_seconds: int = _MAX_SECONDS,
        max_memory: int = _MAX_MEMORY,
        *,
        patterns: Path | None = None,
        from_bytes: int | None = None,
    ) -> None:
        self._limits = max_seconds, max_memory
        # Files of any kind that are as large; else only of those that may take much.
        self._from_bytes = 0 if patterns is not None else from_bytes
        self._patterns = None if patterns is None else os.fspath(patterns)
        if patterns is not None:
            enrichment.load_patterns(patterns)  # what is wrong in them is told before anything is read
        self._process: subprocess.Popen[str] | None = None

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def read(self, path: Path, *, root: Path, max_bytes: int, follow_links: bool) -> Iterator[_Item]:
        suffix, heavy = documents.suffix_of(path), documents.is_packed(path)
        with suppress(OSError):
            size, least = path.stat().st_size, _SMALL if suffix in {".htm", ".html"} else None
            least = least if self._from_bytes is None else self._from_bytes
            heavy = heavy or suffix in _HEAVY or (least is not None and size > least)
        if not _HAS_LIMITS or not heavy or not sys.executable:
            yield from read_source(path, root=root, max_bytes=max_bytes, follow_links=follow_links)
            return
        source = documents.locate(path, root=root, max_bytes=0).source
        answer = self._asked(json.dumps([os.fspath(path), os.fspath(root), max_bytes, follow_links]))
        if not answer.endswith("\n"):
            limits = f"{self._limits[0]} s of computing or {self._limits[1] / 1e9:g} GB of memory"
            reason = f"took more than {limits}, or broke its reader; split it or save it again"
            yield documents.SkippedSource(source, reason)
            return
        items = [_item(fields) for fields in json.loads(answer)]
        if self._patterns is not None:
            answer = self._line()
            if not answer.endswith("\n"):
                slow = f"is taken without what {self._patterns} finds: its patterns took more than {_PATTERN_SECONDS} s"
                yield documents.SkippedSource(source, f"{slow}; simplify them", "noted")
            found: list[Any] = json.loads(answer) if answer.endswith("\n") else [{}] * len(items)
            both = zip(items, found, strict=True)
            items = [replace(i, found=f) if isinstance(i, documents.SourceDocument) else i for i, f in both]
        yield from items

    def stop(self) -> None:
        """End what is being read, from another thread; it counts as broken."""
        process = self._process
        if process is not None:
            process.kill()

    def _asked(self, request: str) -> str:
        if self._process is None:
            code = _CODE.format(sys.path, __package__, *self._limits, self._patterns)
            pipe, command = subprocess.PIPE, [sys.executable, "-I", "-c", code]
            silent = subprocess.DEVNULL
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=silent, text=True)  # noqa: S603
        with suppress(OSError):
            print(request, file=self._process.stdin, flush=True)
        return self._line()

    def _line(self) -> str:
        """Read one line of the answer; a process that gave none is done with, and the next request starts another."""
        answer = ""
        if self._process is not None and self._process.stdout is not None:
            with suppress(OSError):
                answer = self._process.stdout.readline()
        if not answer.endswith("\n"):
            self.__exit__()
        return answer


def _item(fields: dict[str, Any]) -> _Item:
    if "reason" in fields:
        return documents.SkippedSource(**fields)
    return documents.SourceDocument(**fields | {"pages": tuple(documents.PageSpan(*page) for page in fields["pages"])})


def serve(max_seconds: int, max_memory: int, patterns: str | None = None) -> None:
    """Answer requests, a line each and one with what patterns find, until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (max_memory, max_memory))
    known = enrichment.load_patterns(Path(patterns)) if patterns is not None else None
    for line in sys.stdin:
        path, root, max_bytes, follow_links = json.loads(line)
        _limit_computing(max_seconds)
        found = list(read_source(Path(path), root=Path(root), max_bytes=max_bytes, follow_links=follow_links))
        print(json.dumps([asdict(one) for one in found]), file=answers, flush=True)
        if known is not None:
            _limit_computing(_PATTERN_SECONDS)
            texts = (one if isinstance(one, documents.SourceDocument) else None for one in found)
            values = [{} if one is None else enrichment.find_by_patterns(one, known) for one in texts]
            print(json.dumps(values), file=answers, flush=True)


def _limit_computing(seconds: int) -> None:
    spent = resource.getrusage(resource.RUSAGE_SELF)
    until = int(spent.ru_utime + spent.ru_stime) + 1 + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (until, resource.getrlimit(resource.RLIMIT_CPU)[1]))
