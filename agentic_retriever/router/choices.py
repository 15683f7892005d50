"""From the names in the settings to the parts of a router."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from agentic_retriever.errors import ConfigError
from agentic_retriever.llm import build_client
from agentic_retriever.routing import (
    AutoClassifier,
    AutoSelector,
    Calibration,
    DomainTerms,
    EmbeddingClassifier,
    HeuristicSelector,
    LearnedSelector,
    LLMClassifier,
    LLMSelector,
    ProfileClassifier,
    RoundRobinSelector,
    StrategyModel,
    StrategySelector,
    probe_features,
    query_features,
)
from agentic_retriever.schema import Tier
from agentic_retriever.synthesis import ExtractiveSynthesizer, LLMSynthesizer, Synthesizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_index.core.llms import LLM

    from agentic_retriever.config import RouterConfig
    from agentic_retriever.embeddings.model import Matrix, Vector
    from agentic_retriever.indices import Index
    from agentic_retriever.llm import ModelClient, TieredClient
    from agentic_retriever.router.resources import Resources
    from agentic_retriever.routing import IndexClassifier

_NEEDS_MODEL = "{setting} is {value}, which needs a model; set llm to ollama:MODEL or openrouter:MODEL, or take auto"


def make_classifier(config: RouterConfig, client: ModelClient | None) -> IndexClassifier:
    """Return stage one.

    Raises:
        ConfigError: If it is to be decided by a model and there is none.
    """
    calibration = Calibration.load(Path(config.calibration_file)) if config.calibration_file else Calibration()
    kind = EmbeddingClassifier if config.classifier == "embedding" else ProfileClassifier
    profile = kind(config.index_margin, abstain_below=config.abstain_below, calibration=calibration)
    if config.classifier == "embedding":
        return profile
    if config.classifier == "profile":
        return profile
    model = None if client is None else LLMClassifier(client, profile, index_margin=config.index_margin)
    if config.classifier == "auto":
        return AutoClassifier(profile, model, margin=config.escalation_margin)
    if model is None:
        raise ConfigError(_NEEDS_MODEL.format(setting="classifier", value=config.classifier))
    return model


class Selectors:
    """Stage two, by index: what was learned on an index serves that index only.

    Args:
        resources: Settings and indexes.
        client: The model that may be asked, or ``None``.
        given: A selector for all indexes, instead of what the settings name.

    Raises:
        ConfigError: If the strategy is to be chosen by a model and there is none, or the domain terms are none.
    """

    def __init__(self, resources: Resources, client: ModelClient | None, *, given: StrategySelector | None) -> None:
        self._resources = resources
        self._config = resources.config
        self._client = client
        self._terms = DomainTerms.parse(resources.config.domain_terms)
        self._learns = given is None and resources.config.selector in {"learned", "auto"}
        self._shared = given or self._without_model_of_index()
        self._lock = threading.Lock()
        self._learned: dict[str, tuple[StrategyModel, StrategySelector]] = {}

    @property
    def repeatable(self) -> bool:
        """Whether the same question gets the same strategy."""
        return self._shared.mode != "round_robin"

    def features(self, query: str, index: Index, complexity: float, vector: Vector | None) -> Mapping[str, float]:
        """Return the signals of a question, with the probes of the index where a learned model reads them."""
        profile = index.profile()
        signals = query_features(query, profile, complexity, domain_terms=self._terms)
        if not self._learns or self._resources.trained(index).model is None:
            return signals
        return {**signals, **probe_features(query, profile, vector)}

    def of(self, index: Index) -> StrategySelector:
        """Return the selector for an index."""
        model = self._resources.trained(index).model if self._learns else None
        if model is None:
            return self._shared
        with self._lock:
            known = self._learned.get(index.name)
            if known is None or known[0] is not model:
                learned = LearnedSelector(model, HeuristicSelector())
                known = self._learned[index.name] = model, self._escalating(learned)
            return known[1]

    def _without_model_of_index(self) -> StrategySelector:
        kind = self._config.selector
        if kind == "round_robin":
            return RoundRobinSelector()
        heuristic = HeuristicSelector()
        if kind in {"heuristic", "learned"}:
            return heuristic
        if kind == "auto":
            return self._escalating(heuristic)
        if self._client is None:
            raise ConfigError(_NEEDS_MODEL.format(setting="selector", value=kind))
        return LLMSelector(self._client, heuristic, form="word" if kind == "llm_word" else "structured")

    def _escalating(self, base: StrategySelector) -> StrategySelector:
        """Add the model that is asked when the base is unsure."""
        if self._config.selector != "auto":
            return base
        model = None if self._client is None else LLMSelector(self._client, base)
        return AutoSelector(base, model, min_confidence=self._config.escalation_confidence)


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


def make_synthesizer(resources: Resources, client: ModelClient | None) -> Synthesizer:
    """Return what writes answers, by the model where there is one, else by extraction."""
    config = resources.config

    def embed(sentences: list[str]) -> Matrix:
        return resources.embedding().embed_sentences(sentences)

    extractive = ExtractiveSynthesizer(
        max_sentences=config.answer_sentences, embed=embed if config.answer_rescoring else None
    )
    model = None if client is None else LLMSynthesizer(client, unsupported=unsupported_policy(config))
    return Synthesizer(extractive, model, answer_threshold=config.answer_threshold)


def unsupported_policy(config: RouterConfig) -> Literal["flag", "mark", "drop"]:
    """Return what becomes of sentences that no passage supports."""
    if config.unsupported_sentences == "mark":
        return "mark"
    return "drop" if config.unsupported_sentences == "drop" else "flag"
