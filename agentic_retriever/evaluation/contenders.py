"""Everybody who is measured: every way of ours that can run here, and the peers."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from agentic_retriever.config.values import spec_of
from agentic_retriever.evaluation.peers import LlamaIndexEmbeddingSelector, NearestUtteranceRouter
from agentic_retriever.evaluation.routing import Contender
from agentic_retriever.router.choices import heuristic_selector, make_classifier
from agentic_retriever.routing import AutoSelector, HeuristicSelector, LLMSelector

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentic_retriever.config import RouterConfig
    from agentic_retriever.evaluation.material import RoutingMaterial
    from agentic_retriever.router import AgenticRouter
    from agentic_retriever.routing import StrategySelector

ASKS_A_MODEL: Final = frozenset({"llm", "auto"})
"""Ways to choose the index that need a language model."""

BY_DESCRIPTION: Final = "embedding"
_NO_DESCRIPTIONS: Final = "not every index has an embedded description"
_NO_MODEL: Final = "no language model is configured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Who takes part, and who could not and why, each by name."""

    contenders: Mapping[str, Contender]
    left_out: Mapping[str, str]


def stage_one_field(router: AgenticRouter, material: RoutingMaterial) -> Field:
    """Gather the ways to choose the index.

    Args:
        router: Its settings make ours.
        material: Tells what can be compared.

    Returns:
        Ours in the order of the setting ``classifier``, then the peers.

    Raises:
        ConfigError: If the settings do not fit.
    """
    contenders: dict[str, Contender] = {}
    left_out: dict[str, str] = {}
    described = all(len(profile.description_vector) for profile in material.profiles.values())
    for mode in _modes(router.config):
        if mode in ASKS_A_MODEL and router.resources.model is None:
            left_out[mode] = _NO_MODEL
        elif mode == BY_DESCRIPTION and not described:
            left_out[mode] = _NO_DESCRIPTIONS
        else:
            config = router.config.with_changes(classifier=mode)
            contenders[mode] = Contender(classifier=make_classifier(config, router.resources.model))
    if material.passages:
        peer = LlamaIndexEmbeddingSelector(material.passages)
        note = "LlamaIndex's class; its latency leaves out that it embeds every description for each question"
        contenders[peer.mode] = Contender(classifier=peer, probabilities=False, peer=True, note=note)
    else:
        left_out[LlamaIndexEmbeddingSelector.mode] = _NO_DESCRIPTIONS
    for aggregation in ("mean", "sum"):
        router_like = NearestUtteranceRouter(aggregation)
        note = "semantic-router's logic written anew: 5 nearest sampled nodes, no threshold"
        contenders[router_like.mode] = Contender(classifier=router_like, probabilities=False, peer=True, note=note)
    return Field(contenders=contenders, left_out=left_out)


def stage_two_field(router: AgenticRouter) -> dict[str, StrategySelector]:
    """Gather the ways to choose the strategy that are the same for every index.

    Args:
        router: Its model takes part, if it has one.

    Returns:
        The heuristic, and with a model the model alone and both together, by name.
    """
    heuristic = HeuristicSelector()
    client = router.resources.model
    if client is None:
        return {heuristic.mode: heuristic}
    model = LLMSelector(client, heuristic)
    base = heuristic_selector(router.config.with_changes(selector="auto"))
    both = AutoSelector(base, LLMSelector(client, base), min_confidence=router.config.escalation_confidence)
    return {"heuristic": heuristic, "llm": model, "auto": both}


def _modes(config: RouterConfig) -> tuple[str, ...]:
    setting = next(found for found in fields(type(config)) if found.name == "classifier")
    return spec_of(setting).choices
