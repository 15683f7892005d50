"""Which lines are headings: Markdown ones, numbered sections, and the articles and chapters of legal texts.

A line is judged with its neighbours only. What needs the whole document (is the numbering monotone? is this a table
of contents?) is settled afterwards, in ``settle``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

Origin = Literal["markdown", "legal", "numbered", "single"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """A heading, or the label of a provision whose text begins on the same line.

    Attributes:
        title: The heading as shown in a section path.
        level: Rank; a smaller one encloses a larger one. 1 to 6 Markdown, 11 to 15 legal, above 20 numbered.
        origin: How it was recognised.
        number: Section number such as ``"6.2.1"``, or ``""``.
        article: Article number such as ``"42"`` or ``"4 bis"``, or ``""``.
        inline: Whether body text follows on the heading's own line.
        weak: Whether the line continues a block, so that only the numbering can tell it from running text.
    """

    title: str
    level: int
    origin: Origin
    number: str = ""
    article: str = ""
    inline: bool = False
    weak: bool = False


@dataclass(frozen=True, slots=True)
class LineContext:
    """The neighbours of a line.

    Attributes:
        before: The line above, ``""`` when it is blank or there is none.
        after: The line below, ``""`` when it is blank or there is none.
        next_text: The next line that is not blank, ``""`` at the end.
        at_break: Whether a new block begins here: above is nothing, a blank line or a heading.
    """

    before: str
    after: str
    next_text: str
    at_break: bool


_MAX_TITLE_CHARS = 110
_MAX_ATX_CHARS = 1000
_MAX_TITLE_WORDS = 14
_MAX_SENTENCE_TITLE_WORDS = 8
_LEGAL_LEVEL = 10
_NUMBER_LEVEL = 20

_ATX = re.compile(r"(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$")
_MARKUP = re.compile(r"!?\[([^\]]*)\]\([^)]*\)|(\*\*|__|`|(?<!\w)[*_](?=\w)|(?<=[\w.:!?])[*_](?!\w))")

_NUMBER = r"(?:\d{1,3}|[A-Z](?=\.\d))(?:\.\d{1,3})*"
_NUMBERED = re.compile(rf"({_NUMBER})(\.?)[ \t]+(\S.*)$")
_LIST_START = re.compile(r"[ \t]*(?:[-*+•]|\(?(?:\d{1,3}|[A-Za-z])[.)])[ \t]+\S")
_LEADERS = re.compile(r"\.{3,}|…|[ \t]{2,}\d+$|\t\d+$")

_ROMAN = r"[IVXLCDM]{1,8}\b"
_THAI_DIGITS = str.maketrans("๐๑๒๓๔๕๖๗๘๙", "0123456789")
_ORDINAL = (
    r"(?:[Pp]rimer[oa]|[Ss]egund[oa]|[Tt]ercer[oa]|[Cc]uart[oa]|[Qq]uint[oa]|[Ss]ext[oa]|[Ss][ée]ptim[oa]|"
    r"[Oo]ctav[oa]|[Nn]oven[oa]|[Dd][ée]cim[oa]|[ÚúUu]nic[oa]|PRIMER[OA]|SEGUND[OA]|TERCER[OA]|ÚNIC[OA])\b"
)
_LEGAL_NUMBER = (
    rf"(?:[\d๐-๙]{{1,4}}(?:[./][\d๐-๙]{{1,3}})*(?:[ \-]?(?:bis|ter|quater|quinquies)\b|[a-z]\b|[ºª°])?|"
    rf"{_ROMAN}|{_ORDINAL}|[A-Z]\b)"
)
_DIVISIONS: tuple[tuple[int, str], ...] = (
    (1, r"Libro|LIBRO|Livre|LIVRE|Book|BOOK|Buch|BUCH|ภาค(?:ที่)?"),
    (2, r"T[íi]tulo|T[ÍI]TULO|Title|TITLE|Titre|TITRE|Parte?|PARTE?|ลักษณะ(?:ที่)?"),
    (2, r"Anexo|ANEXO|Annexe?|ANNEXE?|Appendix|APPENDIX|Ap[ée]ndice|AP[ÉE]NDICE|Anhang|ANHANG"),
    (3, r"Cap[íi]tulo|CAP[ÍI]TULO|Chapter|CHAPTER|Chapitre|CHAPITRE|Kapitel|KAPITEL|หมวด(?:ที่)?|บทที่"),
    (4, r"Secci[óo]n|SECCI[ÓO]N|Section|SECTION|Abschnitt|ABSCHNITT|ส่วน(?:ที่)?"),
)
_ARTICLE_WORD = (
    r"Art[íi]culo|ART[ÍI]CULO|Article|ARTICLE|Artigo|ARTIGO|Articolo|ARTICOLO|Artikel|ARTIKEL|Art\.?|ART\.?|มาตรา"
)
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
    """Judge one line.

    Args:
        line: The line without its line end.
        context: What is around it.

    Returns:
        The heading, possibly one that ``settle`` will take back, or ``None``.
    """
    stripped = line.strip()
    if not stripped or len(line) - len(line.lstrip()) > 3:
        return None
    if stripped[0] == "#":
        return _markdown(stripped)
    return _legal(stripped, context) or _numbered(stripped, context)


def label(text: str, *, level: int, origin: Origin = "markdown") -> Heading:
    """Make a heading from the text of an explicit one (Markdown, HTML), with the numbers that stand in it.

    Args:
        text: Text of the heading, Markdown emphasis and links allowed.
        level: Rank of the heading.
        origin: How it was recognised.

    Returns:
        The heading.
    """
    title = _MARKUP.sub(lambda hit: hit[1] or "", text).strip() or text.strip()
    numbered, legal = _NUMBERED.match(title), _LEGAL.match(title)
    number = article = ""
    if numbered and ("." in numbered[1] or numbered[2]):
        number = numbered[1]
    if legal and legal["article"] and not legal["rest"][:1].isalnum():
        article = _article_number(legal["number"])
    return Heading(title=title, level=level, origin=origin, number=number, article=article)


def is_bare(heading: Heading) -> bool:
    """Tell whether a legal heading is a word and a number alone, so that its title may stand on the next line.

    Args:
        heading: Any heading.

    Returns:
        Whether nothing but the number follows the word.
    """
    found = _LEGAL.match(heading.title) if heading.origin == "legal" and not heading.inline else None
    return found is not None and not found["rest"].strip(" .:-–—")


def extends_title(line: str, after: str, next_text: str) -> bool:
    """Tell whether a line is the title of the bare ``Article 7`` or ``CAPÍTULO III`` above it.

    Args:
        line: The line below the bare heading.
        after: The line below that, ``""`` when blank.
        next_text: The next line that is not blank.

    Returns:
        Whether the line looks like a title and is set off from what follows.
    """
    text = line.strip()
    if not _is_title(text) or text.endswith((".", ":")) or _LIST_START.match(text) or _LEGAL.match(text):
        return False
    return not after or bool(re.match(r"\(?1[.)]", after.strip())) or bool(_LEGAL.match(next_text.strip()))


def _markdown(line: str) -> Heading | None:
    found = _ATX.match(line) if len(line) <= _MAX_ATX_CHARS else None
    if found is None or not (found[2] or "").strip("# \t"):
        return None
    return label(found[2], level=len(found[1]))


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


def _division(line: str, found: re.Match[str], context: LineContext) -> Heading | None:
    rest = found["rest"].strip()
    title = _PUNCTUATION.sub("", rest, count=1) if _PUNCTUATION.match(rest) else rest
    if title and (not _is_title(title) or _wraps(context)):
        return None
    level = next(rank for at, (rank, _) in enumerate(_DIVISIONS) if found[f"d{at}"])
    return Heading(title=line, level=_LEGAL_LEVEL + level, origin="legal")


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
        level=_LEGAL_LEVEL + 5,
        origin="legal",
        article=_article_number(found["number"]),
        inline=inline,
    )


def _split_body(line: str, body_start: int, context: LineContext, bare: str) -> tuple[str, bool]:
    """Return the title of an article with text on its line, and whether that text is body."""
    body = line[body_start:].strip()
    if _is_title(body) and not _wraps(context) and _stands_alone(body, context):
        return line, False
    first, separator, more = body.partition(". ")
    if separator and more.strip() and _is_title(first):
        return line[: line.index(first, body_start) + len(first)], True
    return bare, True


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
    if _is_title(rest) and not _wraps(context) and _stands_alone(rest, context):
        return Heading(title=line.rstrip(" ."), level=level, origin="numbered", number=number, weak=weak)
    first, separator, more = rest.partition(". ")
    if dot and separator and more.strip() and _is_title(first):
        title = f"{line[: found.start(3)]}{first}"
        return Heading(title=title, level=level, origin="numbered", number=number, inline=True, weak=weak)
    return None


def _single(line: str, number: str, rest: str, context: LineContext) -> Heading | None:
    """``1. Introduction``, which only the text below it tells from a list item."""
    following = context.next_text
    if context.after or not following or following[:1].isspace() or _LIST_START.match(following):
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
