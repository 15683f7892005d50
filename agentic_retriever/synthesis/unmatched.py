"""What of a sentence stands nowhere in its evidence: the mark of something added to a true sentence."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from agentic_retriever.text.scripts import Script, character_class

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentic_retriever.synthesis.evidence import Evidence
    from agentic_retriever.synthesis.segment_facts import Facts

MAX_STRAY_WORDS: Final = 3
"""Most words in a row with terms of their own that a source may lack."""

MAX_STRAY_CHARS: Final = {"thai": 14, "han": 7}
"""The same in characters, for scripts without spaces: of the Thai kind, and Chinese, Japanese and Korean ones."""

_WORD: Final = re.compile(r"\S+")
_THAI_KIND: Final = character_class(Script.THAI, Script.LAO, Script.KHMER, Script.MYANMAR)
_HAN_KIND: Final = character_class(Script.HAN, Script.KANA)
_RUN: Final = re.compile(f"(?P<thai>[{_THAI_KIND}]+)|(?P<han>[{_HAN_KIND}]+)")
_GRAM: Final = {"thai": 4, "han": 2}


def shared_share(said: Facts, segments: Iterable[Facts]) -> float:
    """Tell which share of a sentence's terms some segments have; 1 for a sentence without terms."""
    covered = frozenset().union(*(segment.terms for segment in segments))
    return len(said.terms & covered) / len(said.terms) if said.terms else 1.0


def longest_unmatched(said: Facts, evidence: Evidence) -> str:
    """Find the longest stretch of a sentence that its passages do not have, if it is too long to be mere wording.

    Args:
        said: The sentence.
        evidence: What it is held against.

    Returns:
        The stretch, or ``""``.
    """
    if _RUN.search(said.text):
        return _unspaced(said.text, "\n".join(part.text for part in (*evidence.whole, *evidence.headers)))
    known: frozenset[str] = frozenset()
    for part in (*evidence.core, *evidence.near, *evidence.headers):
        known |= part.terms
    return _spaced(said, known)


def _spaced(said: Facts, known: frozenset[str]) -> str:
    best: list[re.Match[str]] = []
    run: list[re.Match[str]] = []
    for word in _WORD.finditer(said.text):
        terms = said.tokenizer.tokens(word[0])
        if not terms:
            continue
        if known.isdisjoint(terms) and not any(char.isdecimal() for char in word[0]):
            run.append(word)
            best = max(best, run, key=len)
        else:
            run = []
        run = list(run)
    return said.text[best[0].start() : best[-1].end()].rstrip(".,;:!?") if len(best) > MAX_STRAY_WORDS else ""


def _unspaced(sentence: str, source: str) -> str:
    best = ""
    for run in _RUN.finditer(sentence):
        kind = run.lastgroup or "thai"
        stray = _stray(run[0], source, _GRAM[kind])
        if len(stray) > MAX_STRAY_CHARS[kind] and len(stray) > len(best):
            best = stray
    return best


def _stray(run: str, source: str, gram: int) -> str:
    """The longest stretch of a run of letters of which no n-gram is in the source."""
    known = [False] * len(run)
    for at in range(max(1, len(run) - gram + 1)):
        if run[at : at + gram] in source:
            known[at : at + gram] = [True] * len(known[at : at + gram])
    best = start = 0
    end = 0
    for at, hit in enumerate([*known, True]):
        if hit:
            if at - start > end - best:
                best, end = start, at
            start = at + 1
    return run[best:end]
