"""Forms of a text: as a cache key, as printed on a terminal, and as read by the tokenizer."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

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
    """Bring a query to the form under which caches keep it.

    Args:
        text: The query as it was typed.

    Returns:
        NFKC form without control characters, with each stretch of white space as one space and none at the ends, and
        with lone surrogates as U+FFFD. Applying it twice gives the same.
    """
    text = _SURROGATE_RE.sub(_REPLACEMENT, _CONTROL_RE.sub("", text))
    return " ".join(unicodedata.normalize("NFKC", text).split())


def safe_terminal(text: str) -> str:
    """Take out of a text what could steer the terminal that shows it.

    Args:
        text: Any text, such as a passage of a document.

    Returns:
        The text without escape sequences, without C0 and C1 control characters other than newline and tab, without
        characters that override the reading direction or break lines, and with lone surrogates as U+FFFD.
    """
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
    """Bring a text to the form that the tokenizer cuts, with letter case kept.

    Args:
        text: Any text.

    Returns:
        NFKC form with every decimal digit in ASCII, without invisible characters, and with fractions, superscript
        numbers, ordinal signs and trademarks separated from the word or number before them.
    """
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
