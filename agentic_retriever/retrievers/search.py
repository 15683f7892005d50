"""What goes into a search and comes out of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentic_retriever.checks import MAX_QUERY_CHARS, MAX_TOP_K
from agentic_retriever.errors import ConfigError, unknown_name
from agentic_retriever.retrievers.fusion import RRF_K, Fusion
from agentic_retriever.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from llama_index.core.schema import BaseNode, NodeWithScore
    from llama_index.core.vector_stores.types import MetadataFilters

    from agentic_retriever.config import RouterConfig
    from agentic_retriever.llm import ModelClient
    from agentic_retriever.retrievers.fusion_model import FusionModel
    from agentic_retriever.schema import Degradation

DEFAULT_WORKERS = 8


@dataclass(frozen=True, slots=True)
class RetrievalRequest:
    """One search.

    Attributes:
        query: The question.
        top_k: How many nodes at most, from 1.
        filters: Only nodes that satisfy them.
        query_vector: The question's vector where it is known already; then it is not embedded again.
        timeout_s: Seconds for the whole search, or ``None`` for the adapter's own limit.
        model: The model to ask, instead of that of the adapter's settings.
    """

    query: str
    top_k: int
    filters: MetadataFilters | None = None
    query_vector: tuple[float, ...] | None = None
    timeout_s: float | None = None
    model: ModelClient | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that a strategy found, before the promises about results are kept.

    Attributes:
        node: The node; it is copied before anyone outside sees it.
        score: How good; a score that is no finite number ranks last.
        sources: The score of each source that found it, by the source's name; only finite ones are kept.
    """

    node: BaseNode
    score: float | None
    sources: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Found:
    """What a strategy hands back: candidates in any order, the steps that fell back, and how it read the question."""

    candidates: tuple[Candidate, ...] = ()
    degraded: tuple[Degradation, ...] = ()
    understood: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of one search.

    Attributes:
        nodes: By falling score, then by node id; unique; finite scores; copies that the caller may change.
        degraded: Steps that fell back.
        understood: What the strategy read in the question, one line each, such as a filter or a part.
    """

    nodes: list[NodeWithScore]
    degraded: tuple[Degradation, ...] = ()
    understood: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSettings:
    """What retrievers are built with.

    Attributes:
        workers: Threads for the async methods and for searches side by side; a pool of its own by default.
        top_k: Nodes that ``retrieve`` returns.
        max_top_k: Largest ``top_k`` that a request may ask for.
        max_query_chars: Longest question allowed, in characters.
        filters: Filters that ``retrieve`` applies.
        timeout_s: Seconds for one search, or ``None`` for no limit beyond the models' own.
        fusion: How hybrid merges its two sides.
        alpha: Weight of the dense side in [0, 1], for every fusion but ``calibrated``, which finds its own; the BM25
            side has the rest.
        rrf_k: Constant of reciprocal rank fusion, from 1.
        weights: The weights of calibrated fusion, instead of those beside the index; for trying them out.
        planner_parts: Most parts that the planner splits a question into, from 2 to 5.
        model: The model that the planner asks; without one it splits by words.
        timer: Gives seconds that only grow.

    Raises:
        ConfigError: If ``fusion``, ``alpha``, ``rrf_k`` or ``planner_parts`` is none of what is allowed.
    """

    workers: Workers = field(default_factory=lambda: Workers(DEFAULT_WORKERS, "retrieval"))
    top_k: int = 5
    max_top_k: int = MAX_TOP_K
    max_query_chars: int = MAX_QUERY_CHARS
    filters: MetadataFilters | None = None
    timeout_s: float | None = None
    fusion: Fusion = Fusion.CALIBRATED
    alpha: float = 0.7
    rrf_k: int = RRF_K
    weights: FusionModel | None = None
    planner_parts: int = 4
    model: ModelClient | None = None
    timer: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "fusion", Fusion(self.fusion))
        except ValueError as err:
            raise ConfigError(unknown_name("fusion", str(self.fusion), (fusion.value for fusion in Fusion))) from err
        if not 0 <= self.alpha <= 1 or self.rrf_k < 1:
            raise ConfigError(f"alpha must be 0 to 1 and rrf_k 1 or more, got {self.alpha!r} and {self.rrf_k!r}")
        if not 2 <= self.planner_parts <= 5:
            raise ConfigError(f"planner_parts must be 2 to 5, got {self.planner_parts!r}")

    @classmethod
    def from_config(
        cls, config: RouterConfig, workers: Workers, *, model: ModelClient | None = None
    ) -> AdapterSettings:
        """Take the settings from a router's configuration, and the model that strategies may ask."""
        return cls(
            workers=workers,
            top_k=config.top_k,
            max_top_k=config.max_top_k,
            max_query_chars=config.max_query_chars,
            timeout_s=config.deadline_s,
            fusion=Fusion(config.fusion),
            alpha=config.hybrid_alpha,
            rrf_k=config.rrf_k,
            planner_parts=config.planner_parts,
            model=model,
        )
