"""Which writing system a character, a text or a stretch of text is in.

The table names the scripts that need rules of their own somewhere in this package and leaves the rest to
``Script.OTHER``, as it does digits, punctuation, spaces, symbols and the combining marks that go with any script.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final


class Script(str, Enum):
    """A writing system; the value is its lower-case name."""

    LATIN = "latin"
    GREEK = "greek"
    CYRILLIC = "cyrillic"
    ARMENIAN = "armenian"
    HEBREW = "hebrew"
    ARABIC = "arabic"
    DEVANAGARI = "devanagari"
    BENGALI = "bengali"
    GURMUKHI = "gurmukhi"
    GUJARATI = "gujarati"
    ORIYA = "oriya"
    TAMIL = "tamil"
    TELUGU = "telugu"
    KANNADA = "kannada"
    MALAYALAM = "malayalam"
    SINHALA = "sinhala"
    THAI = "thai"
    LAO = "lao"
    TIBETAN = "tibetan"
    MYANMAR = "myanmar"
    GEORGIAN = "georgian"
    HANGUL = "hangul"
    ETHIOPIC = "ethiopic"
    KHMER = "khmer"
    KANA = "kana"
    HAN = "han"
    OTHER = "other"


# First and last code point, inclusive; sorted, not overlapping. Letters, and the marks that only one script uses;
# digits and punctuation inside a block are left out where the block keeps them together.
_RANGES: Final[tuple[tuple[int, int, Script], ...]] = (
    (0x0041, 0x005A, Script.LATIN),
    (0x0061, 0x007A, Script.LATIN),
    (0x00AA, 0x00AA, Script.LATIN),
    (0x00BA, 0x00BA, Script.LATIN),
    (0x00C0, 0x00D6, Script.LATIN),
    (0x00D8, 0x00F6, Script.LATIN),
    (0x00F8, 0x02AF, Script.LATIN),
    (0x0370, 0x0373, Script.GREEK),
    (0x0376, 0x037D, Script.GREEK),
    (0x037F, 0x03FF, Script.GREEK),
    (0x0400, 0x052F, Script.CYRILLIC),
    (0x0531, 0x0556, Script.ARMENIAN),
    (0x0561, 0x0587, Script.ARMENIAN),
    (0x0591, 0x05BD, Script.HEBREW),
    (0x05D0, 0x05F2, Script.HEBREW),
    (0x0610, 0x061A, Script.ARABIC),
    (0x0620, 0x065F, Script.ARABIC),
    (0x066E, 0x06D3, Script.ARABIC),
    (0x06D5, 0x06EF, Script.ARABIC),
    (0x06FA, 0x06FF, Script.ARABIC),
    (0x0750, 0x077F, Script.ARABIC),
    (0x08A0, 0x08FF, Script.ARABIC),
    (0x0900, 0x0963, Script.DEVANAGARI),
    (0x0971, 0x097F, Script.DEVANAGARI),
    (0x0980, 0x09E5, Script.BENGALI),
    (0x09F0, 0x09FE, Script.BENGALI),
    (0x0A01, 0x0A5E, Script.GURMUKHI),
    (0x0A70, 0x0A75, Script.GURMUKHI),
    (0x0A81, 0x0AE3, Script.GUJARATI),
    (0x0AF9, 0x0AFF, Script.GUJARATI),
    (0x0B01, 0x0B63, Script.ORIYA),
    (0x0B71, 0x0B71, Script.ORIYA),
    (0x0B82, 0x0BD7, Script.TAMIL),
    (0x0C00, 0x0C63, Script.TELUGU),
    (0x0C80, 0x0CE3, Script.KANNADA),
    (0x0D00, 0x0D63, Script.MALAYALAM),
    (0x0D7A, 0x0D7F, Script.MALAYALAM),
    (0x0D81, 0x0DDF, Script.SINHALA),
    (0x0DF2, 0x0DF3, Script.SINHALA),
    (0x0E01, 0x0E3A, Script.THAI),
    (0x0E40, 0x0E4E, Script.THAI),
    (0x0E81, 0x0ECE, Script.LAO),
    (0x0EDC, 0x0EDF, Script.LAO),
    (0x0F40, 0x0FBC, Script.TIBETAN),
    (0x1000, 0x103F, Script.MYANMAR),
    (0x1050, 0x108F, Script.MYANMAR),
    (0x109A, 0x109D, Script.MYANMAR),
    (0x10A0, 0x10FA, Script.GEORGIAN),
    (0x10FC, 0x10FF, Script.GEORGIAN),
    (0x1100, 0x11FF, Script.HANGUL),
    (0x1200, 0x135F, Script.ETHIOPIC),
    (0x1380, 0x138F, Script.ETHIOPIC),
    (0x1780, 0x17D3, Script.KHMER),
    (0x17D7, 0x17D7, Script.KHMER),
    (0x17DC, 0x17DD, Script.KHMER),
    (0x1C80, 0x1C88, Script.CYRILLIC),
    (0x1C90, 0x1CBF, Script.GEORGIAN),
    (0x1E00, 0x1EFF, Script.LATIN),
    (0x1F00, 0x1FFE, Script.GREEK),
    (0x2C60, 0x2C7F, Script.LATIN),
    (0x2D00, 0x2D2D, Script.GEORGIAN),
    (0x2D80, 0x2DDE, Script.ETHIOPIC),
    (0x2DE0, 0x2DFF, Script.CYRILLIC),
    (0x2E80, 0x2FD5, Script.HAN),
    (0x3005, 0x3007, Script.HAN),
    (0x3021, 0x3029, Script.HAN),
    (0x3038, 0x303B, Script.HAN),
    (0x3041, 0x3096, Script.KANA),
    (0x3099, 0x309A, Script.KANA),
    (0x309D, 0x309F, Script.KANA),
    (0x30A1, 0x30FA, Script.KANA),
    (0x30FC, 0x30FF, Script.KANA),
    (0x3131, 0x318E, Script.HANGUL),
    (0x31F0, 0x31FF, Script.KANA),
    (0x3400, 0x4DBF, Script.HAN),
    (0x4E00, 0x9FFF, Script.HAN),
    (0xA640, 0xA69F, Script.CYRILLIC),
    (0xA722, 0xA7FF, Script.LATIN),
    (0xA8E0, 0xA8FF, Script.DEVANAGARI),
    (0xA960, 0xA97C, Script.HANGUL),
    (0xA9E0, 0xA9EF, Script.MYANMAR),
    (0xAA60, 0xAA7F, Script.MYANMAR),
    (0xAB30, 0xAB64, Script.LATIN),
    (0xAC00, 0xD7A3, Script.HANGUL),
    (0xD7B0, 0xD7FB, Script.HANGUL),
    (0xF900, 0xFAD9, Script.HAN),
    (0xFB00, 0xFB06, Script.LATIN),
    (0xFB13, 0xFB17, Script.ARMENIAN),
    (0xFB1D, 0xFB4F, Script.HEBREW),
    (0xFB50, 0xFDFB, Script.ARABIC),
    (0xFE70, 0xFEFC, Script.ARABIC),
    (0xFF21, 0xFF3A, Script.LATIN),
    (0xFF41, 0xFF5A, Script.LATIN),
    (0xFF66, 0xFF9F, Script.KANA),
    (0xFFA0, 0xFFDC, Script.HANGUL),
    (0x1AFF0, 0x1B16F, Script.KANA),
    (0x20000, 0x323AF, Script.HAN),
)
_FIRSTS: Final = tuple(first for first, _, _ in _RANGES)

_MAX_COUNTED: Final = 20_000


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """A stretch of text in one script."""

    start: int
    end: int
    script: Script  # Its script; characters of no script belong to the run before them


def character_class(*scripts: Script) -> str:
    r"""Write the characters of some scripts as the inside of a regular expression's ``[...]``."""
    wanted = set(scripts)
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last, script in _RANGES if script in wanted)


