"""Bytes of a text file to characters."""

from __future__ import annotations

import codecs
import re

from agentic_retriever.errors import SourceError

# UTF-32 first: its little-endian mark begins with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_MAX_NON_ASCII = 0.3
_ADVICE = "save it as UTF-8"


def decode_text(data: bytes) -> str:
    r"""Decode a text file.

    UTF-8 (its byte-order mark removed), UTF-16 and UTF-32 with a byte-order mark, and as the last resort Windows-1252
    when the result looks like Western text. Line ends become ``\n``; nothing else changes.

    Args:
        data: The whole file.

    Returns:
        The text.

    Raises:
        SourceError: If the data is binary or in an encoding that cannot be told.
    """
    text = decode_bytes(data)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def decode_bytes(data: bytes) -> str:
    """Decode as ``decode_text`` does, with line ends left as they are.

    Args:
        data: The whole file.

    Returns:
        The text.

    Raises:
        SourceError: If the data is binary or in an encoding that cannot be told.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            try:
                text = data[len(mark) :].decode(encoding)
            except UnicodeDecodeError as err:
                raise SourceError(f"begins as {encoding.upper()} but is not valid in it; {_ADVICE}") from err
            break
    else:
        text = _decode_unmarked(data)
    if "\0" in text:
        raise SourceError("is binary, not text (it holds NUL bytes)")
    return text


def _decode_unmarked(data: bytes) -> str:
    if b"\0" in data:
        raise SourceError("is binary, not text (it holds NUL bytes)")
    try:
        return data.decode()
    except UnicodeDecodeError:
        pass
    try:
        text = data.decode("cp1252")
    except UnicodeDecodeError as err:
        raise SourceError(f"is neither UTF-8 nor Windows-1252 text; {_ADVICE}") from err
    # Thai, Cyrillic or Chinese legacy encodings decode to a string of accented letters: better refused than indexed.
    if _CONTROL.search(text) or sum(char > "\x7f" for char in text) > _MAX_NON_ASCII * len(text):
        raise SourceError(f"is not UTF-8, and does not look like Windows-1252 text; {_ADVICE}")
    return text
