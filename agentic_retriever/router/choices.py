"""From the names in the settings to the parts of a router."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from llama_index.core.response_synthesizers import BaseSynthesizer

from agentic_retriever.errors import ConfigError
from agentic_retriever.llm import build_client
from agentic_retriever.retrievers.fusion import Fusion
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
    fused_weights,
    probe_features,
    query_features,
)
from agentic_retriever.schema import Tier
from agentic_retriever.synthesis import ExtractiveSynthesizer, ForeignSynthesizer, LLMSynthesizer, Synthesizer
from agentic_retriever.synthesis.foreign import ForeignModel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index.core.llms import LLM
    from llama_index.core.postprocessor.types import BaseNodePostprocessor

    from agentic_retriever.config import RouterConfig
    from agentic_retriever.embeddings.model import Matrix, Vector
    from agentic_retriever.indices import RoutedIndex
    from agentic_retriever.llm import ModelClient, TieredClient
    from agentic_retriever.router.resources import Resources
    from agentic_retriever.routing import IndexClassifier

_NEEDS_MODEL = "{setting} is {value}, which needs a model; set llm to ollama:MODEL or openrouter:MODEL, or take auto"


def make_classifier(config: RouterConfig, client: ModelClient | None) -> IndexClassifier:
    """Return stage one.

    Raises:
        ConfigError: If it is to be decided by a model and there is none, or the calibration cannot be read.
    """
    calibration = _calibration(config.calibration_file)
    kind = EmbeddingClassifier if config.classifier == "embedding" else ProfileClassifier
    profile = kind(config.index_margin, abstain_below=config.abstain_below, calibration=calibration)
    if config.classifier in {"embedding", "profile"}:
        return profile
    model = None if client is None else LLMClassifier(client, profile, index_margin=config.index_margin)
    if config.classifier == "auto":
        return AutoClassifier(profile, model, margin=config.escalation_margin)
    if model is None:
        raise ConfigError(_NEEDS_MODEL.format(setting="classifier", value=config.classifier))
    return model


def _calibration(path: str) -> Calibration:
    if not path:
        return Calibration()
    try:
        return Calibration.load(Path(path))
    except (ConfigError, RecursionError) as err:
        what = str(err) if isinstance(err, ConfigError) else "nested too deeply; fit the calibration again"
        where = "" if path in what else f"{path}: "
        raise ConfigError(f"setting calibration_file: {where}{what}") from err


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

    def features(self, query: str, index: RoutedIndex, complexity: float, vector: Vector | None) -> Mapping[str, float]:
        """Return the signals of a question, with the probes of the index where a learned model reads them."""
        profile = index.profile()
        signals = query_features(query, profile, complexity, domain_terms=self._terms)
        if not self._learns or self._resources.trained(index).model is None:
            return signals
        return {**signals, **probe_features(query, profile, vector)}

    def of(self, index: RoutedIndex) -> StrategySelector:
        """Return the selector for an index."""
        model = self._resources.trained(index).model if self._learns else None
        if model is None:
            return self._shared
        with self._lock:
            known = self._learned.get(index.name)
            if known is None or known[0] is not model:
                learned = LearnedSelector(model, self._heuristic())
                known = self._learned[index.name] = model, self._escalating(learned)
            return known[1]

    def _without_model_of_index(self) -> StrategySelector:
        kind = self._config.selector
        if kind == "round_robin":
            return RoundRobinSelector()
        heuristic = self._heuristic()
        if kind in {"heuristic", "learned"}:
            return heuristic
        if kind == "auto":
            return self._escalating(heuristic)
        if self._client is None:
            raise ConfigError(_NEEDS_MODEL.format(setting="selector", value=kind))
        return LLMSelector(self._client, heuristic, form="word" if kind == "llm_word" else "structured")

    def _heuristic(self) -> HeuristicSelector:
        return heuristic_selector(self._config)

    def _escalating(self, base: StrategySelector) -> StrategySelector:
        """Add the model that is asked when the base is unsure."""
        if self._config.selector != "auto":
            return base
        model = None if self._client is None else LLMSelector(self._client, base)
        return AutoSelector(base, model, min_confidence=self._config.escalation_confidence)


def heuristic_selector(config: RouterConfig) -> HeuristicSelector:
    """Return what decides where no model of the index and no language model does.

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
