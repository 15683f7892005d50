"""Whether passages support a sentence, decided by rules without a model.

A sentence is supported when it is verbatim in a passage, or when its words are near enough to a few segments of the
cited passages and nothing of what can be compared exactly speaks against it: its numbers, dates and names are there, it
is not negated where the source is not, and no part of it is missing from the source altogether.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rapidfuzz import fuzz

from agentic_retriever.synthesis.evidence import gather
from agentic_retriever.synthesis.fact_checks import problems_of
from agentic_retriever.synthesis.segment_facts import Facts
from agentic_retriever.synthesis.unmatched import longest_unmatched, shared_share
from agentic_retriever.text import dominant_script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentic_retriever.synthesis.citations import PassageMatcher
    from agentic_retriever.synthesis.evidence import Evidence
    from agentic_retriever.text import Tokenizer

SUPPORTED_FROM: Final = 0.56
"""Least likeness of a sentence to its evidence, in [0, 1]; fixed on the first half of the cases in docs/answers.md."""

FLAWED_CAP: Final = 0.3
"""Highest score of a sentence that is not supported."""

TOO_FAR: Final = "too far from the text"
OTHER_SCRIPT: Final = "in another script than the source: only numbers and names can be compared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a sentence is supported, and why not.

    Attributes:
        supported: Whether it is.
        score: How well, in [0, 1]: 1 for a verbatim sentence, at most 0.3 for one that is not supported.
        problems: Why it is not supported, one short line each.
    """

    supported: bool
    score: float
    problems: tuple[str, ...] = ()


def judge(sentence: str, matchers: Sequence[PassageMatcher], tokenizer: Tokenizer) -> Verdict:
    """Decide whether passages support a sentence, one of them or several together.

    Args:
        sentence: One sentence without markers.
        matchers: The passages.
        tokenizer: Cuts sentences and passages into terms.

    Returns:
        The verdict; never an error, whatever the texts.
    """
    if any(matcher.is_verbatim(sentence) for matcher in matchers):
        return Verdict(supported=True, score=1.0)
    said = Facts(sentence, tokenizer)
    headers = [matcher.header for matcher in matchers]
    evidence = gather(said, [matcher.facts for matcher in matchers], headers)
    if evidence is None:
        return Verdict(supported=False, score=0.0, problems=("no passage is cited",))
    likeness = _likeness(said, evidence)
    problems = problems_of(said, evidence)
    if not _comparable(sentence, evidence):
        problems.append(OTHER_SCRIPT)
    elif likeness < SUPPORTED_FROM:
        problems.append(TOO_FAR)
    else:
        stray = longest_unmatched(said, evidence)
        problems += [f"“{stray}” is not in the source"] if stray and not problems else []
    score = min(0.99, likeness) if not problems else min(FLAWED_CAP, likeness)
    return Verdict(supported=not problems, score=score, problems=tuple(problems))


def _likeness(said: Facts, evidence: Evidence) -> float:
    """Mean of the share of terms that the evidence has and the best fuzzy match of a segment of it."""
    share = shared_share(said, (*evidence.core, *evidence.headers))
    needle = said.text.lower()
    texts = [segment.text.lower() for segment in evidence.core]
    ratio = max(max(fuzz.partial_ratio(needle, text), fuzz.token_set_ratio(needle, text)) for text in texts) / 100
    return (share + ratio) / 2


def _comparable(sentence: str, evidence: Evidence) -> bool:
    scripts = {dominant_script(segment.text) for segment in evidence.core}
    return dominant_script(sentence) in scripts or not any(char.isalpha() for char in sentence)
