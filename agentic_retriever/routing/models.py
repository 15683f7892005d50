"""Choices by a language model: asked in one call, read by name, joined with the evidence, never an error."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Literal

from agentic_retriever.errors import ConfigError, DeadlineExceededError, LLMError, LLMOutputError
from agentic_retriever.indices.profile import IndexProfile
from agentic_retriever.llm import Choice, ModelClient, TierNeeds, ask, random_boundary, read_choice, spent_on_failure
from agentic_retriever.llm.prompts import index_choice_prompt, strategy_choice_prompt, strategy_word_prompt
from agentic_retriever.routing.classifier import DEFAULT_INDEX_MARGIN, IndexClassifier, Profiles, Vector
from agentic_retriever.routing.selector import StrategySelector
from agentic_retriever.routing.signals import checked_share
from agentic_retriever.schema import NO_LIMITS, Budget, Degradation, Selection, Strategy, StrategyCard, TierUsage

_Described = list[tuple[str, list[str]]]

DEFAULT_ESCALATION_MARGIN: Final = 0.2  # lead in probability of the first index below which a model is asked
# Probability of the first strategy below which a model is asked; with no signal at all the heuristic has 0.39.
DEFAULT_MIN_CONFIDENCE: Final = 0.35

# Weight of a model's choice that says it is certain, as models do too often; and of one without a confidence.
MOST_WEIGHT: Final = 0.95
UNSTATED_WEIGHT: Final = 0.75

MAX_SHOWN: Final = 20  # indexes are shown to a model; of more, those that the evidence finds the likeliest
_MAX_LOGGED: Final = 500
_MAX_REASON: Final = 300
_PROMPTS: Final = {"structured": strategy_choice_prompt, "word": strategy_word_prompt}

logger = logging.getLogger(__name__)


class AutoClassifier:
    """Picks the index by evidence, and asks a model where the lead is small or no index seems to fit.

    Without a model, or where the allowance forbids one, the decision by evidence stands as it is. A decision that was
    handed to a model says so in ``Selection.escalated``, whatever the model said.
    """

    mode = "auto"

    def __init__(
        self, base: IndexClassifier, model: LLMClassifier | None, *, margin: float = DEFAULT_ESCALATION_MARGIN
    ) -> None:
        self.margin = checked_share("margin", margin)
        self._base = base
        self._model = model

    def classify(
        self, query: str, profiles: Profiles, *, query_vector: Vector | None, allowance: Budget = NO_LIMITS
    ) -> Selection:
        base = self._base.classify(query, profiles, query_vector=query_vector, allowance=allowance)
        clear = base.margin >= self.margin and not base.abstained
        if self._model is None or clear or not allowance.may_ask:
            return base
        return _escalated(base, self._model.reconsider(query, profiles, base, allowance))


class AutoSelector:
    """Picks the strategy by signals, and asks a model only where that is unsure; otherwise as ``AutoClassifier``."""

    mode = "auto"

    def __init__(
        self, base: StrategySelector, model: LLMSelector | None, *, min_confidence: float = DEFAULT_MIN_CONFIDENCE
    ) -> None:
        self.min_confidence = checked_share("min_confidence", min_confidence)
        self._base = base
        self._model = model

    def select(
        self, query: str, cards: Sequence[StrategyCard], *, features: Mapping[str, float], allowance: Budget = NO_LIMITS
    ) -> Selection:
        base = self._base.select(query, cards, features=features, allowance=allowance)
        if self._model is None or base.confidence >= self.min_confidence or not allowance.may_ask:
            return base
        return _escalated(base, self._model.reconsider(query, cards, base, allowance))


def _escalated(base: Selection, final: Selection) -> Selection:
    return base if final is base else replace(final, escalated=True)


class _ModelChoice:
    """What both choices by a model share: one call, and its answer joined with what the evidence came to."""

    mode = "llm"
    index_margin = 0.0
    least = 0.0  # probability of what comes first below which the order of reliability decides

    def __init__(
        self, client: ModelClient, boundary: Callable[[], str], prompt: Callable[..., str], *, step: str
    ) -> None:
        self._step = step
        self._client = client
        self._boundary = boundary
        self._prompt = prompt

    def _decide(self, base: Selection, query: str, described: _Described, allowance: Budget) -> Selection:
        """Ask the model about a decision; ``base`` itself where there is nothing to choose."""
        if len(base.scores) < 2 or len(described) < 2:
            return base
        prompt = partial(self._prompt, shortened(query), described)
        choice, failure, spent = self._ask([name for name, _ in described], prompt, allowance)
        base = replace(base, spent=(*base.spent, *spent))
        if choice is not None:
            return join_choice(base, choice, second=self.index_margin, least=self.least)
        lost = Degradation(step=self._step, reason=failure, fallback=base.mode)
        return replace(base, degraded=(*base.degraded, lost))

    def _ask(
        self, names: Sequence[str], prompt: Callable[[str], str], allowance: Budget
    ) -> tuple[Choice | None, str, tuple[TierUsage, ...]]:
        """Return what the model chose, else why not, and what asking cost; at most one call."""
        if not allowance.may_ask:
            return None, "neither the budget nor the time to choose has a model call left; allow more", ()
        limited = allowance.max_usd is not None or allowance.max_llm_calls is not None
        needs = TierNeeds(budget=allowance) if limited else None
        try:
            asked = ask(self._client, prompt, timeout_s=allowance.timeout_s, needs=needs, boundary=self._boundary)
        except (LLMError, DeadlineExceededError) as err:
            return None, str(err)[:_MAX_REASON], spent_on_failure(self._client.tier, self._client.model, err)
        try:
            return read_choice(asked.text, names), "", asked.spent
        except LLMOutputError as err:
            # At DEBUG only: a reply may repeat the question.
            logger.debug("%s Reply: %s", err, ascii(asked.text[:_MAX_LOGGED])[: _MAX_LOGGED - len(str(err)) - 8])
            return None, str(err), asked.spent


class LLMClassifier(_ModelChoice):
    """Asks a model which index a query is about; at most one call a query, none where one index alone has nodes.

    The evidence decides first, by ``fallback``; the model's choice is then joined with it (see ``join_choice``). When
    the model may not be asked, fails or says nothing that can be read, the decision by evidence stands, and
    ``Selection.degraded`` says why. Safe to share between threads.
    """

    def __init__(
        self,
        client: ModelClient,
        fallback: IndexClassifier,
        *,
        index_margin: float = DEFAULT_INDEX_MARGIN,
        boundary: Callable[[], str] = random_boundary,
    ) -> None:
        super().__init__(client, boundary, index_choice_prompt, step="routing.index.llm")
        self._fallback = fallback
        self.index_margin = checked_share("index_margin", index_margin)

    def classify(
        self, query: str, profiles: Profiles, *, query_vector: Vector | None, allowance: Budget = NO_LIMITS
    ) -> Selection:
        base = self._fallback.classify(query, profiles, query_vector=query_vector, allowance=allowance)
        return self.reconsider(query, profiles, base, allowance)

    def reconsider(self, query: str, profiles: Profiles, base: Selection, allowance: Budget) -> Selection:
        filled = [profile for profile in profiles if profile.nodes > 0]
        likeliest = sorted(filled, key=lambda profile: -base.scores.get(profile.name, 0.0))[:MAX_SHOWN]
        names = {profile.name for profile in likeliest}
        # In order of registration, so that the place of an index in the prompt tells nothing.
        shown = [profile for profile in filled if profile.name in names]
        described = [(one.name, _index_lines(one, [other for other in shown if other is not one])) for one in shown]
        return self._decide(base, query, described, allowance)


class LLMSelector(_ModelChoice):
    """Asks a model for the strategy; at most one call a query, none where one strategy is offered.

    ``fallback`` decides first by the signals of the query, otherwise as :class:`LLMClassifier`. Where both together
    leave the first strategy below ``least``, the most reliable one is taken, and the reason says so.
    """

    least = DEFAULT_MIN_CONFIDENCE

    def __init__(
        self,
        client: ModelClient,
        fallback: StrategySelector,
        *,
        form: Literal["structured", "word"] = "structured",
        boundary: Callable[[], str] = random_boundary,
    ) -> None:
        if form not in _PROMPTS:
            raise ConfigError(f"form must be one of {', '.join(_PROMPTS)}, got {str(form)[:40]!r}")
        super().__init__(client, boundary, _PROMPTS[form], step="routing.strategy.llm")
        self._fallback = fallback

    def select(
        self, query: str, cards: Sequence[StrategyCard], *, features: Mapping[str, float], allowance: Budget = NO_LIMITS
    ) -> Selection:
        base = self._fallback.select(query, cards, features=features, allowance=allowance)
        return self.reconsider(query, cards, base, allowance)

    def reconsider(self, query: str, cards: Sequence[StrategyCard], base: Selection, allowance: Budget) -> Selection:
        described: dict[str, list[str]] = {}
        for card in cards:
            lines = [f"Description: {card.description[:MAX_DESCRIPTION_CHARS]}", f"Cost: {card.cost:g}"]
            if card.quality is not None:
                lines.append(f"Measured quality: {card.quality:.2f}")
            described.setdefault(card.strategy.value, lines)
        return self._decide(base, query, list(described.items()), allowance)


def join_choice(base: Selection, choice: Choice, *, second: float, least: float = 0.0) -> Selection:
    """Pool a model's choice and the evidence linearly (M. Stone, "The Opinion Pool", 1961), by stated confidence."""
    weight = UNSTATED_WEIGHT if choice.confidence is None else min(MOST_WEIGHT, max(0.0, choice.confidence))
    shares = {name: (1.0 - weight) * share for name, share in _distribution(base.scores).items()}
    shares[choice.name] = shares.get(choice.name, 0.0) + weight
    ranked = dict(sorted(shares.items(), key=lambda item: (-item[1], item[0] != choice.name)))
    order = list(ranked)
    is_doubtful = ranked[order[0]] < least
    if is_doubtful:  # together they hardly know more than chance
        order.sort(key=lambda name: Strategy(name).reliability)
        ranked = {name: ranked[name] for name in order}
    margin = max(0.0, ranked[order[0]] - ranked[order[1]])
    # Evidence gives no share at all to an index without nodes.
    too = margin < second and base.scores.get(order[1], 0.0) > 0
    unsure = choice.confidence is not None and choice.confidence < 0.5
    stated = "" if choice.confidence is None else f" with confidence {choice.confidence:.2f}"
    reason = f"the model chose it{stated}{f': {choice.reason}' if choice.reason else ''}"
    if is_doubtful or order[0] != choice.name:
        likeliest = f"nothing is likelier than {max(ranked.values()):.2f}, so the order of reliability decides"
        outweighed = f"the evidence outweighs it: {base.reason}"
        reason = f"the model chose {choice.name!r}{stated}; {likeliest if is_doubtful else outweighed}"
    return replace(
        base,
        name=order[0],
        names=tuple(order[: 2 if too else 1]),
        confidence=ranked[order[0]],
        scores=ranked,
        margin=margin,
        reason=reason,
        mode="llm",
        # Where the evidence finds nothing fitting, a model that is more doubtful than not does not overrule it.
        abstained=base.abstained and unsure,
        evidence={**base.evidence, choice.name: {**base.evidence.get(choice.name, {}), "llm": weight}},
    )


