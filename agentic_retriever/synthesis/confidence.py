"""Whether passages answer a question and how far to trust the answer, by weights of ``scripts/fit_confidence.py``."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from agentic_retriever.schema import Record, frozen
from agentic_retriever.text.language_files import packaged_json

# The figures, and whether more of each may only raise (1) or lower (-1) a probability, or either (0).
SIGNS: Final[Mapping[str, int]] = frozen(
    {"reachable": 1, "ahead": 1, "heard": 1, "absent": -1, "unknown": -1, "documents": -1}
    | {"absent_names": -1, "absent_codes": -1}
    | {"beyond": 1, "contrast": 1, "tailored": 1, "margin": 1, "behind": -1, "unseen": 0}
)
_LEAST_SUPPORTED: Final = 0.4
_MOST_ODDS: Final = 60.0  # of a logarithm: a power far out would overflow


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceModel(Record):
    intercept: float
    weights: Mapping[str, float]
    neutral: Mapping[str, float]  # What stands for a figure that is not known

    def probability(self, figures: Mapping[str, float | None]) -> float:
        odds = self.intercept
        for name, weight in self.weights.items():
            value = figures.get(name)
            known = value is not None and math.isfinite(value)
            odds += weight * (value if known and value is not None else self.neutral.get(name, 0.0))
        return 1 / (1 + math.exp(-min(_MOST_ODDS, max(-_MOST_ODDS, odds))))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceModels(Record):
    """Both judgments: that the passages hold an answer, and that one of the citations is where it stands."""

    answered: ConfidenceModel
    right: ConfidenceModel
    answered_from: float  # Nothing is answered from passages that hold an answer with less probability
    high_from: float


@lru_cache(1)
def default_models() -> ConfidenceModels:
    return ConfidenceModels.from_dict(packaged_json("synthesis/confidence_weights.json")["models"])


def supported_share(probability: float, support: float) -> float:
    """Return the probability times ``0.4 + 0.6 * support``: nothing raises an answer without support."""
    support = min(1.0, max(0.0, support)) if math.isfinite(support) else 0.0
    return min(1.0, probability * (_LEAST_SUPPORTED + (1 - _LEAST_SUPPORTED) * support))
