"""From the names in the settings to the parts of a router."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentic_retriever.llm import LLMClient, build_client
from agentic_retriever.routing import EmbeddingClassifier, HeuristicSelector, ProfileClassifier, RoundRobinSelector
from agentic_retriever.schema import Tier
from agentic_retriever.synthesis import ExtractiveSynthesizer, LLMSynthesizer, Synthesizer

if TYPE_CHECKING:
    from llama_index.core.llms import LLM

    from agentic_retriever.config import RouterConfig
    from agentic_retriever.embeddings.model import Matrix
    from agentic_retriever.indices import Index
    from agentic_retriever.llm import ModelClient
    from agentic_retriever.router.resources import Resources
    from agentic_retriever.routing import IndexClassifier, StrategySelector


def make_classifier(config: RouterConfig, client: ModelClient | None) -> IndexClassifier:  # noqa: ARG001 - to come
    """Return stage one."""
    if config.classifier == "embedding":
        return EmbeddingClassifier(index_margin=config.index_margin)
    return ProfileClassifier(index_margin=config.index_margin)


class Selectors:
    """Stage two, by index: what was learned on an index serves that index only.

    Args:
        resources: Settings and indexes.
        client: The model that may be asked, or ``None``.
        given: A selector for all indexes, instead of what the settings name.
    """

    def __init__(self, resources: Resources, client: ModelClient | None, *, given: StrategySelector | None) -> None:
        self._resources = resources
        self._client = client
        self._shared = given or (
            RoundRobinSelector() if resources.config.selector == "round_robin" else HeuristicSelector()
        )

    @property
    def repeatable(self) -> bool:
        """Whether the same question gets the same strategy."""
        return self._shared.mode != "round_robin"

    def of(self, index: Index) -> StrategySelector:  # noqa: ARG002 - to come
        """Return the selector for an index."""
        return self._shared


def make_client(config: RouterConfig, llm: LLM | None) -> LLMClient | None:
    """Return the model that writes answers: the given one, else the configured one, else none.

    Raises:
        ConfigError: If the settings name a model that cannot be built.
    """
    if llm is None:
        return build_client(config)
    return LLMClient(llm, tier=Tier.PRIMARY, timeout_s=config.llm_timeout_s)


def make_synthesizer(resources: Resources, client: LLMClient | None) -> Synthesizer:
    """Return what writes answers, by the model where there is one, else by extraction."""
    config = resources.config

    def embed(sentences: list[str]) -> Matrix:
        return resources.embedding().embed_sentences(sentences)

    extractive = ExtractiveSynthesizer(
        max_sentences=config.answer_sentences, embed=embed if config.answer_rescoring else None
    )
    return Synthesizer(extractive, None if client is None else LLMSynthesizer(client))