def _distribution(scores: Mapping[str, float]) -> dict[str, float]:
    """Bring scores to a sum of 1; equal shares where they are no probabilities."""
    usable = all(math.isfinite(score) and score >= 0 for score in scores.values())
    total = math.fsum(scores.values()) if usable else 0.0
    if total <= 0:
        return dict.fromkeys(scores, 1.0 / len(scores))
    return {name: score / total for name, score in scores.items()}


# What a model is shown of the options that it chooses among: descriptions and statistics, never retrieved text.

MAX_DESCRIPTION_CHARS: Final = 600
MAX_QUERY_CHARS: Final = 4_000

_QUERY_TAIL: Final = 1_000
_TERMS: Final = 12
_COMMON_TERMS: Final = 400
_FIELDS: Final = 8
_VALUES: Final = 6
_VALUE_CHARS: Final = 40
# Terms of scripts without spaces are groups of characters, which say nothing to a reader.
_UNSPACED: Final = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")


def shortened(query: str) -> str:
    """Cut a question to 4,000 characters; its end, where the question of a long text mostly stands, is kept."""
    if len(query) <= MAX_QUERY_CHARS:
        return query
    return f"{query[: MAX_QUERY_CHARS - _QUERY_TAIL]} … {query[-_QUERY_TAIL:]}"


