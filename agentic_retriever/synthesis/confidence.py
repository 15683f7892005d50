"""How far an answer can be trusted: a probability from what is seen of the question, the passages and the citations.

A logistic regression over a handful of features, whose weights stand in ``confidence_weights.json`` and are fitted by
``scripts/fit_confidence.py``. What more of a feature can mean is fixed beforehand (``SIGNS``), so that no weight says
that better evidence makes a worse answer.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Final

from agentic_retriever.schema import Record, frozen

# The features, and whether more of each may only raise (1) or lower (-1) the probability, or either (0).
SIGNS: Final[Mapping[str, int]] = frozen(
    {"reachable": 1, "absent": -1, "missing_code": -1, "unknown_share": -1}
    | {"relevance_odds": 1, "relevance_unknown": 0, "foreign": 0}
)
_LOGIT_LIMIT: Final = 6.0
_LEAST_SUPPORTED: Final = 0.4
_FAR: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFeatures:
    """What is known of an answer; ``None`` for what is not."""

    reachable: float  # Weighted share of the question's terms in the best single passage, in [0, 1]
    absent: float  # Weighted share of them in no passage at all, in [0, 1]
    missing_code: float = 0.0  # 1 where the question names a code that no passage has
    relevance: float | None = None  # How near the dense retriever found the question to the nodes, in [0, 1]
    unknown_share: float | None = None
    foreign: bool = False  # Question and best passage are in different languages
    nearness: float | None = None  # Cosine of the question with the best sentence, as the model gives it
    margin: float | None = None  # Lead of the best passage over the next one, as a share of its score, in [0, 1]
    has_kind: float | None = None  # How well the best sentence shows what is asked for, such as a date, in [0, 1]
    absent_names: float = 0.0  # Share of the question's names, codes and numbers that no passage has, in [0, 1]

    def values(self) -> dict[str, float | None]:
        """Return the model's features by name, clipped; those that are not finite count as 0.

        Without ``relevance`` the words stand for the vectors; an ``unknown_share`` of ``None`` is filled by the model.
        """
        names = ("reachable", "absent", "missing_code", "unknown_share")
        by_words = {name: None if (share := getattr(self, name)) is None else _unit(share) for name in names}
        # Words stand for a relevance that is not known; in another language nothing does.
        relevance = _FAR if self.foreign and self.relevance is None else self.relevance
        return {
            **(dict.fromkeys(by_words, 0.0) if self.foreign else by_words),
            "relevance_odds": 0.0 if relevance is None else _logit(_unit(relevance)),
            "relevance_unknown": float(relevance is None),
            "foreign": float(self.foreign),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceModel(Record):
    intercept: float
    weights: Mapping[str, float]
    neutral: Mapping[str, float]

    def probability(self, features: AnswerFeatures) -> float:
        values = features.values()
        log_odds = self.intercept + sum(
            weight * (self.neutral.get(name, 0.0) if (value := values[name]) is None else value)
            for name, weight in self.weights.items()
        )
        return 1 / (1 + math.exp(-min(60.0, max(-60.0, log_odds))))


@lru_cache(1)
def default_model() -> ConfidenceModel:
    text = (files("agentic_retriever.synthesis") / "confidence_weights.json").read_text("utf-8")
    return ConfidenceModel.from_dict(json.loads(text)["model"])


def confidence_score(features: AnswerFeatures, *, support: float, model: ConfidenceModel | None = None) -> float:
    """Return the model's probability times ``0.4 + 0.6 * support``: nothing raises an answer without support."""
    probability = (model or default_model()).probability(features)
    return min(1.0, probability * (_LEAST_SUPPORTED + (1 - _LEAST_SUPPORTED) * _unit(support)))


def _logit(share: float) -> float:
    if share <= 0 or share >= 1:
        return math.copysign(_LOGIT_LIMIT, share - 0.5)
    return min(_LOGIT_LIMIT, max(-_LOGIT_LIMIT, math.log(share / (1 - share))))


def _unit(value: float) -> float:
    return min(1.0, max(0.0, value)) if math.isfinite(value) else 0.0


# --- whether what was retrieved answers a question: what ends in "not found", in the order a query meets it ---------
#
# Before retrieval, stage one alone decides (``routing/classifier.py``); what is done with a question that it finds out
# of scope says ``on_abstain``, and one that is declined has no passages.

MAX_JUDGED: Final = 10  # so many of the retrieved nodes are looked at together
SUPPORT_BELOW: Final = 0.3  # nothing is answered from passages that hold an answer with less probability
# Share of the threshold from which a model is asked: it may read more in the passages than their words tell.
_MODEL_FROM: Final = 0.9


def why_not_read(support: float) -> str:
    """Judge the passages as a whole, by the probability that they hold an answer: why nobody reads them, or ``""``."""
    return "" if support >= SUPPORT_BELOW else f"the passages found hardly answer this (probability {support:.2f})"


def is_answerable(sentences: str, confidence: float, *, threshold: float, asks_model: bool) -> bool:
    """Judge what can be quoted: whether any sentence was found, and the confidence in an answer from the passages."""
    return bool(sentences) and confidence >= threshold * (_MODEL_FROM if asks_model else 1.0)