_NAMED: Final = tuple(script for script in Script if script is not Script.OTHER)


# Compiled when first needed: together they take a twentieth of a second.
@lru_cache(1)
def _letters_re() -> re.Pattern[str]:
    return re.compile("|".join(f"(?P<{script.value}>[{character_class(script)}]+)" for script in _NAMED))


@lru_cache(1)
def _runs_re() -> re.Pattern[str]:
    neutral = f"[^{character_class(*_NAMED)}]"
    return re.compile("|".join(f"(?P<{script.value}>(?:[{character_class(script)}]+{neutral}*)+)" for script in _NAMED))


def script_of(char: str) -> Script:
    """Tell the script of one character."""
    code = ord(char)
    at = bisect_right(_FIRSTS, code) - 1
    if at >= 0 and code <= _RANGES[at][1]:
        return _RANGES[at][2]
    return Script.OTHER


def script_counts(text: str) -> dict[Script, int]:
    """Count the letters of each script in the first 20,000 characters."""
    counts: dict[str, int] = {}
    for run in _letters_re().finditer(text, 0, _MAX_COUNTED):
        name = run.lastgroup or ""
        counts[name] = counts.get(name, 0) + run.end() - run.start()
    return {Script(name): count for name, count in counts.items()}


def dominant_script(text: str) -> Script:
    """Tell the script of most letters among the first 20,000 characters."""
    counts = script_counts(text)
    return max(counts, key=lambda script: counts[script]) if counts else Script.OTHER