def _index_lines(profile: IndexProfile, others: Profiles) -> list[str]:
    """Describe an index by what it holds."""
    lines = [f"Description: {profile.description[:MAX_DESCRIPTION_CHARS]}"] if profile.description.strip() else []
    if profile.language != "und":
        lines.append(f"Language: {profile.language}")
    lines.append(f"Passages: {profile.nodes:,}")
    terms = characteristic_terms(profile, others)
    if terms:
        lines.append(f"Typical words: {', '.join(terms)}")
    fields = [
        f"{name}: {'; '.join(value[:_VALUE_CHARS] for value in sorted(values)[:_VALUES])}"
        for name, values in sorted(profile.field_values.items())
        if values
    ]
    fields += [f"{name}: {low:g} to {high:g}" for name, (low, high) in sorted(profile.number_ranges.items())]
    return [*lines, *(f"Field {line[: _VALUES * _VALUE_CHARS * 2]}" for line in fields[:_FIELDS])]


def characteristic_terms(profile: IndexProfile, others: Profiles, most: int = _TERMS) -> list[str]:
    """Find the terms that tell an index from others, by their part of its Kullback-Leibler divergence from these."""
    common = sorted(profile.document_frequency.items(), key=lambda item: (-item[1], item[0]))[:_COMMON_TERMS]
    told: list[tuple[float, str]] = []
    for term, count in common:
        if len(term) < 3 or not term.isalpha() or _UNSPACED.search(term):
            continue
        here = (count + 0.5) / (profile.nodes + 1)
        elsewhere = [(other.document_frequency.get(term, 0) + 0.5) / (other.nodes + 1) for other in others]
        there = math.fsum(elsewhere) / len(elsewhere) if elsewhere else 1.0 / (profile.nodes + 1)
        told.append((here * math.log(here / there), term))
    return [term for weight, term in sorted(told, key=lambda pair: (-pair[0], pair[1]))[:most] if weight > 0]
