"""Token counts and token-sized cuts, offline and the same on every machine.

Sizes are counted with the ``cl100k_base`` byte-pair encoding, from the rank file that llama-index-core carries in its
wheel. LlamaIndex's own ``get_tokenizer`` is not called: it writes a process-wide global, changes the environment, and
returns whatever another part of the program has set, which would make node ids depend on the host application.
"""

from __future__ import annotations

import base64
import unicodedata
from functools import lru_cache
from importlib import resources

import tiktoken

from agentic_retriever.errors import IndexingError

# LlamaIndex names the file by the SHA-1 of the address that tiktoken would load it from.
_RANKS_FOLDER = "_static/tiktoken_cache"
_RANKS_FILE = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"

# How cl100k_base divides text before merging bytes: contractions, words with one leading mark, up to three digits,
# punctuation with the line ends after it, then runs of white space.
_SPLIT_RULE = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)

_JOINERS = frozenset("\u200d\u2060")
# Thai and Lao vowels that are written before the consonant they belong to.
_LEADING_VOWELS = frozenset("เแโใไເແໂໃໄ")


@lru_cache(maxsize=1)
def _encoding() -> tiktoken.Encoding:
    ranks = resources.files("llama_index.core") / _RANKS_FOLDER / _RANKS_FILE
    try:
        lines = ranks.read_bytes().splitlines()
    except OSError as err:
        raise IndexingError(
            "the tokenizer file that llama-index-core carries is missing; reinstall it with "
            "'pip install --force-reinstall llama-index-core'"
        ) from err
    mergeable = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}
    return tiktoken.Encoding(
        "agentic_retriever_cl100k", pat_str=_SPLIT_RULE, mergeable_ranks=mergeable, special_tokens={}
    )


def count_tokens(text: str) -> int:
    """Count the tokens of a text.

    Args:
        text: Any text; names of special tokens count as ordinary text.

    Returns:
        The number of ``cl100k_base`` tokens, 0 for the empty text.
    """
    return len(_encoding().encode_ordinary(text))


def take(text: str, start: int, end: int, limit: int) -> int:
    """Find where a piece of at most ``limit`` tokens that begins at ``start`` should end.

    The work is bounded by ``limit``, not by the length of the text, so cutting a long text in pieces is linear. The
    cut falls behind white space when the last quarter of the piece has any, and never inside a base character and
    its marks, or between a Thai or Lao leading vowel and its consonant, unless the piece would be empty otherwise.

    Args:
        text: The text.
        start: First character of the piece.
        end: The piece ends here at the latest; ``start < end``.
        limit: Most tokens in the piece, at least 1.

    Returns:
        The end of the piece, above ``start`` and at most ``end``. Only a single character can exceed ``limit``.
    """
    stop = _prefix(text, start, end, limit)
    if stop < end:
        stop = _soft_end(text, start, stop)
    while stop - start > 1 and count_tokens(text[start:stop].strip()) > limit:
        stop = _whole_character(text, start, stop - max(1, (stop - start) // 32))
    return stop


def _prefix(text: str, start: int, end: int, limit: int) -> int:
    """Return the end of the characters that the first ``limit`` tokens hold, or of the window looked at."""
    window = limit * 2
    while True:
        stop = min(end, start + window)
        tokens = _encoding().encode_ordinary(text[start:stop])
        if len(tokens) > limit or stop == end or window >= limit * 8:
            break
        window *= 2
    if len(tokens) <= limit:
        return stop
    kept = b"".join(_encoding().decode_tokens_bytes(tokens[:limit]))
    return start + max(1, len(kept.decode("utf-8", errors="ignore")))


def _soft_end(text: str, start: int, stop: int) -> int:
    earliest = start + (stop - start) * 3 // 4
    for end in range(stop, max(earliest, start + 1) - 1, -1):
        if text[end - 1].isspace():
            return end
    return _whole_character(text, start, stop)


def _whole_character(text: str, start: int, stop: int) -> int:
    stop = max(stop, start + 1)
    for end in range(stop, start, -1):
        if not _binds(text[end - 1], text[end]):
            return end
    return stop


def _binds(left: str, right: str) -> bool:
    return (
        left in _JOINERS
        or right in _JOINERS
        or left in _LEADING_VOWELS
        or unicodedata.category(right).startswith("M")
        or right == "ำ"
    )