def script_runs(text: str) -> list[ScriptRun]:
    """Cut a text where its script changes."""
    if not text:
        return []
    runs = [ScriptRun(m.start(), m.end(), Script(m.lastgroup)) for m in _runs_re().finditer(text)]
    if not runs:
        return [ScriptRun(0, len(text), Script.OTHER)]
    return [ScriptRun(0, runs[0].end, runs[0].script), *runs[1:]]


# Forms of a text: as a cache key, as printed on a terminal, and as read by the tokenizer.

# Control characters but those that are white space.
_CONTROL_RE: Final = re.compile(r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]+")
_SURROGATE_RE: Final = re.compile("[\ud800-\udfff]")
_REPLACEMENT: Final = "\ufffd"

# ECMA-48: CSI (parameters, intermediates, a final byte), the string sequences that end in BEL or ST, and two- or
# three-byte escapes; U+009B and its kin are the one-character spellings of the same. A string is only taken as such
# when it is terminated, so that a stray introducer cannot swallow the text behind it.
_ESCAPE_RE: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]{0,4096}(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]{0,2}[0-~]"
)
# What may be the beginning of such a sequence, at the end of a text that goes on.
_OPEN_ESCAPE_RE: Final = re.compile(
    r"(?:(?:\x1b\[|\x9b)[0-?]*[ -/]*"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]{0,4096}\x1b?"
    r"|\x1b[ -/]{0,2})\Z"
)
_UNPRINTABLE_RE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

# Invisible characters that stand inside words: soft hyphen, joiners, direction marks, variation selectors, and the
# zero-width space, which some Khmer and Burmese texts put between words and others do not.
_INVISIBLE_RE: Final = re.compile("[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]+")
# What NFKC would glue to the word or number before it: 6½, 10⁶, word¹, 5.º, Name™.
_TRADEMARK_RE: Final = re.compile("[\u2120\u2122]|(?<=[0-9])\\.?[\u00aa\u00ba]")
_FRACTION_RE: Final = re.compile(r"(?<=\d)(?=[¼-¾⅐-⅞])")
_SUPERSCRIPT_RE: Final = re.compile(r"(?:(?<=\d)|(?<=[^\W\d]{4}))(?=[⁰¹²³⁴-⁹])(?<![⁰¹²³⁴-⁹])")
_DIGIT_RE: Final = re.compile(r"(?![0-9])\d")
# One order for the tone mark and the circle of Thai and Lao AM, which NFKC takes apart, and one spelling of SARA AE.
_THAI_AM_RE: Final = re.compile("([\u0e48-\u0e4b])\u0e4d\u0e32|([\u0ec8-\u0ecb])\u0ecd\u0eb2")


def normalise_query(text: str) -> str:
    """Bring a query to the form under which caches keep it."""
    text = _SURROGATE_RE.sub(_REPLACEMENT, _CONTROL_RE.sub("", text))
    return " ".join(unicodedata.normalize("NFKC", text).split())


def safe_terminal(text: str) -> str:
    """Take out of a text what could steer the terminal that shows it."""
    text = _UNPRINTABLE_RE.sub("", _ESCAPE_RE.sub("", text))
    return _SURROGATE_RE.sub(_REPLACEMENT, text)


class TerminalPieces:
    """Does as :func:`safe_terminal` for a text that comes in pieces, wherever it is cut; not safe for threads.

    What may be the beginning of an escape sequence waits for the next piece, so that nothing of it gets through.
    """

    def __init__(self) -> None:
        self._held = ""

    def shown(self, piece: str) -> str:
        """Return what can be shown of the text so far and was not yet."""
        text = self._held + piece
        begun = _OPEN_ESCAPE_RE.search(text)
        at = len(text) if begun is None else begun.start()
        self._held = text[at:]
        return safe_terminal(text[:at])

    def end(self) -> str:
        """Return what is left when no more comes."""
        left, self._held = safe_terminal(self._held), ""
        return left


def lexical_form(text: str) -> str:
    """Bring a text to the form that the tokenizer cuts, with letter case kept."""
    if text.isascii():
        return text
    text = _TRADEMARK_RE.sub("", _INVISIBLE_RE.sub("", text))
    text = _SUPERSCRIPT_RE.sub(" ", _FRACTION_RE.sub(" ", text))
    text = unicodedata.normalize("NFKC", text)
    text = _THAI_AM_RE.sub(_circle_first, text).replace("\u0e40\u0e40", "\u0e41")
    return _DIGIT_RE.sub(_ascii_digit, text)


def _circle_first(match: re.Match[str]) -> str:
    return f"\u0e4d{match[1]}\u0e32" if match[1] else f"\u0ecd{match[2]}\u0eb2"


def _ascii_digit(match: re.Match[str]) -> str:
    return str(unicodedata.decimal(match[0]))
