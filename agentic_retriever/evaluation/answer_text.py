"""How far an answer agrees with a right one, word by word."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from typing import Final

from agentic_retriever.text.scripts import Script, script_of

_MARKER: Final = re.compile(r"\[\d+\]")
_ARTICLES: Final = frozenset({"a", "an", "the"})
_UNSPACED: Final = frozenset({Script.THAI, Script.LAO, Script.KHMER, Script.MYANMAR, Script.HAN, Script.KANA})


def answer_f1(answer: str, gold: str) -> float:
    """Return the F1 of the words of an answer against a right one (P. Rajpurkar et al., "SQuAD", EMNLP 2016).

    Case, punctuation, citation markers and English articles do not count. Scripts that put no spaces between words are
    compared by characters (P. Lewis et al., "MLQA", ACL 2020).

    Args:
        answer: The answer.
        gold: The right one.

    Returns:
        In [0, 1]; 1 when both are empty.
    """
    found, right = answer_tokens(answer), answer_tokens(gold)
    if not found or not right:
        return float(found == right)
    shared = sum((Counter(found) & Counter(right)).values())
    return 2 * shared / (len(found) + len(right))


def exact_match(answer: str, gold: str) -> bool:
    """Tell whether an answer is the right one, but for what ``answer_f1`` leaves out."""
    return answer_tokens(answer) == answer_tokens(gold)


def answer_tokens(text: str) -> list[str]:
    """Return the words that are compared; single characters in scripts without spaces."""
    plain = unicodedata.normalize("NFKC", _MARKER.sub(" ", text)).casefold()
    spaced = "".join(_shown(char) for char in plain)
    return [word for word in spaced.split() if word not in _ARTICLES]


def _shown(char: str) -> str:
    if unicodedata.category(char)[0] in "PSC":
        return " "
    return f" {char} " if script_of(char) in _UNSPACED else char
