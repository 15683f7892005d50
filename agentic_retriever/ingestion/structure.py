"""A text as a sequence of blocks: headings, paragraphs, lists, tables, code, each a span of the source."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, NamedTuple

from agentic_retriever.text.language_files import packaged_json

# Which lines are headings: Markdown ones, numbered sections, and the articles and chapters of legal texts.
# A line is judged with its neighbours only. What needs the whole document is settled afterwards, in settle().

Origin = Literal["markdown", "legal", "numbered", "single"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """A heading, or the label of a provision whose text begins on the same line."""

    title: str
    level: int
    origin: Origin
    number: str = ""
    article: str = ""
    rank: int = 0  # of a legal division, from 1 for a book to 5 for an article
    inline: bool = False
    weak: bool = False
    needs_parent: bool = False


class LineContext(NamedTuple):
    before: str
    after: str
    next_text: str
    at_break: bool


_MAX_TITLE_CHARS = 110
_MAX_ATX_CHARS = 1000
_MAX_TITLE_WORDS = 14
_MAX_SENTENCE_TITLE_WORDS = 8
_MAX_INDENT = 3
_LEGAL_LEVEL = 10
_ARTICLE_RANK = 5
_NUMBER_LEVEL = 20
_ATX = re.compile(r"(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$")
_MARKUP = re.compile(r"!?\[([^\]]*)\]\([^)]*\)|(\*\*|__|`|(?<!\w)[*_](?=\w)|(?<=[\w.:!?])[*_](?!\w))")

_NUMBER = r"(?:\d{1,3}|[A-Z](?=\.\d))(?:\.\d{1,3})*"
_NUMBERED = re.compile(rf"({_NUMBER})(\.?)[ \t]+(\S.*)$")
_ONLY_NUMBER = re.compile(rf"({_NUMBER})(\.?)$")
# Converters write numbered headings as list items or in bold: "- 6.2. Lights", "**6.2. Lights**".
_DRESSED = re.compile(
    r"(?P<bullet>[-*+•][ \t]+)?"
    rf"(?:(?P<bold>\*\*|__)(?P<inside>{_NUMBER}\.?[ \t]+[^*_]+)(?P=bold)|(?P<plain>{_NUMBER}.*))$"
)
_LIST_ITEM = re.compile(r"[ \t]*(?:[-*+•]|\(?(?:\d{1,3}|[A-Za-z])[.)])[ \t]+\S")
_LEADERS = re.compile(r"\.{3,}|…|[ \t]{2,}\d+$|\t\d+$")

_ROMAN = r"[IVXLCDM]{1,8}\b"
_THAI_DIGITS = str.maketrans("๐๑๒๓๔๕๖๗๘๙", "0123456789")
_WORDS = packaged_json("ingestion/structure.json")
_ORDINAL = rf"(?:{'|'.join(_WORDS['ordinals'])})\b"
_LEGAL_NUMBER = (
    rf"(?:[\d๐-๙]{{1,4}}(?:[./][\d๐-๙]{{1,3}})*(?:[ \-]?(?:bis|ter|quater|quinquies)\b|[a-z]\b|[ºª°])?|"
    rf"{_ROMAN}|{_ORDINAL}|[A-Z]\b)"
)
_DIVISIONS: list[tuple[int, str]] = [(rank, "|".join(words)) for rank, words in _WORDS["divisions"]]
_ARTICLE_WORD = "|".join(_WORDS["articles"])
_LEGAL = re.compile(
    "(?:"
    + "|".join(f"(?P<d{at}>{words})" for at, (_, words) in enumerate(_DIVISIONS))
    + rf"|(?P<article>{_ARTICLE_WORD}))[ \t]*(?P<number>{_LEGAL_NUMBER})(?P<rest>.*)$"
)
_PUNCTUATION = re.compile(r"[ \t]*(?:\.?[ \t]*[-–—]|[.:])[ \t]*")
# After a Thai article number these words make a reference ("section 12 of ...", "and", "or", "to") of it.
_THAI_REFERENCE = re.compile(r"[ \t]*(?:แห่ง|หรือ|และ|วรรค|ถึง|ของ|ดังกล่าว)")
_SENTENCE_END = (".", "!", "?", ":", ";", "»", "”", '"', ")", "।", "。")


def find_heading(line: str, context: LineContext) -> Heading | None:
    stripped = line.strip()
    dressed = _DRESSED.match(stripped)
    if dressed and (dressed["bullet"] or dressed["bold"]):
        return _dressed(dressed, context)
    if not stripped or len(line) - len(line.lstrip()) > _MAX_INDENT:
        return None
    if stripped[0] == "#":
        found = _ATX.match(stripped) if len(stripped) <= _MAX_ATX_CHARS else None
        return label(found[2], level=len(found[1])) if found and (found[2] or "").strip("# \t") else None
    return _legal(stripped, context) or _numbered(stripped, context)


def label(text: str, *, level: int) -> Heading:
    """Make a heading from the text of an explicit one, with the numbers that stand in it."""
    title = _MARKUP.sub(lambda hit: hit[1] or "", text).strip() or text.strip()
    numbered = _NUMBERED.match(title) or _ONLY_NUMBER.match(title)
    number = numbered[1] if numbered and ("." in numbered[1] or numbered[2]) else ""
    legal = _LEGAL.match(title)
    if legal is None or legal["rest"][:1].isalnum():
        return Heading(title=title, level=level, origin="markdown", number=number)
    article = _article_number(legal["number"]) if legal["article"] else ""
    return Heading(title=title, level=level, origin="markdown", number=number, article=article, rank=_rank(legal))


def is_bare(heading: Heading) -> bool:
    """Tell whether a legal heading is a word and a number alone, so that its title may stand on the next line."""
    found = _LEGAL.match(heading.title) if heading.origin == "legal" and not heading.inline else None
    return found is not None and not found["rest"].strip(" .:-–—")


def extends_title(line: str, after: str, next_text: str) -> bool:
    """Tell whether a line is the title of the bare ``Article 7`` or ``CAPÍTULO III`` above it."""
    text = line.strip()
    if not _is_title(text) or text.endswith((".", ":")) or _LIST_ITEM.match(text) or _LEGAL.match(text):
        return False
    return not after or bool(re.match(r"\(?1[.)]", after.strip())) or bool(_LEGAL.match(next_text.strip()))


def _legal(line: str, context: LineContext) -> Heading | None:
    found = _LEGAL.match(line)
    if found is None or (found["rest"][:1].isalnum() and found["rest"][:1].isascii()):
        return None
    thai = "\u0e00" <= line[0] <= "\u0e7f"
    weak = not context.at_break
    if weak and not thai and not context.before.rstrip().endswith(_SENTENCE_END):
        return None
    heading = _article(line, found, context, thai) if found["article"] else _division(line, found, context)
    return replace(heading, weak=weak) if heading else None


def _rank(found: re.Match[str]) -> int:
    return next((rank for at, (rank, _) in enumerate(_DIVISIONS) if found[f"d{at}"]), _ARTICLE_RANK)


def _division(line: str, found: re.Match[str], context: LineContext) -> Heading | None:
    rest = found["rest"].strip()
    title = _PUNCTUATION.sub("", rest, count=1) if _PUNCTUATION.match(rest) else rest
    if title and (not _is_title(title) or _wraps(context)):
        return None
    return Heading(title=line, level=_LEGAL_LEVEL + _rank(found), origin="legal", rank=_rank(found))


def _article(line: str, found: re.Match[str], context: LineContext, thai: bool) -> Heading | None:
    rest, bare = found["rest"], line[: found.start("rest")].strip()
    mark = _PUNCTUATION.match(rest)
    body = rest[mark.end() :].strip() if mark else rest.strip()
    title, inline = line, False
    if thai:
        if not mark and (_THAI_REFERENCE.match(rest) or (rest and not rest[0].isspace())):
            return None
        title, inline = (bare, True) if body else (line, False)
    elif body and mark:
        title, inline = _split_body(line, found.start("rest") + mark.end(), context, bare)
    elif body and (not _is_title(body) or body.endswith(".") or _wraps(context)):
        return None
    return Heading(
        title=title.rstrip(" .:-–—"),
        level=_LEGAL_LEVEL + _ARTICLE_RANK,
        origin="legal",
        rank=_ARTICLE_RANK,
        article=_article_number(found["number"]),
        inline=inline,
    )


def _split_body(line: str, body_start: int, context: LineContext, bare: str) -> tuple[str, bool]:
    """Return the title of a provision with text on its line, ``bare`` where none is told, and whether that is body."""
    body = line[body_start:].strip()
    if _is_title(body) and not _wraps(context) and _stands_alone(body, context):
        return line, False
    first, separator, more = body.partition(". ")
    if separator and more.strip() and _is_title(first):
        return line[: line.index(first, body_start) + len(first)], True
    return bare, True


def _dressed(found: re.Match[str], context: LineContext) -> Heading | None:
    """A numbered heading that is written as an item of a list or in bold."""
    if found["bullet"]:
        context = context._replace(before="", at_break=True)
    heading = _numbered(found["inside"] or found["plain"], context)
    if heading is None or (found["bold"] and heading.inline):
        return None
    is_firm = bool(found["bold"]) or re.match(rf"{_NUMBER}\.[ \t]", found["plain"])
    return replace(heading, needs_parent=not is_firm or heading.origin == "single")


def _numbered(line: str, context: LineContext) -> Heading | None:
    found = _NUMBERED.match(line)
    if found is None:
        return None
    number, dot, rest = found[1], found[2], found[3].strip()
    level = _NUMBER_LEVEL + number.count(".") + 1
    weak = not context.at_break
    if "." not in number:
        return _single(line, number, rest, context) if dot and not weak else None
    if weak and not context.before.rstrip().endswith(_SENTENCE_END):
        return None
    title, inline = _split_body(line, found.start(3), context, bare="")
    if not title or (inline and not dot):
        return None
    title = title if inline else title.rstrip(" .")
    return Heading(title=title, level=level, origin="numbered", number=number, inline=inline, weak=weak)


def _single(line: str, number: str, rest: str, context: LineContext) -> Heading | None:
    """``1. Introduction``, which only the text below it tells from a list item."""
    following = context.next_text
    if context.after or not following or following[:1].isspace() or _LIST_ITEM.match(following):
        return None
    if not _is_title(rest) or rest.endswith((".", ":", ";")):
        return None
    return Heading(title=line, level=_NUMBER_LEVEL + 1, origin="single", number=number)


def _is_title(text: str) -> bool:
    if not text or len(text) > _MAX_TITLE_CHARS or _LEADERS.search(text) or text.endswith((",", ";")):
        return False
    first = text.lstrip("«“\"'¿¡(")[:1]
    if not first.isalpha() or first.islower():
        return False
    words = len(text.split())
    if text.endswith((".", "!")) or ". " in text:
        return words <= _MAX_SENTENCE_TITLE_WORDS and ". " not in text
    return words <= _MAX_TITLE_WORDS


def _stands_alone(text: str, context: LineContext) -> bool:
    """Tell a title that ends in a full stop from a provision of a few words: only the title has text below it."""
    below = context.next_text.strip()
    return not text.endswith(".") or (bool(below) and not _NUMBERED.match(below) and not _LEGAL.match(below))


def _wraps(context: LineContext) -> bool:
    """Tell whether the line below goes on with the sentence."""
    return context.after.lstrip()[:1].islower()


def _article_number(number: str) -> str:
    ascii_number = number.translate(_THAI_DIGITS).rstrip("ºª°.")
    return re.sub(r"(?<=\d)[ \-]?(?=(?:bis|ter|quater|quinquies)\b)", " ", ascii_number)


# Headings judged by the document they stand in: monotone numbers, contents lists, references at a line start.

_MIN_EMPTY = 3
_MIN_SERIES = 3
_MAX_STEP = 10
_LETTER = 1000


def settle(headings: Sequence[Heading | None]) -> list[Heading | None]:
    """Take back the candidates that the whole document speaks against; explicit Markdown headings stay."""
    kept = list(headings)
    for at in _contents_lists(kept) | _unsupported(kept):
        kept[at] = None
    last_number: tuple[int, ...] | None = None
    last_article: int | None = None
    for at, heading in enumerate(kept):
        if heading is None:
            continue
        if heading.origin == "markdown":
            last_number = _parts(heading.number) if heading.number else last_number
        elif heading.origin == "legal":
            digits = re.match(r"\d+", heading.article)
            article = int(digits[0]) if digits else None
            step = None if article is None or last_article is None else article - last_article
            is_next = step in {0, 1} and heading.article != str(last_article)
            if heading.weak and not is_next:
                kept[at] = None
                continue
            last_article = article or last_article
            last_number = None
        elif _follows(last_number, _parts(heading.number)):
            last_number = _parts(heading.number)
        else:
            kept[at] = None
    return kept


def _contents_lists(headings: Sequence[Heading | None]) -> set[int]:
    """Return the members of chains of headings of which three or more have neither text nor a deeper heading below."""
    doomed: set[int] = set()
    chain: list[int] = []
    for at, heading in enumerate([*headings, None]):
        if heading is not None and heading.origin != "markdown":
            chain.append(at)
            if not heading.inline:
                continue
        members = [member for at in chain if (member := headings[at]) is not None]
        if sum(after.level <= before.level for before, after in pairwise(members)) >= _MIN_EMPTY - 1:
            doomed.update(chain)
        chain = []
    return doomed


def _unsupported(headings: Sequence[Heading | None]) -> set[int]:
    """Return the candidates that only others could make headings: ``6. Title``, ``- 6.2 Title`` without a ``6``."""
    numbered = [(at, heading) for at, heading in enumerate(headings) if heading and heading.number]
    series = _series(headings, numbered)
    behind = [""] * (len(numbered) + 1)  # the next Markdown heading with a number without dots
    for place, (_, heading) in reversed(list(enumerate(numbered))):
        is_chapter = heading.origin == "markdown" and "." not in heading.number
        behind[place] = heading.number if is_chapter else behind[place + 1]
    doomed: set[int] = set()
    known: set[str] = set()
    last = ""  # the last number without dots that stays
    for place, (at, heading) in enumerate(numbered):
        number = heading.number
        above = number.rpartition(".")[0]
        stays = not heading.needs_parent or above in known
        if heading.origin == "single":
            # "6.1" follows, or it stands between "## 5." and "## 7.".
            opens = place + 1 < len(numbered) and numbered[place + 1][1].number.startswith(f"{number}.")
            fills = last.isdigit() and int(last) + 1 == int(number) and behind[place] == str(int(number) + 1)
            stays = at in series or opens or fills
        if not stays:
            doomed.add(at)
            continue
        known.add(number)
        last = last if above else number
    return doomed


def _series(headings: Sequence[Heading | None], numbered: Sequence[tuple[int, Heading]]) -> set[int]:
    """Return the members of series 1, 2, ...; below Markdown headings only of one that divides the whole document."""
    singles = {at: int(one.number) for at, one in numbered if one.origin == "single" and not one.needs_parent}
    markdown = [at for at, heading in enumerate(headings) if heading and heading.origin == "markdown"]
    if markdown:
        whole = len(singles) >= _MIN_SERIES and [*singles.values()] == [*range(1, len(singles) + 1)]
        return set(singles) if whole and markdown == [0] else set()
    parents = {one.number.split(".")[0] for _, one in numbered if one.origin == "numbered"}
    present = set(singles.values())
    supported = parents | {str(number + 1) for number in present} | ({"1"} if 2 in present else set())
    return {at for at, number in singles.items() if str(number) in supported}


def _parts(number: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else _LETTER + ord(part) for part in number.split("."))


def _follows(last: tuple[int, ...] | None, number: tuple[int, ...]) -> bool:
    if last is None or set(number) == {1} or number[0] > _LETTER > last[0]:
        return True
    if number <= last:
        return False
    shared = next((at for at, (one, two) in enumerate(zip(last, number, strict=False)) if one != two), len(last))
    return number[shared] - (last[shared] if shared < len(last) else 0) <= _MAX_STEP


# Lines to blocks.

BlockKind = Literal["heading", "text", "list", "table", "code"]

LINE = re.compile(r"(.*)\n|(.+)")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)$")
_UNDERLINE = re.compile(r" {0,3}(={3,}|-{3,})[ \t\r]*$")
_COLUMNS = re.compile(r"\S {3,}\S.*\S {3,}\S")  # a table's head, as a terminal shows it
_DELIMITER_CELL = re.compile(r"[ \t]*:?-+:?[ \t\r]*")
_MAX_ROW_CHARS = 20_000
_MAX_HEAD_CHARS = 1000
_MAX_SETEXT_CHARS = 200


@dataclass(frozen=True, slots=True)
class Block:
    """A span of the source that holds one kind of thing; it begins and ends with a visible character."""

    start: int
    end: int
    kind: BlockKind
    heading: Heading | None = None


def scan_blocks(text: str, *, start: int = 0) -> list[Block]:
    """Divide a text into blocks. Every visible character from ``start`` on is in exactly one."""
    blocks = _Scanner(text, start).scan()
    headings = settle([block.heading for block in blocks])
    return _rejoin(text, blocks, headings)


def _rejoin(text: str, blocks: list[Block], headings: list[Heading | None]) -> list[Block]:
    """Put lines that turned out to be no headings back into the paragraph that they were taken from."""
    joined: list[Block] = []
    loose = False
    for block, heading in zip(blocks, headings, strict=True):
        demoted = block.heading is not None and heading is None
        kind: BlockKind = "list" if demoted and _LIST_ITEM.match(text[block.start : block.end]) else block.kind
        current = replace(block, heading=heading, kind="text" if demoted and kind == "heading" else kind)
        last = joined[-1] if joined else None
        prose = last is not None and heading is None and {last.kind, current.kind} <= {"text", "list"}
        if last and prose and (loose or demoted) and text.count("\n", last.end, current.start) <= 1:
            joined[-1] = replace(last, end=current.end)
        else:
            joined.append(current)
        loose = demoted
    return joined


def _is_rule(line: str) -> bool:
    return all(_DELIMITER_CELL.fullmatch(cell) for cell in line.strip().strip("|").split("|"))


class _Scanner:
    def __init__(self, text: str, start: int) -> None:
        self._text = text
        self._spans = [line.span(line.lastindex or 0) for line in LINE.finditer(text, start)]
        self._lines = [text[first:last] for first, last in self._spans] + [""] * 3  # there are none at -1 and the end
        self._at = 0
        self._after_heading = False
        self._unclosed: dict[str, int] = {}
        # For each line the first line from it on that is not blank.
        self._blank_from = [len(self._spans)] * (len(self._spans) + 2)
        for at in reversed(range(len(self._spans))):
            self._blank_from[at] = at if self._lines[at].strip() else self._blank_from[at + 1]

    def scan(self) -> list[Block]:
        blocks: list[Block] = []
        while self._at < len(self._spans):
            if not self._lines[self._at].strip():
                self._at += 1
                continue
            block = self._heading() or self._code() or self._table() or self._prose()
            self._after_heading = block.kind == "heading"
            blocks.append(block)
        return blocks

    def _context(self, at: int, *, at_break: bool) -> LineContext:
        before, after = "" if at_break else self._lines[at - 1], self._lines[at + 1]
        next_text = self._lines[self._blank_from[at + 1]]
        return LineContext(before, after if after.strip() else "", next_text, at_break)

    def _block(self, first: int, last: int, kind: BlockKind, heading: Heading | None = None) -> Block:
        """Make a block of the lines ``first`` to ``last`` and go on behind it."""
        self._at = last + 1
        start, end = self._spans[first][0], self._spans[last][1]
        source = self._text[start:end]
        start, end = end - len(source.lstrip()), start + len(source.rstrip())
        return Block(start, end, kind, heading)

    def _at_break(self, at: int) -> bool:
        return at == 0 or not self._lines[at - 1].strip() or (self._after_heading and at == self._at)

    def _candidate(self, at: int) -> Heading | None:
        return find_heading(self._lines[at], self._context(at, at_break=self._at_break(at)))

    def _heading(self) -> Block | None:
        at = self._at
        heading = self._candidate(at)
        if heading is None:
            return self._setext()
        if heading.inline:
            return self._prose(heading)
        below = self._blank_from[at + 1]
        if is_bare(heading) and below - at <= 2 and below < len(self._spans):
            context = self._context(below, at_break=True)
            if extends_title(self._lines[below], context.after, context.next_text):
                title = f"{heading.title.rstrip(' .:')}. {self._lines[below].strip()}"
                return self._block(at, below, "heading", replace(heading, title=title))
        return self._block(at, at, "heading", heading)

    def _setext(self) -> Block | None:
        line, below = self._lines[self._at], self._lines[self._at + 1]
        if not self._at_break(self._at) or len(line) > _MAX_SETEXT_CHARS:
            return None
        underline = _UNDERLINE.match(below)
        if underline is None:  # as below most lines
            return None
        if "|" in line or _LIST_ITEM.match(line) or _UNDERLINE.match(line) or _COLUMNS.search(line):
            return None
        heading = label(line.strip(), level=1 if underline[1][0] == "=" else 2)
        return self._block(self._at, self._at + 1, "heading", heading)

    def _code(self) -> Block | None:
        found = _FENCE.match(self._lines[self._at])
        if found is None or (found[1][0] == "`" and "`" in found[2]):
            return None
        mark = found[1][0]
        if len(found[1]) >= self._unclosed.get(mark, len(self._text) + 1):
            return None
        for at in range(self._at + 1, len(self._spans)):
            closing = _FENCE.match(self._lines[at])
            if closing and closing[1][0] == mark and len(closing[1]) >= len(found[1]) and not closing[2].strip():
                return self._block(self._at, at, "code")
        # A fence that is never closed is taken as text, so that one slip does not swallow the rest of the document.
        self._unclosed[mark] = len(found[1])
        return None

    def _is_row(self, at: int) -> bool:
        line = self._lines[at].strip()
        return line[:1] == "|" and line.count("|", 0, _MAX_ROW_CHARS) > 1

    def _has_delimiter_below(self, at: int) -> bool:
        line, below = self._lines[at], self._lines[at + 1]
        return "|" in line and "|" in below and len(below) <= _MAX_ROW_CHARS and _is_rule(below)

    def _starts_table(self, at: int) -> bool:
        return self._is_row(at) or self._has_delimiter_below(at)

    def _table(self) -> Block | None:
        if not self._starts_table(self._at):
            return None
        headed = self._has_delimiter_below(self._at)
        at = self._at + 1
        while self._is_row(at) or (headed and "|" in self._lines[at]):
            at += 1
        return self._block(self._at, at - 1, "table")

    def _prose(self, heading: Heading | None = None) -> Block:
        first = self._at
        is_list = heading is None and bool(_LIST_ITEM.match(self._lines[first]))
        at = first + 1
        while self._goes_on(at, is_list=is_list):
            at += 1
        return self._block(first, at - 1, "list" if is_list else "text", heading)

    def _goes_on(self, at: int, *, is_list: bool) -> bool:
        line = self._lines[at]
        if not line.strip() or self._starts_table(at):
            return False
        if _FENCE.match(line) or (not is_list and _LIST_ITEM.match(line)):
            return False
        return self._candidate(at) is None


# Blocks grouped under the headings that they stand below.


@dataclass(slots=True)
class Section:
    """The blocks between one heading and the next."""

    path: tuple[Heading, ...]
    blocks: list[Block] = field(default_factory=list)

    @property
    def start(self) -> int:
        return self.blocks[0].start

    @property
    def end(self) -> int:
        return self.blocks[-1].end

    @property
    def number(self) -> str:
        """Number of the innermost numbered heading, such as ``"6.2.1"``, or ``""``."""
        return next((heading.number for heading in reversed(self.path) if heading.number), "")

    @property
    def article(self) -> str:
        """Number of the article that it lies in, such as ``"42"``, or ``""``."""
        return next((heading.article for heading in reversed(self.path) if heading.article), "")


def split_sections(text: str, *, start: int = 0) -> list[Section]:
    sections: list[Section] = []
    current = Section(())
    waiting: list[Block] = []
    for block in scan_blocks(text, start=start):
        if block.heading is not None:
            if current.blocks:
                sections.append(current)
            outer = current.path
            while outer and not _is_above(outer[-1], block.heading):
                outer = outer[:-1]
            current = Section((*outer, block.heading))
        waiting.append(block)
        if block.kind != "heading":
            current.blocks.extend(waiting)
            waiting.clear()
    current.blocks.extend(waiting)
    return [*sections, current] if current.blocks else sections


def _is_above(outer: Heading, inner: Heading) -> bool:
    """Tell whether a heading encloses one below it: by their numbers, and by Markdown levels where these differ."""
    both_markdown = outer.origin == inner.origin == "markdown"
    if outer.number and inner.number.startswith(f"{outer.number}."):
        return True
    if both_markdown and outer.level != inner.level:
        return outer.level < inner.level
    if outer.number and inner.number:
        return False
    if both_markdown and outer.rank and inner.rank:
        return outer.rank < inner.rank
    return outer.level < inner.level


def shared_path(paths: Sequence[tuple[Heading, ...]]) -> tuple[Heading, ...]:
    return tuple(level[0] for level in zip(*paths, strict=False) if all(one is level[0] for one in level))


def table_head(text: str, blocks: Sequence[Block], at: int) -> str:
    """Return the first two lines of the table that a place lies inside of, where the second one is a rule."""
    table = next((block for block in blocks if block.kind == "table" and block.start < at < block.end), None)
    lines = text[table.start : table.end].split("\n", 2) if table else []
    if table is None or len(lines) < 3 or not _is_rule(lines[1]) or at < table.end - len(lines[2]):
        return ""
    head = "\n".join(lines[:2])
    return head if len(head) <= _MAX_HEAD_CHARS else ""
