"""From the names in the settings to the parts of a router."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal

from llama_index.core.response_synthesizers import BaseSynthesizer

from agentic_retriever.errors import ConfigError
from agentic_retriever.llm import build_client
from agentic_retriever.retrievers.fusion import Fusion
from agentic_retriever.routing import (
    AutoClassifier,
    AutoSelector,
    EmbeddingClassifier,
    HeuristicSelector,
    LLMClassifier,
    LLMSelector,
    ProfileClassifier,
    RoundRobinSelector,
    StrategySelector,
    fused_weights,
)
from agentic_retriever.schema import Tier
from agentic_retriever.synthesis import ExtractiveSynthesizer, ForeignSynthesizer, LLMSynthesizer, Synthesizer
from agentic_retriever.synthesis.foreign import ForeignModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.llms import LLM
    from llama_index.core.postprocessor.types import BaseNodePostprocessor

    from agentic_retriever.config import RouterConfig
    from agentic_retriever.embeddings.model import Matrix
    from agentic_retriever.llm import ModelClient, TieredClient
    from agentic_retriever.router.resources import Resources
    from agentic_retriever.routing import IndexClassifier

_NEEDS_MODEL = "{setting} is {value}, which needs a model; set llm to ollama:MODEL or openrouter:MODEL, or take auto"


def make_classifier(config: RouterConfig, client: ModelClient | None) -> IndexClassifier:
    """Return stage one.

    Raises:
        ConfigError: If it is to be decided by a model and there is none.
    """
    kind = EmbeddingClassifier if config.classifier == "embedding" else ProfileClassifier
    profile = kind(config.index_margin, abstain_below=config.abstain_below)
    if config.classifier in {"embedding", "profile"}:
        return profile
    model = None if client is None else LLMClassifier(client, profile, index_margin=config.index_margin)
    if config.classifier == "auto":
        return AutoClassifier(profile, model, margin=config.escalation_margin)
    if model is None:
        raise ConfigError(_NEEDS_MODEL.format(setting="classifier", value=config.classifier))
    return model


def make_selector(config: RouterConfig, client: ModelClient | None) -> StrategySelector:
    """Return stage two.

    Raises:
        ConfigError: If it is to be decided by a model and there is none.
    """
    kind = config.selector
    if kind == "round_robin":
        return RoundRobinSelector()
    heuristic = heuristic_selector(config)
    if kind == "heuristic":
        return heuristic
    if kind == "auto":
        model = None if client is None else LLMSelector(client, heuristic)
        return AutoSelector(heuristic, model, min_confidence=config.escalation_confidence)
    if client is None:
        raise ConfigError(_NEEDS_MODEL.format(setting="selector", value=kind))
    return LLMSelector(client, heuristic, form="word" if kind == "llm_word" else "structured")


def heuristic_selector(config: RouterConfig) -> HeuristicSelector:
    """Return what decides where no language model does.

    Unless the settings ask for the wording alone (``selector=heuristic``), it starts from ``hybrid`` where that is
    calibrated, since it was then better than dense search on every public collection that was tried.
    """
    measured = config.selector != "heuristic" and config.fusion == Fusion.CALIBRATED.value
    return HeuristicSelector(fused_weights() if measured else None)


def make_client(config: RouterConfig, llm: LLM | None) -> TieredClient | None:
    """Return the models that write answers: the given one and the configured ones, or none.

    Raises:
        ConfigError: If the settings name a model that cannot be built, or the given one is none.
    """
    if llm is not None and not hasattr(llm, "complete"):
        raise ConfigError(
            f"llm must be a LlamaIndex LLM, got {type(llm).__name__}; name a model by the setting llm, "
            "as in RouterConfig(llm='ollama:llama3:8b')"
        )
    return build_client(config, models=None if llm is None else {Tier.PRIMARY: llm})


def make_synthesizer(
    resources: Resources, client: ModelClient | None, given: Synthesizer | BaseSynthesizer | None = None
) -> Synthesizer:
    """Return what writes answers: the given one, else the model where there is one, else extraction.

    Raises:
        ConfigError: If the given one is no synthesizer, neither ours nor LlamaIndex's.
    """
    if given is not None and not isinstance(given, BaseSynthesizer):
        if callable(getattr(given, "synthesize", None)) and callable(getattr(given, "stream", None)):
            return given
        raise ConfigError(
            f"synthesizer must be a Synthesizer or a LlamaIndex response synthesizer, got {type(given).__name__}"
        )
    config = resources.config
    model: LLMSynthesizer | ForeignSynthesizer | None = None
    if given is not None:
        model = ForeignSynthesizer(given, unsupported=unsupported_policy(config))
    elif client is not None:
        model = LLMSynthesizer(client, unsupported=unsupported_policy(config))
    return Synthesizer(_make_extractive(resources), model, answer_threshold=config.answer_threshold)


def _make_extractive(resources: Resources) -> ExtractiveSynthesizer:
    """Return what writes answers without a model."""
    config = resources.config

    def embed(sentences: list[str]) -> Matrix:
        return resources.embedding().embed_sentences(sentences)

    return ExtractiveSynthesizer(
        max_sentences=config.answer_sentences, embed=embed if config.answer_rescoring else None
    )


def writers_key(client: ModelClient | None, given: object, postprocessors: Sequence[BaseNodePostprocessor]) -> str:
    """Name what answers depend on besides settings and indexes, for the key of the answer cache.

    What somebody brought along is told apart by a digest of its settings, so that routers which share a cache do not
    get each other's answers; where the settings have no stable form they share nothing.
    """
    names = ["none" if client is None else repr(client)]
    if isinstance(given, BaseSynthesizer):
        names.append(f"{ForeignModel(given).model} {_digest(given.get_prompts())}")
    elif given is not None:
        names.append(f"{type(given).__name__} {_digest(vars(given) if hasattr(given, '__dict__') else given)}")
    names.extend(f"{type(one).__name__} {_digest(_settings(one))}" for one in postprocessors)
    return ", ".join(names)


def _settings(postprocessor: BaseNodePostprocessor) -> dict[str, object]:
    return {name: value for name, value in postprocessor if name != "callback_manager"}


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode("utf-8", "replace")).hexdigest()[:16]


def unsupported_policy(config: RouterConfig) -> Literal["flag", "mark", "drop"]:
    """Return what becomes of sentences that no passage supports."""
    if config.unsupported_sentences == "mark":
        return "mark"
    return "drop" if config.unsupported_sentences == "drop" else "flag"
