"""The terms of a question, and how much each of them tells."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentic_retriever.text.asking import without_asking

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from agentic_retriever.text import Tokenizer

_ASKS_NUMBER = re.compile(
    r"\bhow (?:many|much|long|far|old|often|high|large|big|fast|deep|wide)\b|\bwhen\b|\b(?:what|which) (?:year|date|"
    r"day|month|percentage|percent|number|rate|price|amount|time|age|size)\b"
    r"|\bcu[aá]nt[oa]s?\b|\bcu[aá]ndo\b|\bqu[eé] (?:año|fecha|d[ií]a|mes|porcentaje|n[uú]mero|edad|precio)\b"
    r"|\bwie ?viele?\b|\bwie (?:lange|hoch|gro[sß]|oft)\b|\bwann\b|\bcombien\b|\bquand\b|\bquant[oiae]s?\b|\bquando\b"
    "|(?<!เ)กี่|เท่าไหร่|เท่าไร|เท่าใด|เมื่อไหร่|เมื่อไร|เมื่อใด|ปีใด|ปีไหน|วันใด|วันไหน|多少|几|幾|何[年月日時人]|いつ|いくら|いくつ|몇|얼마|언제",
    re.IGNORECASE,
)

_FLOOR = 0.5


@dataclass(frozen=True, slots=True)
class Question:
    """A question as it is matched against text.

    Attributes:
        terms: Its distinct terms without those that only ask, in order.
        asks_number: Whether a quantity or a date is asked for.
    """

    terms: tuple[str, ...]
    asks_number: bool

    @classmethod
    def of(cls, query: str, tokenizer: Tokenizer) -> Question:
        """Analyse a question.

        Args:
            query: The question, in any language.
            tokenizer: The one that cuts the texts, too.
        """
        terms = tokenizer.query_tokens(without_asking(query)) or tokenizer.query_tokens(query)
        return cls(tuple(dict.fromkeys(terms)), _ASKS_NUMBER.search(query) is not None)

    def weights(self, texts: Sequence[Collection[str]]) -> dict[str, float]:
        """Weigh the terms by inverse document frequency among some texts.

        A term that is everywhere still counts half: retrieval brought texts together because they have it.

        Args:
            texts: The distinct terms of each text.

        Returns:
            A weight in [0.5, 1] for each term; 1 for a term that occurs nowhere. A code and its parts are not both
            weighed.
        """
        size = len(texts)
        rarest = math.log(size + 1) or 1.0
        found = _without_parts({term: sum(term in text for text in texts) for term in self.terms})
        return {
            term: _FLOOR + (1 - _FLOOR) * (math.log((size + 1) / (count + 1)) / rarest if size else 1.0)
            for term, count in found.items()
        }


def _without_parts(found: Mapping[str, int]) -> dict[str, int]:
    """Count a code such as ``fy2024`` once: as a whole where it occurs so, else by its parts."""
    kept = dict(found)
    for whole in found:
        parts = [term for term in found if term != whole and term in whole]
        if parts and any(char.isdecimal() for char in whole):
            for term in parts if found[whole] else [whole]:
                kept.pop(term, None)
    return kept


def coverage(weights: Mapping[str, float], terms: Collection[str]) -> float:
    """Tell which share of the weighted terms of a question is among some terms.

    Args:
        weights: Weight by question term.
        terms: The terms of a text.

    Returns:
        A share in [0, 1]; 0 for a question without terms.
    """
    total = sum(weights.values())
    return min(1.0, sum(weight for term, weight in weights.items() if term in terms) / total) if total else 0.0
