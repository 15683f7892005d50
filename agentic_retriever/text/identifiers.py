"""Names with numbers in them that stand for one thing: codes, and numbered things such as articles and deeds.

A question for ``NS-7`` or ``article 57`` that is asked of an index with many identifiers of that kind, but not this
one, asks for something that is not there.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from agentic_retriever.text.cleaning import lexical_form
from agentic_retriever.text.scripts import Script, character_class

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_IDENTIFIER: Final = 40
"""Characters from which a code is none."""

_UNSPACED: Final = character_class(
    Script.THAI, Script.LAO, Script.KHMER, Script.MYANMAR, Script.HAN, Script.KANA, Script.HANGUL
)
# Words in front of the number of a thing: an article, a form, a deed.
_NUMBERED: Final = (
    "article", "section", "chapter", "annex", "appendix", "clause", "paragraph", "form", "invoice", "ticket", "case",
    "number", "artículo", "sección", "capítulo", "anexo", "apéndice", "cláusula", "apartado", "formulario", "factura",
    "expediente", "número", "เลขที่", "มาตรา", "ข้อ", "หมวด", "ระวาง", "ฉบับที่", "รหัส",
)  # fmt: skip


@lru_cache(1)
def _code_re() -> re.Pattern[str]:
    """Pattern of a code in a text without letter case."""
    letter = rf"[^\W\d_{_UNSPACED}]"
    other = f"[{_UNSPACED}]"
    start = r"(?<![\w./-])"
    return re.compile(
        # ns-3, e42, fy2026, rd-ab-12: letters, perhaps in parts, then a number.
        rf"{start}{letter}{{1,12}}(?:[-./]{letter}{{1,12}}){{0,3}}[-./]?[0-9][0-9a-z./-]*"
        # 3a-20000
        rf"|{start}[0-9]{{1,6}}{letter}{{1,3}}[-./][0-9][0-9a-z./-]*"
        # A few letters of a script without spaces count only with a separator: its words touch numbers freely.
        rf"|(?<![{_UNSPACED}\w./-]){other}{{1,5}}(?:[-.]{other}{{1,5}}){{0,5}}[-.][0-9][0-9./-]*(?:{other}(?!{other}))?"
    )


@lru_cache(1)
def _numbered_re() -> re.Pattern[str]:
    """Pattern of a word that numbers things, at the end of what stands before a number."""
    words = "|".join(lexical_form(word) for word in sorted(_NUMBERED, key=len, reverse=True))
    return re.compile(rf"(?<![a-zà-ɏ])({words})\s{{0,2}}$")


_LONGEST_WORD: Final = max(map(len, _NUMBERED)) + 3
_NUMBER: Final = re.compile(r"(?<![0-9.,])[0-9]{1,18}(?:\.[0-9]{1,9}){0,6}(?![0-9]|[.,][0-9])")
_LONG_NUMBER: Final = re.compile(r"(?<![0-9.,])(?:[0-9]{4,18}|[0-9]{1,4}(?:\.[0-9]{1,4}){2,6})(?![0-9])")
_JOINTS: Final = re.compile(r"[-./\s]")
_DIGITS: Final = re.compile(r"[0-9]+")
_LETTERS: Final = re.compile(r"[^\W\d_]+")


def identifiers(text: str) -> list[str]:
    """Find the identifiers in a text.

    Args:
        text: Any text.

    Returns:
        Codes without what joins their parts (``ns3`` for ``NS-3``), and numbered things with one space
        (``article 57``), each once, in no particular order.
    """
    plain = lexical_form(text).casefold()
    found: dict[str, None] = {}
    for word in plain.split():
        for match in _code_re().finditer(word) if _DIGITS.search(word) else ():
            code = match[0].rstrip(".-/")
            if len(code) <= MAX_IDENTIFIER:
                found.setdefault(_JOINTS.sub("", code))
    for number in _NUMBER.finditer(plain):
        before = _numbered_re().search(plain[max(0, number.start() - _LONGEST_WORD) : number.start()])
        if before:
            found.setdefault(f"{before[1]} {number[0]}")
    return list(found)


def numbers(text: str) -> list[str]:
    """Find the numbers that may name a thing wherever they stand: from four digits on, or of three parts (``6.2.3``).

    Args:
        text: Any text.

    Returns:
        Each once.
    """
    return list(dict.fromkeys(match[0] for match in _LONG_NUMBER.finditer(lexical_form(text))))


def kind_of(identifier: str) -> str:
    """Return what identifiers of one kind share: ``a9`` for ``ns3`` and ``e42``, ``article 9`` for ``article 57``."""
    word, _, number = identifier.partition(" ")
    if number:
        return f"{word} 9"
    return _DIGITS.sub("9", _LETTERS.sub("a", identifier))


def absent(wanted: Iterable[str], known: Mapping[str, frozenset[str]], *, least: int = 3) -> list[str]:
    """Find the identifiers that a collection does not have although it has others of their kind.

    Args:
        wanted: Identifiers of a question, as ``identifiers`` finds them.
        known: Identifiers and numbers of the collection by kind.
        least: How many of a kind show that the collection uses it.

    Returns:
        Those that are not there, in their order.
    """
    nothing: frozenset[str] = frozenset()
    missing = []
    for name in wanted:
        number = name.partition(" ")[2]
        same_kind = known.get(kind_of(name), nothing)
        elsewhere = number in known.get(kind_of(number), nothing)
        if len(same_kind) >= least and name not in same_kind and not elsewhere:
            missing.append(name)
    return missing
